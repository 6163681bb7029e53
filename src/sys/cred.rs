// SPDX-License-Identifier: GPL-2.0

//! Credentials, by which security modules and capability checks judge a task.
//!
//! C header: `include/linux/cred.h`

use super::bindings;
use super::task::Process;
use core::{
    marker::PhantomData,
    ptr::{self, NonNull},
};
use kernel::sync::{
    atomic::{
        ordering::{Acquire, Full},
        Atomic,
    },
    rcu, //
};

/// A reference to credentials, which never change.
pub(crate) struct Credentials(NonNull<bindings::cred>);

impl Credentials {
    /// The current credentials of a process's first thread; `None` if the process or that thread
    /// has ended, or has become another program. Any context but hard interrupts.
    pub(crate) fn of(process: &Process) -> Option<Self> {
        let _rcu = rcu::read_lock();
        // SAFETY: `process` holds a reference to the pid. RCU, held here, keeps the task of the
        // pid.
        let cred = unsafe {
            let task = NonNull::new(bindings::kopi_pid_task(process.pid().as_ptr()))?;
            bindings::get_task_cred(task.as_ptr()).cast_mut()
        };
        let cred = Self(NonNull::new(cred)?);
        // This check has to follow the reference, which was taken with full ordering: exec changes
        // what is checked here before it changes the credentials.
        process.is_running().then_some(cred)
    }

    /// Makes the current task act with these credentials while the result lives. Process context.
    pub(crate) fn assume(&self) -> Assumed<'_> {
        Assumed {
            // SAFETY: The result borrows `self`, so the reference outlasts the use of the
            // credentials.
            own: unsafe { bindings::kopi_override_creds(self.0.as_ptr()) },
            _of: PhantomData,
        }
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        // SAFETY: This value owns the reference, and is not used any more.
        unsafe { bindings::kopi_put_cred(self.0.as_ptr()) };
    }
}

/// While it lives, the current task acts with other credentials than its own.
pub(crate) struct Assumed<'a> {
    /// The pointer keeps the value in its task.
    own: *const bindings::cred,
    _of: PhantomData<&'a Credentials>,
}

impl Drop for Assumed<'_> {
    fn drop(&mut self) {
        // SAFETY: `own` holds the credentials that `assume` replaced. The value can't have left the
        // task of `assume`, because it isn't `Send`.
        unsafe { bindings::kopi_revert_creds(self.own) };
    }
}

/// The credentials that passed a check last. mmap accepts only those that passed the check for
/// receiving, which getsockopt makes.
///
/// # Invariants
///
/// The pointer is null, or this value owns a reference to the credentials.
pub(crate) struct AllowedCreds(Atomic<*mut bindings::cred>);

impl AllowedCreds {
    /// No credentials.
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(ptr::null_mut()))
    }

    /// Stores the current task's credentials. Process context.
    pub(crate) fn set_current(&self) {
        // SAFETY: The current task, which there is in process context, keeps its credentials during the
        // call, which takes a reference.
        // INVARIANT: The call gives a reference, which this value owns from here.
        let current = unsafe { bindings::kopi_get_current_cred() };
        Self::put(self.0.xchg(current.cast_mut(), Full));
    }

    /// Whether the current task has these credentials. Process context; may be called under any
    /// lock.
    pub(crate) fn are_current(&self) -> bool {
        // The pointers may be compared: the reference prevents that others are allocated at this
        // address.
        // SAFETY: The current task, which there is in process context, keeps its credentials, whose
        // pointer is only compared.
        ptr::eq(self.0.load(Acquire), unsafe {
            bindings::kopi_current_cred()
        })
    }

    /// Releases a reference, if there is one.
    fn put(cred: *mut bindings::cred) {
        // By the invariants, the pointer came with a reference.
        drop(NonNull::new(cred).map(Credentials));
    }
}

impl Drop for AllowedCreds {
    fn drop(&mut self) {
        Self::put(*self.0.get_mut());
    }
}
