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
use std::fs;

/// The kind of device.
const KIND: &str = "kopimon";
/// What is written on those that captures have a ring of.
const ALIAS: &str = "made by kopictl capture";
/// The packet sockets of this network namespace, whichever files a process sees otherwise.
const SOCKETS: &str = "/proc/self/net/packet";
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
}

impl Monitor {
    /// Makes one. Those of captures that were killed are taken away on the way to a free name.
    pub(super) fn new() -> anyhow::Result<Self> {
        let socket = connect()?;
        for number in 0..CAPTURES {
            let name = format!("{KIND}{number}");
            let made = make_or_replace(&socket, &name);
            let Some(index) = made.map_err(|error| explained(error, TOO_OLD))? else {
                continue;
            };
            let monitor = Self {
                socket,
                name,
                index,
            };
            let up = monitor.set_up();
            up.map_err(|error| explained(error, NO_TRACEPOINTS))?;
            return Ok(monitor);
        }
        anyhow::bail!("there are {CAPTURES} captures in this network namespace already");
    }

    /// Writes on it that a capture made it, for those who come once it is killed. Not before it has a ring,
    /// without which they would take it to be killed already.
    pub(super) fn mark(&self) -> Result<(), Error> {
        let mut link = self.message();
        link.attributes = vec![LinkAttribute::IfAlias(ALIAS.to_owned())];
        ask(&self.socket, RouteNetlinkMessage::SetLink(link), 0).map(drop)
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
        ask(&self.socket, RouteNetlinkMessage::SetLink(link), 0).map(drop)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // If it is gone already, so much the better.
        let _ = remove(&self.socket, self.index);
    }
}

/// Makes a device and gives its index; nothing, if there is one of that name, unless a capture that was
/// killed left it. That one isn't used: of two that find it, one would have what the other has. So they take
/// it away by its index, which no other gets, and one of them makes the next of that name.
fn make_or_replace(socket: &Socket, name: &str) -> Result<Option<u32>, Error> {
    let made = make(socket, name)?;
    if made.is_some() {
        return Ok(made);
    }
    match link::find_if_there(socket, name) {
        Ok(Some(link)) if is_left(&link) => match remove(socket, link.header.index) {
            Err(error) if !error.is(Errno::ENODEV) => Err(error),
            _ => make(socket, name),
        },
        // It went meanwhile.
        Ok(None) => make(socket, name),
        found => found.map(|_| None),
    }
}

/// Makes a device and gives its index; nothing, if there is one of that name.
fn make(socket: &Socket, name: &str) -> Result<Option<u32>, Error> {
    let mut link = LinkMessage::default();
    let kind = LinkInfo::Kind(InfoKind::Other(KIND.to_owned()));
    link.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::LinkInfo(vec![kind]),
    ];
    let message = RouteNetlinkMessage::NewLink(link);
    match ask(socket, message, NLM_F_CREATE | NLM_F_EXCL) {
        Ok(_) => Ok(link::find(socket, name)?.map(|link| link.header.index)),
        Err(error) if error.is(Errno::EEXIST) => Ok(None),
        Err(error) => Err(error),
    }
}

fn remove(socket: &Socket, index: u32) -> Result<(), Error> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    ask(socket, RouteNetlinkMessage::DelLink(link), 0).map(drop)
}

/// Whether a capture made this device, and has ended. The ring of one that lives is in the list by the time
/// that the device has its mark, so what was read of the device is older than the list. A list of several pages
/// may lack a socket while others are closed, so that it is read twice.
fn is_left(link: &LinkMessage) -> bool {
    let has_no_socket =
        || fs::read_to_string(SOCKETS).is_ok_and(|list| !is_read(&list, link.header.index));
    is_captures(&link.attributes) && has_no_socket() && has_no_socket()
}

/// Whether the device of that index has a packet socket, by the kernel's list of them. One that can't be
/// understood has one of each.
fn is_read(list: &str, index: u32) -> bool {
    let mut lines = list.lines();
    let heads = lines.next().unwrap_or_default().split_whitespace();
    let Some(column) = heads.into_iter().position(|head| head == "Iface") else {
        return true;
    };
    let device = |line: &str| line.split_whitespace().nth(column)?.parse::<i64>().ok();
    lines.any(|line| device(line).is_none_or(|device| device == i64::from(index)))
}

/// Whether a capture made this device.
fn is_captures(attributes: &[LinkAttribute]) -> bool {
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
    fn a_device_that_is_read_is_found() {
        let list = "\
sk               RefCnt Type Proto  Iface R Rmem   User   Inode
0000000000000000 3      3    0003   12    1 0      0      5063
0000000000000000 3      3    0003   -1    0 0      0      5064
";
        assert!(is_read(list, 12) && !is_read(list, 1) && !is_read(list, 3));
        let (heads, _) = list.split_once('\n').unwrap();
        assert!(!is_read(heads, 12));
        assert!(is_read("", 12) && is_read(&format!("{heads}\nnothing\n"), 12));
    }

    #[test]
    fn only_what_captures_made_is_theirs() {
        let kind = |kind: &str| LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind.into())]);
        let alias = LinkAttribute::IfAlias(ALIAS.to_owned());
        assert!(is_captures(&[alias.clone(), kind(KIND)]));
        assert!(!is_captures(&[kind(KIND)]));
        assert!(!is_captures(&[alias, kind("dummy")]));
    }
}
