// SPDX-License-Identifier: GPL-2.0

//! Asking the rules about packets that don't exist yet, and showing monitors those that don't pass.

use super::packet::TxPacket;
use crate::channel::Channel;
use crate::flow::Flow;
use crate::monitor::{self, Unsent};
use crate::pure::{
    abi::Meta,
    peer::Peer,
    rule::Direction, //
};
use crate::rules::{Counting, Outcome, Packets, Traffic};
use crate::sys::{
    errno::enobufs,
    family::Judged,
    sock::Sock, //
};
use kernel::prelude::*;

/// Bytes of payload that monitors see of a datagram that the rules don't let pass.
const SHOWN_MAX: usize = 256;

/// No peer.
const NOBODY: Peer = Peer {
    address: [0; 16],
    port: 0,
};

/// The destination of a packet; `None` where that is known by the packet only, see [`Sock::reached`].
fn peer_of(meta: &Meta, sk: &Sock) -> Option<Peer> {
    if meta.peer_port == 0 {
        return Some(sk.peer().unwrap_or(NOBODY));
    }
    let peer = meta.peer();
    match meta.source() {
        Some(source) if meta.ifindex == 0 => Some(peer.or_own(|| source)),
        Some(_) if peer.is_anywhere_ipv4() => None,
        _ => sk.reached(peer),
    }
}

/// What the rules have let pass, and counted, at the head of the ring: it wasn't sent yet.
pub(super) struct CountedPass {
    flow: u32,
    peer: Peer,
    datagrams: u64,
    bytes: u32,
}

impl CountedPass {
    pub(super) const NOTHING: Self = Self {
        flow: 0,
        peer: NOBODY,
        datagrams: 0,
        bytes: 0,
    };

    /// Whether at least as much was counted before, for that peer of that flow.
    fn has(&self, flow: u32, peer: &Peer, datagrams: u64, bytes: u32) -> bool {
        (self.flow, self.peer) == (flow, *peer)
            && self.datagrams >= datagrams
            && self.bytes >= bytes
    }

    /// What was judged; nothing if there are no rules.
    pub(super) fn judged(&self) -> Judged {
        Judged {
            peer: self.peer,
            datagrams: self.datagrams,
        }
    }

    /// Forgets so much of it: the packet was sent, or the stack didn't take it.
    pub(super) fn spend(&mut self, datagrams: u64, bytes: u32) {
        self.datagrams = self.datagrams.saturating_sub(datagrams);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Has the rules decide about a packet of so many datagrams, each of `segment` bytes if that isn't 0. One that
    /// they refuse is counted, and shown to monitors: `EACCES`, or `ENOBUFS` over a rate.
    pub(super) fn judge(
        &mut self,
        channel: &Channel,
        (flow, sk): (&Flow, &Sock),
        (packet, meta): (&TxPacket, &Meta),
        (datagrams, segment): (u64, u32),
    ) -> Result {
        let outcome = self.decide(flow, sk, packet, meta, datagrams);
        outcome.result(enobufs).inspect_err(|_| {
            count_refused(flow, outcome, datagrams);
            show_refused(channel, (flow, sk), (packet, meta), outcome, segment);
        })
    }

    /// What the rules decide about a packet.
    ///
    /// A packet that stayed in the ring, since the stack had no room for it, was counted before. It
    /// may be another packet meanwhile: the ring is the program's.
    fn decide(
        &mut self,
        flow: &Flow,
        sk: &Sock,
        packet: &TxPacket,
        meta: &Meta,
        datagrams: u64,
    ) -> Outcome {
        let Some(policy) = flow.policy_in_force() else {
            // Where rules come meanwhile, the hook of LOCAL_OUT finds that no peer was judged.
            *self = Self::NOTHING;
            return Outcome::Pass;
        };
        let number = packet.first().flow;
        let bytes = packet.bytes();
        let Some(peer) = peer_of(meta, sk) else {
            // The hook of LOCAL_OUT judges it.
            *self = Self::NOTHING;
            return Outcome::Pass;
        };
        let counted_before = self.has(number, &peer, datagrams, bytes);
        let traffic = Traffic {
            direction: Direction::Out,
            peer,
            packets: Packets {
                datagrams,
                bytes: u64::from(bytes),
                counting: Counting::unless(counted_before),
            },
        };
        let outcome = flow.decide_in_ring(policy, sk, &traffic);
        if outcome == Outcome::Pass && !counted_before {
            *self = Self {
                flow: number,
                peer,
                datagrams,
                bytes,
            };
        }
        outcome
    }
}

/// Counts the datagrams of a packet that the rules refuse.
#[cold]
fn count_refused(flow: &Flow, outcome: Outcome, datagrams: u64) {
    let counter = match outcome {
        Outcome::Pass => return,
        Outcome::Denied => &flow.counters.tx_drop_rule,
        Outcome::TooFast => &flow.counters.tx_drop_rate,
    };
    counter.add(datagrams);
    flow.counters.tx_taken.add(datagrams);
}

/// Shows a packet to monitors that the rules refuse.
#[cold]
fn show_refused(
    channel: &Channel,
    (flow, sk): (&Flow, &Sock),
    (packet, meta): (&TxPacket, &Meta),
    outcome: Outcome,
    gso_size: u32,
) {
    if !monitor::is_watched(flow) {
        return;
    }
    let first = packet.first();
    let mut begins = [0u8; SHOWN_MAX];
    let len = SHOWN_MAX.min(first.len as usize);
    let begins = begins.get_mut(..len).unwrap_or_default();
    if channel.region().read(first.offset, begins).is_err() {
        return;
    }
    let unsent = Unsent {
        peer: peer_of(meta, sk).unwrap_or(NOBODY),
        begins,
        len: packet.bytes(),
        gso_size,
    };
    monitor::show_unsent(flow, sk, outcome, &unsent);
}
