// SPDX-License-Identifier: GPL-2.0

//! The policy of a flow: its owner, and what the rules decide about its calls and its packets.

use super::net_policy::NetPolicy;
use super::verdict::{is_denied_to_process, Evaluation, Verdicts};
use super::{Denial, Outcome, Traffic};
use crate::identity::{ChannelOwner, Owner};
use crate::pure::{peer::Peer, rule::Direction};
use crate::sys::{
    family::{FirstDatagram, ReaderLock},
    lock::SpinLockBh,
    sock::{LockedStream, Sock},
    task::Identity, //
};
use core::sync::atomic::{AtomicBool, Ordering};
use kernel::{
    new_mutex,
    new_spinlock,
    prelude::*,
    sync::Arc, //
};

/// The owner of a flow, and the verdicts on it. Small, as each flow has one.
pub(super) struct PolicyState {
    pub(super) owner: Owner,
    /// The owner of the flow's channel, once it has one.
    pub(super) channel_owner: Option<Arc<ChannelOwner>>,
    /// See [`Policy::reader_lock`]; allocated when somebody reads so.
    reader_lock: Option<Arc<ReaderLock>>,
    /// Allocated when there are rules.
    verdicts: Option<KBox<Verdicts>>,
}

/// The process whose call is judged, as [`Policy::identify`] has found it; `None` where it is no call, and the
/// current owner is judged.
pub(super) type Caller<'a> = Option<&'a Owner>;

/// What the rules decide about a stream.
#[derive(Default)]
pub(crate) struct StreamVerdict {
    /// They deny a direction.
    pub(crate) denied: bool,
    /// The directions that they have just stopped.
    pub(crate) stopped: [Option<Denial>; 2],
}

/// The owner of a flow, and the rules' verdicts on it.
#[pin_data]
pub(crate) struct Policy {
    pub(super) net: Arc<NetPolicy>,
    /// The sock of a datagram gets a rule's mark and priority: it is a flow's. Those of ordinary sockets stay as
    /// they are, and only their packets get them.
    changes_sock: bool,
    #[pin]
    state: SpinLockBh<PolicyState>,
    /// The sock has a rule's mark, priority or rate, which may have to be undone.
    applied: AtomicBool,
}

impl Policy {
    /// The policy of a flow that this owner opens, in a network namespace with this policy: `ENOMEM`.
    /// Process context.
    pub(crate) fn new(net: Arc<NetPolicy>, owner: Owner) -> Result<Pin<KBox<Self>>> {
        KBox::pin_init(Self::of(net, owner, true), GFP_KERNEL_ACCOUNT)
    }

    /// The policy of an ordinary socket with this owner, in a network namespace with this policy. The sock doesn't
    /// get the mark and the priority of rules: only packets do.
    pub(crate) fn of_ordinary(net: Arc<NetPolicy>, owner: Owner) -> impl PinInit<Self> {
        Self::of(net, owner, false)
    }

    fn of(net: Arc<NetPolicy>, owner: Owner, changes_sock: bool) -> impl PinInit<Self> {
        pin_init!(Self {
            net,
            changes_sock,
            state <- SpinLockBh::new(new_spinlock!(PolicyState {
                owner,
                channel_owner: None,
                reader_lock: None,
                verdicts: None,
            }, "kopi::Policy::state")),
            applied: AtomicBool::new(false),
        })
    }

    /// The policy of the flow's network namespace.
    pub(crate) fn net(&self) -> &NetPolicy {
        &self.net
    }

    /// The policy of the flow's network namespace, to be kept.
    pub(crate) fn shared_net(&self) -> Arc<NetPolicy> {
        self.net.clone()
    }

    /// The lock of readers, where each datagram is judged before it is read: `ENOMEM`. Process context.
    pub(crate) fn reader_lock(&self) -> Result<Arc<ReaderLock>> {
        if let Some(lock) = self.with_state(|state| state.reader_lock.clone()) {
            return Ok(lock);
        }
        let new = new_mutex!(FirstDatagram::default(), "kopi::Policy::reader_lock");
        let new = Arc::pin_init(new, GFP_KERNEL_ACCOUNT)?;
        Ok(self.with_state(|state| state.reader_lock.get_or_insert(new).clone()))
    }

