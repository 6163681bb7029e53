// SPDX-License-Identifier: GPL-2.0

//! A set of rules, as a network namespace has it.

use crate::pure::{
    bucket::{Bucket, Rate},
    peer::Peer,
    rule::{judge, Facts, Judgement, Match}, //
};
use crate::sys::reaper::Deferred;
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
        SpinLock, //
    }, //
};

/// A count of what a rule decided. Any context; from several CPUs.
pub(crate) struct Tally(Atomic<u64>);

impl Tally {
    fn new() -> Self {
        Self(Atomic::new(0))
    }

    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The count.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The rate at which packets pass.
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
    /// A channel gets that many times an engine's budget.
    pub(crate) weight: Option<u32>,
    pub(crate) limit: Option<Limit>,
}

impl Action {
    /// The rate at which a stream is to send, in bytes a second, if it has one of its own.
    pub(super) fn pacing_rate(&self) -> Option<u64> {
        let limit = self.limit.as_ref()?;
        (limit.of_bytes && !limit.shared).then(|| limit.rate.per_second())
    }
}

/// A rule.
#[pin_data]
pub(crate) struct Rule {
    pub(crate) handle: u32,
    pub(crate) matches: Match,
    pub(crate) action: Action,
    /// The paths as the administrator gave them.
    pub(crate) exe_path: Option<KVec<u8>>,
    pub(crate) cgroup_path: Option<KVec<u8>>,
    pub(crate) comment: Option<KVec<u8>>,
    pub(crate) packets: Tally,
    pub(crate) bytes: Tally,
    pub(crate) denied: Tally,
    #[pin]
    pub(super) bucket: SpinLock<Bucket>,
}

/// The parts of a rule, before it has a handle.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) matches: Match,
    pub(crate) action: Action,
    pub(crate) exe_path: Option<KVec<u8>>,
    pub(crate) cgroup_path: Option<KVec<u8>>,
    pub(crate) comment: Option<KVec<u8>>,
}

impl Rule {
    /// Makes a rule of its parts. Process context.
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

    /// Whether a rule of these parts would be the same.
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

/// Rules among which one that stays is looked for: one that has moved further, by lines that were taken
/// out before it, is made anew. The request that replaces a set holds generic netlink's `cb_lock`, for
/// reading.
const LOOK_AHEAD: usize = 64;

/// The rules of a set that another one replaces. Those that the new one has, too, go on counting.
pub(crate) struct Replaced {
    left: KVVec<Option<Arc<Rule>>>,
    /// Those before it are taken.
    first: usize,
}

impl Replaced {
    /// Process context.
    pub(crate) fn new(old: &RuleSet) -> Result<Self> {
        let mut left = KVVec::with_capacity(old.rules.len(), GFP_KERNEL_ACCOUNT)?;
        for rule in old.rules.iter() {
            left.push(Some(rule.clone()), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self { left, first: 0 })
    }

    /// Takes the next rule of these parts out, if there is one.
    pub(crate) fn take(&mut self, parts: &Parts) -> Option<Arc<Rule>> {
        while let Some(None) = self.left.get(self.first) {
            self.first = self.first.saturating_add(1);
        }
        let mut near = self.left.iter_mut().skip(self.first).take(LOOK_AHEAD);
        near.find(|rule| rule.as_ref().is_some_and(|rule| rule.is_made_of(parts)))?
            .take()
    }
}

/// Rules in their order, and the default for what none matches.
pub(crate) struct RuleSet {
    pub(crate) rules: KVVec<Arc<Rule>>,
    pub(crate) deny_others: bool,
    /// They judge ordinary sockets, too.
    pub(crate) enforce: bool,
    /// The handle that was given last.
    pub(crate) last_handle: u32,
    /// A rule names a device. Known once the set is shared.
    names_device: bool,
}

/// A set that flows share. The last of them frees up to 8,192 rules, and may be in a softirq.
pub(crate) type SharedRules = Arc<Deferred<RuleSet>>;

impl RuleSet {
    /// Makes it one that namespaces and flows share: `ENOMEM`. Process context.
    pub(crate) fn share(mut self) -> Result<SharedRules> {
        self.names_device = self.rules.iter().any(|rule| rule.matches.device.is_some());
        Ok(Arc::new(Deferred::new(self)?, GFP_KERNEL_ACCOUNT)?)
    }

    /// No rules: all is allowed.
    pub(crate) fn empty() -> Self {
        Self {
            rules: KVVec::new(),
            deny_others: false,
            enforce: false,
            last_handle: 0,
            names_device: false,
        }
    }

    /// One with the same default, and as enforced as this one, but with these rules and this last handle.
    pub(crate) fn with_rules(&self, rules: KVVec<Arc<Rule>>, last_handle: u32) -> Self {
        Self {
            rules,
            deny_others: self.deny_others,
            enforce: self.enforce,
            last_handle,
            ..Self::empty()
        }
    }

    /// Whether it refuses nothing and changes nothing.
    pub(crate) fn is_open(&self) -> bool {
        self.rules.is_empty() && !self.deny_others
    }

    /// Whether a rule names a device.
    pub(super) fn names_device(&self) -> bool {
        self.names_device
    }

    /// The judgements on what goes out, and on what comes in.
    pub(super) fn judge(&self, facts: &Facts<'_>, peer: Option<&Peer>) -> [Judgement; 2] {
        judge(self.rules.iter().map(|rule| &rule.matches), facts, peer)
    }

    /// The rule of a judgement; `None` for the default.
    pub(super) fn rule(&self, judgement: Judgement) -> Option<&Arc<Rule>> {
        match judgement {
            Judgement::Rule(place) => self.rules.get(place),
            _ => None,
        }
    }

    /// Whether a judgement is to deny.
    pub(super) fn denies(&self, judgement: Judgement) -> bool {
        match judgement {
            Judgement::Default => self.deny_others,
            Judgement::Rule(_) => self.rule(judgement).is_some_and(|rule| rule.action.deny),
            Judgement::ByPeer => false,
        }
    }
}
