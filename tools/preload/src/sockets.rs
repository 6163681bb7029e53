// SPDX-License-Identifier: GPL-2.0

//! The functions that make, copy and close descriptors.

use crate::{
    real::{self, errno, keeping_errno},
    settings,
    table::{self, Slot},
};
use kopi::pure::abi::{PROTO_UDP, PROTO_UDP6};
use libc::{c_int, c_uint, c_ulong};

/// What of a socket's type is not a flag.
const TYPE_MASK: c_int = 0xf;

/// Whether it is a UDP socket; of IPv6 if so.
fn is_udp(domain: c_int, kind: c_int, protocol: c_int) -> Option<bool> {
    let is_ip = matches!(domain, libc::AF_INET | libc::AF_INET6);
    (is_ip && kind & TYPE_MASK == libc::SOCK_DGRAM && matches!(protocol, 0 | libc::IPPROTO_UDP))
        .then_some(domain == libc::AF_INET6)
}

/// Makes a flow, or says that it can't be.
fn flow(kind: c_int, ipv6: bool) -> Option<c_int> {
    let family = settings::family()?;
    // Once, a socket of the family is asked whether it is KOPI's.
    let known = std::panic::catch_unwind(kopi::family).unwrap_or(Ok(0));
    if !known.is_ok_and(|known| known == family) {
        settings::stop("this process gets no KOPI sockets: they are UDP sockets");
        return None;
    }
    let protocol = if ipv6 { PROTO_UDP6 } else { PROTO_UDP };
    // SAFETY: A new socket.
    let fd = unsafe { real::socket(family, kind, protocol) };
    if fd < 0 {
        settings::explain(format_args!("a socket is a UDP socket: errno {}", errno()));
        return None;
    }
    table::set(fd, Slot::Flow { ipv6, sent: 0 });
    Some(fd)
}

/// socket(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn socket(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    if let Some(ipv6) = is_udp(domain, kind, protocol) {
        if let Some(fd) = keeping_errno(|| flow(kind, ipv6)) {
            return fd;
        }
    }
    // SAFETY: The caller's arguments.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    table::set(fd, Slot::Other);
    fd
}

/// close(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // Before the number is another file's.
    table::set(fd, Slot::Other);
    // SAFETY: The caller's arguments.
    unsafe { real::close(fd) }
}

/// close_range(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn close_range(
    first: c_uint,
    last: c_uint,
    flags: c_int,
) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        table::forget(first, last);
    }
    // SAFETY: The caller's arguments.
    unsafe { real::close_range(first, last, flags) }
}

/// A copy of a descriptor is what that is.
fn copied(from: c_int, to: c_int) -> c_int {
    if to >= 0 && to != from {
        table::set(to, table::get(from));
    }
    to
}

/// dup(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: The caller's arguments.
    copied(fd, unsafe { real::dup(fd) })
}

/// dup2(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: The caller's arguments.
    copied(from, unsafe { real::dup2(from, to) })
}

/// dup3(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: The caller's arguments.
    copied(from, unsafe { real::dup3(from, to, flags) })
}

fn controlled(fd: c_int, command: c_int, result: c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, result),
        _ => result,
    }
}

/// fcntl(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn fcntl(
    fd: c_int,
    command: c_int,
    argument: c_ulong,
) -> c_int {
    // SAFETY: The caller's arguments.
    controlled(fd, command, unsafe { real::fcntl(fd, command, argument) })
}

/// fcntl(2), as programs with 64-bit offsets call it.
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn fcntl64(
    fd: c_int,
    command: c_int,
    argument: c_ulong,
) -> c_int {
    // SAFETY: The caller's arguments.
    controlled(fd, command, unsafe { real::fcntl64(fd, command, argument) })
}
