// SPDX-License-Identifier: GPL-2.0

//! Counters that have one writer at a time.

use core::sync::atomic::{AtomicU64, Ordering};

/// A counter that has one writer at a time.
///
/// This, and all else that each packet counts or changes (`crate::direct`, the message that a ring
/// sends in `crate::sys::family`), are atomics of `core`. Each operation of the kernel crate's
/// `Atomic`, even a load, is a call of a C function, since stock kernels are built without
/// `CONFIG_RUST_INLINE_HELPERS`. All other atomics of the module are the kernel crate's, except
/// those in memory that it shares with programs.
pub(crate) struct Counter(AtomicU64);

impl Default for Counter {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Counter {
    /// Adds, where the caller holds the lock that goes with the counter.
    pub(crate) fn add(&self, n: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(n),
            Ordering::Relaxed,
        );
    }

    /// The count. Any context.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
