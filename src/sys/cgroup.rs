// SPDX-License-Identifier: GPL-2.0

//! Cgroups: a sock's, and that of a path.
//!
//! C header: `include/linux/cgroup.h`

use super::{
    bindings,
    context::might_sleep,
    sock::Sock,
    task::{copy_path, known}, //
};
use crate::pure::rule::Cgroup;
use core::ptr::NonNull;
use kernel::{
    error::{from_err_ptr, to_result},
    prelude::*,
    str::CStr, //
};

/// The id of a sock's cgroup, which never changes. Any context.
pub(crate) fn of(sk: &Sock) -> Option<u64> {
    // SAFETY: The sock is borrowed, and holds a reference to its cgroup.
    unsafe {
        let cgroup = NonNull::new(bindings::kopi_sk_cgroup(sk.as_ptr()))?;
        Some(bindings::kopi_cgroup_id(cgroup.as_ptr()))
    }
}

/// Whether a sock's cgroup is `cgroup`, or is below it. The time doesn't depend on the depth. Any
/// context.
pub(crate) fn is_in(sk: &Sock, cgroup: Cgroup) -> bool {
    // SAFETY: The sock is borrowed, and holds a reference to its cgroup, which keeps its ancestors.
    unsafe { bindings::kopi_sk_cgroup_id_at(sk.as_ptr(), cgroup.level) == cgroup.id }
}

/// A reference to a cgroup, which this value owns.
pub(crate) struct CgroupRef(NonNull<bindings::cgroup>);

impl Sock {
    /// A reference to the sock's cgroup. Any context.
    pub(crate) fn cgroup(&self) -> Option<CgroupRef> {
        // SAFETY: The sock is borrowed, and holds a reference to its cgroup. The call takes another
        // one, which `drop` puts.
        NonNull::new(unsafe { bindings::kopi_sk_cgroup_get(self.as_ptr()) }).map(CgroupRef)
    }
}

impl CgroupRef {
    /// The path of the cgroup in the current process's cgroup namespace; empty if it is too long.
    /// Process context; takes the kernel's mutex of cgroups.
    pub(crate) fn path(&self) -> Result<KVec<u8>> {
        let path = copy_path(GFP_KERNEL_ACCOUNT, |buffer| {
            // SAFETY: This value's reference keeps the cgroup. The buffer has room for the length
            // that is passed. The current process, which there is in process context, keeps its
            // namespaces.
            let len = unsafe {
                bindings::kopi_cgroup_path_here(
                    self.0.as_ptr(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                )
            };
            to_result(len)?;
            Ok((0, usize::try_from(len)?))
        });
        known(path)
    }
}

impl Drop for CgroupRef {
    fn drop(&mut self) {
        // SAFETY: This value owns the reference, and isn't used any more.
        unsafe { bindings::kopi_cgroup_put(self.0.as_ptr()) };
    }
}

/// The cgroup of a path in the current process's cgroup namespace: `ENOENT`, `ENOTDIR`. Process
/// context.
pub(crate) fn at(path: &CStr) -> Result<Cgroup> {
    might_sleep();
    // SAFETY: The lookup is for the current process, which there is in process context, as this
    // function requires. The path ends with a zero. The result has a reference, which keeps the
    // cgroup until it is put below.
    unsafe {
        let cgroup = from_err_ptr(bindings::cgroup_get_from_path(path.as_char_ptr()))?;
        let found = Cgroup {
            id: bindings::kopi_cgroup_id(cgroup),
            level: bindings::kopi_cgroup_level(cgroup),
        };
        bindings::kopi_cgroup_put(cgroup);
        Ok(found)
    }
}
