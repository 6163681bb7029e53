// SPDX-License-Identifier: GPL-2.0

//! What there is of a socket of the family besides its UDP sock.

use super::{is_of_family, ring_message::RingMessage, Protocol};
use crate::sys::{
    bindings,
    slab::{Cached, Slot},
    sock::Sock,
    socket::Socket,
};
use core::{cell::UnsafeCell, ptr, sync::atomic::AtomicPtr};
use kernel::prelude::*;

/// What the `i_private` of a socket's inode points to, which sockets don't use otherwise.
///
/// Not the sock's `sk_user_data`: sockmaps and reuseport arrays of BPF take only socks whose own
/// is free.
pub(super) struct State<T> {
    /// For freeing it when no softirq uses it any more.
    pub(super) rcu: UnsafeCell<bindings::callback_head>,
    /// The operation that [`install_callbacks`] replaced.
    pub(super) data_ready: UnsafeCell<Callback>,
    /// Takes what is queued in process context; disabled before the sock is released.
    pub(super) work: UnsafeCell<bindings::delayed_work>,
    pub(super) sk: *mut bindings::sock,
    /// The message that [`send_ring_message`] is sending.
    pub(super) message: AtomicPtr<RingMessage<'static>>,
    /// The task that is in [`send_ring_message`]; to be compared only.
    pub(super) sender: AtomicPtr<c_void>,
    pub(super) protocol: T,
}

/// The cache of states.
pub(super) static STATES: Slot = Slot::new();

impl<T> Cached for State<T> {
    fn slot() -> &'static Slot {
        &STATES
    }
}

pub(super) type Callback = Option<unsafe extern "C" fn(sk: *mut bindings::sock)>;

/// The state of a sock of the family.
///
/// # Safety
///
/// The caller is in an RCU read-side section, or holds the socket.
pub(super) unsafe fn state<'a, T: Protocol>(sk: *mut bindings::sock) -> Option<&'a State<T>> {
    // SAFETY: The sock is valid. The pointer is set by `create` and cleared by `release`, after
    // which the state lives on for a grace period, as the inode does after its release.
    unsafe {
        bindings::kopi_sk_inode_private(sk)
            .cast::<State<T>>()
            .as_ref()
    }
}

/// The sock and the protocol's state, of a sock that is of the family.
///
/// # Safety
///
/// The caller is in an RCU read-side section, and `sk` null, or a sock that is kept.
pub(in crate::sys) unsafe fn flow_of<'a, T: Protocol>(
    sk: *mut bindings::sock,
) -> Option<(&'a Sock, &'a T)> {
    // SAFETY: The sock is valid. Its socket, if it still has one, lives on for a grace period, as
    // its inode does; its operations say whether it is of the family.
    unsafe {
        if sk.is_null() || !bindings::kopi_sk_fullsock(sk) {
            return None;
        }
        let socket = ptr::read_volatile(&raw const (*sk).sk_socket);
        if socket.is_null() || !is_of_family(ptr::read_volatile(&raw const (*socket).ops)) {
            return None;
        }
        let state = state::<T>(sk)?;
        Some((Sock::from_raw(sk), &state.protocol))
    }
}

/// The protocol's state of a socket of the family.
pub(crate) fn protocol<T: Protocol>(socket: &Socket) -> Option<&T> {
    // SAFETY: The socket lives as long as the borrow, and so does its state.
    Some(unsafe { &state::<T>((*socket.as_ptr()).sk)?.protocol })
}
