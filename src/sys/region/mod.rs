// SPDX-License-Identifier: GPL-2.0

//! Pages that the kernel shares with a process.
//!
//! C headers: `include/linux/mm.h`, `include/linux/vmalloc.h`, `include/linux/uio.h`

mod mapping;
mod parts;

use crate::{
    pure::{
        abi::{Meta, RingLayout, META_WORDS},
        geometry::{self, Frame},
        ring::{Consumer, Entry, Producer},
    },
    sys::{
        bindings,
        context::{fatal_signal_pending, might_sleep},
        locked::LockedPages,
        reaper::{self, SharedRegion},
    },
};
use core::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering},
};
use kernel::{error::to_result, prelude::*, sync::Arc};
use mapping::MappingOps;
pub(crate) use mapping::Vma;
pub(crate) use parts::{Bytes, KernelVec, KernelVecBuffer, PageVec};

/// Bytes of a page.
pub(super) const PAGE_SIZE: usize = geometry::PAGE_SIZE as usize;
const _: () = assert!(PAGE_SIZE == bindings::KOPI_CONST_PAGE_SIZE as usize);

/// Pages, zeroed at first, which are mapped in the kernel in one piece.
///
/// # Invariants
///
/// This value owns a reference to each of `pages`. `base` is the start of the kernel's mapping of
/// them, in that order.
pub(crate) struct Region {
    pages: KVVec<*mut bindings::page>,
    base: NonNull<u8>,
    _locked: LockedPages,
    _module: ModuleRef,
}

// SAFETY: Neither pages nor the kernel's mapping of them are bound to a task. Any task may drop the
// charge, and any may put the module.
unsafe impl Send for Region {}

// SAFETY: Through a shared reference, the fields are only read. The memory is accessed by atomic
// operations, or by C functions that expect other tasks to change it: the process does so anyway.
unsafe impl Sync for Region {}

/// A reference to the module, whose code drops regions.
struct ModuleRef;

impl ModuleRef {
    fn new() -> Self {
        // SAFETY: The caller is code of this module, so a reference to the module exists already,
        // as `__module_get` requires.
        unsafe { bindings::kopi_module_get() };
        Self
    }
}

impl Drop for ModuleRef {
    fn drop(&mut self) {
        // SAFETY: The reference is that of `new`. The module's code outlives this call even if the
        // reference is the last: regions are dropped by the reaper's queue, or by a call through
        // the family's operations. The module's exit waits for both, and for those that are on
        // their way back from giving a region to the queue (`synchronize_rcu_tasks`).
        unsafe { bindings::kopi_module_put() };
    }
}

/// Pages that aren't mapped in the kernel. This value owns a reference to each.
struct Pages(KVVec<*mut bindings::page>);

impl Drop for Pages {
    fn drop(&mut self) {
        for &page in &self.0 {
            // SAFETY: This value owns the reference, and is not used any more. The allocation was
            // of order 0.
            unsafe { bindings::__free_pages(page, 0) };
        }
    }
}

