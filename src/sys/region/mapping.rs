// SPDX-License-Identifier: GPL-2.0

//! A region in a process's memory.

use crate::sys::bindings;
use core::marker::PhantomData;
use kernel::{prelude::*, sync::Arc};

/// A vma that is being set up.
///
/// # Invariants
///
/// The argument of a running `mmap` operation.
pub(crate) struct Vma(pub(super) *mut bindings::vm_area_struct);

impl Vma {
    /// # Safety
    ///
    /// `vma` must be the argument of an `mmap` operation that outlasts the result.
    pub(in crate::sys) unsafe fn from_raw(vma: *mut bindings::vm_area_struct) -> Self {
        // INVARIANT: As the caller sees to.
        Self(vma)
    }
}

/// The operations of a mapping, whose private data is an `Arc<T>`.
pub(super) struct MappingOps<T>(pub(super) PhantomData<T>);

impl<T: Send + Sync> MappingOps<T> {
    pub(in crate::sys) const OPS: bindings::vm_operations_struct = bindings::vm_operations_struct {
        open: Some(Self::open),
        close: Some(Self::close),
        may_split: Some(Self::may_split),
        mremap: Some(Self::mremap),
        ..pin_init::zeroed()
    };

    /// A copy of the mapping was made, by fork.
    ///
    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn open(vma: *mut bindings::vm_area_struct) {
        // SAFETY: The vma copied was set up by `Region::map`, so its private data is an `Arc`,
        // which the copy needs a reference to, too.
        let owner = core::mem::ManuallyDrop::new(unsafe {
            Arc::from_raw((*vma).vm_private_data.cast::<T>().cast_const())
        });
        let _ = Arc::into_raw(Arc::clone(&owner));
    }

    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn close(vma: *mut bindings::vm_area_struct) {
        // SAFETY: Gives up the reference of `Region::map` or of `open`.
        drop(unsafe { Arc::from_raw((*vma).vm_private_data.cast::<T>().cast_const()) });
    }

    /// Part of a mapping is of no use: refuses munmap, mprotect and mremap of one.
    ///
    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn may_split(_: *mut bindings::vm_area_struct, _: usize) -> c_int {
        EINVAL.to_errno()
    }

    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn mremap(_: *mut bindings::vm_area_struct) -> c_int {
        EINVAL.to_errno()
    }
}
