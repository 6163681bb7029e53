// SPDX-License-Identifier: GPL-2.0

//! Moves packets from a sock's queue to the protocol: the sock's callback, and work for cases in
//! which the callback can't do it.

use super::{
    state::{state, state_of_work, Callback, State},
    Protocol,
};
use crate::sys::{
    bindings,
    context::{BottomHalvesOff, SoftirqsOff},
    reaper,
    skb::SkBuff,
    sock::{LockedSock, Sock},
    socket::Socket,
};
use core::{
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, Ordering},
};
use kernel::prelude::*;

/// The callback that sock_init_data() sets, which isn't exported.
static FIRST_CALLBACK: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The address of a sock's callback.
///
/// # Safety
///
/// `sk` must be valid.
unsafe fn callback_of(sk: *mut bindings::sock) -> *mut c_void {
    // SAFETY: The caller passes a valid sock. Other tasks may set the field meanwhile, and it is read once.
    let callback: Callback = unsafe { ptr::read_volatile(&raw const (*sk).sk_data_ready) };
    callback.map_or(ptr::null_mut(), |callback| callback as *mut c_void)
}

/// Notes the callback of a sock that was just made.
///
/// # Safety
///
/// `sk` must be valid, and nobody may have had it so far.
pub(super) unsafe fn note_callback(sk: *mut bindings::sock) {
    // SAFETY: Required of the caller.
    FIRST_CALLBACK.store(unsafe { callback_of(sk) }, Ordering::Relaxed);
}

/// Sets the sock's callback, so that the protocol's `data_ready` is called. `EBUSY` if a sockmap's program has what
/// comes: it must keep it. Process context.
///
/// Packets that were queued before stay queued.
pub(crate) fn install_callback<T: Protocol>(socket: &Socket) -> Result {
    let sk = socket.sk().as_ptr();
    // SAFETY: The caller uses the socket. The callback and its copy are written under the callback
    // lock. Only `restore_callback`, for which that lock is held, reads the copy.
    unsafe {
        let state = state::<T>(sk).ok_or(EINVAL)?;
        bindings::kopi_write_lock_bh_callback(sk);
        let is_first = callback_of(sk) == FIRST_CALLBACK.load(Ordering::Relaxed);
        if is_first {
            state.data_ready.get().write((*sk).sk_data_ready);
            ptr::write_volatile(&raw mut (*sk).sk_data_ready, Some(data_ready::<T>));
        }
        // A sockmap that is gone has put this one's back.
        let is_set = is_first || has_data_ready::<T>(sk);
        bindings::kopi_write_unlock_bh_callback(sk);
        if is_set {
            Ok(())
        } else {
            Err(EBUSY)
        }
    }
}

/// Undoes [`install_callback`], and wakes readers for what came meanwhile. Process context.
pub(crate) fn remove_callback<T: Protocol>(socket: &Socket) {
    let sk = socket.sk().as_ptr();
    // SAFETY: The caller uses the socket, whose state this is. The callback lock is held.
    unsafe {
        if let Some(state) = state::<T>(sk) {
            bindings::kopi_write_lock_bh_callback(sk);
            restore_callback(state, sk);
            bindings::kopi_write_unlock_bh_callback(sk);
        }
    }
    socket.sk().wake_readers();
}

/// Puts back the callback that [`install_callback`] replaced. A sockmap that has it keeps this one's until the sock is
/// closed, which calls nobody then.
///
/// # Safety
///
/// `state` must be that of `sk`, which must be valid, and its callback lock must be held.
pub(super) unsafe fn restore_callback<T: Protocol>(state: &State<T>, sk: *mut bindings::sock) {
    // SAFETY: Required of the caller. The lock, which the writers of the copy hold, is held.
    unsafe {
        if has_data_ready::<T>(sk) {
            ptr::write_volatile(&raw mut (*sk).sk_data_ready, *state.data_ready.get());
        }
    }
}

/// Whether what the sock gets is the protocol's: not while a program of a sockmap has it, which keeps the protocol's
/// callback, and calls it.
///
/// # Safety
///
/// `sk` must be valid.
unsafe fn has_data_ready<T: Protocol>(sk: *mut bindings::sock) -> bool {
    // SAFETY: Required of the caller.
    ptr::eq(unsafe { callback_of(sk) }, data_ready_of::<T>())
}

