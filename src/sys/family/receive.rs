// SPDX-License-Identifier: GPL-2.0

//! What is queued on a sock, moved on: the callback of the sock, and work for when it can't be.

use super::{
    state::{state, State},
    Protocol,
};
use crate::sys::{
    bindings,
    context::{BottomHalvesOff, SoftirqsOff},
    reaper,
    skb::SkBuff,
    sock::{LockedSock, Sock, SockRef},
    socket::Socket,
};
use core::{
    cell::UnsafeCell,
    ptr::{self, NonNull},
};
use kernel::prelude::*;

/// From now on has `data_ready` of the protocol called. Process context.
///
/// To be called once for a socket. Packets that were queued before remain queued.
pub(crate) fn install_callbacks<T: Protocol>(socket: &Socket) {
    let sk = socket.sk().as_ptr();
    // SAFETY: The socket is in use by the caller. The callbacks and their copies are written under
    // the lock; the copies are not read before the callbacks are set.
    unsafe {
        let Some(state) = state::<T>(sk) else {
            return;
        };
        bindings::kopi_write_lock_bh_callback(sk);
        state.data_ready.get().write((*sk).sk_data_ready);
        ptr::write_volatile(&raw mut (*sk).sk_data_ready, Some(data_ready::<T>));
        bindings::kopi_write_unlock_bh_callback(sk);
    }
}

/// # Safety
///
/// To be called by the kernel only, as the operation that it is set as.
pub(super) unsafe extern "C" fn data_ready<T: Protocol>(sk: *mut bindings::sock) {
    let _rcu = kernel::sync::rcu::read_lock();
    // SAFETY: The sock is in use by the caller; RCU is held. UDP calls this with softirqs off, as
    // `poke` does.
    unsafe {
        // Softirqs find socks without a reference, and `read_skb` needs one: a close may take the
        // last away meanwhile. What is queued then goes with the sock.
        let Some(_kept) = SockRef::get(Sock::from_raw(sk)) else {
            return;
        };
        if let Some(state) = state::<T>(sk) {
            if Sock::from_raw(sk).has_receive_hook() {
                reaper::queue_delayed(state.work.get(), 0);
            } else {
                let softirqs = SoftirqsOff::assume();
                let _ = state
                    .protocol
                    .data_ready(Sock::from_raw(sk), None, softirqs);
            }
        }
    }
}

/// After how many jiffies a sock that a process had locked is tried again.
pub(super) const LOCKED_RETRY: c_ulong = 2;

/// Takes what is queued where the sock can be locked, which receive hooks rely on.
///
/// Never waits for the lock, which a process can make last: a worker that waits is one less for others.
///
/// # Safety
///
/// To be called by the kernel only, as the function of a state's `work`.
pub(super) unsafe extern "C" fn receive_work<T: Protocol>(work: *mut bindings::work_struct) {
    // SAFETY: The work is a state's, which is kept, as its sock is, until the work is disabled. From
    // where the sock is locked to where it is unlocked, softirqs are off, and what says so is used.
    unsafe {
        let work = kernel::container_of!(work, bindings::delayed_work, work);
        let state = &*kernel::container_of!(
            work.cast::<UnsafeCell<bindings::delayed_work>>(),
            State<T>,
            work
        );
        if bindings::kopi_bh_lock_sock_unowned(state.sk) {
            let sk = Sock::from_raw(state.sk);
            let locked = Some(LockedSock::from_locked(sk));
            let more = state.protocol.data_ready(sk, locked, SoftirqsOff::assume());
            bindings::kopi_bh_unlock_sock(state.sk);
            if more {
                reaper::queue_delayed(state.work.get(), 0);
            }
        } else {
            reaper::queue_delayed(state.work.get(), LOCKED_RETRY);
        }
    }
}

/// Has what is queued on a socket moved on, after [`install_callbacks`]. Process context.
pub(crate) fn drain<T: Protocol>(socket: &Socket) {
    let _softirqs = BottomHalvesOff::new();
    // SAFETY: The socket is in use by the caller.
    unsafe { data_ready::<T>(socket.sk().as_ptr()) };
}

/// Takes the next packet off the sock's queue, its checksum verified; looks at `left` at the most, of which
/// it takes those that it looked at. Softirq, or softirqs off; the caller keeps the sock.
///
/// It never polls a NIC, so a spinlock may be held.
pub(crate) fn next_packet(sk: &Sock, left: &mut u32) -> Option<SkBuff> {
    // SAFETY: A valid UDP sock, to which the caller has a reference.
    let skb = unsafe { bindings::kopi_udp_read_skb(sk.as_ptr(), left) };
    let skb = NonNull::new(skb)?;
    // SAFETY: A packet of a UDP sock's queue, whose headers are linear; which this CPU alone has.
    Some(unsafe { SkBuff::from_raw(skb) })
}