impl Region {
    /// Allocates `count` pages, which are charged to the current user's locked memory and to the
    /// current cgroup. Process context.
    ///
    /// `ENOBUFS` if the charge exceeds `RLIMIT_MEMLOCK`; `ENOMEM` if memory is short, or the
    /// cgroup's limit is reached; `EINTR` if the process is being killed.
    pub(crate) fn new(count: usize) -> Result<Self> {
        might_sleep();
        // Charges of regions that were closed before may not be returned yet.
        let locked = LockedPages::charge(count).or_else(|_| {
            reaper::flush();
            LockedPages::charge(count)
        })?;
        let mut pages = Pages(KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?);
        for _ in 0..count {
            // As vm_area_alloc_pages(): the reserves that the OOM killer opens to its victim are for its end.
            if fatal_signal_pending() {
                return Err(EINTR);
            }
            // SAFETY: The allocation may sleep, and the caller is in process context, as this
            // function requires.
            let page = unsafe { bindings::kopi_alloc_page() };
            if page.is_null() {
                return Err(ENOMEM);
            }
            pages.0.push(page, GFP_KERNEL_ACCOUNT)?;
        }
        // SAFETY: The array holds `count` pages, and `pages` or the result owns a reference to each
        // as long as they are mapped. The caller is in process context, as this function requires.
        let base = unsafe {
            bindings::vmap(
                pages.0.as_mut_ptr(),
                u32::try_from(count)?,
                bindings::KOPI_CONST_VM_MAP as usize,
                bindings::kopi_page_kernel(),
            )
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(ENOMEM)?;
        // INVARIANT: The references move from `pages`, which is emptied; `vmap` returned the base.
        Ok(Self {
            pages: core::mem::replace(&mut pages.0, KVVec::new()),
            base,
            _locked: locked,
            _module: ModuleRef::new(),
        })
    }

    /// Size in bytes.
    fn len(&self) -> usize {
        // This can't overflow: memory of this size exists.
        self.pages.len().wrapping_mul(PAGE_SIZE)
    }

    /// The kernel's address of `len` bytes at `offset`: `EINVAL` unless they lie within the region,
    /// and the address is aligned for `T`. The address is valid as long as the region.
    pub(crate) fn at<T>(&self, offset: u32, len: usize) -> Result<NonNull<T>> {
        let offset = offset as usize;
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if end > self.len() || offset % align_of::<T>() != 0 {
            return Err(EINVAL);
        }
        // SAFETY: `offset` is at most the size of the mapping at `base`, as just checked.
        Ok(unsafe { self.base.add(offset) }.cast())
    }

    /// Copies bytes that the process may write meanwhile: `EINVAL` unless they lie within the
    /// region.
    pub(crate) fn read(&self, offset: u32, to: &mut [u8]) -> Result {
        let from = self.at::<AtomicU8>(offset, to.len())?;
        for (index, byte) in to.iter_mut().enumerate() {
            // SAFETY: `at` checked that all `to.len()` bytes lie within the region, which the
            // borrow keeps. Any byte may be accessed as an `AtomicU8`.
            *byte = unsafe { from.add(index).as_ref() }.load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// Bytes that C is to copy: `EINVAL` unless they lie within the region.
    pub(crate) fn bytes(&self, offset: u32, len: u32) -> Result<Bytes<'_>> {
        let len = len as usize;
        // INVARIANT: `at` checks that the bytes lie within the region, whose borrow lasts as long.
        Ok(Bytes {
            at: self.at(offset, len)?,
            len,
            _region: PhantomData,
        })
    }

    /// The words of the metadata in a frame's headroom.
    fn meta_words(&self, frame: Frame) -> Result<NonNull<AtomicU64>> {
        self.at(frame.start(), size_of::<Meta>())
    }

    /// Copies the metadata from a frame's headroom, which the process may write meanwhile.
    pub(crate) fn read_meta(&self, frame: Frame) -> Result<Meta> {
        let words = self.meta_words(frame)?;
        let mut copy = [0; META_WORDS];
        for (index, word) in copy.iter_mut().enumerate() {
            // SAFETY: `at` checked alignment, and room for the `META_WORDS` words of a `Meta`. The
            // borrow keeps the region.
            *word = unsafe { words.add(index).as_ref() }.load(Ordering::Relaxed);
        }
        Ok(Meta::from_words(copy))
    }

    /// Writes the metadata of a received packet into a frame's headroom.
    pub(crate) fn write_meta(&self, frame: Frame, meta: &Meta) -> Result {
        let words = self.meta_words(frame)?;
        for (index, word) in meta.to_words().into_iter().enumerate() {
            // SAFETY: `at` checked alignment, and room for the `META_WORDS` words of a `Meta`. The
            // borrow keeps the region.
            unsafe { words.add(index).as_ref() }.store(word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Maps the whole region into the process, and keeps `owner` as long as the mapping. Children of
    /// fork() have it if it is `inherited`, or if the process asks for that by MADV_DOFORK.
    ///
    /// `EINVAL` unless the mapping is shared and covers the whole region; `EPERM` if it is
    /// executable.
    pub(crate) fn map<T: Send + Sync>(&self, vma: &Vma, owner: Arc<T>, inherited: bool) -> Result {
        let raw = vma.0;
        // SAFETY: By the invariants, `vma` is the argument of a running mmap operation, whose
        // caller holds the lock of the process's memory map for writing.
        let (start, end, flags, offset) = unsafe {
            let range = (*raw).__bindgen_anon_1.__bindgen_anon_1;
            let flags = (*raw).__bindgen_anon_2.vm_flags;
            (range.vm_start, range.vm_end, flags as u64, (*raw).vm_pgoff)
        };
        if offset != 0
            || end.wrapping_sub(start) != self.len()
            || flags & bindings::KOPI_CONST_VM_SHARED == 0
        {
            return Err(EINVAL);
        }
        if flags & bindings::KOPI_CONST_VM_EXEC != 0 {
            return Err(EPERM);
        }
        let mut set = bindings::KOPI_CONST_VM_DONTEXPAND;
        if !inherited {
            set |= bindings::KOPI_CONST_VM_DONTCOPY;
        }
        let ops: &'static bindings::vm_operations_struct = &MappingOps::<T>::OPS;
        // SAFETY: The lock is still held, so no other task accesses the vma's fields. `owner` keeps
        // this region, and with it the pages, which the mapping references besides. `vm_map_pages`
        // only reads the array. The reference of `owner` goes to the vma, whose `close` releases
        // it.
        unsafe {
            bindings::kopi_vm_flags_set_clear(
                raw,
                set as usize,
                bindings::KOPI_CONST_VM_MAYEXEC as usize,
            );
            to_result(bindings::vm_map_pages(
                raw,
                self.pages.as_ptr().cast_mut(),
                self.pages.len(),
            ))?;
            (*raw).vm_private_data = Arc::into_raw(owner).cast_mut().cast();
            (*raw).vm_ops = ops;
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping. All users of its addresses borrow the region, or keep it,
        // so none is left.
        unsafe { bindings::vunmap(self.base.as_ptr().cast_const().cast()) };
        drop(Pages(core::mem::replace(&mut self.pages, KVVec::new())));
    }
}

/// A ring, and a reference to the region in which it lies.
pub(crate) struct RegionRing<R> {
    ring: R,
    _region: Arc<SharedRegion>,
}

impl<R> Deref for RegionRing<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.ring
    }
}

impl<R> DerefMut for RegionRing<R> {
    fn deref_mut(&mut self) -> &mut R {
        &mut self.ring
    }
}

impl SharedRegion {
    /// The producer's side of a ring: `EINVAL` if its layout isn't one within the region.
    pub(crate) fn producer<E: Entry>(
        this: &Arc<Self>,
        at: &RingLayout,
    ) -> Result<RegionRing<Producer<E>>> {
        let (producer, consumer, flags, entries) = Self::places::<E>(this, at)?;
        // SAFETY: `places` checked that indexes, flags and entries lie within the region and are
        // aligned. The result keeps the region as long as the ring.
        let ring = unsafe { Producer::new(producer, consumer, flags, entries, at.size) };
        Ok(RegionRing {
            ring,
            _region: this.clone(),
        })
    }

    /// The consumer's side of a ring: `EINVAL` if its layout isn't one within the region.
    pub(crate) fn consumer<E: Entry>(
        this: &Arc<Self>,
        at: &RingLayout,
    ) -> Result<RegionRing<Consumer<E>>> {
        let (producer, consumer, flags, entries) = Self::places::<E>(this, at)?;
        // SAFETY: `places` checked that indexes, flags and entries lie within the region and are
        // aligned. The result keeps the region as long as the ring.
        let ring = unsafe { Consumer::new(producer, consumer, flags, entries, at.size) };
        Ok(RegionRing {
            ring,
            _region: this.clone(),
        })
    }

    /// The addresses of a ring's producer index, consumer index, flags and entries.
    #[allow(clippy::type_complexity)]
    fn places<E: Entry>(
        &self,
        at: &RingLayout,
    ) -> Result<(
        NonNull<AtomicU32>,
        NonNull<AtomicU32>,
        NonNull<AtomicU32>,
        NonNull<AtomicU64>,
    )> {
        if !at.size.is_power_of_two() {
            return Err(EINVAL);
        }
        let words = (at.size as usize).checked_mul(E::WORDS).ok_or(EINVAL)?;
        let bytes = words.checked_mul(size_of::<u64>()).ok_or(EINVAL)?;
        Ok((
            self.at(at.producer, size_of::<u32>())?,
            self.at(at.consumer, size_of::<u32>())?,
            self.at(at.flags, size_of::<u32>())?,
            self.at(at.entries, bytes)?,
        ))
    }
}