/// # Safety
///
/// Only the kernel may call it, as `sk_data_ready` of a flow's sock, or a sockmap for a sock that has a program.
pub(super) unsafe extern "C" fn data_ready<T: Protocol>(sk: *mut bindings::sock) {
    let _rcu = kernel::sync::rcu::read_lock();
    // SAFETY: The caller uses the sock, which RCU keeps from here: close() may release the last reference
    // meanwhile. UDP calls this with softirqs off, and so does a sockmap.
    unsafe {
        if has_data_ready::<T>(sk) {
            deliver::<T>(sk);
        } else {
            Sock::from_raw(sk).wake_readers();
        }
    }
}

/// Delivers the queued packets, as far as that is done at once.
///
/// # Safety
///
/// The caller must use the sock, which must be a flow's, with softirqs off.
unsafe fn deliver<T: Protocol>(sk: *mut bindings::sock) {
    let _rcu = kernel::sync::rcu::read_lock();
    // SAFETY: The caller uses the sock, and RCU, held here, keeps it and the flow's state: close()
    // may release the last reference meanwhile. Softirqs are off, as the caller says.
    unsafe {
        if let Some(state) = state::<T>(sk) {
            let sk = Sock::from_raw(sk);
            // The work delivers the rest of a long queue, so that softirqs aren't off for long.
            if sk.has_receive_hook() || state.protocol.data_ready(sk, None, SoftirqsOff::assume()) {
                reaper::queue_delayed(state.work.get(), 0);
            }
        }
    }
}

/// The address of [`data_ready`], to compare a sock's callback with.
pub(in crate::sys) fn data_ready_of<T: Protocol>() -> *const c_void {
    data_ready::<T> as *const c_void
}

/// Delivers the queued packets with the sock locked, as receive hooks require, or the rest of a
/// long queue.
///
/// # Safety
///
/// Only the kernel may call it, as the function of a state's `work`.
pub(super) unsafe extern "C" fn receive_work<T: Protocol>(work: *mut bindings::work_struct) {
    // SAFETY: The work is a field of a state. `release` disables the work, and waits for it, before
    // the state and the sock are freed. Softirqs are off while the sock is locked, and `LockedSock`
    // and `SoftirqsOff` are used only there.
    unsafe {
        let state = state_of_work::<T>(work);
        if bindings::kopi_bh_lock_sock_unowned(state.sk) {
            state.reset_wait();
            let sk = Sock::from_raw(state.sk);
            let locked = Some(LockedSock::from_locked(sk));
            let more = has_data_ready::<T>(state.sk)
                && state.protocol.data_ready(sk, locked, SoftirqsOff::assume());
            bindings::kopi_bh_unlock_sock(state.sk);
            if more {
                reaper::queue_delayed(state.work.get(), 0);
            }
        } else {
            state.retry_later();
        }
    }
}

/// Delivers the packets that are queued on a socket, after [`install_callback`], unless a sockmap's program has them.
/// Process context.
pub(crate) fn drain<T: Protocol>(socket: &Socket) {
    let _softirqs = BottomHalvesOff::new();
    let sk = socket.sk().as_ptr();
    // SAFETY: The caller uses the socket, which keeps its sock. Softirqs are off.
    unsafe {
        if has_data_ready::<T>(sk) {
            deliver::<T>(sk);
        }
    }
}

/// Takes the next packet off the sock's queue, with a verified checksum. Packets with a wrong
/// checksum are dropped. It takes at most `left` packets off the queue, and subtracts their number
/// from `left`. Softirq, or softirqs off; the caller keeps the sock.
///
/// It never polls a NIC, so a spinlock may be held.
pub(crate) fn next_packet(sk: &Sock, left: &mut u32) -> Option<SkBuff> {
    // SAFETY: The sock is borrowed, and is a UDP sock.
    let skb = unsafe { bindings::kopi_udp_read_skb(sk.as_ptr(), left) };
    let skb = NonNull::new(skb)?;
    // SAFETY: The packet was taken off a UDP sock's queue, and has no other owner. UDP has made its
    // headers linear.
    Some(unsafe { SkBuff::from_raw(skb) })
}
