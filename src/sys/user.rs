// SPDX-License-Identifier: GPL-2.0

//! The values of socket options: structures that setsockopt reads and getsockopt writes.
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

// The checks of sizes and offsets in `bindings` prove that none of these structures has padding.
//
// SAFETY: The structure is `repr(C)` and has only integers, for which all bytes are valid.
unsafe impl FromBytes for abi::ChannelReq {}
// SAFETY: The structure is `repr(C)` and has only integers, for which all bytes are valid.
unsafe impl FromBytes for abi::Join {}
// SAFETY: The structure is `repr(C)` and has only integers and no padding, so all its bytes are
// initialised.
unsafe impl AsBytes for abi::Info {}
// SAFETY: The structure is `repr(C)` and has only integers and no padding, so all its bytes are
// initialised.
unsafe impl AsBytes for abi::Layout {}
// SAFETY: The structure is `repr(C)` and has only integers and no padding, so all its bytes are
// initialised.
unsafe impl AsBytes for abi::Stats {}

/// The arguments of setsockopt.
///
/// # Invariants
///
/// The values are the arguments of a running `setsockopt` operation.
pub(crate) struct OptionIn {
    value: bindings::sockptr_t,
    len: usize,
}

impl OptionIn {
    /// # Safety
    ///
    /// The values must be the arguments of a `setsockopt` operation that outlasts the result.
    pub(super) unsafe fn from_raw(value: bindings::sockptr_t, len: u32) -> Self {
        // INVARIANT: Required of the caller.
        Self {
            value,
            len: len as usize,
        }
    }

    /// Copies the structure: `EINVAL` if the process's is shorter, `E2BIG` if it is longer and the
    /// rest isn't zero, `EFAULT` if it can't be read. Process context.
    pub(crate) fn read<T: FromBytes>(&self) -> Result<T> {
        if self.len < size_of::<T>() {
            return Err(EINVAL);
        }
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: `value` has room for `size_of::<T>()` bytes. By the invariants, the source is the
        // argument of a system call: the call checks a user pointer, and a kernel pointer is valid.
        to_result(unsafe {
            bindings::kopi_copy_struct_from_sockptr(
                value.as_mut_ptr().cast(),
                size_of::<T>(),
                self.value,
                self.len,
            )
        })?;
        // SAFETY: All bytes are initialised, by zeroes at least, and `T: FromBytes` allows any.
        Ok(unsafe { value.assume_init() })
    }
}

/// The arguments of getsockopt.
pub(crate) struct OptionOut {
    value: *mut c_void,
    len: *mut c_void,
}

impl OptionOut {
    /// # Safety
    ///
    /// The pointers must be the arguments of a `getsockopt` operation that outlasts the result.
    pub(super) unsafe fn from_raw(value: *mut c_char, len: *mut i32) -> Self {
        Self {
            value: value.cast(),
            len: len.cast(),
        }
    }

    /// Copies as much of the structure as the process has room for, and writes that length:
    /// `EFAULT` if its memory can't be accessed, `EINVAL` for a negative length. Process context.
    pub(crate) fn write<T: AsBytes>(&self, value: &T) -> Result {
        let mut room = 0i32;
        // SAFETY: `room` has the four bytes that are copied. The call checks the user pointer, and
        // handles faults.
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
        // SAFETY: `value` has at least `len` bytes, all of them initialised, as `T: AsBytes` says,
        // and `written` has four. The calls check the user pointers, and handle faults.
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
