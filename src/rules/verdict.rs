// SPDX-License-Identifier: GPL-2.0

//! The verdicts of the rules on a flow, remembered until the rules or the flow change.

use super::net_policy::NetPolicy;
use super::set::{Action, Rule, SharedRules};
use super::{Counting, Denial, Outcome, Packets, Traffic};
use crate::identity::Owner;
use crate::pure::{
    bucket::Buckets,
    peer::Peer,
    rule::{DeviceName, Direction, Facts, Judgement}, //
};
use crate::sys::{
    cgroup,
    context,
    sock::{LockedStream, Sock}, //
};
use kernel::sync::Arc;

/// Nanoseconds between two events of an ordinary socket's refused packets in a direction.
const TELL_INTERVAL: u64 = 1_000_000_000;

/// One direction of a flow.
#[derive(Default)]
pub(super) struct Side {
    pub(super) judgement: Judgement,
    /// Where it depends on the peer: the last one.
    pub(super) last: Option<(Peer, Judgement)>,
    /// The buckets of rules with a rate for each flow, by the rule's handle.
    buckets: Buckets,
    /// The process was notified that nothing passes.
    notified: bool,
    /// When listeners were last told of an ordinary socket's refused packets.
    told: Option<u64>,
}

/// The verdicts of the rules on a flow.
#[derive(Default)]
pub(super) struct Verdicts {
    set: Option<SharedRules>,
    /// The rules' generation that the flow was judged by; 0 for none.
    pub(super) generation: u64,
    port: u16,
    device: i32,
    /// The name of that device, if a rule names a device. The device may have come after the sock was bound to its
    /// index, and may be renamed later.
    device_name: Option<DeviceName>,
    by_device: bool,
    pub(super) out: Side,
    into: Side,
    /// The sock's own mark, priority and SO_MAX_PACING_RATE, where a rule's replace them.
    own_mark: Option<u32>,
    own_priority: Option<u32>,
    own_pacing: Option<u64>,
}

/// Uses the facts about a sock that rules match. Without an owner, the user and the group are those
/// that made the socket, and there is no program.
pub(super) fn with_facts<T>(
    owner: Option<&Owner>,
    sk: &Sock,
    local_port: u16,
    use_them: impl FnOnce(&Facts<'_>) -> T,
) -> T {
    let (uid, gid, exe) = match owner {
        Some(Owner { identity, .. }) => (identity.uid, identity.gid, identity.program_id()),
        None => (sk.uid(), sk.gid(), None),
    };
    use_them(&Facts {
        uid,
        gid,
        in_cgroup: &|cgroup| cgroup::is_in(sk, cgroup),
        exe,
        protocol: sk.protocol(),
        local_port,
        device: sk.bound_device_name(),
    })
}

/// Counts a sock's packets of a direction as denied if the rules deny them to a process, apart from the verdicts
/// on the sock's owner; with `None`, to a process that isn't known. They are of this local port. Returns whether they
/// do. Any context but hard interrupts.
pub(crate) fn is_denied_to_process(
    net: &NetPolicy,
    process: Option<&Owner>,
    sk: &Sock,
    port: u16,
    direction: Direction,
    peer: &Peer,
) -> bool {
    let set = net.rules();
    let [out, into] = with_facts(process, sk, port, |facts| set.judge(facts, Some(peer)));
    let judgement = match direction {
        Direction::Out => out,
        Direction::In => into,
    };
    if !set.denies(judgement) {
        return false;
    }
    net.count_denied(set.rule(judgement).map(Arc::as_ref));
    true
}

/// The verdicts on a flow, and what they follow from.
pub(super) struct Evaluation<'a> {
    pub(super) owner: &'a Owner,
    pub(super) verdicts: &'a mut Verdicts,
    pub(super) sk: &'a Sock,
    /// The sock of a datagram gets the rule's mark and priority.
    pub(super) changes_sock: bool,
}

