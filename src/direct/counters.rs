// SPDX-License-Identifier: GPL-2.0

//! What became of packets at an attached device.

use crate::sys::context::now;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Counters {
    /// Datagrams that the driver took.
    pub(crate) packets: AtomicU64,
    /// GSO packets of them.
    pub(crate) gso_packets: AtomicU64,
    /// GSO packets that the stack got.
    pub(crate) passed: AtomicU64,
    /// Datagrams that were dropped: there were too many, no memory, the driver took no more, or the device went
    /// down.
    pub(crate) dropped: AtomicU64,
    /// Datagrams that were redirected.
    pub(crate) received: AtomicU64,
    /// GSO packets that were made of them.
    pub(crate) gro_packets: AtomicU64,
    /// Those that were dropped for want of memory.
    pub(crate) receive_dropped: AtomicU64,
    /// Until when the driver isn't offered any, since it took none for too long, in nanoseconds.
    pub(super) refused_until: AtomicU64,
}

impl Counters {
    pub(super) fn is_refused(&self) -> bool {
        match self.refused_until.load(Relaxed) {
            0 => false,
            until => now() < until,
        }
    }
}
