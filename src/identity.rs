// SPDX-License-Identifier: GPL-2.0

//! Who has a flow: who used it last, or its channel.
//!
//! Whoever uses a channel may send by any of its flows, and reads what all of them get. So the user
//! is noted once for the channel, and a flow on it has the later of two identities: its own, of
//! open(), bind(), connect() and sendmsg(), and that of the channel's user.

use crate::sys::{
    context::BottomHalvesOff,
    cred::Credentials,
    task::Identity, //
};
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Relaxed, Release},
            Atomic,
        },
        Arc,
        SpinLock, //
    }, //
};

/// Who used a channel last, by its doorbell or by mapping it.
#[pin_data]
pub(crate) struct User {
    #[pin]
    latest: SpinLock<Option<Arc<Identity>>>,
    /// The age of `latest`; 0 without one.
    age: Atomic<u64>,
    /// A flow of the channel may have a later identity, of another process.
    outdated: Atomic<bool>,
}

impl User {
    /// Nobody yet. Process context.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                latest <- new_spinlock!(None, "kopi::User::latest"),
                age: Atomic::new(0),
                outdated: Atomic::new(false),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    fn latest(&self) -> Option<Arc<Identity>> {
        let _softirqs = BottomHalvesOff::new();
        let latest = self.latest.lock();
        latest.clone()
    }

    /// Whether it is the current process. Process context.
    fn is_current(&self) -> bool {
        let _softirqs = BottomHalvesOff::new();
        let latest = self.latest.lock();
        latest
            .as_ref()
            .is_some_and(|identity| identity.process.is_current())
    }

    /// From now on the channel's flows are the current process's. Process context; may be called
    /// under its memory map's lock.
    pub(crate) fn note_current(&self) -> Result {
        if !self.outdated.load(Relaxed) && self.is_current() {
            return Ok(());
        }
        self.note(None, Identity::current)
    }

    /// What is written to the rings is by who used them last, as when he rings the doorbell; what an
    /// engine calls before it sends. Process context.
    pub(crate) fn note_again(&self) -> Result {
        if !self.outdated.load(Relaxed) {
            return Ok(());
        }
        let latest = self.latest().ok_or(ESRCH)?;
        self.note(Some(&latest), || latest.renewed())
    }

    /// Notes an identity, in place of another one if that matters.
    fn note(
        &self,
        before: Option<&Arc<Identity>>,
        identity: impl FnOnce() -> Result<Identity>,
    ) -> Result {
        // Before the identity is made: one that is made later says so again.
        self.outdated.store(false, Relaxed);
        let identity = Arc::new(identity()?, GFP_KERNEL_ACCOUNT)?;
        let age = identity.age;
        let old = {
            let _softirqs = BottomHalvesOff::new();
            let mut latest = self.latest.lock();
            let is_other = |now: &Arc<Identity>| before.is_some_and(|old| !Arc::ptr_eq(old, now));
            if latest.as_ref().is_some_and(is_other) {
                // Somebody else used it meanwhile.
                Some(identity)
            } else {
                let old = latest.replace(identity);
                self.age.store(age, Release);
                old
            }
        };
        drop(old);
        Ok(())
    }

    /// Whether who used it last is still there, as the same program. Any context but hard
    /// interrupts.
    pub(crate) fn is_running(&self) -> bool {
        let _softirqs = BottomHalvesOff::new();
        let latest = self.latest.lock();
        latest
            .as_ref()
            .is_some_and(|identity| identity.process.is_running())
    }

    /// The credentials that who used it last has now; `None` if he isn't there any more. Any context
    /// but hard interrupts.
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        let _softirqs = BottomHalvesOff::new();
        let latest = self.latest.lock();
        Credentials::of(&latest.as_ref()?.process)
    }

    /// A flow of the channel has the current process's identity, or one that isn't known. Process
    /// context.
    pub(crate) fn flow_changed(&self) {
        if !self.is_current() {
            self.outdated.store(true, Relaxed);
        }
    }

    /// The user's identity, if it is later than a flow's own. Any context but hard interrupts.
    pub(crate) fn later_than(&self, own: &Identity) -> Option<Arc<Identity>> {
        if self.age.load(Acquire) <= own.age {
            return None;
        }
        self.latest()
    }
}
