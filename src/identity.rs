// SPDX-License-Identifier: GPL-2.0

//! The owner of a flow: the process that used it, or its channel, last.
//!
//! A process becomes a flow's owner by socket() or accept() that makes the flow, by bind(), connect() and
//! listen(), and by bringing it to a channel; while there are rules, also by accept() of a listener, and by
//! calls that send or read, as a doorbell with BELL_SEND does, unless the kernel itself makes them (nbd). Of an
//! ordinary socket it is each call that is judged.
//!
//! A process that uses a channel may send by any of its flows, and reads what all of them get. So
//! the process that used it last, the channel's owner, is noted once. A flow on the channel has the later of two
//! identities: its own, of those calls, and that of the channel's owner.

use crate::sys::{
    context,
    cred::Credentials,
    lock::SpinLockBh,
    sock::Sock,
    task::{Identity, Task}, //
};
use kernel::{
    alloc::Flags,
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

/// The age of the owner that was found last.
static LAST: Atomic<u64> = Atomic::new(0);

/// The age of one that is found now.
fn next_age() -> u64 {
    LAST.fetch_add(1, Relaxed).wrapping_add(1)
}

/// The owner of a flow. Flows of a process share its identity, as long as it stays the same.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) identity: Arc<Identity>,
    /// An owner that was found later has a greater number; from 1.
    age: u64,
}

impl Owner {
    /// That of an identity, which is found now: `ENOMEM`.
    fn new(identity: impl FnOnce() -> Result<Identity>, flags: Flags) -> Result<Self> {
        // Before the identity is read: a later owner has a greater age.
        let age = next_age();
        Ok(Self {
            identity: Arc::new(identity()?, flags)?,
            age,
        })
    }

    /// The current process. Process context.
    pub(crate) fn current() -> Result<Self> {
        Self::new(Identity::current, GFP_KERNEL_ACCOUNT)
    }

    /// The current process, as the first that uses a socket: `ENOMEM`. Process context.
    ///
    /// Where the socket isn't its own ([`is_lent_to_root`], [`was_started_by`]), it is taken for the user who
    /// made the socket, without a program.
    pub(crate) fn first_of(sk: &Sock) -> Result<Self> {
        Self::new(
            || {
                let identity = Identity::current()?;
                let maker = (sk.uid(), sk.gid());
                let is_lent = is_lent_to_root(identity.uid, sk) || was_started_by(maker, false);
                Ok(identity.or_maker(sk, is_lent))
            },
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The process of a task that has a socket: `ENOMEM`. In an RCU read-side section.
    pub(crate) fn of(task: &Task, sk: &Sock, flags: Flags) -> Result<Self> {
        Self::new(
            || {
                let identity = Identity::of(task, flags)?;
                let is_lent = is_lent_to_root(identity.uid, sk);
                Ok(identity.or_maker(sk, is_lent))
            },
            flags,
        )
    }

    /// The owner of a socket that was this one's, when the current process uses it: that process, unless the
    /// socket isn't its own. Process context.
    pub(crate) fn or_current(&self, sk: &Sock) -> Result<Self> {
        if self.is_kept(sk) {
            Ok(self.again())
        } else {
            self.shared_or_current()
        }
    }

    /// Whether a socket of this owner's, which the current process uses, stays that of this owner. Process
    /// context.
    pub(crate) fn is_kept(&self, sk: &Sock) -> bool {
        let Identity { uid, gid, .. } = *self.identity;
        is_lent_to_root(context::current_euid(), sk)
            || was_started_by((uid, gid), self.identity.has_capabilities)
    }

    /// The current process, whose identity this one may have already. Process context.
    pub(crate) fn shared_or_current(&self) -> Result<Self> {
        if self.identity.is_current() {
            Ok(self.again())
        } else {
            Self::current()
        }
    }

    /// Whether it is the same process, with the same identity.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.identity, &other.identity) || self.identity.is_as(&other.identity)
    }

    /// The same owner, as found now.
    fn again(&self) -> Self {
        Self {
            identity: self.identity.clone(),
            age: next_age(),
        }
    }
}

/// Whether a socket that another user has made is used by root, who doesn't own it then: a command that
/// sudo(8) starts, or a service, may have it as its standard error, and that user would have what rules
/// allow to root. Any context.
fn is_lent_to_root(euid: u32, sk: &Sock) -> bool {
    euid == 0 && sk.uid() != 0
}

/// Whether the current process is a set-user-ID program, say, that a process of this user and group may
/// have started, and given a socket to: it doesn't own the socket, for the same reason. Process context.
///
/// Any process can pretend to be such a program (PR_SET_MM_MAP). So the pretence must gain nothing. It is accepted from
/// root. It is also accepted from a process whose real ids are those of the socket's owner, if that owner had no
/// capabilities and the process has other ids besides. Without other ids, another program of the same user would gain
/// what rules allow to the first one.
fn was_started_by(ids: (u32, u32), had_capabilities: bool) -> bool {
    let are_own = || (context::current_uid(), context::current_gid()) == ids;
    let gains_nothing = || are_own() && !had_capabilities && context::has_other_ids();
    context::is_secure() && (context::current_euid() == 0 || gains_nothing())
}

/// The process that used a channel last, by its doorbell or by mapping it. Of a channel that only sends, a doorbell
/// with BELL_SEND is about one flow, and doesn't count.
#[pin_data]
pub(crate) struct ChannelOwner {
    #[pin]
    latest: SpinLockBh<Option<Owner>>,
    /// The age of `latest`; 0 without one.
    age: Atomic<u64>,
    /// A flow of the channel may have a later identity, of another process.
    outdated: Atomic<bool>,
}

impl ChannelOwner {
    /// Of a channel that no process has used yet. Process context.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                latest <- SpinLockBh::new(new_spinlock!(None, "kopi::ChannelOwner::latest")),
                age: Atomic::new(0),
                outdated: Atomic::new(false),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The process that used the channel last. Any context but hard interrupts.
    pub(crate) fn latest(&self) -> Option<Owner> {
        self.latest.lock().clone()
    }

