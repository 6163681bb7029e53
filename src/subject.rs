// SPDX-License-Identifier: GPL-2.0

//! A flow, as monitors and listeners are told of it.

use crate::pure::abi::Stats;
use crate::rules::Policy;
use crate::sys::sock::Sock;

/// A flow. Only `Flow` implements it: `events` and `monitor`, which `flow` uses, must not import `flow`.
pub(crate) trait Subject {
    /// Its number in its network namespace. Any context.
    fn id(&self) -> u32;

    /// Its policy. Any context.
    fn policy(&self) -> &Policy;

    /// The channel's number, and its own number on the channel, if it is on one. Any context.
    fn place(&self) -> Option<(u32, u32)>;

    /// Its counters. Any context but hard interrupts.
    fn stats(&self, sk: &Sock) -> Stats;
}
