// SPDX-License-Identifier: GPL-2.0

//! recvmsg that asks the protocol about each datagram.

use super::{
    name::{Name, Unspecified},
    reader_lock::{lock_reader_within, ReaderLock},
    receive::next_packet,
    Protocol, //
};
use crate::{
    pure::{peer::Peer, rule::Received},
    sys::{
        bindings,
        context::{cond_resched, signal_pending, BottomHalvesOff},
        errno::eopnotsupp,
        socket::Socket,
    },
};
use kernel::{error::to_result, prelude::*};

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
    pub(super) lock: &'a ReaderLock,
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
        let socket = self.socket();
        loop {
            {
                // Under the lock, the datagram that is judged stays the first one until it is read.
                let mut first = lock_reader_within(self.lock, socket.sk(), timeout)?;
                if !self.protocol.has_queue() {
                    // The flow has come to a channel, which takes the queued datagrams.
                    return Err(eopnotsupp());
                }
                // SAFETY: Required of the caller.
                if let Some(got) = unsafe { self.take_notice(message, len) } {
                    return Ok(got);
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
                self.discard(size.datagrams);
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
        let mut first: bindings::kopi_first = pin_init::zeroed();
        let sk = self.socket().sk();
        if sk.peeks_on() {
            // With SO_PEEK_OFF, the datagram that is peeked at may not be the one that is read.
            return Err(eopnotsupp());
        }
        // SAFETY: The socket is in use, by the invariants, and one of UDP. The lock of its readers is held.
        let error = unsafe { bindings::kopi_udp_peek(sk.as_ptr(), &mut first) };
        if error == EAGAIN.to_errno() {
            return Ok(None);
        }
        to_result(error)?;
        let (source, len) = (&raw const first.source, size_of_val(&first.source) as i32);
        // SAFETY: The source has so many bytes.
        let source = unsafe { Name::from_raw(source.cast(), len, Unspecified::Nothing) };
        let peer = source.peer().ok_or(EINVAL)?;
        let size = Received::new(first.len, first.gso_size, first.is_mapped);
        Ok(Some((peer, size)))
    }

    /// Gives a notice about the MTU of a path, if there is one: not a datagram, and not judged.
    ///
    /// # Safety
    ///
    /// `message` must be a valid argument of the inner operation.
    unsafe fn take_notice(&self, message: *mut bindings::msghdr, len: usize) -> Option<i32> {
        // SAFETY: The socket is in use, by the invariants. The caller passes a valid message.
        let got =
            unsafe { bindings::kopi_recv_path_mtu(self.socket().sk().as_ptr(), message, len) };
        (got != EAGAIN.to_errno()).then_some(got)
    }

    /// Drops the first datagram, or GRO packet, which has so many datagrams.
    fn discard(&self, datagrams: u64) {
        let _softirqs = BottomHalvesOff::new();
        let sk = self.socket().sk();
        let mut one = 1;
        if let Some(skb) = next_packet(sk, &mut one) {
            skb.count_dropped(sk, u32::try_from(datagrams).unwrap_or(u32::MAX));
        }
    }

    fn socket(&self) -> &Socket {
        // SAFETY: By the invariants, the socket is in use, so it isn't released meanwhile.
        unsafe { Socket::from_raw(self.socket) }
    }
}
