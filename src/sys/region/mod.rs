// SPDX-License-Identifier: GPL-2.0

//! Pages that the kernel shares with a process.
//!
//! C headers: `include/linux/mm.h`, `include/linux/vmalloc.h`, `include/linux/uio.h`

mod mapping;
mod parts;

use crate::{
    pure::{
        abi::{Meta, RingLayout, META_WORDS},
        geometry::Frame,
        ring::{Consumer, Entry, Producer},
    },
    sys::{
        bindings,
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

const PAGE_SIZE: usize = bindings::KOPI_CONST_PAGE_SIZE as usize;

/// Zeroed pages, mapped in the kernel in one piece.
///
/// # Invariants
///
/// All of `pages` are pages that this owns a reference to; `base` is where they are mapped in the
/// kernel in that order.
pub(crate) struct Region {
    pages: KVVec<*mut bindings::page>,
    base: NonNull<u8>,
    _locked: LockedPages,
    _module: ModuleRef,
}

// SAFETY: Pages and mapping are not bound to a task, and all access is atomic or by C functions
// that expect the memory to change under them.
unsafe impl Send for Region {}

// SAFETY: As above.
unsafe impl Sync for Region {}

/// Keeps the module's code as long as something may call back into it.
struct ModuleRef;

impl ModuleRef {
    fn new() -> Self {
        // SAFETY: Called by code of this module, which so is alive.
        unsafe { bindings::kopi_module_get() };
        Self
    }
}

impl Drop for ModuleRef {
    fn drop(&mut self) {
        // SAFETY: Pairs with `new`. Regions are dropped in the reaper's queue or under a call
        // through the family's own operations; the module's exit waits for both.
        unsafe { bindings::kopi_module_put() };
    }
}

/// Pages that go back when dropped, before they are mapped.
struct Pages(KVVec<*mut bindings::page>);

impl Drop for Pages {
    fn drop(&mut self) {
        for &page in &self.0 {
            // SAFETY: The reference from the allocation, given up here.
            unsafe { bindings::__free_pages(page, 0) };
        }
    }
}

impl Region {
    /// Allocates `count` pages, charged to the current user's locked memory and cgroup.
    ///
    /// `ENOBUFS` over `RLIMIT_MEMLOCK`; `ENOMEM` when there is no memory, or the cgroup has none.
    pub(crate) fn new(count: usize) -> Result<Self> {
        // What the user has closed may not be given back yet.
        let locked = LockedPages::charge(count).or_else(|_| {
            reaper::flush();
            LockedPages::charge(count)
        })?;
        let mut pages = Pages(KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?);
        for _ in 0..count {
            // SAFETY: Process context.
            let page = unsafe { bindings::kopi_alloc_page() };
            if page.is_null() {
                return Err(ENOMEM);
            }
            pages.0.push(page, GFP_KERNEL_ACCOUNT)?;
        }
        // SAFETY: `count` valid pages.
        let base = unsafe {
            bindings::vmap(
                pages.0.as_mut_ptr(),
                u32::try_from(count)?,
                bindings::KOPI_CONST_VM_MAP as usize,
                bindings::kopi_page_kernel(),
            )
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(ENOMEM)?;
        // INVARIANT: As just made.
        Ok(Self {
            pages: core::mem::replace(&mut pages.0, KVVec::new()),
            base,
            _locked: locked,
            _module: ModuleRef::new(),
        })
    }

    fn len(&self) -> usize {
        // No overflow: memory of this size exists.
        self.pages.len().wrapping_mul(PAGE_SIZE)
    }

    /// Where `len` bytes at `offset` lie in the kernel, if within the region and aligned for `T`.
    pub(crate) fn at<T>(&self, offset: u32, len: usize) -> Result<NonNull<T>> {
        let offset = offset as usize;
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if end > self.len() || offset % align_of::<T>() != 0 {
            return Err(EINVAL);
        }
        // SAFETY: Within the mapping, as just checked.
        Ok(unsafe { self.base.add(offset) }.cast())
    }

    /// Copies bytes that a program may be writing.
    pub(crate) fn read(&self, offset: u32, to: &mut [u8]) -> Result {
        let from = self.at::<AtomicU8>(offset, to.len())?;
        for (index, byte) in to.iter_mut().enumerate() {
            // SAFETY: `at` checked the room for all of them.
            *byte = unsafe { from.add(index).as_ref() }.load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// Bytes to be copied at once: `EINVAL` if they aren't within the region.
    pub(crate) fn bytes(&self, offset: u32, len: u32) -> Result<Bytes<'_>> {
        let len = len as usize;
        // INVARIANT: As `at` checks.
        Ok(Bytes {
            at: self.at(offset, len)?,
            len,
            _region: PhantomData,
        })
    }

    fn meta_words(&self, frame: Frame) -> Result<NonNull<AtomicU64>> {
        self.at(frame.start(), size_of::<Meta>())
    }

    /// Copies the metadata that a program wrote into a frame's headroom.
    pub(crate) fn read_meta(&self, frame: Frame) -> Result<Meta> {
        let words = self.meta_words(frame)?;
        let mut copy = [0; META_WORDS];
        for (index, word) in copy.iter_mut().enumerate() {
            // SAFETY: `at` checked the room for all words of a `Meta`.
            *word = unsafe { words.add(index).as_ref() }.load(Ordering::Relaxed);
        }
        Ok(Meta::from_words(copy))
    }

    /// Writes the metadata of a received packet into a frame's headroom.
    pub(crate) fn write_meta(&self, frame: Frame, meta: &Meta) -> Result {
        let words = self.meta_words(frame)?;
        for (index, word) in meta.to_words().into_iter().enumerate() {
            // SAFETY: `at` checked the room for all words of a `Meta`.
            unsafe { words.add(index).as_ref() }.store(word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Maps all of it into a process; `owner` stays as long as the mapping does.
    ///
    /// `EINVAL` unless the mapping is shared and of all of the region; `EPERM` if executable.
    pub(crate) fn map<T: Send + Sync>(&self, vma: &Vma, owner: Arc<T>) -> Result {
        let raw = vma.0;
        // SAFETY: `vma` is of a running mmap call by its invariants.
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
        let ops: &'static bindings::vm_operations_struct = &MappingOps::<T>::OPS;
        // SAFETY: As above: the vma is not visible to anybody else yet. The pages are valid; their
        // array isn't written to.
        unsafe {
            bindings::kopi_vm_flags_set_clear(
                raw,
                bindings::KOPI_CONST_VM_DONTEXPAND as usize,
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
        // SAFETY: Mapped by `new`, and nothing uses the mapping any more.
        unsafe { bindings::vunmap(self.base.as_ptr().cast_const().cast()) };
        drop(Pages(core::mem::replace(&mut self.pages, KVVec::new())));
    }
}

/// A ring in a region, which it keeps.
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
    /// Takes the producing side of the ring that lies there.
    pub(crate) fn producer<E: Entry>(
        this: &Arc<Self>,
        at: &RingLayout,
    ) -> Result<RegionRing<Producer<E>>> {
        let (producer, consumer, flags, entries) = Self::places::<E>(this, at)?;
        // SAFETY: The places are within the region, which is kept as long as the ring.
        let ring = unsafe { Producer::new(producer, consumer, flags, entries, at.size) };
        Ok(RegionRing {
            ring,
            _region: this.clone(),
        })
    }

    /// Takes the consuming side of the ring that lies there.
    pub(crate) fn consumer<E: Entry>(
        this: &Arc<Self>,
        at: &RingLayout,
    ) -> Result<RegionRing<Consumer<E>>> {
        let (producer, consumer, flags, entries) = Self::places::<E>(this, at)?;
        // SAFETY: The places are within the region, which is kept as long as the ring.
        let ring = unsafe { Consumer::new(producer, consumer, flags, entries, at.size) };
        Ok(RegionRing {
            ring,
            _region: this.clone(),
        })
    }

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
