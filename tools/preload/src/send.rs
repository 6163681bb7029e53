// SPDX-License-Identifier: GPL-2.0

//! The functions that send. By a ring, if the descriptor is a flow that has one; by the function
//! that the program called, if anything is out of the ordinary.

use crate::{
    datagram::flags_go,
    process,
    real::{self, keeping_errno},
    rings,
    sendmmsg::Sendmmsg,
    settings,
    table::{self, RingSlot, Slot},
};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, ssize_t};
use std::panic::catch_unwind;

/// Messages that sendmmsg(2) takes of a longer list.
const MESSAGES_MAX: c_uint = 1024;

/// Messages of a call from which on a ring is less work than the call itself: docs/programs.md.
const FEW: c_uint = 4;

/// The place of a flow whose messages may go by a ring; counts so many messages for it.
fn place_of(fd: c_int, messages: u32) -> Option<(RingSlot, bool)> {
    match table::get(fd) {
        Slot::Other => None,
        Slot::OnRing { place, ipv6 } => (!settings::is_stopped()).then_some((place, ipv6)),
        Slot::Flow { ipv6, sent } => count(fd, Slot::Flow { ipv6, sent }, messages),
    }
}

#[cold]
fn count(fd: c_int, slot: Slot, messages: u32) -> Option<(RingSlot, bool)> {
    let Slot::Flow { ipv6, sent } = slot else {
        return None;
    };
    let sent = sent.saturating_add(messages);
    if sent < settings::min_datagrams() || settings::is_stopped() {
        table::change(fd, slot, Slot::Flow { ipv6, sent });
        return None;
    }
    if !process::is_own() {
        // A child of vfork() would make a ring that stays in its parent's memory.
        return None;
    }
    let join = || catch_unwind(|| rings::join(fd)).unwrap_or(None);
    let joined = keeping_errno(|| real::without_signals(|| real::without_cancellation(join)));
    let Some(joined) = joined else {
        // All rings are used now. To try costs some system calls: not with each datagram.
        table::change(fd, slot, Slot::Flow { ipv6, sent: 0 });
        return None;
    };
    match joined {
        Ok(place) => {
            settings::explain(format_args!("socket {fd}: sends by a channel"));
            // Others may have counted meanwhile.
            table::set(fd, Slot::OnRing { place, ipv6 });
            Some((place, ipv6))
        }
        Err(error) => {
            let error = error.raw_os_error().unwrap_or(libc::EPROTO);
            settings::explain(format_args!(
                "socket {fd}: sends without a channel: {}",
                settings::Reason(error)
            ));
            table::change(fd, slot, Slot::Other);
            None
        }
    }
}

/// Counts messages that the function sends which the program called. The kernel sends them by what the
/// channel of a ring remembers of routes.
#[inline]
fn count_plain(fd: c_int, messages: u32) {
    if let Slot::Flow { .. } = table::get(fd) {
        place_of(fd, messages);
    }
}

/// send(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn send(
    fd: c_int,
    data: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    count_plain(fd, 1);
    // SAFETY: The caller's arguments.
    unsafe { real::send(fd, data, len, flags) }
}

/// sendto(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    data: *const c_void,
    len: size_t,
    flags: c_int,
    name: *const libc::sockaddr,
    name_len: libc::socklen_t,
) -> ssize_t {
    count_plain(fd, 1);
    // SAFETY: The caller's arguments.
    unsafe { real::sendto(fd, data, len, flags, name, name_len) }
}

/// write(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn write(
    fd: c_int,
    data: *const c_void,
    len: size_t,
) -> ssize_t {
    count_plain(fd, 1);
    // SAFETY: The caller's arguments.
    unsafe { real::write(fd, data, len) }
}

/// writev(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn writev(
    fd: c_int,
    pieces: *const iovec,
    count: c_int,
) -> ssize_t {
    count_plain(fd, 1);
    // SAFETY: The caller's arguments.
    unsafe { real::writev(fd, pieces, count) }
}

/// sendmsg(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    count_plain(fd, 1);
    // SAFETY: The caller's arguments.
    unsafe { real::sendmsg(fd, message, flags) }
}

/// sendmmsg(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let count = count.min(MESSAGES_MAX);
    if count < FEW {
        count_plain(fd, count);
        // SAFETY: The caller's arguments.
        return unsafe { real::sendmmsg(fd, messages, count, flags) };
    }
    // As the C library's function, also if a ring has all of it.
    real::test_cancellation();
    if flags_go(flags) {
        if let Some(on) = place_of(fd, count) {
            // SAFETY: The caller's arguments.
            if let Some(result) = unsafe { Sendmmsg::new(fd, messages, count).send(on, flags) } {
                return result;
            }
        }
    }
    // SAFETY: The caller's arguments.
    unsafe { real::sendmmsg(fd, messages, count, flags) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::tests::{in_borrowed_memory, in_child_process};

    /// A descriptor of nobody's.
    const FD: c_int = 1000;
    const FLOW: Slot = Slot::Flow {
        ipv6: false,
        sent: 0,
    };

    extern "C" fn sends_enough(_: *mut c_void) -> c_int {
        c_int::from(place_of(FD, 1000).is_some())
    }

    #[test]
    fn a_child_of_vfork_joins_no_ring() {
        assert!(in_child_process(|| {
            // This process is known before the other one is made.
            assert!(process::begin() && process::is_own());
            table::set(FD, FLOW);
            let nothing_noted = in_borrowed_memory(sends_enough) && table::get(FD) == FLOW;
            // Here it is tried.
            nothing_noted && place_of(FD, 1000).is_none() && table::get(FD) == Slot::Other
        }));
    }
}