    /// Whether the current process used the channel last. Process context.
    fn is_current(&self) -> bool {
        let latest = self.latest.lock();
        latest
            .as_ref()
            .is_some_and(|owner| owner.identity.is_process())
    }

    /// From now on the channel's flows are the current process's. Process context; may be called
    /// under its memory map's lock.
    pub(crate) fn record_current(&self) -> Result {
        if !self.outdated.load(Relaxed) && self.is_current() {
            return Ok(());
        }
        self.record(None, || match self.latest() {
            Some(latest) => latest.shared_or_current(),
            None => Owner::current(),
        })
    }

    /// Notes that the process which used the channel last is another user or group by now: it may go on with the
    /// rings without a call that would say so. `ENOMEM`. Any context but hard interrupts.
    pub(crate) fn update_ids(&self) -> Result {
        let flags = GFP_ATOMIC | __GFP_NOWARN;
        let changed = {
            let latest = self.latest.lock();
            let Some(Owner { identity, .. }) = latest.as_ref() else {
                return Ok(());
            };
            // A reference is taken only if it has changed: each packet asks.
            let new = identity.with_new_ids();
            new.map(|new| (identity.clone(), new))
        };
        match changed {
            None => Ok(()),
            Some((before, new)) => self.record(Some(&before), || Owner::new(|| Ok(new), flags)),
        }
    }

    /// The last user of the rings is the writer of what is in them, as if it rang the doorbell. An
    /// engine calls this before it sends. Process context.
    pub(crate) fn restamp(&self) -> Result {
        self.update_ids()?;
        if !self.outdated.load(Relaxed) {
            return Ok(());
        }
        let latest = self.latest().ok_or(ESRCH)?;
        self.record(Some(&latest.identity), || Ok(latest.again()))
    }

    /// Notes an owner; if `before` is given, only in place of one with that identity.
    fn record(
        &self,
        before: Option<&Arc<Identity>>,
        owner: impl FnOnce() -> Result<Owner>,
    ) -> Result {
        // Before the owner is read: a later change sets it again.
        self.outdated.store(false, Relaxed);
        let owner = owner()?;
        let old = {
            let mut latest = self.latest.lock();
            let is_other = |now: &Owner| before.is_some_and(|old| !Arc::ptr_eq(old, &now.identity));
            if latest.as_ref().is_some_and(is_other) {
                // Another process used it meanwhile.
                Some(owner)
            } else {
                // Another one may have been noted since this one was found.
                let age = next_age();
                let old = latest.replace(Owner { age, ..owner });
                self.age.store(age, Release);
                old
            }
        };
        drop(old);
        Ok(())
    }

    /// Whether the process that used it last still runs, as the same program. Any context but hard
    /// interrupts.
    pub(crate) fn is_running(&self) -> bool {
        let latest = self.latest.lock();
        latest
            .as_ref()
            .is_some_and(|owner| owner.identity.process.is_running())
    }

    /// The current credentials of the process that used the channel last; `None` if that has ended. Any
    /// context but hard interrupts.
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        let latest = self.latest.lock();
        Credentials::of(&latest.as_ref()?.identity.process)
    }

    /// A flow of the channel has the current process's identity, or one that isn't known. Process
    /// context.
    pub(crate) fn note_flow_change(&self) {
        if !self.is_current() {
            self.outdated.store(true, Relaxed);
        }
    }

    /// The channel's owner, if it is another process than a flow's. Any context but hard interrupts.
    pub(crate) fn other_than(&self, owner: &Owner) -> Option<Owner> {
        let latest = self.latest.lock();
        let is_other = |latest: &&Owner| latest.identity.process != owner.identity.process;
        latest.as_ref().filter(is_other).cloned()
    }

    /// The channel's owner, if it is later than a flow's own. Any context but hard interrupts.
    pub(crate) fn later_than(&self, own: &Owner) -> Option<Owner> {
        if self.age.load(Acquire) <= own.age {
            return None;
        }
        self.latest()
    }
}
