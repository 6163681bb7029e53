// SPDX-License-Identifier: GPL-2.0

//! What the rules decide about a flow's calls and packets, and the telling of it.

use super::Flow;
use crate::events::{notify, Event};
use crate::identity::Owner;
use crate::monitor::{self, Unsent};
use crate::pure::{
    gso::datagrams,
    peer::Peer,
    rule::Direction, //
};
use crate::rules::{Counting, Denial, Outcome, Packets, Policy, Traffic};
use crate::sys::{
    sock::Sock,
    socket::Socket, //
};
use kernel::prelude::*;

/// A packet, or GSO packet, that a socket sends.
pub(crate) struct OutPacket {
    pub(crate) peer: Peer,
    /// The local port from which it leaves.
    pub(crate) from_port: u16,
    /// Bytes of each datagram of a GSO packet; else 0.
    pub(crate) gso_size: u16,
    /// Bytes of payload.
    pub(crate) bytes: u32,
    pub(crate) mark: u32,
    pub(crate) priority: u32,
    /// It was judged, and counted, before.
    pub(crate) counted_before: bool,
}

impl OutPacket {
    /// Number of its datagrams or segments.
    pub(crate) fn packets(&self) -> u64 {
        datagrams(self.bytes, self.gso_size.into()).into()
    }

    /// What the rules are asked about.
    pub(crate) fn traffic(&self) -> Traffic {
        Traffic {
            direction: Direction::Out,
            peer: self.peer,
            packets: Packets {
                datagrams: self.packets(),
                bytes: self.bytes.into(),
                counting: Counting::unless(self.counted_before),
            },
        }
    }

    /// Whether the packet leaves from another port than its socket has now: udp_v6_send_skb() (net/ipv6/udp.c, 7.3.4)
    /// gives a datagram the port that the socket had when the datagram was begun. Rules can't judge it.
    pub(crate) fn is_from_elsewhere(&self, sk: &Sock) -> bool {
        self.from_port != u16::from_be(sk.local_port())
    }

    /// Gives it a rule's mark and priority.
    pub(crate) fn set_mark_and_priority(&mut self, (mark, priority): (Option<u32>, Option<u32>)) {
        self.mark = mark.unwrap_or(self.mark);
        self.priority = priority.unwrap_or(self.priority);
    }
}

/// The process that is making a call on a flow: the current one, which becomes the flow's owner. A call that the
/// kernel makes by itself is the owner's, whatever process it interrupts: `ENOMEM`. Process context.
pub(super) fn caller(policy: &Policy, socket: &Socket) -> Result<Owner> {
    if socket.is_called_by_kernel() {
        return Ok(policy.owner());
    }
    policy.identify_if_new(socket.sk())
}

impl Flow {
    /// Has the rules decide about datagrams that no call is about: a refusal is an error of the next one. Any
    /// context but hard interrupts.
    fn decide(&self, policy: &Policy, sk: &Sock, traffic: &Traffic) -> Outcome {
        let (outcome, is_stopped) = self.judge(policy, None, sk, traffic);
        if is_stopped {
            sk.set_error(EACCES);
        }
        outcome
    }

    /// Has the rules decide about datagrams of a ring. Where another process has made calls on the flow since,
    /// and owns it, they must let them pass for the channel's owner, too. Any context but hard interrupts.
    pub(crate) fn decide_in_ring(&self, policy: &Policy, sk: &Sock, traffic: &Traffic) -> Outcome {
        // A process that receives by a ring makes no call, so its ids are read again for each packet. If memory is
        // short, the packet is refused.
        let receiver = self
            .channel()
            .filter(|_| traffic.direction == Direction::In);
        if receiver.is_some_and(|channel| channel.owner().update_ids().is_err()) {
            return Outcome::TooFast;
        }
        self.decide(policy, sk, traffic)
            .unless(|| policy.is_denied_to_channel_owner(sk, traffic.direction, &traffic.peer))
    }