    /// Puts the flow on a channel: the more recent of its own owner and the channel's is its owner from now on.
    /// Process context.
    pub(crate) fn join(&self, channel_owner: &Arc<ChannelOwner>) {
        let latest = channel_owner.latest();
        let before = self.with_state(|state| {
            let own = latest
                .filter(|latest| latest.identity.is_as(&state.owner.identity))
                .map(|latest| core::mem::replace(&mut state.owner.identity, latest.identity));
            (own, state.channel_owner.replace(channel_owner.clone()))
        });
        drop(before);
        channel_owner.note_flow_change();
    }

    /// Acts on the flow's current owner, and the verdicts on it.
    pub(super) fn with_state<T>(&self, act: impl FnOnce(&mut PolicyState) -> T) -> T {
        self.with_state_of(None, act)
    }

    /// The same as [`Self::with_state`], for the process that makes a call: it is the owner meanwhile, whichever
    /// process makes another call at the same time.
    pub(super) fn with_state_of<T>(
        &self,
        caller: Caller<'_>,
        act: impl FnOnce(&mut PolicyState) -> T,
    ) -> T {
        let mut state = self.state.lock();
        let channel_owner = state.channel_owner.as_ref();
        let old = channel_owner
            .and_then(|channel_owner| channel_owner.later_than(&state.owner))
            .map(|owner| state.change_owner(owner));
        let other = caller
            .filter(|caller| !caller.is_same(&state.owner))
            .map(|caller| state.change_owner(caller.clone()));
        let result = act(&mut state);
        drop(state);
        drop((old, other));
        result
    }

