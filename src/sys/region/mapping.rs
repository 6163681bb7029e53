// SPDX-License-Identifier: GPL-2.0

//! The mapping of a region into a process's memory.

use crate::sys::bindings;
use core::marker::PhantomData;
use kernel::{prelude::*, sync::Arc};

/// A vma that an `mmap` operation sets up.
///
/// # Invariants
///
/// The pointer is the argument of a running `mmap` operation.
pub(crate) struct Vma(pub(super) *mut bindings::vm_area_struct);

impl Vma {
    /// # Safety
    ///
    /// `vma` must be the argument of an `mmap` operation that outlasts the result.
    pub(in crate::sys) unsafe fn from_raw(vma: *mut bindings::vm_area_struct) -> Self {
        // INVARIANT: Required of the caller.
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

    /// Takes a reference for a copy of the mapping, which fork() made.
    ///
    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of a mapping that [`Region::map`] set up.
    ///
    /// [`Region::map`]: super::Region::map
    unsafe extern "C" fn open(vma: *mut bindings::vm_area_struct) {
        // SAFETY: `Region::map` made the private data by `Arc::into_raw`, and fork() copied the
        // pointer without a reference. The original's reference keeps the owner during this call;
        // `ManuallyDrop` leaves it to the original.
        let owner = core::mem::ManuallyDrop::new(unsafe {
            Arc::from_raw((*vma).vm_private_data.cast::<T>().cast_const())
        });
        let _ = Arc::into_raw(Arc::clone(&owner));
    }

    /// Releases the reference of a mapping that ends.
    ///
    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of a mapping that [`Region::map`] set up.
    ///
    /// [`Region::map`]: super::Region::map
    unsafe extern "C" fn close(vma: *mut bindings::vm_area_struct) {
        // SAFETY: Each vma owns one reference: `Region::map` gave the first vma its own, and `open`
        // took one for each copy. The kernel calls this once, before it frees the vma.
        drop(unsafe { Arc::from_raw((*vma).vm_private_data.cast::<T>().cast_const()) });
    }

    /// Refuses munmap, mprotect and mremap of a part of a mapping, which would be of no use.
    ///
    /// # Safety
    ///
    /// Any caller may call it: the argument isn't used.
    unsafe extern "C" fn may_split(_: *mut bindings::vm_area_struct, _: usize) -> c_int {
        EINVAL.to_errno()
    }

    /// Refuses to move or to resize a mapping.
    ///
    /// # Safety
    ///
    /// Any caller may call it: the argument isn't used.
    unsafe extern "C" fn mremap(_: *mut bindings::vm_area_struct) -> c_int {
        EINVAL.to_errno()
    }
}
