// SPDX-License-Identifier: GPL-2.0

//! The state of a socket of the family, besides its sock.

use super::{ring_message::RingMessage, tables::is_of_family, Protocol};
use crate::sys::{
    bindings, reaper,
    slab::{Cached, Slot},
    sock::Sock,
    socket::Socket,
};
use core::{cell::UnsafeCell, ptr, sync::atomic::AtomicPtr};
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        rcu, //
    },
    time::msecs_to_jiffies, //
};

/// The state of a socket. The field `i_private` of the socket's inode points to it; sockets don't
/// use that field otherwise.
///
/// The sock's `sk_user_data` can't be used instead, because sockmaps and reuseport arrays of BPF
/// accept only socks in which it is free. (Connected streams occupy it, for another reason: see
/// `kopi_tcp_occupy`.)
pub(super) struct State<T> {
    /// The RCU callback that frees the state, when no softirq uses it any more.
    pub(super) rcu: UnsafeCell<bindings::callback_head>,
    /// The operation that [`install_callback`] replaced.
    pub(super) data_ready: UnsafeCell<Callback>,
    /// Work in process context: a UDP sock's receives queued packets, a TCP sock's applies new rules. It
    /// is disabled before the sock is released.
    pub(super) work: UnsafeCell<bindings::delayed_work>,
    /// The jiffies that `work` waited last for a sock that a process had locked; 0 if it had the sock
    /// since. Only `work` accesses it.
    pub(super) waited: Atomic<c_ulong>,
    /// The sock, which outlives `work`.
    pub(super) sk: *mut bindings::sock,
    /// The message that [`send_ring_message`] is sending.
    pub(super) message: AtomicPtr<RingMessage<'static>>,
    /// The task that is in [`send_ring_message`]. It may be compared, and never dereferenced.
    pub(super) sender: AtomicPtr<c_void>,
    /// Calls that may connect the stream, and are under way: none of them loses its `sk_user_data`.
    pub(super) connecting: Atomic<u32>,
    /// The protocol's own state.
    pub(super) protocol: T,
}

/// The slab cache of states.
pub(super) static STATES: Slot = Slot::new();

impl<T> Cached for State<T> {
    fn slot() -> &'static Slot {
        &STATES
    }
}

/// The type of `sk_data_ready`.
pub(super) type Callback = Option<unsafe extern "C" fn(sk: *mut bindings::sock)>;

/// The state of a sock of the family; `None` if its socket is released, or not complete yet.
///
/// # Safety
///
/// `sk` must be the sock of a socket of the family, and `T` the family's protocol. The caller must
/// be in an RCU read-side section for `'a`, or keep the socket from being released for `'a`.
pub(super) unsafe fn state<'a, T: Protocol>(sk: *mut bindings::sock) -> Option<&'a State<T>> {
    // SAFETY: The caller passes a valid sock. `create` sets the pointer, to a `State<T>`, and
    // `release` clears it before the state is freed by RCU. The inode is freed by RCU, too. So the
    // caller's RCU read-side section, or its use of the socket, keeps both.
    unsafe {
        bindings::kopi_sk_inode_private(sk)
            .cast::<State<T>>()
            .as_ref()
    }
}

/// Jiffies after which the work of a socket first retries a sock that a process had locked.
const LOCKED_RETRY: c_ulong = 2;
/// Milliseconds after which it retries at the latest.
const LOCKED_RETRY_MAX: c_uint = 1000;

impl<T> State<T> {
    /// Has `work` retry a sock that a process had locked: each time after twice as long as before,
    /// since a user can keep many socks locked for ever.
    ///
    /// The work never waits for the lock: a waiting worker would be lost to other flows.
    ///
    /// # Safety
    ///
    /// Only `work` may call it.
    pub(super) unsafe fn retry_later(&self) {
        let last = self.waited.load(Relaxed);
        let doubled = last.saturating_mul(2).max(LOCKED_RETRY);
        let wait = doubled.min(msecs_to_jiffies(LOCKED_RETRY_MAX));
        self.waited.store(wait, Relaxed);
        // SAFETY: The work runs, so it is initialised, and `release` disables it before the state is
        // freed.
        unsafe { reaper::queue_delayed(self.work.get(), wait) };
    }

    /// `work` has locked the sock: the next retry waits for a short time again.
    pub(super) fn reset_wait(&self) {
        self.waited.store(0, Relaxed);
    }
}

impl<T: Protocol> State<T> {
    /// Tells the protocol if the sock has lost its port, and datagrams that came to it wait. Process context.
    pub(super) fn note_lost_port(&self, sk: &Sock) {
        if sk.has_lost_port() {
            self.protocol.note_move();
        }
    }
}

/// The state whose work it is.
///
/// # Safety
///
/// `work` must be the `work` of a `State<T>`, which isn't freed for `'a`.
pub(super) unsafe fn state_of_work<'a, T>(work: *mut bindings::work_struct) -> &'a State<T> {
    // SAFETY: Required of the caller.
    unsafe {
        let work = kernel::container_of!(work, bindings::delayed_work, work);
        &*kernel::container_of!(
            work.cast::<UnsafeCell<bindings::delayed_work>>(),
            State<T>,
            work
        )
    }
}

/// The sock and the protocol's state, if the sock belongs to an open socket of the family.
///
/// # Safety
///
/// `sk` must be null, or a sock that isn't freed for `'a`. The caller must be in an RCU read-side
/// section for `'a`.
pub(in crate::sys) unsafe fn flow_of<'a, T: Protocol>(
    sk: *mut bindings::sock,
) -> Option<(&'a Sock, &'a T)> {
    // SAFETY: The caller keeps the sock, and is in an RCU read-side section.
    unsafe {
        if !socket_is_ours(sk) {
            return None;
        }
        let state = state::<T>(sk)?;
        Some((Sock::from_raw(sk), &state.protocol))
    }
}

/// Whether the sock belongs to a socket of the family, which may be incomplete, or be closing.
///
/// # Safety
///
/// As of [`flow_of`].
unsafe fn socket_is_ours(sk: *mut bindings::sock) -> bool {
    // SAFETY: The caller keeps the sock. A full sock has the field `sk_socket`. The socket is a
    // part of its inode, which RCU frees, so it is valid here. Only sockets of the family have the
    // family's operations. Fields that other tasks may change are read once.
    unsafe {
        if sk.is_null() || !bindings::kopi_sk_fullsock(sk) {
            return false;
        }
        let socket = ptr::read_volatile(&raw const (*sk).sk_socket);
        !socket.is_null() && is_of_family(ptr::read_volatile(&raw const (*socket).ops))
    }
}

/// Whether the sock belongs to a socket of the family, which may be incomplete, or be closing. Any
/// context.
pub(crate) fn has_our_socket(sk: &Sock) -> bool {
    let _rcu = rcu::read_lock();
    // SAFETY: The sock is borrowed, and so valid. RCU is held here.
    unsafe { socket_is_ours(sk.as_ptr()) }
}

/// The protocol's state of a socket of the family; `None` if the socket isn't complete yet.
pub(crate) fn protocol<T: Protocol>(socket: &Socket) -> Option<&T> {
    // SAFETY: The socket isn't released during the borrow, and so has its sock and its state. Every
    // `Socket` outside `sys` is of the family.
    Some(unsafe { &state::<T>((*socket.as_ptr()).sk)?.protocol })
}
