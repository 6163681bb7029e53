// SPDX-License-Identifier: GPL-2.0

//! Slab caches, which have objects of one size: `struct kmem_cache`.
//!
//! C header: `include/linux/slab.h`

use super::{bindings, context::might_sleep};
use core::{
    mem::{align_of, size_of},
    ops::{Deref, DerefMut},
    ptr::NonNull,
};
use kernel::{
    prelude::*,
    str::CStr,
    sync::atomic::{
        ordering::{Acquire, Full, Release},
        Atomic, //
    },
};

/// The place of a cache; null if there is none.
pub(crate) struct Slot(Atomic<*mut bindings::kmem_cache>);

impl Slot {
    /// An empty slot.
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(core::ptr::null_mut()))
    }
}

/// A cache, whose objects are charged to the cgroups of the tasks that allocate them.
///
/// # Invariants
///
/// The slot holds a cache that this value owns.
pub(crate) struct Cache(&'static Slot);

impl Cache {
    /// Makes a slot's cache, for objects of type `T`: `ENOMEM`. Process context.
    ///
    /// # Safety
    ///
    /// The slot must be empty. When this value is dropped, all objects of the cache must be freed,
    /// or be passed to RCU to be freed.
    pub(crate) unsafe fn new<T>(slot: &'static Slot, name: &'static CStr) -> Result<Self> {
        might_sleep();
        let (size, align) = (size_of::<T>() as c_uint, align_of::<T>() as c_uint);
        // SAFETY: The caller is in process context, as this function requires. The name is static,
        // so it outlives the cache.
        let cache = unsafe { bindings::kopi_slab_create(name.as_char_ptr(), size, align) };
        if cache.is_null() {
            return Err(ENOMEM);
        }
        slot.0.store(cache, Release);
        // INVARIANT: The slot holds the new cache.
        Ok(Self(slot))
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        might_sleep();
        let cache = self.0 .0.xchg(core::ptr::null_mut(), Full);
        // SAFETY: This value owns the cache. `new` requires that all objects are freed by now, or
        // by RCU callbacks, for which the barrier waits.
        unsafe {
            bindings::rcu_barrier();
            bindings::kmem_cache_destroy(cache);
        }
    }
}

/// An object of a type that has a cache.
pub(crate) trait Cached: Sized {
    /// The slot of the type's cache.
    fn slot() -> &'static Slot;
}

/// An owned object of a cache.
///
/// # Invariants
///
/// This value owns a valid object from the cache of its type.
pub(crate) struct CacheBox<T: Cached>(NonNull<T>);

impl<T: Cached> CacheBox<T> {
    /// Makes a value in a new object: `ENOMEM`, or the initializer's error. Process context.
    ///
    /// # Safety
    ///
    /// The slot of the type must hold a cache, which was made for this type.
    pub(crate) unsafe fn init(value: impl Init<T, Error>) -> Result<Self> {
        let cache = T::slot().0.load(Acquire);
        // SAFETY: The caller says that the slot holds a cache, and is in process context.
        let place = NonNull::new(unsafe { bindings::kopi_slab_alloc(cache) }.cast::<T>());
        let place = place.ok_or(ENOMEM)?;
        // SAFETY: The object was just allocated, has the type's size and alignment, and no other
        // user. After an error it has no value, and is freed as it is.
        unsafe {
            value.__init(place.as_ptr()).inspect_err(|_| {
                bindings::kmem_cache_free(cache, place.as_ptr().cast());
            })?;
        }
        // INVARIANT: Just allocated and initialised.
        Ok(Self(place))
    }

    /// Gives up the object, and returns its address.
    pub(crate) fn into_raw(this: Self) -> *mut T {
        core::mem::ManuallyDrop::new(this).0.as_ptr()
    }

    /// Takes over an object.
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
        // SAFETY: By the invariants, the object is valid, and this value is its owner.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Cached> DerefMut for CacheBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: By the invariants, the object is valid. This value, its owner, is borrowed
        // exclusively.
        unsafe { self.0.as_mut() }
    }
}

impl<T: Cached> Drop for CacheBox<T> {
    fn drop(&mut self) {
        let cache = T::slot().0.load(Acquire);
        // SAFETY: By the invariants, the object is valid and is from the cache of its type, and
        // isn't used any more. The cache is destroyed only after its objects are freed.
        unsafe {
            self.0.drop_in_place();
            bindings::kmem_cache_free(cache, self.0.as_ptr().cast());
        }
    }
}
