// SPDX-License-Identifier: GPL-2.0

//! The monitor device that a capture has for itself: made, set up, and taken away, over rtnetlink.

use crate::{
    link::{self, ask, connect},
    netlink::Error,
    runtime,
};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    RouteNetlinkMessage,
};
use netlink_sys::Socket;
use nix::{
    errno::Errno,
    fcntl::{fcntl, FcntlArg, OFlag},
    libc,
};
use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

/// The kind of device.
const KIND: &str = "kopimon";
/// What is written on those that captures make.
const ALIAS: &str = "made by kopictl capture";
/// So many captures at once.
const CAPTURES: u32 = 1024;

const TOO_OLD: &str = "the KOPI in this kernel is too old to capture: take it out and load this \
                       version's, `modprobe -r kopi && modprobe kopi`";
const NO_TRACEPOINTS: &str = "this kernel has no tracepoint net:net_dev_start_xmit, without which \
                              KOPI can't show packets";

/// A monitor device, which ends with this.
pub(super) struct Monitor {
    socket: Socket,
    /// Its name.
    pub(super) name: String,
    index: u32,
    /// Says to others that this capture lives, as long as it does.
    _claims: Option<Claims>,
}

impl Monitor {
    /// Makes one, or takes that of a capture that was killed.
    pub(super) fn new() -> anyhow::Result<Self> {
        let socket = connect()?;
        // Root of a user namespace has none: it makes devices, and takes nobody's over.
        let claims = Claims::open().ok();
        for number in 0..CAPTURES {
            let name = format!("{KIND}{number}");
            if let Some(claims) = &claims {
                if !claims.take(number)? {
                    continue;
                }
            }
            let made = make(&socket, &name, claims.is_some());
            let Some(index) = made.map_err(|error| explained(error, TOO_OLD))? else {
                if let Some(claims) = &claims {
                    claims.give_up(number)?;
                }
                continue;
            };
            let monitor = Self {
                socket,
                name,
                index,
                _claims: claims,
            };
            let up = monitor.set_up();
            up.map_err(|error| explained(error, NO_TRACEPOINTS))?;
            return Ok(monitor);
        }
        anyhow::bail!("there are {CAPTURES} captures in this network namespace already");
    }

    fn message(&self) -> LinkMessage {
        let mut link = LinkMessage::default();
        link.header.index = self.index;
        link
    }

    fn set_up(&self) -> Result<(), Error> {
        let mut link = self.message();
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        link.attributes = vec![LinkAttribute::IfAlias(ALIAS.to_owned())];
        ask(&self.socket, RouteNetlinkMessage::SetLink(link), 0).map(drop)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // If it is gone already, so much the better.
        let _ = ask(
            &self.socket,
            RouteNetlinkMessage::DelLink(self.message()),
            0,
        );
    }
}

/// Locks of devices' names among captures, of which only root can have one: a byte of a file for each
/// name in each network namespace. They end with the capture.
struct Claims {
    file: File,
    namespace: u64,
}

impl Claims {
    fn open() -> io::Result<Self> {
        let path = runtime::folder()?.join("captures.lock");
        Self::at(&path, fs::metadata("/proc/self/ns/net")?.ino())
    }

    fn at(path: &Path, namespace: u64) -> io::Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(path)?;
        Ok(Self { file, namespace })
    }

    /// Claims the device of this number, unless another capture has it.
    fn take(&self, number: u32) -> io::Result<bool> {
        match self.lock(number, libc::F_WRLCK) {
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            locked => Ok(locked.map(|()| true)?),
        }
    }

    fn give_up(&self, number: u32) -> io::Result<()> {
        Ok(self.lock(number, libc::F_UNLCK)?)
    }

    fn lock(&self, number: u32, kind: libc::c_int) -> Result<(), Errno> {
        let place = self.namespace.checked_mul(CAPTURES.into());
        let place = place.and_then(|place| place.checked_add(number.into()));
        let start = place.and_then(|place| place.try_into().ok());
        let lock = libc::flock {
            l_type: kind.try_into().map_err(|_| Errno::EINVAL)?,
            l_whence: 0,
            l_start: start.ok_or(Errno::EOVERFLOW)?,
            l_len: 1,
            l_pid: 0,
        };
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&lock)).map(drop)
    }
}

/// Makes a device and gives its index; nothing, if there is one of that name that no capture made, or
/// none of those may be taken over.
fn make(socket: &Socket, name: &str, take_over: bool) -> Result<Option<u32>, Error> {
    let mut link = LinkMessage::default();
    let kind = LinkInfo::Kind(InfoKind::Other(KIND.to_owned()));
    link.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::LinkInfo(vec![kind]),
    ];
    let message = RouteNetlinkMessage::NewLink(link);
    match ask(socket, message, NLM_F_CREATE | NLM_F_EXCL) {
        Ok(_) => find(socket, name, |_| true),
        Err(error) if error.is(Errno::EEXIST) && !take_over => Ok(None),
        Err(error) if error.is(Errno::EEXIST) => find(socket, name, left_behind),
        Err(error) => Err(error),
    }
}

/// The index of the device of that name, if it matches.
fn find(
    socket: &Socket,
    name: &str,
    matches: fn(&[LinkAttribute]) -> bool,
) -> Result<Option<u32>, Error> {
    let found = link::find(socket, name)?;
    Ok(found.and_then(|link| matches(&link.attributes).then_some(link.header.index)))
}

/// Whether a capture made this device.
fn left_behind(attributes: &[LinkAttribute]) -> bool {
    let kind = |info: &LinkInfo| matches!(info, LinkInfo::Kind(kind) if kind.to_string() == KIND);
    let of_kind = attributes.iter().any(
        |attribute| matches!(attribute, LinkAttribute::LinkInfo(infos) if infos.iter().any(kind)),
    );
    of_kind && attributes.contains(&LinkAttribute::IfAlias(ALIAS.to_owned()))
}

/// With what to do about it, if that can't be done at all.
fn explained(error: Error, what: &'static str) -> anyhow::Error {
    let impossible = error.is(Errno::EOPNOTSUPP);
    let error = anyhow::Error::from(error);
    match impossible {
        true => error.context(what),
        false => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_claimed_once_in_a_namespace() {
        let path = std::env::temp_dir().join(format!("kopictl-claims-{}", std::process::id()));
        let open = |namespace| Claims::at(&path, namespace).unwrap();
        let (first, second, elsewhere) = (open(7), open(7), open(8));
        assert!(first.take(0).unwrap());
        assert!(!second.take(0).unwrap());
        assert!(second.take(1).unwrap() && elsewhere.take(0).unwrap());
        second.give_up(1).unwrap();
        assert!(first.take(1).unwrap());
        drop(first);
        assert!(second.take(0).unwrap());
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(Claims::at(&path, 7).is_err());
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn only_what_captures_made_is_taken() {
        let kind = |kind: &str| LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind.into())]);
        let alias = LinkAttribute::IfAlias(ALIAS.to_owned());
        assert!(left_behind(&[alias.clone(), kind(KIND)]));
        assert!(!left_behind(&[kind(KIND)]));
        assert!(!left_behind(&[alias, kind("dummy")]));
    }
}
