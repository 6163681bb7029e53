// SPDX-License-Identifier: GPL-2.0

//! A flow that is a TCP socket: rules permit its connection, or end it.
//!
//! A connection needs both directions, and has one peer. It is judged when it is made, when the
//! rules change, and with each packet that it sends. What is denied is aborted, which needs the
//! sock's lock: `family::lock_later` has it done soon.

use super::{judge::caller, Flow, OutPacket};
use crate::events::{notify, Event};
use crate::identity::Owner;
use crate::pure::{
    abi::Stats,
    peer::Peer,
    rule::Direction, //
};
use crate::rules::{Outcome, StreamVerdict};
use crate::sys::{
    family,
    sock::{LockedStream, Sock},
    socket::Socket, //
};
use kernel::prelude::*;

impl Flow {
    /// Judges the stream by the current rules, and tells listeners what these have just stopped. Returns whether they
    /// deny the stream: `ENOMEM`.
    fn judge_stream(&self, caller: Option<&Owner>, sk: &Sock) -> Result<bool> {
        let verdict = self.policy().judge_stream(caller, sk, sk.peer().as_ref());
        let StreamVerdict { denied, stopped } = verdict.ok_or(ENOMEM)?;
        for stopped in stopped.into_iter().flatten() {
            notify(self, sk, Event::Denied(stopped));
        }
        Ok(denied)
    }

    /// Whether the stream may be read or written: `EACCES`, `ENOMEM`. Process context.
    pub(super) fn may_use_stream(&self, socket: &Socket) -> Result {
        let Some(policy) = self.policy_in_force() else {
            return Ok(());
        };
        let caller = caller(policy, socket)?;
        let sk = socket.sk();
        if !self.judge_stream(Some(&caller), sk)? {
            return Ok(());
        }
        family::lock_later::<Self>(sk);
        Err(EACCES)
    }

    /// Applies rules that have changed; without memory, the next call or packet does. Process context.
    pub(super) fn apply_new_rules_to_stream(&self, sk: &Sock) {
        if self.policy_in_force().is_none() {
            return;
        }
        if self.judge_stream(None, sk) == Ok(true) && sk.is_listening() {
            // The listener stays, and accept() says why no connection comes.
            sk.set_error(EACCES);
        } else if sk.peer().is_some() {
            family::lock_later::<Self>(sk);
        }
    }

    /// A connection is being made: it gets the rule's mark, priority and rate. Process context.
    pub(super) fn apply_rules_to_connection(&self, sk: &Sock, peer: &Peer) {
        if let Some(policy) = self.policy_in_force().filter(|_| sk.is_stream()) {
            sk.with_stream_locked(|locked| policy.apply_locked(locked, peer));
        }
    }

    /// Ends the connection if the rules deny it, or gives it the rule's mark, priority and rate. Process context.
    pub(super) fn apply_new_rules_locked(&self, locked: &LockedStream<'_>) {
        let sk = locked.sk();
        let Some(peer) = sk.peer() else {
            return;
        };
        if sk.is_listening() {
            return;
        }
        if self.judge_stream(None, sk) == Ok(true) {
            locked.abort(EACCES);
        } else {
            self.policy().apply_locked(locked, &peer);
        }
    }

    /// Judges a segment that leaves, or a listener's SYN-ACK. Any context but hard interrupts, with
    /// the sock locked unless it is a listener.
    pub(super) fn judge_segment(&self, sk: &Sock, sent: &mut OutPacket) -> Outcome {
        let Some(policy) = self.policy_in_force() else {
            return Outcome::Pass;
        };
        // What comes back would be denied.
        if sk.is_listening() && policy.denies(sk, Direction::In, &sent.peer) {
            return Outcome::Denied;
        }
        let (outcome, _) = self.judge(policy, None, sk, &sent.traffic());
        match outcome {
            Outcome::Pass => sent.set_mark_and_priority(policy.mark_and_priority(sk, &sent.peer)),
            Outcome::Denied if !sk.is_listening() => family::lock_later::<Self>(sk),
            Outcome::Denied | Outcome::TooFast => {}
        }
        outcome
    }
}

/// What TCP has counted: segments with payload, and payload. Retransmitted ones count again.
pub(super) fn fill_stats(sk: &Sock, stats: &mut Stats) {
    let counts = sk.stream_counts();
    stats.tx_packets = counts.tx_segments.into();
    stats.tx_taken = counts.tx_segments.into();
    stats.tx_bytes = counts.tx_bytes;
    stats.rx_packets = counts.rx_segments.into();
    stats.rx_taken = counts.rx_segments.into();
    stats.rx_bytes = counts.rx_bytes;
}