    /// Acts on the verdicts of the current rules; `None` if there is no memory for these.
    fn with_evaluation<T>(
        &self,
        sk: &Sock,
        act: impl FnOnce(&mut Evaluation<'_>) -> T,
    ) -> Option<T> {
        self.with_evaluation_of(None, sk, act)
    }

    /// The same as [`Self::with_evaluation`], for the process that makes a call.
    pub(super) fn with_evaluation_of<T>(
        &self,
        caller: Caller<'_>,
        sk: &Sock,
        act: impl FnOnce(&mut Evaluation<'_>) -> T,
    ) -> Option<T> {
        let (result, old) = self.with_state_of(caller, |state| {
            let mut evaluation = state.evaluation(sk, self.changes_sock)?;
            let old = evaluation.refresh(&self.net);
            Some((act(&mut evaluation), old))
        })?;
        drop(old);
        Some(result)
    }

    /// The owner. Any context but hard interrupts.
    pub(crate) fn owner(&self) -> Owner {
        self.with_state(|state| state.owner.clone())
    }

    /// The identity of the flow's owner. Any context but hard interrupts.
    pub(crate) fn identity(&self) -> Arc<Identity> {
        self.with_state(|state| state.owner.identity.clone())
    }

    /// The owner of another one becomes this one's. Any context but hard interrupts.
    pub(crate) fn follow(&self, other: &Self) {
        let owner = other.owner();
        let unused = self.with_state(|state| {
            if Arc::ptr_eq(&state.owner.identity, &owner.identity) {
                owner
            } else {
                state.change_owner(owner)
            }
        });
        drop(unused);
    }

    /// Whether packets must be judged. Any context.
    pub(crate) fn is_in_force(&self) -> bool {
        self.net.is_in_force() || self.applied.load(Ordering::Relaxed)
    }

    /// Decides about packets, and counts them. Any context but hard interrupts.
    pub(crate) fn decide(
        &self,
        caller: Caller<'_>,
        sk: &Sock,
        traffic: &Traffic,
    ) -> (Outcome, Option<Denial>) {
        let decided = self.with_evaluation_of(caller, sk, |evaluation| {
            let result = evaluation.decide(&self.net, traffic);
            self.applied
                .store(evaluation.verdicts.is_applied(), Ordering::Relaxed);
            result
        });
        decided.unwrap_or((Outcome::TooFast, None))
    }

    /// Judges the flow by the current rules; says which directions these have just stopped.
    /// Process context.
    pub(crate) fn judge_again(&self, sk: &Sock) -> [Option<Denial>; 2] {
        let stopped = self.with_evaluation(sk, |Evaluation { verdicts, .. }| {
            let stopped = [Direction::Out, Direction::In].map(|direction| {
                let judgement = verdicts.side(direction).judgement;
                verdicts.note_denial(&self.net, direction, judgement)
            });
            let rule = verdicts.rule(verdicts.out.judgement).cloned();
            verdicts.apply(sk, rule.as_deref().map(|rule| &rule.action));
            self.applied.store(verdicts.is_applied(), Ordering::Relaxed);
            stopped
        });
        // Without memory the next packet is judged.
        stopped.unwrap_or_default()
    }

    /// Judges a stream by the current rules, with its peer if it has one; `None` without memory. Any context
    /// but hard interrupts.
    pub(crate) fn judge_stream(
        &self,
        caller: Caller<'_>,
        sk: &Sock,
        peer: Option<&Peer>,
    ) -> Option<StreamVerdict> {
        self.with_evaluation_of(caller, sk, |evaluation| {
            let mut verdict = StreamVerdict::default();
            let directions = [Direction::Out, Direction::In];
            for (stopped, direction) in verdict.stopped.iter_mut().zip(directions) {
                let judgement = evaluation.judge_on(direction, peer);
                verdict.denied |= evaluation.verdicts.denies(judgement);
                *stopped = evaluation
                    .verdicts
                    .note_denial(&self.net, direction, judgement);
            }
            verdict
        })
    }

    /// Notes that listeners are told of an ordinary socket's refused packets of a direction, to or from a
    /// peer, if it has one. Gives what to tell them: `None` within a second after they were told last, whoever
    /// the peer was. Any context but hard interrupts.
    pub(crate) fn note_told(
        &self,
        sk: &Sock,
        direction: Direction,
        peer: Option<&Peer>,
    ) -> Option<Denial> {
        // A connection of TCP needs both.
        let directions = [Some(direction), sk.is_stream().then_some(direction.other())];
        let told = self.with_evaluation(sk, |evaluation| {
            directions.into_iter().flatten().find_map(|direction| {
                let judgement = evaluation.judge_on(direction, peer);
                evaluation.verdicts.note_told(direction, judgement)
            })
        });
        told.flatten()
    }

    /// Counts a peer's packets as denied if the rules deny them to the owner of the flow's channel, where that is
    /// another process than the flow's owner. Returns whether they do. Any context but hard interrupts.
    pub(crate) fn is_denied_to_channel_owner(
        &self,
        sk: &Sock,
        direction: Direction,
        peer: &Peer,
    ) -> bool {
        let other = self.with_state(|state| state.channel_owner.as_ref()?.other_than(&state.owner));
        let port = u16::from_be(sk.local_port());
        other.is_some_and(|owner| {
            is_denied_to_process(&self.net, Some(&owner), sk, port, direction, peer)
        })
    }

    /// Whether a peer's packets are denied in a direction. Any context but hard interrupts.
    pub(crate) fn denies(&self, sk: &Sock, direction: Direction, peer: &Peer) -> bool {
        let denied = self.with_evaluation(sk, |evaluation| {
            let judgement = evaluation.judge(direction, peer);
            evaluation.verdicts.denies(judgement)
        });
        denied.unwrap_or(true)
    }

    /// Gives a stream the mark, priority and rate that its rule has for its peer, or its own back.
    pub(crate) fn apply_locked(&self, locked: &LockedStream<'_>, peer: &Peer) {
        let sk = locked.sk();
        self.with_evaluation(sk, |evaluation| {
            let judgement = evaluation.judge(Direction::Out, peer);
            let rule = evaluation.verdicts.rule(judgement).cloned();
            let action = rule.as_deref().map(|rule| &rule.action);
            evaluation.verdicts.apply_locked(locked, action);
            self.applied
                .store(evaluation.verdicts.is_applied(), Ordering::Relaxed);
        });
    }

    /// The handle of the rule that decides about a peer's packets; 0 for the default. Any context
    /// but hard interrupts.
    pub(crate) fn rule_for(&self, sk: &Sock, direction: Direction, peer: &Peer) -> u32 {
        let handle = self.with_evaluation(sk, |evaluation| {
            let judgement = evaluation.judge(direction, peer);
            Some(evaluation.verdicts.rule(judgement)?.handle)
        });
        handle.flatten().unwrap_or(0)
    }

    /// The mark and the priority that what is sent to a peer is to have. Any context but hard
    /// interrupts.
    pub(crate) fn mark_and_priority(&self, sk: &Sock, peer: &Peer) -> (Option<u32>, Option<u32>) {
        let changes = self.with_evaluation(sk, |evaluation| {
            let judgement = evaluation.judge(Direction::Out, peer);
            let rule = evaluation.verdicts.rule(judgement)?;
            Some((rule.action.mark, rule.action.priority))
        });
        changes.flatten().unwrap_or_default()
    }

    /// The weight that an engine gives a channel which sends by this flow. Any context but hard
    /// interrupts.
    pub(crate) fn weight(&self, sk: &Sock) -> u32 {
        if !self.is_in_force() {
            return 1;
        }
        let weight = self.with_evaluation(sk, |Evaluation { verdicts, .. }| {
            // Where it depends on the peer, the last one decides.
            let judgement = match verdicts.out.last {
                Some((_, judgement)) => judgement,
                None => verdicts.out.judgement,
            };
            verdicts.rule(judgement)?.action.weight
        });
        weight.flatten().unwrap_or(1)
    }

    /// The handles of the rules that decide, out and in, and the directions in which nothing
    /// passes, as bits: `ENOMEM`. Process context.
    pub(crate) fn deciding_rules(
        &self,
        caller: Caller<'_>,
        sk: &Sock,
    ) -> Result<([Option<u32>; 2], u32)> {
        if !self.is_in_force() {
            return Ok(([None; 2], 0));
        }
        // A connection of TCP has one peer.
        let peer = sk.is_stream().then(|| sk.peer()).flatten();
        let shown = self.with_evaluation_of(caller, sk, |evaluation| {
            let mut denied = 0;
            let handles = [Direction::Out, Direction::In].map(|direction| {
                let judgement = evaluation.judge_on(direction, peer.as_ref());
                if evaluation.verdicts.denies(judgement) {
                    denied |= direction as u32;
                }
                Some(evaluation.verdicts.rule(judgement)?.handle)
            });
            (handles, denied)
        });
        shown.ok_or(ENOMEM)
    }
}

impl PolicyState {
    /// Replaces the owner, and gives the old one. The flow is judged anew then.
    pub(super) fn change_owner(&mut self, owner: Owner) -> Owner {
        if let Some(verdicts) = &mut self.verdicts {
            verdicts.generation = 0;
        }
        core::mem::replace(&mut self.owner, owner)
    }

    /// The verdicts, which `Evaluation::refresh` brings up to date; `None` without memory.
    fn evaluation<'a>(&'a mut self, sk: &'a Sock, changes_sock: bool) -> Option<Evaluation<'a>> {
        if self.verdicts.is_none() {
            let account = GFP_KERNEL_ACCOUNT & !GFP_KERNEL;
            let flags = GFP_ATOMIC | account | __GFP_NOWARN;
            self.verdicts = KBox::new(Verdicts::default(), flags).ok();
        }
        Some(Evaluation {
            owner: &self.owner,
            verdicts: self.verdicts.as_mut()?,
            sk,
            changes_sock,
        })
    }
}
