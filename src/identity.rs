// SPDX-License-Identifier: GPL-2.0

//! The owner of a flow: the process that used it, or its channel, last.
//!
//! A process that uses a channel may send by any of its flows, and reads what all of them get. So
//! the user is noted once for the channel, and a flow on it has the later of two identities: its
//! own, of open(), bind(), connect() and sendmsg(), and that of the channel's user.

use crate::sys::{
    context,
    cred::Credentials,
    lock::SpinLockBh,
    sock::Sock,
    task::{Identity, Task}, //
};
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
    /// The current process. Process context.
    pub(crate) fn current() -> Result<Self> {
        let age = next_age();
        Ok(Self {
            identity: Arc::new(Identity::current()?, GFP_KERNEL_ACCOUNT)?,
            age,
        })
    }

    /// The current process, as the first that uses a socket: `ENOMEM`. Process context.
    ///
    /// A set-user-ID program is taken for the user who started it, without a program, if that user made
    /// the socket: see [`was_started_by`].
    pub(crate) fn first_of(sk: &Sock) -> Result<Self> {
        let age = next_age();
        let mut identity = Identity::current()?;
        if was_started_by(sk.uid()) {
            let maker = (sk.uid(), sk.gid());
            if maker != (identity.uid, identity.gid) {
                (identity.uid, identity.gid) = maker;
                identity.program = None;
            }
        }
        Ok(Self {
            identity: Arc::new(identity, GFP_KERNEL_ACCOUNT)?,
            age,
        })
    }

    /// A task's process: `ENOMEM`. In an RCU read-side section.
    pub(crate) fn of(task: &Task) -> Result<Self> {
        let age = next_age();
        Ok(Self {
            identity: Arc::new(Identity::of(task)?, GFP_ATOMIC | __GFP_NOWARN)?,
            age,
        })
    }

    /// The owner of a socket that was this one's, when the current process uses it: that process, but
    /// for a set-user-ID program of [`was_started_by`]. Process context.
    pub(crate) fn or_current(&self) -> Result<Self> {
        if was_started_by(self.identity.uid) {
            Ok(self.again())
        } else {
            self.shared_or_current()
        }
    }

    /// The current process, whose identity this one may have already. Process context.
    pub(crate) fn shared_or_current(&self) -> Result<Self> {
        if self.identity.is_current() {
            Ok(self.again())
        } else {
            Self::current()
        }
    }

    /// The same one, from now on.
    fn again(&self) -> Self {
        Self {
            identity: self.identity.clone(),
            age: next_age(),
        }
    }
}

/// Whether the current process is a set-user-ID program, say, that a process of this user may have
/// started, and given a socket to, as its standard error: it doesn't own the socket, or that user would
/// have what rules allow to the program's. Process context.
///
/// Any process can say that it is such a program (PR_SET_MM_MAP). So those are believed that gain nothing:
/// root, and who is that user in truth.
fn was_started_by(uid: u32) -> bool {
    context::is_secure() && (context::current_uid() == uid || context::current_euid() == 0)
}

/// The process that used a channel last, by its doorbell or by mapping it.
#[pin_data]
pub(crate) struct User {
    #[pin]
    latest: SpinLockBh<Option<Owner>>,
    /// The age of `latest`; 0 without one.
    age: Atomic<u64>,
    /// A flow of the channel may have a later identity, of another process.
    outdated: Atomic<bool>,
}

impl User {
    /// No user yet. Process context.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                latest <- SpinLockBh::new(new_spinlock!(None, "kopi::User::latest")),
                age: Atomic::new(0),
                outdated: Atomic::new(false),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Any context but hard interrupts.
    pub(crate) fn latest(&self) -> Option<Owner> {
        self.latest.lock().clone()
    }

    /// Whether it is the current process. Process context.
    fn is_current(&self) -> bool {
        let latest = self.latest.lock();
        latest
            .as_ref()
            .is_some_and(|owner| owner.identity.process.is_current())
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

    /// The last user of the rings is the writer of what is in them, as if it rang the doorbell. An
    /// engine calls this before it sends. Process context.
    pub(crate) fn restamp(&self) -> Result {
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
                let age = owner.age;
                let old = latest.replace(owner);
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

    /// The credentials of now of the process that used it last; `None` if that has ended. Any
    /// context but hard interrupts.
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        let latest = self.latest.lock();
        Credentials::of(&latest.as_ref()?.identity.process)
    }

    /// A flow of the channel has the current process's identity, or one that isn't known. Process
    /// context.
    pub(crate) fn flow_changed(&self) {
        if !self.is_current() {
            self.outdated.store(true, Relaxed);
        }
    }

    /// The user, if it is later than a flow's own owner. Any context but hard interrupts.
    pub(crate) fn later_than(&self, own: &Owner) -> Option<Owner> {
        if self.age.load(Acquire) <= own.age {
            return None;
        }
        self.latest()
    }
}