    /// Has the rules decide about datagrams of a call, which gives the error itself. Any context but hard
    /// interrupts.
    pub(super) fn decide_for(
        &self,
        policy: &Policy,
        caller: &Owner,
        sk: &Sock,
        traffic: &Traffic,
    ) -> Outcome {
        self.judge(policy, Some(caller), sk, traffic).0
    }

    /// What the rules decide for a process, or for the current owner; and whether they have just stopped the
    /// direction, of which listeners are told.
    pub(super) fn judge(
        &self,
        policy: &Policy,
        process: Option<&Owner>,
        sk: &Sock,
        traffic: &Traffic,
    ) -> (Outcome, bool) {
        let (outcome, stopped) = policy.decide(process, sk, traffic);
        let is_stopped = stopped.is_some();
        if let Some(stopped) = stopped {
            notify(self, sk, Event::Denied(stopped));
        }
        (outcome, is_stopped)
    }

    /// Judges what leaves, and gives it the rule's mark and priority. Any context but hard interrupts.
    pub(crate) fn judge_sent(&self, sk: &Sock, sent: &mut OutPacket) -> Outcome {
        if sk.is_stream() {
            return self.judge_segment(sk, sent);
        }
        let Some(policy) = self.policy_in_force() else {
            return Outcome::Pass;
        };
        let peer = sent.peer;
        let traffic = sent.traffic();
        let outcome = match sent.is_from_elsewhere(sk) {
            true => Outcome::Denied,
            false => self.decide(policy, sk, &traffic),
        };
        if outcome == Outcome::Pass {
            sent.set_mark_and_priority(policy.mark_and_priority(sk, &peer));
        } else {
            self.show_refused(sk, outcome, peer, sent.bytes, sent.gso_size.into());
        }
        outcome
    }

    /// Counts a packet as denied if the rules deny the first hop of its source route; says whether they do. Any
    /// context but hard interrupts.
    pub(crate) fn is_hop_denied(&self, sk: &Sock, hop: Peer, sent: &OutPacket) -> bool {
        let Some(policy) = self.policy_in_force() else {
            return false;
        };
        let mut by_hop = OutPacket {
            peer: hop,
            counted_before: true,
            ..*sent
        };
        if self.decide(policy, sk, &by_hop.traffic()) != Outcome::Denied {
            return false;
        }
        by_hop.counted_before = false;
        self.judge_sent(sk, &mut by_hop) == Outcome::Denied
    }

    /// Shows a packet to monitors that isn't sent.
    pub(super) fn show_refused(
        &self,
        sk: &Sock,
        outcome: Outcome,
        peer: Peer,
        len: u32,
        gso_size: u32,
    ) {
        if monitor::is_watched(self) {
            let unsent = Unsent {
                peer,
                begins: &[],
                len,
                gso_size,
            };
            monitor::show_unsent(self, sk, outcome, &unsent);
        }
    }

    /// Applies rules that have changed, and tells the process what they stop. Process context.
    pub(crate) fn apply_new_rules(&self, socket: &Socket) {
        let sk = socket.sk();
        if sk.is_stream() {
            return self.apply_new_rules_to_stream(sk);
        }
        let stopped = self.policy().judge_again(sk);
        // One error for both directions: a waiting call takes it, and another would be the next
        // call's.
        if stopped.iter().any(Option::is_some) {
            sk.set_error(EACCES);
            if let Some(channel) = self.channel() {
                channel.wake_readers();
            }
        }
        for stopped in stopped.into_iter().flatten() {
            notify(self, sk, Event::Denied(stopped));
        }
    }

    /// Turns the rules' judgement on a call into a result, and tells listeners if it is denied.
    pub(super) fn permit(
        &self,
        socket: &Socket,
        decision: core::result::Result<(), Denial>,
        event: impl FnOnce(Denial) -> Event,
    ) -> Result {
        decision.map_err(|stopped| {
            notify(self, socket.sk(), event(stopped));
            EACCES
        })
    }
}
