// SPDX-License-Identifier: GPL-2.0

//! What comes by pointer: NULL is `EINVAL`, and arrays have a length.

use crate::error::{Errno, INVALID};
use std::{ffi::c_uint, mem::MaybeUninit, slice};

/// What a pointer points to.
///
/// # Safety
///
/// It must be NULL, or valid for reads, and written to by nobody, for `'a`.
#[inline]
pub(crate) unsafe fn shared<'a, T>(pointer: *const T) -> Result<&'a T, Errno> {
    // SAFETY: As required of the caller.
    unsafe { pointer.as_ref() }.ok_or(INVALID)
}

/// What a pointer points to, to be changed.
///
/// # Safety
///
/// It must be NULL, or valid for reads and writes, and used by nobody else, for `'a`.
#[inline]
pub(crate) unsafe fn unique<'a, T>(pointer: *mut T) -> Result<&'a mut T, Errno> {
    // SAFETY: As required of the caller.
    unsafe { pointer.as_mut() }.ok_or(INVALID)
}

/// Where a result goes.
///
/// # Safety
///
/// It must be NULL, or valid for writes, and used by nobody else, for `'a`.
#[inline]
pub(crate) unsafe fn room<'a, T>(pointer: *mut T) -> Result<&'a mut MaybeUninit<T>, Errno> {
    // SAFETY: As required of the caller; what is there isn't read.
    unsafe { pointer.cast::<MaybeUninit<T>>().as_mut() }.ok_or(INVALID)
}

/// An array; of no elements it may be NULL.
///
/// # Safety
///
/// It must be NULL, or valid for reads of `count` elements, and written to by nobody, for `'a`.
#[inline]
pub(crate) unsafe fn array<'a, T>(pointer: *const T, count: c_uint) -> Result<&'a [T], Errno> {
    match (pointer.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(INVALID),
        // SAFETY: As required of the caller.
        (false, _) => Ok(unsafe { slice::from_raw_parts(pointer, count as usize) }),
    }
}

/// An array for results; of no elements it may be NULL.
///
/// # Safety
///
/// It must be NULL, or valid for writes of `count` elements, and used by nobody else, for `'a`.
#[inline]
pub(crate) unsafe fn rooms<'a, T>(
    pointer: *mut T,
    count: c_uint,
) -> Result<&'a mut [MaybeUninit<T>], Errno> {
    match (pointer.is_null(), count) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(INVALID),
        // SAFETY: As required of the caller; what is there isn't read.
        (false, _) => Ok(unsafe { slice::from_raw_parts_mut(pointer.cast(), count as usize) }),
    }
}
