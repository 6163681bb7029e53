// SPDX-License-Identifier: GPL-2.0

//! Messages of the module's own: what a ring sends by sendmsg.

use super::{state::state, Protocol};
use crate::{
    pure::rule::Peer,
    sys::{bindings, ipv4::Datagram, sock::Sock, socket::Socket},
};
use core::{ptr, sync::atomic::Ordering};
use kernel::prelude::*;

/// A message of the module's own.
#[repr(C)]
pub(in crate::sys) struct Own<'a> {
    /// First: the operation gets a pointer to it.
    pub(in crate::sys) header: bindings::msghdr,
    /// The same as a datagram that needs no udp_sendmsg(), if it is such a one.
    pub(in crate::sys) datagram: Option<Datagram<'a>>,
    /// The peer that the rules were asked about.
    pub(in crate::sys) judged: Peer,
}

/// Sends a message of the module's own, which [`Protocol::may_send`] isn't asked about. One at a time
/// for each socket.
///
/// # Safety
///
/// The message must be valid, and a datagram be of the socket.
pub(in crate::sys) unsafe fn send_own<T: Protocol>(
    socket: &Socket,
    message: &mut Own<'_>,
) -> c_int {
    let message = ptr::from_mut(message);
    // SAFETY: The socket is in use by the caller, and the message is valid, which nothing reads
    // after this call.
    unsafe {
        let state = state::<T>((*socket.as_ptr()).sk);
        if let Some(state) = state {
            state.own.store(message.cast(), Ordering::Relaxed);
            let current = bindings::kopi_current().cast_mut();
            state.sender.store(current, Ordering::Relaxed);
        }
        let sent = bindings::sock_sendmsg(socket.as_ptr(), message.cast());
        if let Some(state) = state {
            state.sender.store(ptr::null_mut(), Ordering::Relaxed);
            state.own.store(ptr::null_mut(), Ordering::Relaxed);
        }
        sent
    }
}

/// Whether the current task is in [`send_own`] for this sock, with a message about whose peer the rules
/// were asked. The caller is in an RCU read-side section.
pub(crate) fn has_judged<T: Protocol>(sk: &Sock, peer: &Peer) -> bool {
    // SAFETY: The sock is borrowed, and RCU held.
    let state = unsafe { state::<T>(sk.as_ptr()) };
    // SAFETY: The task is compared only. The message is on the stack of that task, which is this one, and
    // which clears the pointer after the task's.
    state.is_some_and(|state| unsafe {
        bindings::kopi_is_current(state.sender.load(Ordering::Relaxed))
            && state
                .own
                .load(Ordering::Relaxed)
                .as_ref()
                .is_some_and(|own| own.judged == *peer)
    })
}
