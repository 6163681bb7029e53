// SPDX-License-Identifier: GPL-2.0

//! Structures that go between a program and a socket option.
//!
//! C header: `include/linux/sockptr.h`

use super::bindings;
use crate::pure::abi;
use core::{
    ffi::c_void,
    mem::{size_of, MaybeUninit}, //
};
use kernel::{
    error::to_result,
    prelude::*,
    transmute::{AsBytes, FromBytes}, //
};

// SAFETY: `repr(C)` of integers without padding (see the size checks in `bindings`), and so are
// the others.
unsafe impl FromBytes for abi::ChannelReq {}
// SAFETY: As above.
unsafe impl FromBytes for abi::Join {}
// SAFETY: As above.
unsafe impl AsBytes for abi::Info {}
// SAFETY: As above.
unsafe impl AsBytes for abi::Layout {}
// SAFETY: As above.
unsafe impl AsBytes for abi::Stats {}

/// The value of a socket option that is being set.
pub(crate) struct OptionIn {
    value: bindings::sockptr_t,
    len: usize,
}

impl OptionIn {
    /// # Safety
    ///
    /// Must be the arguments of a running `setsockopt` operation.
    pub(super) unsafe fn from_raw(value: bindings::sockptr_t, len: u32) -> Self {
        Self {
            value,
            len: len as usize,
        }
    }

    /// Copies the structure: `EINVAL` when the program's is shorter, `E2BIG` when it is longer and
    /// not zero at its end, `EFAULT` when it can't be read.
    pub(crate) fn read<T: FromBytes>(&self) -> Result<T> {
        if self.len < size_of::<T>() {
            return Err(EINVAL);
        }
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: `value` has room for `size_of::<T>()` bytes; the source is checked by the call.
        to_result(unsafe {
            bindings::kopi_copy_struct_from_sockptr(
                value.as_mut_ptr().cast(),
                size_of::<T>(),
                self.value,
                self.len,
            )
        })?;
        // SAFETY: All bytes are initialised, and any bytes make a `T`.
        Ok(unsafe { value.assume_init() })
    }
}

/// Where the value of a socket option goes.
pub(crate) struct OptionOut {
    value: *mut c_void,
    len: *mut c_void,
}

impl OptionOut {
    /// # Safety
    ///
    /// Must be the arguments of a running `getsockopt` operation, user pointers both.
    pub(super) unsafe fn from_raw(value: *mut c_char, len: *mut i32) -> Self {
        Self {
            value: value.cast(),
            len: len.cast(),
        }
    }

    /// Copies as much of the structure as the program has room for, and says how much.
    pub(crate) fn write<T: AsBytes>(&self, value: &T) -> Result {
        let mut room = 0i32;
        // SAFETY: `room` is four bytes; the user pointer is checked by the call.
        let left = unsafe {
            bindings::kopi_copy_from_user((&raw mut room).cast(), self.len, size_of::<i32>())
        };
        if left != 0 {
            return Err(EFAULT);
        }
        let len = usize::try_from(room)
            .map_err(|_| EINVAL)?
            .min(size_of::<T>());
        let written = len as i32;
        // SAFETY: `value` has at least `len` bytes, all initialised; the user pointers are checked
        // by the calls.
        let left = unsafe {
            bindings::kopi_copy_to_user(self.value, core::ptr::from_ref(value).cast(), len)
                | bindings::kopi_copy_to_user(
                    self.len,
                    (&raw const written).cast(),
                    size_of::<i32>(),
                )
        };
        if left != 0 {
            return Err(EFAULT);
        }
        Ok(())
    }
}
