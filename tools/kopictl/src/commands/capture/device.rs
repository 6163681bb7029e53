// SPDX-License-Identifier: GPL-2.0

//! The monitor device that a capture has for itself: made, set up, and taken away, over rtnetlink.

use crate::{
    link::{self, ask, connect},
    netlink::Error,
};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    RouteNetlinkMessage,
};
use netlink_sys::Socket;
use nix::errno::Errno;
use std::{
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
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
    /// Says to others that this capture lives, in the network namespace, and only as long as it does.
    _claim: UnixDatagram,
}

impl Monitor {
    /// Makes one, or takes that of a capture that was killed.
    pub(super) fn new() -> anyhow::Result<Self> {
        let socket = connect()?;
        for number in 0..CAPTURES {
            let name = format!("{KIND}{number}");
            let Some(claim) = claim(&name)? else {
                continue;
            };
            let Some(index) = make(&socket, &name).map_err(|error| explained(error, TOO_OLD))?
            else {
                continue;
            };
            let monitor = Self {
                socket,
                name,
                index,
                _claim: claim,
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

/// Claims a device's name among captures, unless another has it.
fn claim(name: &str) -> io::Result<Option<UnixDatagram>> {
    let address = SocketAddr::from_abstract_name(format!("kopictl capture {name}"))?;
    match UnixDatagram::bind_addr(&address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        claim => claim.map(Some),
    }
}

/// Makes a device and gives its index; nothing, if there is one of that name that no capture made.
fn make(socket: &Socket, name: &str) -> Result<Option<u32>, Error> {
    let mut link = LinkMessage::default();
    let kind = LinkInfo::Kind(InfoKind::Other(KIND.to_owned()));
    link.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::LinkInfo(vec![kind]),
    ];
    let message = RouteNetlinkMessage::NewLink(link);
    match ask(socket, message, NLM_F_CREATE | NLM_F_EXCL) {
        Ok(_) => find(socket, name, |_| true),
        Err(error) if error.is(Errno::EEXIST) => find(socket, name, left_behind),
        Err(error) => Err(error),
    }
}

/// The index of the device of that name, if it is as wanted.
fn find(
    socket: &Socket,
    name: &str,
    wanted: fn(&[LinkAttribute]) -> bool,
) -> Result<Option<u32>, Error> {
    let found = link::find(socket, name)?;
    Ok(found.and_then(|link| wanted(&link.attributes).then_some(link.header.index)))
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
    fn a_name_is_claimed_once() {
        let name = format!("test{}", std::process::id());
        let first = claim(&name).unwrap();
        assert!(first.is_some());
        assert!(claim(&name).unwrap().is_none());
        drop(first);
        assert!(claim(&name).unwrap().is_some());
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
