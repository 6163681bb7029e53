// SPDX-License-Identifier: GPL-2.0

//! Network devices, over rtnetlink.

use crate::netlink::{exchange, open, Error};
use netlink_packet_route::{
    link::{LinkAttribute, LinkMessage, LinkXdp, XdpAttached},
    RouteNetlinkMessage,
};
use netlink_sys::{protocols::NETLINK_ROUTE, Socket};
use std::os::fd::{AsRawFd, BorrowedFd};

/// To replace no program, and by the driver: XDP_FLAGS_UPDATE_IF_NOEXIST, XDP_FLAGS_DRV_MODE.
const NEW: u32 = 1;
const BY_DRIVER: u32 = 4;

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

/// The device of that name.
pub(crate) fn find(socket: &Socket, name: &str) -> Result<Option<LinkMessage>, Error> {
    let mut link = LinkMessage::default();
    link.attributes = vec![LinkAttribute::IfName(name.to_owned())];
    let answers = ask(socket, RouteNetlinkMessage::GetLink(link), 0)?;
    Ok(answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    }))
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

/// How a device has a program of XDP, and the number of that.
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

/// Has the driver run a program, if it has none; or none.
pub(crate) fn set_program(
    socket: &Socket,
    index: u32,
    program: Option<BorrowedFd<'_>>,
) -> Result<(), Error> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    let (fd, flags) = match program {
        Some(program) => (program.as_raw_fd(), BY_DRIVER | NEW),
        None => (-1, BY_DRIVER),
    };
    let xdp = vec![LinkXdp::Fd(fd), LinkXdp::Flags(flags)];
    link.attributes = vec![LinkAttribute::Xdp(xdp)];
    ask(socket, RouteNetlinkMessage::SetLink(link), 0).map(drop)
}
