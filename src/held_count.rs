// SPDX-License-Identifier: GPL-2.0

//! Counting things that there are.

use kernel::sync::atomic::{ordering::Relaxed, Atomic};

/// What counts as long as it lives.
pub(crate) struct HeldCount(&'static Atomic<u32>);

impl HeldCount {
    /// Adds one to the count. Any context.
    pub(crate) fn new(count: &'static Atomic<u32>) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for HeldCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
