// SPDX-License-Identifier: GPL-2.0

//! Network devices, over rtnetlink.

use crate::netlink::{exchange, open, Error};
use netlink_packet_core::DefaultNla;
use netlink_packet_route::{
    link::{LinkAttribute, LinkMessage, LinkXdp, XdpAttached},
    RouteNetlinkMessage,
};
use netlink_sys::{protocols::NETLINK_ROUTE, Socket};
use nix::errno::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// To replace no program, only that of a descriptor, and by the driver: XDP_FLAGS_UPDATE_IF_NOEXIST,
/// XDP_FLAGS_REPLACE, XDP_FLAGS_DRV_MODE.
const NEW: u32 = 1;
const REPLACE: u32 = 1 << 4;
const BY_DRIVER: u32 = 4;

/// Kernel: `include/uapi/linux/if_link.h`.
const IFLA_ALT_IFNAME: u16 = 53;

/// Opens a socket.
pub(crate) fn connect() -> Result<Socket, Error> {
    open(NETLINK_ROUTE)
}

/// Asks, and gives all answers.
pub(crate) fn ask(
    socket: &Socket,
    message: RouteNetlinkMessage,
    flags: u16,
) -> Result<Vec<RouteNetlinkMessage>, Error> {
    exchange(socket, 1, message, flags, &[])
}

/// The device of that name, which may be one of its alternative names.
pub(crate) fn find(socket: &Socket, name: &str) -> Result<Option<LinkMessage>, Error> {
    let mut link = LinkMessage::default();
    link.attributes = vec![if name.len() < libc::IFNAMSIZ {
        LinkAttribute::IfName(name.to_owned())
    } else {
        // No longer one can be that by which a device is shown: the kernel refuses it as such.
        let name = [name.as_bytes(), b"\0"].concat();
        LinkAttribute::Other(DefaultNla::new(IFLA_ALT_IFNAME, name))
    }];
    let answers = ask(socket, RouteNetlinkMessage::GetLink(link), 0)?;
    Ok(answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    }))
}

/// The device of that name, or none where the kernel knows of none.
pub(crate) fn find_if_there(socket: &Socket, name: &str) -> Result<Option<LinkMessage>, Error> {
    match find(socket, name) {
        Err(error) if error.is(Errno::ENODEV) => Ok(None),
        found => found,
    }
}

/// The name by which a device is shown.
pub(crate) fn name_of(link: &LinkMessage) -> Option<&str> {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(&**name),
            _ => None,
        })
}

/// A device's MTU, in bytes.
pub(crate) fn mtu_of(link: &LinkMessage) -> u32 {
    let mtu = link
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        });
    mtu.unwrap_or_default()
}

/// A device's hardware address.
pub(crate) fn address_of(link: &LinkMessage) -> &[u8] {
    let address = link
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Address(address) => Some(&**address),
            _ => None,
        });
    address.unwrap_or_default()
}

/// How a device has an XDP program, and the number of that.
pub(crate) fn program_of(link: &LinkMessage) -> (XdpAttached, Option<u32>) {
    let xdp = link
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Xdp(xdp) => Some(xdp),
            _ => None,
        });
    let mut attached = XdpAttached::None;
    let mut number = None;
    for each in xdp.into_iter().flatten() {
        match each {
            LinkXdp::Attached(how) => attached = *how,
            LinkXdp::ProgId(id) => number = Some(*id),
            _ => (),
        }
    }
    (attached, number)
}

/// Has the driver run a program, if it has none.
pub(crate) fn set_program(
    socket: &Socket,
    index: u32,
    program: BorrowedFd<'_>,
) -> Result<(), Error> {
    let flags = LinkXdp::Flags(BY_DRIVER | NEW);
    set_xdp(socket, index, vec![LinkXdp::Fd(program.as_raw_fd()), flags])
}

/// Has the driver run none, if it runs this program; says whether it did.
pub(crate) fn take_off_program(
    socket: &Socket,
    index: u32,
    program: BorrowedFd<'_>,
) -> Result<bool, Error> {
    match set_xdp(socket, index, none_for(program)) {
        // It runs another, or none.
        Err(error) if error.is(Errno::EEXIST) => Ok(false),
        result => result.map(|()| true),
    }
}

/// Asks for no program in the place of this one, and of no other.
fn none_for(program: BorrowedFd<'_>) -> Vec<LinkXdp> {
    vec![
        LinkXdp::Fd(-1),
        LinkXdp::ExpectedFd(program.as_raw_fd().unsigned_abs()),
        LinkXdp::Flags(BY_DRIVER | REPLACE),
    ]
}

fn set_xdp(socket: &Socket, index: u32, xdp: Vec<LinkXdp>) -> Result<(), Error> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.attributes = vec![LinkAttribute::Xdp(xdp)];
    ask(socket, RouteNetlinkMessage::SetLink(link), 0).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, os::fd::AsFd};

    #[test]
    fn only_the_program_that_is_meant_is_taken_off() {
        let program = File::open("/").unwrap();
        let number = u32::try_from(program.as_raw_fd()).unwrap();
        let asked = none_for(program.as_fd());
        assert_eq!(asked.first(), Some(&LinkXdp::Fd(-1)));
        assert!(asked.contains(&LinkXdp::ExpectedFd(number)));
        assert!(asked.contains(&LinkXdp::Flags(BY_DRIVER | REPLACE)));
    }
}