impl Evaluation<'_> {
    /// Judges anew if the rules or the flow have changed; gives the rules from before, to be
    /// dropped without the lock.
    pub(super) fn refresh(&mut self, net: &NetPolicy) -> Option<SharedRules> {
        let generation = net.generation();
        let (port, device) = (self.sk.local_port(), self.sk.bound_device());
        let verdicts = &mut *self.verdicts;
        let name_now = |by_device: bool| match by_device {
            true => self.sk.bound_device_name(),
            false => None,
        };
        if (verdicts.generation, verdicts.port, verdicts.device) == (generation, port, device)
            && verdicts.device_name == name_now(verdicts.by_device)
        {
            return None;
        }
        let set = net.rules();
        verdicts.by_device = set.names_device();
        // Before the judgement, which may see a later one.
        verdicts.device_name = name_now(verdicts.by_device);
        let [out, into] = with_facts(Some(self.owner), self.sk, u16::from_be(port), |facts| {
            set.judge(facts, None)
        });
        for (side, judgement) in [(&mut verdicts.out, out), (&mut verdicts.into, into)] {
            side.judgement = judgement;
            side.last = None;
            side.notified = false;
        }
        (verdicts.generation, verdicts.port, verdicts.device) = (generation, port, device);
        verdicts.set.replace(set)
    }

    /// Gives the judgement on a peer's packets, and remembers it as that on the last peer.
    pub(super) fn judge(&mut self, direction: Direction, peer: &Peer) -> Judgement {
        let side = self.verdicts.side(direction);
        match side.last {
            _ if side.judgement != Judgement::ByPeer => return side.judgement,
            Some((last, judgement)) if last == *peer => return judgement,
            _ => {}
        }
        let port = u16::from_be(self.verdicts.port);
        let [out, into] = match &self.verdicts.set {
            Some(set) => with_facts(Some(self.owner), self.sk, port, |facts| {
                set.judge(facts, Some(peer))
            }),
            None => [Judgement::Default; 2],
        };
        // One walk for both: a connection needs both, and a SYN costs its listener no second one. The
        // directions of a datagram's socket have peers of their own.
        let (judgement, other) = match direction {
            Direction::Out => (out, (Direction::In, into)),
            Direction::In => (into, (Direction::Out, out)),
        };
        self.verdicts.side(direction).last = Some((*peer, judgement));
        if self.sk.is_stream() {
            self.verdicts.side(other.0).last = Some((*peer, other.1));
        }
        judgement
    }

    /// The same as [`Self::judge`]; without a peer, the judgement that holds for any.
    pub(super) fn judge_on(&mut self, direction: Direction, peer: Option<&Peer>) -> Judgement {
        match peer {
            Some(peer) => self.judge(direction, peer),
            None => self.verdicts.side(direction).judgement,
        }
    }

    /// Decides about packets, and counts them.
    pub(super) fn decide(
        &mut self,
        net: &NetPolicy,
        traffic: &Traffic,
    ) -> (Outcome, Option<Denial>) {
        let (direction, packets) = (traffic.direction, traffic.packets);
        let counts = packets.counting == Counting::Now;
        let judgement = self.judge(direction, &traffic.peer);
        let (verdicts, sk) = (&mut *self.verdicts, self.sk);
        let rule = verdicts.rule(judgement).cloned();
        if let Some(rule) = rule.as_ref().filter(|_| counts) {
            rule.packets.add(packets.datagrams);
            rule.bytes.add(packets.bytes);
        }
        if verdicts.denies(judgement) {
            // Where it depends on the peer, other packets may pass. A connection has one peer.
            let always = verdicts.side(direction).judgement == judgement
                || sk.is_stream() && !sk.is_listening();
            let stopped = if always {
                verdicts.note_denial(net, direction, judgement)
            } else {
                None
            };
            return (Outcome::Denied, stopped);
        }
        // A stream's sock is changed when it is locked.
        if self.changes_sock && direction == Direction::Out && !sk.is_stream() {
            verdicts.apply(sk, rule.as_ref().map(|rule| &rule.action));
        }
        // A stream's acknowledgements have no rate.
        let has_rate = counts && (packets.bytes > 0 || !sk.is_stream());
        let passes = match rule.as_deref().filter(|_| has_rate) {
            Some(rule) => verdicts.take_of_rate(rule, direction, packets),
            None => true,
        };
        let outcome = match passes {
            true => Outcome::Pass,
            false => Outcome::TooFast,
        };
        (outcome, None)
    }
}

impl Verdicts {
    pub(super) fn side(&mut self, direction: Direction) -> &mut Side {
        match direction {
            Direction::Out => &mut self.out,
            Direction::In => &mut self.into,
        }
    }

