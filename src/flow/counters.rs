// SPDX-License-Identifier: GPL-2.0

//! Counters that have one writer at a time, and those of a flow.

use crate::pure::{abi::Stats, counters::with_counters};
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

/// Makes [`FlowCounters`] of the table: first sorts it, then writes what is sent and what is
/// received apart, as different CPUs count these.
macro_rules! flow_counters {
    ([$($sent:ident)*] [$($received:ident)*]) => {
        /// What a flow counts of its packets.
        ///
        /// Those named `tx` are written under the channel's sender, those named `rx` under its
        /// receiver; without a channel the reader of a datagram writes the latter.
        #[derive(Default)]
        pub(crate) struct FlowCounters {
            $(pub(crate) $sent: Counter,)*
            $(pub(crate) $received: Counter,)*
        }

        impl FlowCounters {
            /// Gives those of sending, which agree with each other under the channel's sender.
            pub(crate) fn fill_sent(&self, stats: &mut Stats) {
                $(stats.$sent = self.$sent.get();)*
                stats.tx_errors = self.refused();
            }

            /// Gives those of receiving, which agree with each other under the channel's receiver.
            pub(crate) fn fill_received(&self, stats: &mut Stats) {
                $(stats.$received = self.$received.get();)*
            }
        }
    };
    ([$($sent:ident)*] [$($received:ident)*]
        $(#[$doc:meta])* sent $name:ident $(= $attribute:ident)?; $($rest:tt)*) => {
        flow_counters! { [$($sent)* $name] [$($received)*] $($rest)* }
    };
    ([$($sent:ident)*] [$($received:ident)*]
        $(#[$doc:meta])* received $name:ident $(= $attribute:ident)?; $($rest:tt)*) => {
        flow_counters! { [$($sent)*] [$($received)* $name] $($rest)* }
    };
    ([$($sent:ident)*] [$($received:ident)*]
        $(#[$doc:meta])* channel $name:ident $(= $attribute:ident)?; $($rest:tt)*) => {
        flow_counters! { [$($sent)*] [$($received)*] $($rest)* }
    };
    ([$($sent:ident)*] [$($received:ident)*]
        $(#[$doc:meta])* sum $name:ident $(= $attribute:ident)?; $($rest:tt)*) => {
        flow_counters! { [$($sent)*] [$($received)*] $($rest)* }
    };
    ($(#[$doc:meta])* $of:ident $($rest:tt)*) => {
        flow_counters! { [] [] $(#[$doc])* $of $($rest)* }
    };
}

with_counters!(flow_counters);

impl FlowCounters {
    /// Datagrams that the stack refused, for whatever reason.
    fn refused(&self) -> u64 {
        let reasons = [
            &self.tx_drop_denied,
            &self.tx_drop_unreachable,
            &self.tx_drop_too_long,
            &self.tx_drop_no_buffer,
            &self.tx_drop_other,
        ];
        reasons
            .into_iter()
            .fold(0, |sum, reason| sum.wrapping_add(reason.get()))
    }
}
