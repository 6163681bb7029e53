// SPDX-License-Identifier: GPL-2.0

//! The counters of a flow.

use crate::counter::Counter;
use crate::pure::{abi::Stats, counters::with_counters};

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
                stats.tx_errors = self.tx_errors();
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
    /// Datagrams that the stack didn't take, for whatever reason.
    fn tx_errors(&self) -> u64 {
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
