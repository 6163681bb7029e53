// SPDX-License-Identifier: GPL-2.0

//! Charges to a user's `RLIMIT_MEMLOCK`, as AF_XDP and io_uring charge their memory.
//!
//! C header: `include/linux/sched/user.h`

use super::bindings;
use super::errno::enobufs;
use core::ptr::NonNull;
use kernel::prelude::*;

/// A charge for locked pages, which ends when this value is dropped.
///
/// # Invariants
///
/// This value owns a reference to `user`, whose counter includes `pages`.
pub(crate) struct LockedPages {
    /// `None` if no limit applies, because the process has CAP_IPC_LOCK.
    user: Option<NonNull<bindings::user_struct>>,
    pages: isize,
}

// SAFETY: A `user_struct` is not bound to a task. Its counters are atomic.
unsafe impl Send for LockedPages {}
// SAFETY: A shared reference gives no access to the fields.
unsafe impl Sync for LockedPages {}

impl LockedPages {
    /// Charges the current user: `ENOBUFS` if the sum would exceed the limit. Process context.
    pub(crate) fn charge(pages: usize) -> Result<Self> {
        let pages = isize::try_from(pages).map_err(|_| EINVAL)?;
        // SAFETY: The call checks the credentials of the current task, which there is in process
        // context, as this function requires.
        if unsafe { bindings::capable(bindings::CAP_IPC_LOCK as i32) } {
            return Ok(Self { user: None, pages });
        }
        // SAFETY: The current task, which there is in process context, keeps its credentials and
        // their user. `drop` puts the reference that the call takes.
        let user = NonNull::new(unsafe { bindings::kopi_get_current_user() }).ok_or(EINVAL)?;
        // INVARIANT: The call above took the reference. Nothing is charged yet.
        let mut charge = Self {
            user: Some(user),
            pages: 0,
        };
        // SAFETY: The call reads a limit of the current process, which there is in process context,
        // as this function requires.
        let bytes = unsafe { bindings::kopi_rlimit_memlock() };
        let limit = bytes / bindings::KOPI_CONST_PAGE_SIZE as usize;
        let limit = isize::try_from(limit).unwrap_or(isize::MAX);
        loop {
            // SAFETY: The reference of `charge` keeps the user.
            let old = unsafe { bindings::kopi_user_locked_vm_read(user.as_ptr()) };
            let new = old.checked_add(pages).ok_or_else(enobufs)?;
            if new > limit {
                return Err(enobufs());
            }
            // SAFETY: The reference of `charge` keeps the user.
            if unsafe { bindings::kopi_user_locked_vm_try_cmpxchg(user.as_ptr(), old, new) } {
                // INVARIANT: The counter has just got these pages.
                charge.pages = pages;
                return Ok(charge);
            }
        }
    }
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        if let Some(user) = self.user {
            // SAFETY: This value owns the reference, which the second call puts, and the counter
            // includes the pages, by the invariants.
            unsafe {
                bindings::kopi_user_locked_vm_sub(user.as_ptr(), self.pages);
                bindings::free_uid(user.as_ptr());
            }
        }
    }
}
