// SPDX-License-Identifier: GPL-2.0

//! Packets that aren't delivered.

use crate::channel::Channel;
use crate::counter::Counter;
use crate::flow::Flow;
use crate::monitor::Refusal;
use crate::pure::{
    abi::{
        Meta, MON_REASON_NO_FRAME, MON_REASON_RATE, MON_REASON_RING_FULL, MON_REASON_RULE,
        MON_REASON_TOO_LONG,
    },
    rule::Direction, //
};
use crate::sys::{
    skb::SkBuff,
    sock::Sock, //
};

/// Why a packet isn't delivered.
#[derive(Clone, Copy)]
pub(super) enum DropReason {
    RingFull,
    NoFrame,
    TooLong,
    Rule,
    Rate,
}

impl DropReason {
    /// Whether it is one of too little room or too few frames.
    pub(super) fn is_overrun(self) -> bool {
        matches!(self, DropReason::RingFull | DropReason::NoFrame)
    }

    pub(super) fn counter(self, flow: &Flow) -> &Counter {
        match self {
            DropReason::RingFull => &flow.counters.rx_drop_ring_full,
            DropReason::NoFrame => &flow.counters.rx_drop_no_frame,
            DropReason::TooLong => &flow.counters.rx_drop_too_long,
            DropReason::Rule => &flow.counters.rx_drop_rule,
            DropReason::Rate => &flow.counters.rx_drop_rate,
        }
    }

    /// As monitors show it, for the packet of that metadata.
    pub(super) fn refusal(self, flow: &Flow, sk: &Sock, meta: &Meta) -> Refusal {
        let reason = match self {
            DropReason::RingFull => MON_REASON_RING_FULL,
            DropReason::NoFrame => MON_REASON_NO_FRAME,
            DropReason::TooLong => MON_REASON_TOO_LONG,
            DropReason::Rule => MON_REASON_RULE,
            DropReason::Rate => MON_REASON_RATE,
        };
        let rule = match self {
            DropReason::Rule | DropReason::Rate => {
                flow.policy().rule_for(sk, Direction::In, &meta.peer())
            }
            _ => 0,
        };
        Refusal { reason, rule }
    }
}

/// What of a packet wasn't delivered.
pub(super) struct Loss {
    /// Number of bytes in front of it, which were delivered.
    pub(super) end: u32,
    pub(super) datagrams: u32,
}

/// Frees a packet of which not all was delivered.
pub(super) fn free_lost(channel: &Channel, sk: &Sock, skb: SkBuff, loss: &Loss) {
    skb.count_dropped(sk, loss.datagrams);
    if loss.end > 0 {
        skb.consume(sk);
    } else {
        // Monitors have seen it, and must not see it again as a packet that the stack drops.
        channel.set_dropping(skb.address());
        skb.drop_for(sk);
        channel.set_dropping(0);
    }
}
