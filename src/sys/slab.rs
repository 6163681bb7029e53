// SPDX-License-Identifier: GPL-2.0

//! A cache of objects of one size, which don't take more: `struct kmem_cache`.
//!
//! C header: `include/linux/slab.h`

use super::bindings;
use core::{
    mem::{align_of, size_of},
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::atomic::{AtomicPtr, Ordering}, //
};
use kernel::{
    prelude::*,
    str::CStr, //
};

/// Where a cache is while it is there, else null.
pub(crate) struct Slot(AtomicPtr<bindings::kmem_cache>);

impl Slot {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }
}

/// A cache, whose objects are charged to the cgroups of the tasks that allocate them.
pub(crate) struct Cache(&'static Slot);

impl Cache {
    /// Makes that of a slot, for objects like `T`: `ENOMEM`. Process context.
    ///
    /// # Safety
    ///
    /// There is none in the slot. What is taken from it is freed, or RCU is to free it, when this
    /// value is dropped.
    pub(crate) unsafe fn new<T>(slot: &'static Slot, name: &'static CStr) -> Result<Self> {
        let (size, align) = (size_of::<T>() as c_uint, align_of::<T>() as c_uint);
        // SAFETY: Process context; the name lives as long as the module, and so as the cache.
        let cache = unsafe { bindings::kopi_slab_create(name.as_char_ptr(), size, align) };
        if cache.is_null() {
            return Err(ENOMEM);
        }
        slot.0.store(cache, Ordering::Release);
        Ok(Self(slot))
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let cache = self.0 .0.swap(core::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: The cache is this value's, and nothing of it is left after the barrier, as `new`
        // requires.
        unsafe {
            bindings::rcu_barrier();
            bindings::kmem_cache_destroy(cache);
        }
    }
}

/// An object of a type that has a cache.
pub(crate) trait Cached: Sized {
    /// Where the cache is, which was made for objects like this.
    fn slot() -> &'static Slot;
}

/// One that is owned.
///
/// # Invariants
///
/// It is valid, and was taken from the cache of its type.
pub(crate) struct CacheBox<T: Cached>(NonNull<T>);

impl<T: Cached> CacheBox<T> {
    /// Moves a value there: `ENOMEM`. Process context.
    ///
    /// # Safety
    ///
    /// The type's cache is there.
    pub(crate) unsafe fn new(value: T) -> Result<Self> {
        let cache = T::slot().0.load(Ordering::Acquire);
        // SAFETY: As required of the caller.
        let place = NonNull::new(unsafe { bindings::kopi_slab_alloc(cache) }.cast::<T>());
        let place = place.ok_or(ENOMEM)?;
        // SAFETY: The object was just allocated, has the type's size and alignment, and no other
        // user.
        unsafe { place.write(value) };
        // INVARIANT: Just allocated and written.
        Ok(Self(place))
    }

    /// Gives the object away, as a pointer.
    pub(crate) fn into_raw(this: Self) -> *mut T {
        core::mem::ManuallyDrop::new(this).0.as_ptr()
    }

    /// Takes it back.
    ///
    /// # Safety
    ///
    /// `object` must come from [`CacheBox::into_raw`], and have no other owner.
    pub(crate) unsafe fn from_raw(object: *mut T) -> Self {
        // SAFETY: The pointer came from a box, and so isn't null.
        // INVARIANT: The caller gives the ownership back.
        Self(unsafe { NonNull::new_unchecked(object) })
    }
}

impl<T: Cached> Deref for CacheBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: By the invariants.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Cached> DerefMut for CacheBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: By the invariants; the box is borrowed alone.
        unsafe { self.0.as_mut() }
    }
}

impl<T: Cached> Drop for CacheBox<T> {
    fn drop(&mut self) {
        let cache = T::slot().0.load(Ordering::Acquire);
        // SAFETY: By the invariants; a cache goes only when all that was taken from it is freed.
        unsafe {
            self.0.drop_in_place();
            bindings::kmem_cache_free(cache, self.0.as_ptr().cast());
        }
    }
}
