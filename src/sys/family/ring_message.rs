// SPDX-License-Identifier: GPL-2.0

//! Messages of the module's own: the packets that a ring sends by sendmsg.

use super::{state::state, Protocol};
use crate::{
    pure::peer::Peer,
    sys::{
        bindings,
        datagram::Datagram,
        direct::frame_batch::{FrameBatch, Pushed},
        sock::Sock,
        socket::Socket,
    },
};
use core::{ptr, sync::atomic::Ordering};
use kernel::{prelude::*, sync::rcu};

/// A message of the module's own.
#[repr(C)]
pub(in crate::sys) struct RingMessage<'a> {
    /// First, since the operation recognises a message by the pointer to its header.
    pub(in crate::sys) header: bindings::msghdr,
    /// The same message as a plain datagram, if it needs no udp_sendmsg().
    pub(in crate::sys) datagram: Option<&'a Datagram<'a>>,
    /// What makes a frame of the datagram, if it may leave so.
    pub(in crate::sys) frames: Option<&'a mut FrameBatch>,
    /// UDP has said `EAGAIN`, which says that the send buffer was full; a hook or a security module that says so
    /// means something else.
    pub(in crate::sys) full: bool,
    /// What the rules judged of the message.
    pub(in crate::sys) judged: Judged,
}

/// What the rules judged of a message before it became a packet.
#[derive(Clone, Copy)]
pub(crate) struct Judged {
    /// The peer.
    pub(crate) peer: Peer,
    /// The number of datagrams.
    pub(crate) datagrams: u64,
}

impl RingMessage<'_> {
    /// Sends the datagram, if it needs no udp_sendmsg(): returns what sendmsg returns. Process
    /// context.
    ///
    /// # Safety
    ///
    /// `sk` must be the valid sock of the datagram, with its socket.
    pub(super) unsafe fn send_datagram(&mut self, sk: *mut bindings::sock) -> Option<c_int> {
        let datagram = self.datagram?;
        let Some(frames) = self.frames.as_mut() else {
            // SAFETY: Required of the caller.
            return unsafe { datagram.send(sk) };
        };
        // SAFETY: Required of the caller; the batch is the datagram's.
        unsafe {
            match frames.push(sk, datagram) {
                Pushed::Done(sent) => Some(sent),
                Pushed::Left => frames.send_by_stack(sk, datagram),
            }
        }
    }
}

/// Sends a message of the module's own, for which [`Protocol::may_send`] isn't called. Process
/// context.
///
/// # Safety
///
/// The message must be valid, and its datagram must belong to the socket. There must be one call at
/// a time for each socket.
pub(in crate::sys) unsafe fn send_ring_message<T: Protocol>(
    socket: &Socket,
    message: &mut RingMessage<'_>,
) -> c_int {
    let message = ptr::from_mut(message);
    // SAFETY: The caller uses the socket, and the message is valid. The pointers to the message are
    // cleared before this function returns, so no task accesses it afterwards.
    unsafe {
        let state = state::<T>((*socket.as_ptr()).sk);
        if let Some(state) = state {
            state.message.store(message.cast(), Ordering::Relaxed);
            let current = bindings::kopi_current().cast_mut();
            state.sender.store(current, Ordering::Relaxed);
        }
        let sent = bindings::sock_sendmsg(socket.as_ptr(), message.cast());
        if let Some(state) = state {
            state.sender.store(ptr::null_mut(), Ordering::Relaxed);
            state.message.store(ptr::null_mut(), Ordering::Relaxed);
        }
        sent
    }
}

/// Whether the current task is in [`send_ring_message`] for this sock, with a message that the
/// rules judged, as at least so many datagrams to this peer.
pub(crate) fn was_judged<T: Protocol>(
    sk: &Sock,
    peer: &Peer,
    datagrams: u64,
    _rcu: &rcu::Guard,
) -> bool {
    // SAFETY: The sock is borrowed, and is a flow's. RCU, which the argument proves to be held, keeps the
    // state until this function returns.
    let state = unsafe { state::<T>(sk.as_ptr()) };
    // SAFETY: `sender` is only compared. If it is the current task, this task is within
    // `send_ring_message`, whose caller's message is valid until it returns. Only that call writes
    // the two pointers meanwhile.
    state.is_some_and(|state| unsafe {
        bindings::kopi_is_current(state.sender.load(Ordering::Relaxed))
            && state
                .message
                .load(Ordering::Relaxed)
                .as_ref()
                .is_some_and(|message| {
                    message.judged.peer == *peer && message.judged.datagrams >= datagrams
                })
    })
}
