// SPDX-License-Identifier: GPL-2.0

//! The functions that send. By a ring, if the descriptor is a flow that has one; by the function
//! that the program called, if anything is out of the ordinary.

use crate::{
    datagram::{flags_go, Datagram},
    real::{self, keeping_errno, set_errno},
    rings, settings,
    table::{self, Place, Slot},
};
use kopi::{SendRing, Sent};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, ssize_t};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Bytes of payload of each message of a batch.
type Lengths = [u16; SendRing::BATCH_MAX as usize];

/// Messages that sendmmsg(2) takes of a longer list.
const MESSAGES_MAX: c_uint = 1024;

/// Messages of a call from which on a ring is less work than the call itself: docs/programs.md.
const FEW: c_uint = 4;

/// What became of messages that were to go by a ring.
enum Outcome {
    /// Nothing was sent: the function that the program called is to send.
    Plain,
    /// So many were sent, and then the function that the program called is to go on.
    Some(u32),
    /// So many were sent, and the next one failed.
    Failed(u32, c_int),
}

/// The place of a flow whose messages may go by a ring; counts so many messages for it.
fn place_of(fd: c_int, messages: u32) -> Option<(Place, bool)> {
    match table::get(fd) {
        Slot::Other => None,
        Slot::OnRing { place, ipv6 } => (!settings::is_stopped()).then_some((place, ipv6)),
        Slot::Flow { ipv6, sent } => count(fd, Slot::Flow { ipv6, sent }, messages),
    }
}

#[cold]
fn count(fd: c_int, slot: Slot, messages: u32) -> Option<(Place, bool)> {
    let Slot::Flow { ipv6, sent } = slot else {
        return None;
    };
    let sent = sent.saturating_add(messages);
    if sent < settings::min_datagrams() || settings::is_stopped() {
        table::change(fd, slot, Slot::Flow { ipv6, sent });
        return None;
    }
    let joined = keeping_errno(|| {
        real::without_cancellation(|| catch_unwind(|| rings::join(fd)).unwrap_or(None))
    });
    match joined? {
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

/// Sends the first of some messages by a ring: those that it can have.
///
/// # Safety
///
/// `message` must give messages as sendmsg(2) takes them.
unsafe fn by_ring(
    fd: c_int,
    (place, ipv6): (Place, bool),
    count: u32,
    message: impl Fn(u32) -> *const msghdr,
) -> (Outcome, Lengths) {
    let mut lengths = [0; SendRing::BATCH_MAX as usize];
    let attempt = AssertUnwindSafe(|| {
        let mut ring = rings::at(place)?;
        let ring: &mut SendRing = ring.as_mut()?;
        for (at, length) in (0..count).zip(&mut lengths) {
            // SAFETY: As the caller says.
            unsafe {
                let Some(datagram) = Datagram::of(message(at), ipv6) else {
                    break;
                };
                if !rings::is_own(place) {
                    return None;
                }
                if !datagram.write(ring, place.flow) {
                    break;
                }
                *length = datagram.len as u16;
            }
        }
        // Else the parent sends its own.
        (ring.written() > 0 && rings::is_own(place)).then(|| ring.send(fd))
    });
    let before = real::errno();
    // A panic must not leave the library. There may be messages in the ring that the kernel doesn't
    // know of; its lock says that something is wrong, and nobody uses it any more.
    let sent = catch_unwind(attempt).unwrap_or(None);
    set_errno(before);
    let Some(sent) = sent else {
        return (Outcome::Plain, lengths);
    };
    let outcome = match sent {
        Ok(Sent { count, error: None }) if count > 0 => Outcome::Some(count),
        Ok(Sent {
            count,
            error: Some(error),
        }) => match error {
            // There is no room, which may have to be waited for.
            libc::EAGAIN => Outcome::Some(count),
            // It has been corked; or its number is no flow's any more; or rings can't say why.
            libc::EOPNOTSUPP | libc::EBADF | libc::EINVAL | libc::EFAULT => {
                leave_ring(fd, place, ipv6);
                Outcome::Some(count)
            }
            error => Outcome::Failed(count, error),
        },
        // It is something else by now, or another flow of the channel: nothing was sent.
        Ok(_) | Err(_) => {
            leave_ring(fd, place, ipv6);
            Outcome::Plain
        }
    };
    (outcome, lengths)
}

#[cold]
fn leave_ring(fd: c_int, place: Place, ipv6: bool) {
    settings::explain(format_args!(
        "socket {fd}: sends without a channel from now on"
    ));
    table::change(fd, Slot::OnRing { place, ipv6 }, Slot::Other);
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
    let mut done = 0;
    if count < FEW {
        count_plain(fd, count);
        // SAFETY: The caller's arguments.
        return unsafe { real::sendmmsg(fd, messages, count, flags) };
    }
    // As the C library's function, also if a ring has all of it.
    real::test_cancellation();
    while done < count && flags_go(flags) {
        let Some(place) = place_of(fd, count - done) else {
            break;
        };
        // SAFETY: The list has so many messages.
        let (outcome, lengths) = unsafe {
            by_ring(fd, place, count - done, |at| {
                messages.add((done + at) as usize).cast::<msghdr>()
            })
        };
        let (sent, failed) = match outcome {
            Outcome::Plain => break,
            Outcome::Some(sent) => (sent, None),
            Outcome::Failed(sent, error) => (sent, Some(error)),
        };
        for (at, len) in (done..done + sent).zip(lengths) {
            // SAFETY: These were read, and are written as the kernel would.
            unsafe { (*messages.add(at as usize)).msg_len = len.into() };
        }
        done += sent;
        match failed {
            Some(_) if done > 0 => return done as c_int,
            Some(error) => {
                set_errno(error);
                return -1;
            }
            // There is something about the next one.
            None if sent == 0 => break,
            None => {}
        }
    }
    if done == count && count > 0 {
        return done as c_int;
    }
    let before = real::errno();
    // SAFETY: The rest of the caller's list.
    let rest = unsafe { real::sendmmsg(fd, messages.add(done as usize), count - done, flags) };
    if rest < 0 && done > 0 {
        // The error is that of a message behind those that were sent.
        set_errno(before);
        return done as c_int;
    }
    rest + done as c_int
}
