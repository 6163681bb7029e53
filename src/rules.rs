// SPDX-License-Identifier: GPL-2.0

//! Rules, and what they come to for a flow.
//!
//! A set of rules never changes: a change makes another one. A flow walks it once, and again when
//! the set, its process, its port or its device is another; a packet costs a comparison. Only
//! where a rule names a peer, and so what becomes of a packet depends on where it goes, is the set
//! walked for a peer, too, and the last one remembered.

use crate::identity::{Owner, User};
use crate::netns::Net;
use crate::pure::{
    bucket::{Bucket, Rate},
    rule::{judge, Direction, Facts, Judgement, Match, Peer}, //
};
use crate::sys::{
    context,
    lock::SpinLockBh,
    reaper::Deferred,
    sock::Sock,
    task::{self, Identity}, //
};
use kernel::{
    new_mutex,
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
        Mutex,
        SetOnce,
        SpinLock, //
    }, //
};

const UDP: u8 = 17;

/// A count of what a rule decided. Any context; from several CPUs.
pub(crate) struct Tally(Atomic<u64>);

impl Tally {
    fn new() -> Self {
        Self(Atomic::new(0))
    }

    fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The count.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// How much of what matches passes.
pub(crate) struct Limit {
    pub(crate) rate: Rate,
    /// Of bytes of payload, else of datagrams.
    pub(crate) of_bytes: bool,
    /// For all flows together, else for each.
    pub(crate) shared: bool,
}

/// What a rule does, apart from what it matches.
#[derive(Default)]
pub(crate) struct Action {
    pub(crate) deny: bool,
    pub(crate) mark: Option<u32>,
    pub(crate) priority: Option<u32>,
    /// How many times an engine's budget a channel has.
    pub(crate) weight: Option<u32>,
    pub(crate) limit: Option<Limit>,
}

/// A rule.
#[pin_data]
pub(crate) struct Rule {
    pub(crate) handle: u32,
    pub(crate) matches: Match,
    pub(crate) action: Action,
    /// As given.
    pub(crate) exe_path: Option<KVec<u8>>,
    pub(crate) cgroup_path: Option<KVec<u8>>,
    pub(crate) comment: Option<KVec<u8>>,
    pub(crate) packets: Tally,
    pub(crate) bytes: Tally,
    pub(crate) denied: Tally,
    #[pin]
    bucket: SpinLock<Bucket>,
}

/// What a rule is made of.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) matches: Match,
    pub(crate) action: Action,
    pub(crate) exe_path: Option<KVec<u8>>,
    pub(crate) cgroup_path: Option<KVec<u8>>,
    pub(crate) comment: Option<KVec<u8>>,
}

impl Rule {
    /// Makes one of its parts. Process context.
    pub(crate) fn new(handle: u32, parts: Parts) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                handle,
                matches: parts.matches,
                action: parts.action,
                exe_path: parts.exe_path,
                cgroup_path: parts.cgroup_path,
                comment: parts.comment,
                packets: Tally::new(),
                bytes: Tally::new(),
                denied: Tally::new(),
                bucket <- new_spinlock!(Bucket::default(), "kopi::Rule::bucket"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Whether it would be the same if it were made anew.
    pub(crate) fn is_made_of(&self, parts: &Parts) -> bool {
        let same =
            |one: &Option<KVec<u8>>, other: &Option<KVec<u8>>| one.as_deref() == other.as_deref();
        let limit = |action: &Action| {
            action
                .limit
                .as_ref()
                .map(|limit| (limit.rate, limit.of_bytes, limit.shared))
        };
        self.matches == parts.matches
            && self.action.deny == parts.action.deny
            && self.action.mark == parts.action.mark
            && self.action.priority == parts.action.priority
            && self.action.weight == parts.action.weight
            && limit(&self.action) == limit(&parts.action)
            && same(&self.exe_path, &parts.exe_path)
            && same(&self.cgroup_path, &parts.cgroup_path)
            && same(&self.comment, &parts.comment)
    }
}

/// Rules in their order, and what holds where none matches.
pub(crate) struct RuleSet {
    pub(crate) rules: KVVec<Arc<Rule>>,
    pub(crate) deny_others: bool,
    /// The handle that was given last.
    pub(crate) last_handle: u32,
}

/// Flows let go of a set in softirqs, too, and the last one frees up to 8,192 rules.
pub(crate) type SharedRules = Arc<Deferred<RuleSet>>;

impl RuleSet {
    /// As namespaces and flows have it: `ENOMEM`. Process context.
    pub(crate) fn share(self) -> Result<SharedRules> {
        Ok(Arc::new(Deferred::new(self)?, GFP_KERNEL_ACCOUNT)?)
    }

