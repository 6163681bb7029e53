// SPDX-License-Identifier: GPL-2.0

//! recvmsg that asks the protocol about each datagram.

use super::{
    name::{Name, Unspecified},
    turn::{turn_within, ReadTurn},
    Protocol, //
};
use crate::{
    pure::{peer::Peer, rule::Received},
    sys::{
        bindings,
        context::{cond_resched, signal_pending},
        errno::eopnotsupp,
        socket::Socket,
    },
};
use core::mem::MaybeUninit;
use kernel::prelude::*;

pub(super) const DONTWAIT: c_int = bindings::MSG_DONTWAIT as c_int;

pub(super) type Receive =
    unsafe extern "C" fn(*mut bindings::socket, *mut bindings::msghdr, usize, c_int) -> c_int;

/// Reads a socket's datagrams one by one, and asks the protocol about each.
///
/// # Invariants
///
/// The socket is in use, and `inner` is its inner family's recvmsg.
pub(super) struct Reader<'a, T> {
    pub(super) socket: *mut bindings::socket,
    pub(super) inner: Receive,
    pub(super) protocol: &'a T,
    pub(super) turn: &'a ReadTurn,
}

impl<T: Protocol> Reader<'_, T> {
    /// Reads the first datagram that may be read. Returns the result of the inner operation, or
    /// EAGAIN if there is no datagram. Another read may go on for `timeout` jiffies, of which the rest is
    /// left there.
    ///
    /// # Safety
    ///
    /// `message` must be a valid argument of the inner operation.
    pub(in crate::sys) unsafe fn read(
        &self,
        message: *mut bindings::msghdr,
        len: usize,
        flags: c_int,
        timeout: &mut isize,
    ) -> Result<i32> {
        // SAFETY: By the invariants, the socket is in use, so it isn't released meanwhile.
        let socket = unsafe { Socket::from_raw(self.socket) };
        loop {
            {
                // Under the lock, the datagram that is judged stays the first one until it is read.
                let mut first = turn_within(self.turn, socket.sk(), timeout)?;
                if !self.protocol.has_queue() {
                    // The flow has come to a channel, which takes the queued datagrams.
                    return Err(eopnotsupp());
                }
                let Some((peer, size)) = self.peek()? else {
                    return Ok(EAGAIN.to_errno());
                };
                let peeks = flags & bindings::MSG_PEEK as i32 != 0;
                let passes =
                    self.protocol
                        .may_take(socket, peer, size, first.counted_before, peeks);
                // A peeked datagram was counted, and isn't counted again when it is read.
                first.counted_before = passes && peeks;
                if passes {
                    // SAFETY: The socket is in use, by the invariants. The caller passes a valid
                    // message.
                    return Ok(unsafe {
                        (self.inner)(self.socket, message, len, flags | DONTWAIT)
                    });
                }
                self.discard();
            }
            // Peers may send datagrams that are refused without end.
            if signal_pending() {
                return Err(ERESTARTSYS);
            }
            cond_resched();
        }
    }

    /// The source of the first datagram and its length, or those of a GRO packet; `None` if there is none.
    fn peek(&self) -> Result<Option<(Peer, Received)>> {
        let mut name = [0u8; size_of::<bindings::sockaddr_in6>()];
        // SAFETY: Zeroes are a valid msghdr without memory for a name, data or control messages.
        let mut header: bindings::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_name = name.as_mut_ptr().cast();
        header.msg_namelen = name.len() as i32;
        let flags = DONTWAIT | (bindings::MSG_PEEK | bindings::MSG_TRUNC) as i32;
        // SAFETY: The socket is in use, by the invariants. The name is long enough for both
        // families.
        let got = unsafe {
            if Socket::from_raw(self.socket).sk().peeks_on() {
                // With SO_PEEK_OFF, the datagram that is peeked at may not be the one that is read.
                return Err(eopnotsupp());
            }
            (self.inner)(self.socket, &mut header, 0, flags)
        };
        match u32::try_from(got) {
            Ok(bytes) => {
                let peer = Name::parse(&name, Unspecified::Nothing).ok_or(EINVAL)?;
                let mut first = bindings::kopi_first {
                    gso_size: 0,
                    is_mapped: false,
                };
                // SAFETY: The socket is in use, by the invariants, and one of UDP.
                unsafe {
                    let sk = Socket::from_raw(self.socket).sk().as_ptr();
                    bindings::kopi_udp_first(sk, &mut first);
                }
                let size = Received::new(bytes, first.gso_size, first.is_mapped);
                Ok(Some((peer, size)))
            }
            Err(_) if got == EAGAIN.to_errno() => Ok(None),
            Err(_) => Err(Error::from_errno(got)),
        }
    }

    /// Removes the first datagram.
    fn discard(&self) {
        // SAFETY: Zeroes are a valid msghdr without any memory. The socket is in use, by the
        // invariants.
        unsafe {
            let mut header: bindings::msghdr = MaybeUninit::zeroed().assume_init();
            // An error that came meanwhile would be lost, and the datagram stay.
            let sk = Socket::from_raw(self.socket).sk();
            sk.with_error_saved(|| (self.inner)(self.socket, &mut header, 0, DONTWAIT));
        }
    }
}
