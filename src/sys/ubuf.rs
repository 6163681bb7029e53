// SPDX-License-Identifier: GPL-2.0

//! `struct ubuf_info`: a notification when the stack has released pages that were sent by
//! reference.
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

/// Maximum number of pieces of pages to which one packet can refer: an skb may need one of its page fragments
/// for headers.
pub(crate) const REFERENCES_MAX: usize = bindings::KOPI_CONST_MAX_SKB_FRAGS as usize - 1;

/// A value that is notified.
pub(crate) trait Released: Send + Sync + Sized {
    /// The stack has released the pages. This is the last call for the value. Any context but hard
    /// interrupts.
    fn on_released(&self);
}

/// A notification with its value.
#[repr(C)]
struct Inner<T> {
    /// The first field, so that a pointer to it is one to the whole.
    ubuf: Opaque<bindings::ubuf_info>,
    value: T,
}

/// A reference to a notification. Each skb with such pages holds a reference, too.
///
/// # Invariants
///
/// The pointer comes from a `KBox<Inner<T>>`, which is freed with the last reference. This value
/// owns one reference.
pub(crate) struct Notification<T: Released>(NonNull<Inner<T>>);

/// The operations of notifications with a value of type `T`.
struct Ops<T>(PhantomData<T>);

impl<T: Released> Ops<T> {
    const OPS: bindings::ubuf_info_ops = bindings::ubuf_info_ops {
        complete: Some(Self::complete),
        ..pin_init::zeroed()
    };

    /// # Safety
    ///
    /// Only the kernel may call it, as the operation of a [`Notification<T>`]'s `ubuf_info`, when
    /// an skb gives up its reference.
    unsafe extern "C" fn complete(
        _skb: *mut bindings::sk_buff,
        ubuf: *mut bindings::ubuf_info,
        _zerocopy: bool,
    ) {
        // SAFETY: The pointer is to the first field of an `Inner<T>`, whose operations are these.
        // The skb's reference is this call's to put.
        unsafe { put::<T>(ubuf.cast()) };
    }
}

/// Puts a reference; returns whether it was the last.
///
/// # Safety
///
/// `inner` must be a pointer as in [`Notification`], and the caller must own a reference, which it
/// gives up.
unsafe fn put<T: Released>(inner: *mut Inner<T>) -> bool {
    // SAFETY: The caller owns a reference, which keeps the memory until it is put.
    let last = unsafe { bindings::kopi_ubuf_put((*inner).ubuf.get()) };
    if last {
        // SAFETY: The pointer comes from a `KBox<Inner<T>>`. All references are put, so there is no
        // other user.
        let inner = unsafe { KBox::from_raw(inner) };
        inner.value.on_released();
    }
    last
}

impl<T: Released> Notification<T> {
    /// Makes a notification, with one reference: `ENOMEM`. Process context.
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
        // SAFETY: The box was just made, and has no other user yet.
        unsafe { bindings::kopi_ubuf_init((*inner).ubuf.get(), ops) };
        // SAFETY: The pointer comes from a box, and so isn't null.
        // INVARIANT: `kopi_ubuf_init` sets the count to the one reference of this value.
        Ok(Self(unsafe { NonNull::new_unchecked(inner) }))
    }

    /// The value.
    pub(crate) fn value(&self) -> &T {
        // SAFETY: This value's reference keeps the memory. All owners of references only read the
        // value.
        unsafe { &(*self.0.as_ptr()).value }
    }

    /// The C structure.
    pub(super) fn as_ptr(&self) -> *mut bindings::ubuf_info {
        // SAFETY: This value's reference keeps the memory.
        unsafe { (*self.0.as_ptr()).ubuf.get() }
    }

    /// Puts this reference; returns whether it was the last.
    pub(crate) fn put(self) -> bool {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: This value owns a reference, by the invariants. `ManuallyDrop` prevents a second
        // release.
        unsafe { put(this.0.as_ptr()) }
    }
}

impl<T: Released> Drop for Notification<T> {
    fn drop(&mut self) {
        // SAFETY: This value owns a reference, by the invariants, and isn't used any more.
        unsafe { put(self.0.as_ptr()) };
    }
}
