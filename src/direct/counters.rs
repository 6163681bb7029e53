// SPDX-License-Identifier: GPL-2.0

//! Counters of an attached device.

use crate::sys::context::now;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Packets that an attached device sent and received, by their fate.
#[derive(Default)]
pub(crate) struct Counters {
    /// Datagrams that the driver took.
    pub(crate) packets: AtomicU64,
    /// GSO packets that these datagrams were segmented from.
    pub(crate) gso_packets: AtomicU64,
    /// GSO packets that were passed to the stack.
    pub(crate) passed: AtomicU64,
    /// Datagrams that were dropped: the queue was full, memory was short, the driver took no more,
    /// or the device went down.
    pub(crate) dropped: AtomicU64,
    /// Datagrams that the XDP program redirected.
    pub(crate) received: AtomicU64,
    /// Redirected datagrams that went to their flows without the stack, or were dropped on that way.
    pub(crate) received_direct: AtomicU64,
    /// GRO packets that were made of redirected datagrams for the stack.
    pub(crate) gro_packets: AtomicU64,
    /// Redirected datagrams that were dropped because memory was short.
    pub(crate) receive_dropped: AtomicU64,
    /// The time in nanoseconds until which the driver counts as stuck, and gets no frames, because it took
    /// none for too long; 0 if it never did.
    pub(super) stuck_until: AtomicU64,
}

impl Counters {
    /// Counts datagrams that the driver took, of a GSO packet or not.
    pub(super) fn count_sent(&self, datagrams: u32, is_gso: bool) {
        self.packets.fetch_add(u64::from(datagrams), Relaxed);
        self.gso_packets.fetch_add(u64::from(is_gso), Relaxed);
    }

    /// Whether the driver counts as stuck now.
    pub(super) fn is_stuck(&self) -> bool {
        match self.stuck_until.load(Relaxed) {
            0 => false,
            until => now() < until,
        }
    }
}
