// SPDX-License-Identifier: GPL-2.0

//! Memory that counts against a user's `RLIMIT_MEMLOCK`, as that of AF_XDP and io_uring does.
//!
//! C header: `include/linux/sched/user.h`

use super::bindings;
use super::errno::enobufs;
use core::ptr::NonNull;
use kernel::prelude::*;

/// A number of pages charged to a user; given back when dropped.
pub(crate) struct LockedPages {
    /// `None`: the process may lock what it likes.
    user: Option<NonNull<bindings::user_struct>>,
    pages: isize,
}

// SAFETY: The user's counter is atomic, and so is its reference count.
unsafe impl Send for LockedPages {}
// SAFETY: As above.
unsafe impl Sync for LockedPages {}

impl LockedPages {
    /// Charges the current user; `ENOBUFS` when the limit doesn't allow it. Process context.
    pub(crate) fn charge(pages: usize) -> Result<Self> {
        let pages = isize::try_from(pages).map_err(|_| EINVAL)?;
        // SAFETY: Process context.
        if unsafe { bindings::capable(bindings::CAP_IPC_LOCK as i32) } {
            return Ok(Self { user: None, pages });
        }
        // SAFETY: Process context; the reference is put in `drop`.
        let user = NonNull::new(unsafe { bindings::kopi_get_current_user() }).ok_or(EINVAL)?;
        // Owns the reference, and has charged nothing yet.
        let mut charge = Self {
            user: Some(user),
            pages: 0,
        };
        // SAFETY: Process context.
        let bytes = unsafe { bindings::kopi_rlimit_memlock() };
        let limit = bytes / bindings::KOPI_CONST_PAGE_SIZE as usize;
        let limit = isize::try_from(limit).unwrap_or(isize::MAX);
        loop {
            // SAFETY: `user` is valid as long as its reference is held.
            let old = unsafe { bindings::kopi_user_locked_vm_read(user.as_ptr()) };
            let new = old.checked_add(pages).ok_or_else(enobufs)?;
            if new > limit {
                return Err(enobufs());
            }
            // SAFETY: As above.
            if unsafe { bindings::kopi_user_locked_vm_try_cmpxchg(user.as_ptr(), old, new) } {
                charge.pages = pages;
                return Ok(charge);
            }
        }
    }
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        if let Some(user) = self.user {
            // SAFETY: The reference is held until the second call, and the pages were charged.
            unsafe {
                bindings::kopi_user_locked_vm_sub(user.as_ptr(), self.pages);
                bindings::free_uid(user.as_ptr());
            }
        }
    }
}