    /// No rules: all is allowed.
    pub(crate) fn empty() -> Self {
        Self {
            rules: KVVec::new(),
            deny_others: false,
            last_handle: 0,
        }
    }

    /// Whether it refuses nothing and changes nothing.
    pub(crate) fn is_open(&self) -> bool {
        self.rules.is_empty() && !self.deny_others
    }

    /// Out, and in.
    fn judge(&self, facts: &Facts<'_>, peer: Option<&Peer>) -> [Judgement; 2] {
        judge(self.rules.iter().map(|rule| &rule.matches), facts, peer)
    }

    fn rule(&self, judgement: Judgement) -> Option<&Arc<Rule>> {
        match judgement {
            Judgement::Rule(place) => self.rules.get(place),
            _ => None,
        }
    }

    fn denies(&self, judgement: Judgement) -> bool {
        match judgement {
            Judgement::Default => self.deny_others,
            Judgement::Rule(_) => self.rule(judgement).is_some_and(|rule| rule.action.deny),
            Judgement::ByPeer => false,
        }
    }
}

/// Datagrams that go, or come, together.
#[derive(Clone, Copy)]
pub(crate) struct Packets {
    pub(crate) datagrams: u64,
    /// Of payload, of all together.
    pub(crate) bytes: u64,
    /// They were counted, and taken off the rate, before.
    pub(crate) again: bool,
}

/// What becomes of packets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Pass,
    Denied,
    /// More than the rule's rate allows; or there is no memory to know.
    TooFast,
}

/// A flow that a rule stopped: to be told to its process, and to who listens.
#[derive(Clone, Copy)]
pub(crate) struct Stopped {
    /// The rule's handle; 0 for the default.
    pub(crate) rule: u32,
    pub(crate) direction: Direction,
}

/// One direction of a flow.
#[derive(Default)]
struct Side {
    judgement: Judgement,
    /// Where it depends on the peer: the last one.
    last: Option<(Peer, Judgement)>,
    bucket: Bucket,
    /// The rule whose rate the bucket has.
    bucket_of: u32,
    /// Its process knows that nothing passes.
    told: bool,
}

/// Who has a flow, and how it stands with the rules.
struct Standing {
    owner: Owner,
    /// Made when there are rules.
    compiled: Option<KBox<Compiled>>,
}

/// What the rules come to for a flow.
#[derive(Default)]
struct Compiled {
    set: Option<SharedRules>,
    /// What it was judged by; 0 for nothing.
    generation: u64,
    port: u16,
    device: i32,
    out: Side,
    into: Side,
    /// What the rule's mark and priority took the place of.
    own_mark: Option<u32>,
    own_priority: Option<u32>,
}

/// Who has a flow, and what the rules come to for it.
#[pin_data]
pub(crate) struct Policy {
    net: Arc<Net>,
    /// Of the flow's channel, once it has one.
    user: SetOnce<Arc<User>>,
    /// One reader at a time, where each datagram is judged before it is read; and whether the first one
    /// was, when a program looked at it.
    #[pin]
    reading: Mutex<bool>,
    #[pin]
    standing: SpinLockBh<Standing>,
    /// The rules did something to the sock that may have to be undone.
    applied: Atomic<bool>,
}

