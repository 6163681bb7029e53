// SPDX-License-Identifier: GPL-2.0

//! The messages of one sendmmsg(), by a ring.
//!
//! The kernel looks the descriptor of such a call up once, and sends all messages by that socket. Here each
//! doorbell looks it up, and another thread may have made it another socket meanwhile. So what a flow has
//! begun goes on by that flow, or ends: the call may say that it has sent fewer.

use crate::{
    datagram::Datagram,
    real::{self, set_errno},
    rings,
    room::{Room, Wait},
    settings, sockets,
    table::{self, RingSlot, Slot},
};
use kopi::{SendRing, Sent};
use libc::{c_int, mmsghdr, msghdr};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Bytes of payload of each message of a batch.
type Lengths = [u32; SendRing::BATCH_MAX as usize];

/// Times in a row that there is said to be room, and yet there is none. Another thread may be quicker; but programs
/// of a cgroup may say so, too, each time.
const IN_VAIN_MAX: u32 = 16;

/// Why a ring has sent no more messages.
enum Stop {
    /// All were sent, or the ring can't have the next one.
    Over,
    /// The send buffer has no room. The socket's cookie.
    Full(Option<u64>),
    /// Another thread uses the ring now.
    Taken,
    /// The flow isn't to use the ring any more.
    Leave,
    /// The next one failed.
    Failed(c_int),
}

/// What became of a message that was sent by a call of its own.
enum Single {
    Sent,
    /// There is no room for it.
    Full,
    /// It failed, or must not be sent.
    Failed,
}

/// Messages, of which the first ones were sent.
pub(crate) struct Sendmmsg {
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    done: u32,
}

impl Sendmmsg {
    /// The messages of a call, none of which was sent.
    pub(crate) fn new(fd: c_int, messages: *mut mmsghdr, count: u32) -> Self {
        Self {
            fd,
            messages,
            count,
            done: 0,
        }
    }

    /// Sends them by the ring of a place, for a flow that is of IPv6 or not; gives the call's result. `None`:
    /// nothing was sent, and the function that the program called is to send.
    ///
    /// Where the send buffer has no more room, this waits as that function does, which can't be called for the
    /// rest: a signal whose handler has SA_RESTART would begin that call anew each time, as one that has sent
    /// nothing.
    ///
    /// # Safety
    ///
    /// The list must be one as sendmmsg(2) takes it.
    pub(crate) unsafe fn send(mut self, ring: (RingSlot, bool), flags: c_int) -> Option<c_int> {
        let before = real::errno();
        let mut cookie = None;
        // A child that a signal handler has made, by fork(), has the result until then.
        while self.done < self.count && (self.done == 0 || rings::is_own(ring.0)) {
            let done = self.done;
            // SAFETY: As the caller says.
            let stop = unsafe { self.by_ring(ring) };
            set_errno(before);
            match stop {
                Stop::Failed(error) if self.done == 0 => {
                    set_errno(error);
                    return Some(-1);
                }
                _ if self.done == 0 => return None,
                Stop::Full(socket) => cookie = socket,
                Stop::Taken => {}
                Stop::Over | Stop::Leave | Stop::Failed(_) => break,
            }
            let by_ring = matches!(stop, Stop::Full(_)) && self.done > done;
            // SAFETY: As the caller says.
            if self.done < self.count && !unsafe { self.goes_on(flags, cookie, by_ring) } {
                break;
            }
        }
        set_errno(before);
        Some(self.done as c_int)
    }

    /// Waits for room in the send buffer; whether the rest may be tried, by the socket of that cookie. Where the
    /// ring has no room although there is some, or another thread has it, the next one is sent by a call of its own:
    /// what that says is the socket's.
    ///
    /// # Safety
    ///
    /// As for [`Self::send`].
    #[cold]
    unsafe fn goes_on(&mut self, flags: c_int, cookie: Option<u64>, by_ring: bool) -> bool {
        let mut wait = Wait::new(self.fd, flags);
        let mut in_vain = 0;
        while in_vain < IN_VAIN_MAX && !settings::is_stopped() {
            let room = wait.room();
            // While it waited, the flow may have been closed, and another one may have its number.
            if settings::is_stopped() || sockets::cookie(self.fd) != cookie {
                return false;
            }
            match room {
                Room::Over => return false,
                Room::There if by_ring && wait.is_blocking() => return true,
                Room::There => in_vain += 1,
                Room::Perhaps => {}
            }
            // SAFETY: As the caller says.
            match unsafe { self.one_by_itself(flags) } {
                Single::Sent => return true,
                Single::Full if wait.is_blocking() => {}
                Single::Full | Single::Failed => return false,
            }
        }
        false
    }

    /// Sends the next one by a call of its own, which doesn't wait.
    ///
    /// # Safety
    ///
    /// As for [`Self::send`].
    unsafe fn one_by_itself(&mut self, flags: c_int) -> Single {
        let message = self.message(self.done);
        // SAFETY: As the caller says.
        let sent = unsafe { real::sendmsg(self.fd, message, flags | libc::MSG_DONTWAIT) };
        if sent < 0 {
            return match real::errno() {
                libc::EAGAIN => Single::Full,
                _ => Single::Failed,
            };
        }
        // SAFETY: As the caller says.
        unsafe { self.note(1, &[sent as u32]) };
        Single::Sent
    }

