// SPDX-License-Identifier: GPL-2.0

//! What judges and shows the packets of all flows of a network namespace: rules and monitor
//! devices.

use super::{Rule, RuleSet, SharedRules};
use crate::sys::{
    lock::{SpinLockBh, SpinLockIrq},
    monitor::Devices,
};
use core::sync::atomic::{AtomicBool, Ordering};
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Relaxed, Release},
            Atomic,
        },
        Arc, //
    }, //
};

/// Number of network namespaces whose rules judge ordinary sockets.
static ENFORCING: Atomic<u32> = Atomic::new(0);

/// Counts in [`ENFORCING`] as long as it lives.
struct Enforcing;

impl Enforcing {
    fn new() -> Self {
        ENFORCING.fetch_add(1, Relaxed);
        Self
    }
}

impl Drop for Enforcing {
    fn drop(&mut self) {
        ENFORCING.fetch_sub(1, Relaxed);
    }
}

/// See the module's documentation.
#[pin_data]
pub(crate) struct NetPolicy {
    /// The current rules. The lock is taken with interrupts off, since it is taken under any other lock.
    #[pin]
    rules: SpinLockIrq<SharedRules>,
    /// The generation of `rules`. Flows compare it with the generation of their cached verdicts.
    generation: Atomic<u64>,
    /// Whether the rules can refuse any packet, or mark one.
    in_force: AtomicBool,
    /// Whether the rules judge ordinary sockets, too, and can refuse any packet, or mark one.
    enforced: Atomic<bool>,
    /// The generation since which they do, whether or not they refuse anything; 0 while they don't.
    enforced_since: Atomic<u64>,
    /// Counts this namespace among those whose rules judge ordinary sockets.
    #[pin]
    enforcing: SpinLockBh<Option<Enforcing>>,
    /// See [`Self::count_denied`].
    denied: Atomic<u64>,
    /// The monitor devices that are up.
    pub(crate) monitors: Devices,
}

impl NetPolicy {
    /// No rules, and all is allowed; no monitors: `ENOMEM`. Process context.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let rules = RuleSet::empty().share()?;
        Arc::pin_init(
            pin_init!(Self {
                rules <- SpinLockIrq::new(new_spinlock!(rules, "kopi::NetPolicy::rules")),
                generation: Atomic::new(1),
                in_force: AtomicBool::new(false),
                enforced: Atomic::new(false),
                enforced_since: Atomic::new(0),
                enforcing <- SpinLockBh::new(
                    new_spinlock!(None, "kopi::NetPolicy::enforcing")
                ),
                denied: Atomic::new(0),
                monitors: Devices::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The rules. Any context but hard interrupts.
    pub(crate) fn rules(&self) -> SharedRules {
        self.rules.lock().clone()
    }

    /// The rules, and their generation. Any context but hard interrupts.
    pub(crate) fn rules_and_generation(&self) -> (SharedRules, u64) {
        let rules = self.rules.lock();
        (rules.clone(), self.generation())
    }

    /// The generation of the rules, which rises with each change. Any context.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Whether flows need be judged: there are rules, or the default is to deny. Any context.
    pub(super) fn is_in_force(&self) -> bool {
        self.in_force.load(Ordering::Relaxed)
    }

    /// Number of network namespaces whose rules judge ordinary sockets. Any context.
    pub(crate) fn enforcing() -> u32 {
        ENFORCING.load(Relaxed)
    }

    /// Whether ordinary sockets need be judged. Any context.
    pub(crate) fn are_enforced(&self) -> bool {
        self.enforced.load(Relaxed)
    }

    /// The generation since which the owners of ordinary sockets are noted: 0 if they aren't. They are as
    /// long as the rules are to be enforced, even if there are none yet. Any context.
    pub(crate) fn enforced_since(&self) -> u64 {
        self.enforced_since.load(Relaxed)
    }

    /// Number of calls, packets and sockets that rules stopped. Any context.
    pub(crate) fn denied(&self) -> u64 {
        self.denied.load(Relaxed)
    }

    /// Counts a call, a packet or a socket that a rule stopped; `None` if the default did, or something that rules
    /// can't judge. Any context.
    pub(crate) fn count_denied(&self, rule: Option<&Rule>) {
        if let Some(rule) = rule {
            rule.denied.add(1);
        }
        self.denied.fetch_add(1, Relaxed);
    }

    /// Puts other rules in force; the caller holds `Net::changing`. Says whether they aren't enforced
    /// any more.
    pub(crate) fn set_rules(&self, new: SharedRules) -> bool {
        let in_force = !new.is_open();
        let (enforce, enforced) = (new.enforce, in_force && new.enforce);
        let generation = self.generation.load(Relaxed).wrapping_add(1);
        let old = {
            let mut rules = self.rules.lock();
            let old = core::mem::replace(&mut *rules, new);
            if in_force {
                self.in_force.store(true, Ordering::Relaxed);
            }
            // Under the lock, for who asks for both.
            self.generation.store(generation, Release);
            old
        };
        if !in_force {
            self.in_force.store(false, Ordering::Relaxed);
        }
        self.enforced.store(enforced, Relaxed);
        if old.enforce != enforce {
            let since = if enforce { generation } else { 0 };
            self.enforced_since.store(since, Relaxed);
            *self.enforcing.lock() = enforce.then(Enforcing::new);
        }
        old.enforce && !enforce
    }

    /// The namespace ends: its rules aren't enforced any more. What is known of its sockets, if nobody saw their end,
    /// goes with the next that are forgotten. Process context.
    pub(crate) fn end(&self) {
        self.enforced.store(false, Relaxed);
        self.enforced_since.store(0, Relaxed);
        self.enforcing.lock().take();
    }
}
