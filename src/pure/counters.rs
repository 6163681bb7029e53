// SPDX-License-Identifier: GPL-2.0

//! The counters of a flow and of its channel: the one table of them.
//!
//! A new counter is a line of [`with_counters`], in place of a reserved word of `struct
//! kopi_stats`. What follows from the table: [`super::abi::Stats`] and its sums, what the module
//! counts for a flow (`src/flow/counters.rs`), and what it tells by netlink
//! (`src/describe.rs`). What can't, says so when it lacks the counter:
//!
//! - `uapi/kopi.h`: the size of `struct kopi_stats` stays, and its `reserved` gets shorter; host
//!   tests and the module's build compare offsets.
//! - `tools/python/kopi/_library.py`: its struct; a selftest compares names.
//! - `docs/abi.md`: its table has all counters; a host test compares names.
//! - With an attribute: `uapi/kopi.yaml` (then `make netlink`), which a host test compares, the
//!   names in `src/sys/uapi.rs`, which the module's build lacks, and
//!   `tools/kopictl/src/message/stats.rs`, which a test of kopictl compares with the specification.
//!
//! A channel's counter is read in `src/channel/stats.rs`, too.

/// Gives a macro all counters, in the order of `struct kopi_stats`.
///
/// Each is `sent` or `received`, which a flow counts under its channel's sender or receiver, a `sum` of
/// others, which nobody counts, or of the `channel`. Those that netlink tells of a flow have the name of the attribute.
macro_rules! with_counters {
    ($use_them:ident) => {
        $use_them! {
            /// Datagrams that the stack took.
            sent tx_packets = KOPI_A_STATS_TX_PACKETS;
            /// Their payload, in bytes.
            sent tx_bytes = KOPI_A_STATS_TX_BYTES;
            /// Datagrams that the stack refused.
            sum tx_errors;
            /// Of `tx_packets`, still held by reference when they had been sent.
            sent tx_zerocopy = KOPI_A_STATS_TX_ZEROCOPY;
            /// Datagrams delivered to the RX ring.
            received rx_packets = KOPI_A_STATS_RX_PACKETS;
            /// Their payload, in bytes.
            received rx_bytes = KOPI_A_STATS_RX_BYTES;
            /// Dropped: the RX ring had no room.
            received rx_drop_ring_full = KOPI_A_STATS_RX_DROP_RING_FULL;
            /// Dropped: too few frames in the FILL ring.
            received rx_drop_no_frame = KOPI_A_STATS_RX_DROP_NO_FRAME;
            /// Dropped: would need too many frames.
            received rx_drop_too_long = KOPI_A_STATS_RX_DROP_TOO_LONG;
            /// TX descriptors of the channel that were refused.
            channel tx_invalid;
            /// FILL entries of the channel that are no frame.
            channel fill_invalid;
            /// Times that an index of the program made no sense.
            channel ring_broken;
            /// Frames that the stack has not released.
            channel tx_pending;
            /// Flows on the channel.
            channel flows;
            /// Datagrams taken from the TX ring, and those of sendmsg() that went by the channel's routes:
            /// `tx_packets` and all `tx_drop_*`.
            sent tx_taken = KOPI_A_STATS_TX_TAKEN;
            /// Datagrams that reached the flow: `rx_packets` and all `rx_drop_*`.
            received rx_taken = KOPI_A_STATS_RX_TAKEN;
            /// Not sent: a filter, a cgroup's program or a security module forbade it.
            sent tx_drop_denied = KOPI_A_STATS_TX_DROP_DENIED;
            /// Not sent: no route to the peer, or its host had refused.
            sent tx_drop_unreachable = KOPI_A_STATS_TX_DROP_UNREACHABLE;
            /// Not sent: longer than a datagram or the path's MTU may be.
            sent tx_drop_too_long = KOPI_A_STATS_TX_DROP_TOO_LONG;
            /// Not sent: no memory, or a queue was full.
            sent tx_drop_no_buffer = KOPI_A_STATS_TX_DROP_NO_BUFFER;
            /// Not sent: its descriptors or metadata make no sense.
            sent tx_drop_invalid = KOPI_A_STATS_TX_DROP_INVALID;
            /// Not sent, for any other reason.
            sent tx_drop_other = KOPI_A_STATS_TX_DROP_OTHER;
            /// Not sent: a rule of KOPI's denied it.
            sent tx_drop_rule = KOPI_A_STATS_TX_DROP_RULE;
            /// Not sent: over the rate that a rule allows.
            sent tx_drop_rate = KOPI_A_STATS_TX_DROP_RATE;
            /// Dropped: a rule of KOPI's denied it.
            received rx_drop_rule = KOPI_A_STATS_RX_DROP_RULE;
            /// Dropped: over the rate that a rule allows.
            received rx_drop_rate = KOPI_A_STATS_RX_DROP_RATE;
            /// Nanoseconds that engines have worked for the channel.
            channel engine_time;
        }
    };
}

pub(crate) use with_counters;

/// A counter, as the table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// `sent`, `received`, `sum` or `channel`.
    pub of: &'static str,
    /// The field of `struct kopi_stats`.
    pub name: &'static str,
    /// The attribute that netlink tells it by, if any.
    pub attribute: Option<&'static str>,
}

macro_rules! list {
    ($($(#[$doc:meta])* $of:ident $name:ident $(= $attribute:ident)?;)*) => {
        /// All counters: their places are those of the words of `struct kopi_stats`.
        pub const COUNTERS: &[Counted] = &[$(Counted {
            of: stringify!($of),
            name: stringify!($name),
            attribute: list!(@attribute $($attribute)?),
        }),*];
    };
    (@attribute) => { None };
    (@attribute $attribute:ident) => { Some(stringify!($attribute)) };
}

with_counters!(list);
