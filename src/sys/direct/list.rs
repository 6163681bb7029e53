// SPDX-License-Identifier: GPL-2.0

//! Lists of packets that were taken from the stack.

use super::taken::TakenSkb;
use crate::sys::bindings;
use core::{
    cell::UnsafeCell,
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use kernel::prelude::*;

/// A list of packets, in order.
///
/// # Invariants
///
/// The head is initialised, and the list holds skbs of [`TakenSkb`]s, which it owns.
pub(crate) struct List {
    head: KBox<UnsafeCell<bindings::sk_buff_head>>,
}

// SAFETY: Skbs are not bound to a CPU or task, and this value is the only one to use the list.
unsafe impl Send for List {}

impl List {
    /// An empty list: `ENOMEM`. Process context.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: The struct holds pointers and integers, for which zeroes are valid.
        let head: bindings::sk_buff_head = unsafe { core::mem::zeroed() };
        let head = KBox::new(UnsafeCell::new(head), GFP_KERNEL_ACCOUNT)?;
        // SAFETY: The memory has that type, and its box keeps it in place.
        unsafe { bindings::kopi_skb_queue_head_init(head.get()) };
        // INVARIANT: Just initialised, and empty.
        Ok(Self { head })
    }

    /// Number of packets.
    pub(crate) fn len(&self) -> u32 {
        // SAFETY: The list is initialised, and this value, which is borrowed, is the only one to change it.
        unsafe { (*self.head.get()).qlen }
    }

    /// Appends a packet.
    pub(crate) fn push(&mut self, packet: TakenSkb) {
        // SAFETY: The list is this value's, which is borrowed exclusively. The skb is owned, and so
        // on no other list.
        unsafe {
            let skb = ManuallyDrop::new(packet).as_ptr();
            bindings::kopi_skb_queue_tail(self.head.get(), skb);
        }
    }

    /// Removes the first packet.
    pub(crate) fn pop(&mut self) -> Option<TakenSkb> {
        // SAFETY: The list is initialised, and borrowed exclusively.
        let skb = unsafe { bindings::kopi_skb_dequeue(self.head.get()) };
        // INVARIANT: The list owned the skb of a `TakenSkb`, and has given it up.
        NonNull::new(skb).map(TakenSkb)
    }

    /// Puts the first packet behind all others.
    pub(crate) fn rotate(&mut self) {
        if let Some(packet) = self.pop() {
            self.push(packet);
        }
    }

    /// Calls `act` with the first packet, which stays on the list.
    pub(crate) fn first<T>(&mut self, act: impl FnOnce(&mut TakenSkb) -> T) -> Option<T> {
        // SAFETY: The list is initialised, and borrowed exclusively.
        let skb = unsafe { bindings::kopi_skb_peek(self.head.get()) };
        // INVARIANT: The list holds skbs of `TakenSkb`s. `ManuallyDrop` leaves this one to the
        // list.
        let mut packet = ManuallyDrop::new(TakenSkb(NonNull::new(skb)?));
        Some(act(&mut packet))
    }
}

impl Drop for List {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}
