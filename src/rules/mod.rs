// SPDX-License-Identifier: GPL-2.0

//! Rules, and how they apply to a flow.
//!
//! A set of rules never changes: a change makes another one (`set.rs`). A flow walks it once, and
//! again when the set, its process, its port or its device is another; a packet costs a comparison
//! (`verdict.rs`). Only where a rule names a peer does a packet's destination matter: the set is
//! then walked for a peer, too, and the last one remembered. `policy.rs` is what the rest of KOPI
//! asks, and `calls.rs` what processes' calls ask.

mod calls;
mod net_policy;
mod policy;
mod set;
mod verdict;

use crate::pure::{
    peer::Peer,
    rule::{Direction, Received}, //
};
use kernel::prelude::*;

pub(crate) use net_policy::NetPolicy;
pub(crate) use policy::{Policy, StreamVerdict};
pub(crate) use set::{Action, Limit, Parts, Replaced, Rule, RuleSet, SharedRules};
pub(crate) use verdict::is_denied_to_process;

/// Whether packets that are judged count: for the packets, bytes and rate of their rule.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counting {
    Now,
    /// They were counted before, or will be as packets, or only a hop is asked about.
    Elsewhere,
}

impl Counting {
    /// Counts what wasn't counted before.
    pub(crate) fn unless(counted_before: bool) -> Self {
        match counted_before {
            true => Self::Elsewhere,
            false => Self::Now,
        }
    }
}

/// Datagrams that are judged together.
#[derive(Clone, Copy)]
pub(crate) struct Packets {
    pub(crate) datagrams: u64,
    /// Bytes of payload, of all together.
    pub(crate) bytes: u64,
    pub(crate) counting: Counting,
}

/// Packets, and their way.
pub(crate) struct Traffic {
    pub(crate) direction: Direction,
    /// From whom they come, or to whom they go.
    pub(crate) peer: Peer,
    pub(crate) packets: Packets,
}

impl Traffic {
    /// What has come from a peer.
    pub(crate) fn received(peer: Peer, size: Received, counting: Counting) -> Self {
        Self {
            direction: Direction::In,
            peer,
            packets: Packets {
                datagrams: size.datagrams,
                bytes: size.bytes,
                counting,
            },
        }
    }
}

/// The verdict on packets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Pass,
    Denied,
    /// Over the rule's rate; or there is no memory to decide.
    TooFast,
}

impl Outcome {
    /// This outcome, but [`Self::Denied`] instead of [`Self::Pass`] if `is_denied` returns true.
    #[inline]
    pub(crate) fn unless(self, is_denied: impl FnOnce() -> bool) -> Self {
        match self {
            Self::Pass if is_denied() => Self::Denied,
            outcome => outcome,
        }
    }

    /// `EACCES` if it is denied, and the error `too_fast` over a rate.
    #[inline]
    pub(crate) fn result(self, too_fast: fn() -> Error) -> Result {
        match self {
            Self::Pass => Ok(()),
            Self::Denied => Err(EACCES),
            Self::TooFast => Err(too_fast()),
        }
    }
}

/// A flow that a rule stopped: its process and listeners are to be told.
#[derive(Clone, Copy)]
pub(crate) struct Denial {
    /// The rule's handle; 0 for the default.
    pub(crate) rule: u32,
    pub(crate) direction: Direction,
}