impl Policy {
    /// That of a socket that the current process opens. Process context.
    pub(crate) fn new(sk: &Sock) -> Result<Pin<KBox<Self>>> {
        let owner = Owner::current()?;
        let net = sk.net().state();
        KBox::pin_init(
            pin_init!(Self {
                net,
                user: SetOnce::new(),
                reading <- new_mutex!(false, "kopi::Policy::reading"),
                standing <- SpinLockBh::new(new_spinlock!(Standing {
                    owner,
                    compiled: None,
                }, "kopi::Policy::standing")),
                applied: Atomic::new(false),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The flow's network namespace.
    pub(crate) fn net(&self) -> &Arc<Net> {
        &self.net
    }

    /// Taken while a datagram is judged and read.
    pub(crate) fn reading(&self) -> &Mutex<bool> {
        &self.reading
    }

    /// The flow comes to a channel, whose user has it from now on. Process context.
    pub(crate) fn join(&self, user: &Arc<User>) {
        let shared = user
            .latest()
            .filter(|latest| latest.identity.is_as(&self.identity()));
        if let Some(latest) = shared {
            let own = self.with_standing(|standing| {
                core::mem::replace(&mut standing.owner.identity, latest.identity)
            });
            drop(own);
        }
        self.user.populate(user.clone());
        user.flow_changed();
    }

    /// Does something with who has the flow now.
    fn with_standing<T>(&self, act: impl FnOnce(&mut Standing) -> T) -> T {
        let mut standing = self.standing.lock();
        let user = self.user.as_ref();
        let old = user
            .and_then(|user| user.later_than(&standing.owner))
            .map(|owner| standing.change_owner(owner));
        let result = act(&mut standing);
        drop(standing);
        drop(old);
        result
    }

    /// Does something with what the rules that there are now come to; `None` if there is no memory to
    /// know it.
    fn with_judged<T>(&self, sk: &Sock, act: impl FnOnce(&mut Judged<'_>) -> T) -> Option<T> {
        let (result, old) = self.with_standing(|standing| {
            let mut judged = standing.judged(sk)?;
            let old = judged.refresh(&self.net);
            Some((act(&mut judged), old))
        })?;
        drop(old);
        Some(result)
    }

    /// Who has it. Any context but hard interrupts.
    pub(crate) fn identity(&self) -> Arc<Identity> {
        self.with_standing(|standing| standing.owner.identity.clone())
    }

    /// Looks at who the current process is. Process context.
    pub(crate) fn identify(&self) -> Result {
        let known = self.with_standing(|standing| standing.owner.clone());
        let owner = known.or_current()?;
        let old = self.with_standing(|standing| standing.change_owner(owner));
        drop(old);
        if let Some(user) = self.user.as_ref() {
            user.flow_changed();
        }
        Ok(())
    }

    /// Looks at the current process if it is another one, or runs another program. Process context.
    pub(crate) fn identify_if_new(&self) -> Result {
        if self.identity().process.is_current() {
            return Ok(());
        }
        self.identify()
    }

    /// Whether packets need be looked at. Any context.
    pub(crate) fn is_in_force(&self) -> bool {
        self.net.has_rules() || self.applied.load(Relaxed)
    }

    /// Decides about datagrams to or from a peer, and counts them. Any context but hard interrupts.
    pub(crate) fn decide(
        &self,
        sk: &Sock,
        direction: Direction,
        peer: &Peer,
        packets: Packets,
    ) -> (Outcome, Option<Stopped>) {
        let decided = self.with_judged(sk, |judged| {
            let result = judged.decide(direction, peer, packets);
            self.applied.store(judged.compiled.is_applied(), Relaxed);
            if result.1.is_some() {
                self.net.denied.fetch_add(1, Relaxed);
            }
            result
        });
        decided.unwrap_or((Outcome::TooFast, None))
    }

    /// Decides whether the flow may have a local port, given the one that it is to have; the rule's
    /// handle if not. Process context.
    pub(crate) fn may_bind(&self, sk: &Sock, port: u16) -> core::result::Result<(), Stopped> {
        self.may(|owner, set| {
            with_facts(owner, sk, port, |facts| {
                let [out, into] = set.judge(facts, None);
                (set.denies(out) && set.denies(into)).then_some((into, Direction::In))
            })
        })
    }

    /// Decides whether the flow may be connected to a peer. Process context.
    pub(crate) fn may_connect(&self, sk: &Sock, peer: &Peer) -> core::result::Result<(), Stopped> {
        self.may(|owner, set| {
            with_facts(owner, sk, u16::from_be(sk.local_port()), |facts| {
                let [out, _] = set.judge(facts, Some(peer));
                set.denies(out).then_some((out, Direction::Out))
            })
        })
    }

    fn may(
        &self,
        denied: impl FnOnce(&Owner, &RuleSet) -> Option<(Judgement, Direction)>,
    ) -> core::result::Result<(), Stopped> {
        if !self.net.has_rules() {
            return Ok(());
        }
        let set = self.net.rules();
        let found = self.with_standing(|standing| denied(&standing.owner, &set));
        let Some((judgement, direction)) = found else {
            return Ok(());
        };
        let rule = set.rule(judgement);
        if let Some(rule) = rule {
            rule.denied.add(1);
        }
        self.net.denied.fetch_add(1, Relaxed);
        Err(Stopped {
            rule: rule.map_or(0, |rule| rule.handle),
            direction,
        })
    }

    /// Judges the flow by the rules that there are now; says which direction they have just stopped.
    /// Process context.
    pub(crate) fn sweep(&self, sk: &Sock) -> [Option<Stopped>; 2] {
        let stopped = self.with_judged(sk, |Judged { compiled, .. }| {
            let stopped = [Direction::Out, Direction::In].map(|direction| {
                let judgement = compiled.side(direction).judgement;
                compiled.stop(direction, judgement)
            });
            let rule = compiled.judged(Direction::Out).cloned();
            compiled.apply(sk, rule.as_deref().map(|rule| &rule.action));
            self.applied.store(compiled.is_applied(), Relaxed);
            for _ in stopped.iter().flatten() {
                self.net.denied.fetch_add(1, Relaxed);
            }
            stopped
        });
        // Without memory, with the next packet.
        stopped.unwrap_or_default()
    }

    /// The handle of the rule that decides about a peer's packets; 0 for the default. Any context but
    /// hard interrupts.
    pub(crate) fn rule_for(&self, sk: &Sock, direction: Direction, peer: &Peer) -> u32 {
        let handle = self.with_judged(sk, |judged| {
            let judgement = judged.judgement(direction, peer);
            let set = judged.compiled.set.as_ref();
            set.and_then(|set| Some(set.rule(judgement)?.handle))
        });
        handle.flatten().unwrap_or(0)
    }

    /// The mark and the priority that what is sent to a peer is to have. Any context but hard interrupts.
    pub(crate) fn changes(&self, sk: &Sock, peer: &Peer) -> (Option<u32>, Option<u32>) {
        let changes = self.with_judged(sk, |judged| {
            let judgement = judged.judgement(Direction::Out, peer);
            let rule = judged.compiled.set.as_ref()?.rule(judgement)?;
            Some((rule.action.mark, rule.action.priority))
        });
        changes.flatten().unwrap_or_default()
    }

    /// How many times an engine's budget a channel has that sends by this flow. Any context but hard
    /// interrupts.
    pub(crate) fn weight(&self, sk: &Sock) -> u32 {
        if !self.is_in_force() {
            return 1;
        }
        let weight = self.with_judged(sk, |Judged { compiled, .. }| {
            // Where it depends on the peer, by the one that it sent to last.
            let judgement = match compiled.out.last {
                Some((_, judgement)) => judgement,
                None => compiled.out.judgement,
            };
            let set = compiled.set.as_ref();
            set.and_then(|set| set.rule(judgement)?.action.weight)
        });
        weight.flatten().unwrap_or(1)
    }

    /// The handles of the rules that decide, out and in, and the directions in which nothing passes,
    /// as bits. Process context.
    pub(crate) fn show(&self, sk: &Sock) -> ([Option<u32>; 2], u32) {
        if !self.is_in_force() {
            return ([None; 2], 0);
        }
        let shown = self.with_judged(sk, |Judged { compiled, .. }| {
            let mut denied = 0;
            let handles = [Direction::Out, Direction::In].map(|direction| {
                let judgement = compiled.side(direction).judgement;
                if compiled
                    .set
                    .as_ref()
                    .is_some_and(|set| set.denies(judgement))
                {
                    denied |= direction as u32;
                }
                compiled.judged(direction).map(|rule| rule.handle)
            });
            (handles, denied)
        });
        shown.unwrap_or_default()
    }
}

impl Standing {
    /// Gives the one from before; what follows from it is judged anew.
    fn change_owner(&mut self, owner: Owner) -> Owner {
        if let Some(compiled) = &mut self.compiled {
            compiled.generation = 0;
        }
        core::mem::replace(&mut self.owner, owner)
    }

    /// With room for what the rules come to; `None` without memory.
    fn judged<'a>(&'a mut self, sk: &'a Sock) -> Option<Judged<'a>> {
        if self.compiled.is_none() {
            let account = GFP_KERNEL_ACCOUNT & !GFP_KERNEL;
            let flags = GFP_ATOMIC | account | __GFP_NOWARN;
            self.compiled = KBox::new(Compiled::default(), flags).ok();
        }
        Some(Judged {
            owner: &self.owner,
            compiled: self.compiled.as_mut()?,
            sk,
        })
    }
}

/// Does something with what is known of the flow of a sock.
fn with_facts<T>(
    owner: &Owner,
    sk: &Sock,
    local_port: u16,
    use_them: impl FnOnce(&Facts<'_>) -> T,
) -> T {
    let identity = &owner.identity;
    use_them(&Facts {
        uid: identity.uid,
        gid: identity.gid,
        in_cgroup: &|cgroup| task::is_in_cgroup(sk, cgroup),
        exe: identity.program_id(),
        protocol: UDP,
        local_port,
        device: sk.bound_device_name(),
    })
}

/// What the rules come to for a flow, and what that follows from.
struct Judged<'a> {
    owner: &'a Owner,
    compiled: &'a mut Compiled,
    sk: &'a Sock,
}

impl Judged<'_> {
    /// Judges anew if anything that it depends on is another; gives the rules from before, to be
    /// let go of without the lock.
    fn refresh(&mut self, net: &Net) -> Option<SharedRules> {
        let generation = net.generation();
        let (port, device) = (self.sk.local_port(), self.sk.bound_device());
        let compiled = &mut *self.compiled;
        if (compiled.generation, compiled.port, compiled.device) == (generation, port, device) {
            return None;
        }
        let set = net.rules();
        let [out, into] = with_facts(self.owner, self.sk, u16::from_be(port), |facts| {
            set.judge(facts, None)
        });
        for (side, judgement) in [(&mut compiled.out, out), (&mut compiled.into, into)] {
            side.judgement = judgement;
            side.last = None;
            side.told = false;
        }
        (compiled.generation, compiled.port, compiled.device) = (generation, port, device);
        compiled.set.replace(set)
    }

    /// What decides about a peer's packets.
    fn judgement(&mut self, direction: Direction, peer: &Peer) -> Judgement {
        let side = self.compiled.side(direction);
        match side.last {
            _ if side.judgement != Judgement::ByPeer => return side.judgement,
            Some((last, judgement)) if last == *peer => return judgement,
            _ => {}
        }
        let port = u16::from_be(self.compiled.port);
        let judgement = match &self.compiled.set {
            Some(set) => {
                let [out, into] = with_facts(self.owner, self.sk, port, |facts| {
                    set.judge(facts, Some(peer))
                });
                match direction {
                    Direction::Out => out,
                    Direction::In => into,
                }
            }
            None => Judgement::Default,
        };
        self.compiled.side(direction).last = Some((*peer, judgement));
        judgement
    }

    fn decide(
        &mut self,
        direction: Direction,
        peer: &Peer,
        packets: Packets,
    ) -> (Outcome, Option<Stopped>) {
        let judgement = self.judgement(direction, peer);
        self.compiled.decide(self.sk, direction, judgement, packets)
    }
}

impl Compiled {
    fn side(&mut self, direction: Direction) -> &mut Side {
        match direction {
            Direction::Out => &mut self.out,
            Direction::In => &mut self.into,
        }
    }

    /// The rule that decides about a direction, whatever the peer.
    fn judged(&self, direction: Direction) -> Option<&Arc<Rule>> {
        let judgement = match direction {
            Direction::Out => self.out.judgement,
            Direction::In => self.into.judgement,
        };
        self.set.as_ref()?.rule(judgement)
    }

    fn decide(
        &mut self,
        sk: &Sock,
        direction: Direction,
        judgement: Judgement,
        packets: Packets,
    ) -> (Outcome, Option<Stopped>) {
        let rule = self
            .set
            .as_ref()
            .and_then(|set| set.rule(judgement))
            .cloned();
        if let Some(rule) = rule.as_ref().filter(|_| !packets.again) {
            rule.packets.add(packets.datagrams);
            rule.bytes.add(packets.bytes);
        }
        if self.set.as_ref().is_some_and(|set| set.denies(judgement)) {
            // Where it depends on the peer, other packets may pass.
            let always = self.side(direction).judgement == judgement;
            let stopped = if always {
                self.stop(direction, judgement)
            } else {
                None
            };
            return (Outcome::Denied, stopped);
        }
        let action = rule.as_ref().map(|rule| &rule.action);
        if direction == Direction::Out {
            self.apply(sk, action);
        }
        let Some((rule, limit)) = rule
            .as_ref()
            .filter(|_| !packets.again)
            .and_then(|rule| Some((rule, rule.action.limit.as_ref()?)))
        else {
            return (Outcome::Pass, None);
        };
        let units = if limit.of_bytes {
            packets.bytes
        } else {
            packets.datagrams
        };
        let now = context::now();
        let passes = if limit.shared {
            rule.bucket.lock().take(&limit.rate, now, units)
        } else {
            let side = self.side(direction);
            if side.bucket_of != rule.handle {
                side.bucket = Bucket::default();
                side.bucket_of = rule.handle;
            }
            side.bucket.take(&limit.rate, now, units)
        };
        if passes {
            (Outcome::Pass, None)
        } else {
            (Outcome::TooFast, None)
        }
    }

    /// Notes that nothing passes, the first time that it is so.
    fn stop(&mut self, direction: Direction, judgement: Judgement) -> Option<Stopped> {
        let set = self.set.clone()?;
        if !set.denies(judgement) || core::mem::replace(&mut self.side(direction).told, true) {
            return None;
        }
        let rule = set.rule(judgement);
        if let Some(rule) = rule {
            rule.denied.add(1);
        }
        Some(Stopped {
            rule: rule.map_or(0, |rule| rule.handle),
            direction,
        })
    }

    fn is_applied(&self) -> bool {
        self.own_mark.is_some() || self.own_priority.is_some()
    }

    /// Gives the sock the rule's mark and priority, or its own back.
    fn apply(&mut self, sk: &Sock, action: Option<&Action>) {
        let wanted = action.and_then(|action| action.mark);
        match (wanted, self.own_mark) {
            (Some(mark), own) => {
                self.own_mark = Some(own.unwrap_or_else(|| sk.mark()));
                if sk.mark() != mark {
                    sk.set_mark(mark);
                }
            }
            (None, Some(own)) => {
                sk.set_mark(own);
                self.own_mark = None;
            }
            (None, None) => {}
        }
        let wanted = action.and_then(|action| action.priority);
        match (wanted, self.own_priority) {
            (Some(priority), own) => {
                self.own_priority = Some(own.unwrap_or_else(|| sk.priority()));
                sk.set_priority(priority);
            }
            (None, Some(own)) => {
                sk.set_priority(own);
                self.own_priority = None;
            }
            (None, None) => {}
        }
    }
}
