// SPDX-License-Identifier: GPL-2.0

//! Credentials: what security modules and capability checks judge a task by.
//!
//! C header: `include/linux/cred.h`

use super::bindings;
use super::task::Process;
use core::{
    marker::PhantomData,
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, Ordering::AcqRel, Ordering::Acquire},
};
use kernel::sync::rcu;

/// A reference to credentials, which never change.
pub(crate) struct Credentials(NonNull<bindings::cred>);

impl Credentials {
    /// Those that a process has now, of its first thread; `None` when it, or that thread, has ended
    /// or has become another program. Any context but hard interrupts.
    pub(crate) fn of(process: &Process) -> Option<Self> {
        let _rcu = rcu::read_lock();
        // SAFETY: The reference to the pid is held, and under RCU so is the task that it leads to.
        let cred = unsafe {
            let task = NonNull::new(bindings::kopi_pid_task(process.pid().as_ptr()))?;
            bindings::get_task_cred(task.as_ptr()).cast_mut()
        };
        let cred = Self(NonNull::new(cred)?);
        // Only now, after the reference was taken in full order: exec changes what is compared here
        // before it changes credentials.
        process.is_running().then_some(cred)
    }

    /// Has the current task act with them as long as the result lives. Process context.
    pub(crate) fn assume(&self) -> Assumed<'_> {
        Assumed {
            // SAFETY: The credentials are kept longer than they are in use, by the borrow.
            own: unsafe { bindings::kopi_override_creds(self.0.as_ptr()) },
            _of: PhantomData,
        }
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        // SAFETY: The reference that `of` took.
        unsafe { bindings::kopi_put_cred(self.0.as_ptr()) };
    }
}

/// The current task acts with other credentials than its own.
pub(crate) struct Assumed<'a> {
    /// The pointer keeps the value in its task.
    own: *const bindings::cred,
    _of: PhantomData<&'a Credentials>,
}

impl Drop for Assumed<'_> {
    fn drop(&mut self) {
        // SAFETY: Gives the current task back those that it had in `assume`.
        unsafe { bindings::kopi_revert_creds(self.own) };
    }
}

/// Credentials that were let do something, the last ones that were.
///
/// # Invariants
///
/// Null, or credentials to which this has a reference.
pub(crate) struct AllowedCreds(AtomicPtr<bindings::cred>);

impl AllowedCreds {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// The current task's, from now on. Process context.
    pub(crate) fn set_current(&self) {
        // SAFETY: There is a current task.
        // INVARIANT: The reference is this one's now.
        let current = unsafe { bindings::kopi_get_current_cred() };
        Self::put(self.0.swap(current.cast_mut(), AcqRel));
    }

    /// Whether they are the current task's. Process context; may be called under any lock.
    pub(crate) fn are_current(&self) -> bool {
        // As there is a reference to them, no others can lie where they do.
        // SAFETY: There is a current task.
        ptr::eq(self.0.load(Acquire), unsafe {
            bindings::kopi_current_cred()
        })
    }

    fn put(cred: *mut bindings::cred) {
        // The reference that this had, by its invariants.
        drop(NonNull::new(cred).map(Credentials));
    }
}

impl Drop for AllowedCreds {
    fn drop(&mut self) {
        Self::put(*self.0.get_mut());
    }
}