    /// Sends by a ring, as [`Self::batches`] does, and no panic comes from it.
    ///
    /// # Safety
    ///
    /// As for [`Self::send`].
    unsafe fn by_ring(&mut self, (place, ipv6): (RingSlot, bool)) -> Stop {
        // SAFETY: As the caller says.
        let attempt = AssertUnwindSafe(|| unsafe { self.batches(place, ipv6) });
        // A panic must not leave the library. There may be messages in the ring that the kernel doesn't
        // know of; its lock says that something is wrong, and nobody uses it any more.
        let stop = catch_unwind(attempt).unwrap_or(Stop::Over);
        if let Stop::Leave = stop {
            leave_ring(self.fd, place, ipv6);
        }
        stop
    }

    fn message(&self, at: u32) -> *const msghdr {
        self.messages.wrapping_add(at as usize).cast()
    }

    /// Sends those that were not sent yet by a ring, batch by batch, unless there is one that a ring can't have.
    ///
    /// # Safety
    ///
    /// As for [`Self::send`].
    unsafe fn batches(&mut self, place: RingSlot, ipv6: bool) -> Stop {
        // SAFETY: As the caller says.
        let fits = |at| unsafe { Datagram::of(self.message(at), ipv6) }.is_some();
        // One call of the program's sends all of them by one socket, which several could not: what goes in several
        // batches is looked at before.
        let is_long = self.count > SendRing::BATCH_MAX;
        if self.done == 0 && is_long && !(0..self.count).all(fits) {
            return Stop::Over;
        }
        // Its lock is held to the end. If the flow is closed meanwhile, none that joins gets its number.
        let Some(mut ring) = rings::at(place) else {
            return Stop::Taken;
        };
        let Some(ring) = ring.as_mut() else {
            return Stop::Over;
        };
        while self.done < self.count {
            // SAFETY: As the caller says.
            let Some(lengths) = (unsafe { self.write(ring, place, ipv6) }) else {
                return Stop::Over;
            };
            let written = ring.written();
            let rung = ring.send(self.fd);
            if !rings::is_own(place) {
                // SAFETY: As the caller says.
                return unsafe { self.end_in_child(rung.taken(), (written, &lengths), ipv6) };
            }
            let (sent, error) = match ring.collect(rung) {
                Ok(Sent { count, error }) if count > 0 || error.is_some() => (count, error),
                // It is something else by now, or another flow of the channel: nothing was sent.
                Ok(_) | Err(_) => return Stop::Leave,
            };
            // SAFETY: As the caller says.
            unsafe { self.note(sent, &lengths) };
            match error {
                None => {}
                Some(libc::EAGAIN) => return Stop::Full(sockets::cookie(self.fd)),
                // It has been corked; or its number is no flow's any more; or rings can't say why.
                Some(libc::EOPNOTSUPP | libc::EBADF | libc::EINVAL | libc::EFAULT) => {
                    return Stop::Leave;
                }
                Some(error) => return Stop::Failed(error),
            }
        }
        Stop::Over
    }

    /// A signal handler has called fork() when the doorbell had rung, and this is the child: it has no memory of
    /// the ring that would say which ones failed. They count as sent, and so do those of later batches, which the
    /// parent sends.
    ///
    /// # Safety
    ///
    /// As for [`Self::send`].
    #[cold]
    unsafe fn end_in_child(
        &mut self,
        taken: u32,
        (written, lengths): (u32, &Lengths),
        ipv6: bool,
    ) -> Stop {
        // SAFETY: As the caller says.
        unsafe { self.note(taken, lengths) };
        while taken == written && self.done < self.count {
            // SAFETY: As the caller says.
            let datagram = unsafe { Datagram::of(self.message(self.done), ipv6) };
            let len = datagram.map_or(0, |each| each.len);
            // SAFETY: As the caller says.
            unsafe { self.note(1, &[len as u32]) };
        }
        // Of nothing, the parent makes the program's own call, and has its result.
        Stop::Failed(libc::EINTR)
    }

    /// Writes the next messages into a ring, as many as there is room for; `None` if that is none, if it can't have one
    /// of the first, or if it is another process's by now.
    ///
    /// # Safety
    ///
    /// As for [`Self::send`].
    unsafe fn write(&self, ring: &mut SendRing, place: RingSlot, ipv6: bool) -> Option<Lengths> {
        let mut lengths = [0; SendRing::BATCH_MAX as usize];
        for (at, length) in (self.done..self.count).zip(&mut lengths) {
            // SAFETY: As the caller says.
            unsafe {
                let datagram = Datagram::of(self.message(at), ipv6);
                if !rings::is_own(place) {
                    return None;
                }
                let Some(datagram) = datagram else {
                    if self.done == 0 {
                        ring.discard();
                        return None;
                    }
                    // Another thread has changed it.
                    break;
                };
                if !datagram.write(ring, place.flow) {
                    break;
                }
                *length = datagram.len as u32;
            }
        }
        // Else the parent sends its own.
        (ring.written() > 0 && rings::is_own(place)).then_some(lengths)
    }

    /// So many more were sent.
    ///
    /// # Safety
    ///
    /// As for [`Self::send`].
    unsafe fn note(&mut self, sent: u32, lengths: &[u32]) {
        for (at, len) in (self.done..self.done + sent).zip(lengths) {
            // SAFETY: These were read, and are written as the kernel would.
            unsafe { (*self.messages.add(at as usize)).msg_len = *len };
        }
        self.done += sent;
    }
}

#[cold]
fn leave_ring(fd: c_int, place: RingSlot, ipv6: bool) {
    settings::explain(format_args!(
        "socket {fd}: sends without a channel from now on"
    ));
    table::change(fd, Slot::OnRing { place, ipv6 }, Slot::Other);
}
