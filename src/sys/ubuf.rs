// SPDX-License-Identifier: GPL-2.0

//! `struct ubuf_info`: notification when the stack has released pages that it sent by reference.
//!
//! C header: `include/linux/skbuff.h`

use super::bindings;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    types::Opaque, //
};

/// What wants to be told.
pub(crate) trait Released: Send + Sync + Sized {
    /// The stack has released the pages: the last reference is gone. Any context but hard interrupts.
    fn released(&self);
}

#[repr(C)]
struct Inner<T> {
    /// First, so that a pointer to it is one to the whole.
    ubuf: Opaque<bindings::ubuf_info>,
    value: T,
}

/// A reference to a notification, which each skb with such pages holds another of.
///
/// # Invariants
///
/// The pointer is of a `KBox<Inner<T>>` that the last reference frees.
pub(crate) struct Notification<T: Released>(NonNull<Inner<T>>);

struct Ops<T>(PhantomData<T>);

impl<T: Released> Ops<T> {
    const OPS: bindings::ubuf_info_ops = bindings::ubuf_info_ops {
        complete: Some(Self::complete),
        ..pin_init::zeroed()
    };

    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn complete(
        _skb: *mut bindings::sk_buff,
        ubuf: *mut bindings::ubuf_info,
        _zerocopy: bool,
    ) {
        // SAFETY: An skb gives up its reference.
        unsafe { put::<T>(ubuf.cast()) };
    }
}

/// Gives up a reference; says whether it was the last.
///
/// # Safety
///
/// `inner` must be as in [`Notification`], and the reference the caller's.
unsafe fn put<T: Released>(inner: *mut Inner<T>) -> bool {
    // SAFETY: Valid as long as the caller has a reference.
    let last = unsafe { bindings::kopi_ubuf_put((*inner).ubuf.get()) };
    if last {
        // SAFETY: The last reference is gone, and with it all other users.
        let inner = unsafe { KBox::from_raw(inner) };
        inner.value.released();
    }
    last
}

impl<T: Released> Notification<T> {
    /// Makes one, in its place: `ENOMEM`. Process context.
    pub(crate) fn new(value: impl Init<T>) -> Result<Self> {
        let ops: &'static bindings::ubuf_info_ops = &Ops::<T>::OPS;
        let inner = KBox::init(
            init!(Inner {
                ubuf: Opaque::zeroed(),
                value <- value,
            }),
            GFP_KERNEL,
        )?;
        let inner = KBox::into_raw(inner);
        // SAFETY: Just made, with no other owner yet.
        unsafe { bindings::kopi_ubuf_init((*inner).ubuf.get(), ops) };
        // SAFETY: A box is never null.
        Ok(Self(unsafe { NonNull::new_unchecked(inner) }))
    }

    /// The value.
    pub(crate) fn value(&self) -> &T {
        // SAFETY: Valid while a reference is held, and shared by all of them.
        unsafe { &(*self.0.as_ptr()).value }
    }

    pub(super) fn as_ptr(&self) -> *mut bindings::ubuf_info {
        // SAFETY: Valid while a reference is held.
        unsafe { (*self.0.as_ptr()).ubuf.get() }
    }

    /// Gives up this reference; says whether it was the last.
    pub(crate) fn put(self) -> bool {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: The reference is this value's, which is forgotten.
        unsafe { put(this.0.as_ptr()) }
    }
}

impl<T: Released> Drop for Notification<T> {
    fn drop(&mut self) {
        // SAFETY: The reference is this value's.
        unsafe { put(self.0.as_ptr()) };
    }
}