    /// The rule of a judgement; `None` for the default.
    pub(super) fn rule(&self, judgement: Judgement) -> Option<&Arc<Rule>> {
        self.set.as_ref()?.rule(judgement)
    }

    /// Whether a judgement is to deny.
    pub(super) fn denies(&self, judgement: Judgement) -> bool {
        self.set.as_ref().is_some_and(|set| set.denies(judgement))
    }

    /// Takes packets of what passes by the rule's rate, if it has one; says whether they pass.
    fn take_of_rate(&mut self, rule: &Rule, direction: Direction, packets: Packets) -> bool {
        let Some(limit) = &rule.action.limit else {
            return true;
        };
        let units = if limit.of_bytes {
            packets.bytes
        } else {
            packets.datagrams
        };
        let now = context::now();
        if limit.shared {
            rule.bucket.lock().take(&limit.rate, now, units)
        } else {
            let buckets = &mut self.side(direction).buckets;
            buckets.take(rule.handle, &limit.rate, now, units)
        }
    }

    /// Notes, and counts, that nothing passes; gives what to tell the process, the first time.
    pub(super) fn note_denial(
        &mut self,
        net: &NetPolicy,
        direction: Direction,
        judgement: Judgement,
    ) -> Option<Denial> {
        if !self.denies(judgement) || core::mem::replace(&mut self.side(direction).notified, true) {
            return None;
        }
        let rule = self.rule(judgement);
        net.count_denied(rule.map(Arc::as_ref));
        Some(Denial {
            rule: rule.map_or(0, |rule| rule.handle),
            direction,
        })
    }

    /// Notes that listeners are told of an ordinary socket's refused packets. Gives what to tell them, not more
    /// often than once in [`TELL_INTERVAL`], since anybody can send such packets.
    pub(super) fn note_told(
        &mut self,
        direction: Direction,
        judgement: Judgement,
    ) -> Option<Denial> {
        if !self.denies(judgement) {
            return None;
        }
        let rule = self.rule(judgement).map_or(0, |rule| rule.handle);
        let now = context::now();
        let side = self.side(direction);
        if side
            .told
            .is_some_and(|told| now.saturating_sub(told) < TELL_INTERVAL)
        {
            return None;
        }
        side.told = Some(now);
        Some(Denial { rule, direction })
    }

    /// Whether the sock has a rule's mark, priority or rate.
    pub(super) fn is_applied(&self) -> bool {
        self.own_mark.is_some() || self.own_priority.is_some() || self.own_pacing.is_some()
    }

    /// Gives a stream the rule's mark, priority and rate, or its own back.
    pub(super) fn apply_locked(&mut self, locked: &LockedStream<'_>, action: Option<&Action>) {
        self.apply(locked.sk(), action);
        let new = action.and_then(Action::pacing_rate);
        match (new, self.own_pacing) {
            (Some(rate), own) => {
                let own = own.unwrap_or_else(|| locked.max_pacing_rate());
                self.own_pacing = Some(own);
                locked.set_max_pacing_rate(rate.min(own));
            }
            (None, Some(own)) => {
                locked.set_max_pacing_rate(own);
                self.own_pacing = None;
            }
            (None, None) => {}
        }
    }

    /// Gives the sock the rule's mark and priority, or its own back.
    pub(super) fn apply(&mut self, sk: &Sock, action: Option<&Action>) {
        let mark = action.and_then(|action| action.mark);
        let own = &mut self.own_mark;
        replace(own, mark, || sk.mark(), |mark| sk.set_mark(mark));
        let priority = action.and_then(|action| action.priority);
        let own = &mut self.own_priority;
        replace(own, priority, || sk.priority(), |new| sk.set_priority(new));
    }
}

/// Puts a rule's value in place of the sock's, which it has `now`, and keeps the sock's own one; without a rule's,
/// gives the own one back.
fn replace(
    own: &mut Option<u32>,
    of_rule: Option<u32>,
    now: impl FnOnce() -> u32,
    set: impl FnOnce(u32),
) {
    match of_rule {
        Some(new) => {
            let now = now();
            own.get_or_insert(now);
            if now != new {
                set(new);
            }
        }
        None => {
            if let Some(own) = own.take() {
                set(own);
            }
        }
    }
}
