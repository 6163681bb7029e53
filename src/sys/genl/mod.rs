// SPDX-License-Identifier: GPL-2.0

//! Generic netlink: requests, replies, dumps and events of the family in `src/netlink/family.c`.
//!
//! That file, made from `uapi/kopi.yaml`, checks attributes and names functions
//! that [`operations`] and [`dumps`] define.
//!
//! C header: `include/net/genetlink.h`

mod nlmsg;
mod request;

use crate::sys::{bindings, context::might_sleep, raw};
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    error::{from_result, to_result},
    prelude::*,
};
use nlmsg::Buffer;
pub(crate) use nlmsg::{has_listeners, send_event, Message};
pub(crate) use request::{Attribute, Request, Requester, RuleInput};

/// The registered family.
pub(crate) struct Family(());

impl Family {
    /// Registers it: `EEXIST`, `ENOMEM`. There can be one registration at a time.
    pub(crate) fn register() -> Result<Self> {
        might_sleep();
        // SAFETY: The module's init, in process context, is the only caller. The family and its
        // operations are static.
        to_result(unsafe { bindings::kopi_genl_register() })?;
        Ok(Self(()))
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: `register` registered the family. The call waits for operations that still run.
        unsafe { bindings::kopi_genl_unregister() };
    }
}

/// A running dump.
pub(crate) struct Dump<'a> {
    requester: Requester<'a>,
    callback: NonNull<bindings::netlink_callback>,
    skb: NonNull<bindings::sk_buff>,
    written: usize,
}

impl<'a> Dump<'a> {
    /// The requester.
    pub(crate) fn requester(&self) -> Requester<'a> {
        self.requester
    }

    /// The dump's own memory: its position, and one more than its end, or 0 as long as that isn't set.
    fn context(&mut self) -> &mut [u64; 2] {
        // SAFETY: Netlink keeps the callback during the dump. Its context has 48 bytes for the dump, aligned
        // for a u64 and zeroes at first, and only the result of this function accesses them.
        unsafe { &mut *(&raw mut (*self.callback.as_ptr()).__bindgen_anon_1).cast() }
    }

    /// The position that [`Dump::go_on_at`] set last, or 0.
    pub(crate) fn position(&mut self) -> u64 {
        let [position, _] = *self.context();
        position
    }

    /// Sets the position at which the next call goes on.
    pub(crate) fn go_on_at(&mut self, position: u64) {
        let [now, _] = self.context();
        *now = position;
    }

    /// The last number that the dump shows, which is `last` when it begins: what is made faster than it is
    /// shown would make the dump endless.
    pub(crate) fn end(&mut self, last: impl FnOnce() -> u32) -> u32 {
        let [_, end] = self.context();
        if *end == 0 {
            *end = u64::from(last()).saturating_add(1);
        }
        end.saturating_sub(1) as u32
    }

    /// Sets the generation of the state that is shown. If it changes before the dump ends, the
    /// messages say that the dump was interrupted.
    pub(crate) fn set_generation(&mut self, generation: u64) {
        // The value is never 0, which means that nothing was shown yet.
        // SAFETY: Netlink keeps the callback during the dump, whose `seq` is the dump's to write.
        unsafe { (*self.callback.as_ptr()).seq = (generation as u32) | 1 << 31 };
    }

    /// Adds a message; `Ok(false)` if it must go into the next buffer.
    pub(crate) fn add(
        &mut self,
        command: u32,
        write: impl FnOnce(&mut Message) -> Result,
    ) -> Result<bool> {
        // Netlink owns the buffer, so it isn't freed here.
        let buffer = core::mem::ManuallyDrop::new(Buffer(self.skb));
        // SAFETY: Netlink keeps the callback and the buffer during the dump, and only the dump
        // writes to the buffer meanwhile.
        let header = unsafe {
            bindings::kopi_genlmsg_put_part(
                self.skb.as_ptr(),
                self.callback.as_ptr(),
                command as u8,
            )
        };
        match Message::write(&buffer, header, write) {
            Ok(()) => {
                self.written = self.written.saturating_add(1);
                Ok(true)
            }
            // A message that fits into no buffer would be tried for ever.
            Err(error) if error == EMSGSIZE && self.written > 0 => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Carries out a request. `last` is the last type of the operation's policy.
///
/// # Safety
///
/// The pointers must be the arguments of a running operation of the family, whose policy has `last`
/// as its last type, or has no types if `last` is 0.
pub(crate) unsafe fn carry_out(
    skb: *mut raw::Skb,
    info: *mut raw::Info,
    last: u32,
    function: fn(&Request<'_>) -> Result,
) -> c_int {
    from_result(|| {
        let request = Request {
            requester: Requester {
                skb: NonNull::new(skb).ok_or(EINVAL)?,
                _request: PhantomData,
            },
            info: NonNull::new(info).ok_or(EINVAL)?,
            last,
        };
        function(&request)?;
        Ok(0)
    })
}

/// Goes on with a dump.
///
/// # Safety
///
/// The pointers must be the arguments of a running dump of the family.
pub(crate) unsafe fn go_on(
    skb: *mut raw::Skb,
    callback: *mut raw::Callback,
    function: fn(&mut Dump<'_>) -> Result,
) -> c_int {
    from_result(|| {
        let callback = NonNull::new(callback).ok_or(EINVAL)?;
        // SAFETY: The caller passes the callback of a running dump, which keeps the request's skb.
        let asking = unsafe { (*callback.as_ptr()).skb };
        let mut dump = Dump {
            requester: Requester {
                skb: NonNull::new(asking).ok_or(EINVAL)?,
                _request: PhantomData,
            },
            callback,
            skb: NonNull::new(skb).ok_or(EINVAL)?,
            written: 0,
        };
        function(&mut dump)?;
        // Netlink calls the dump again until it adds nothing.
        // SAFETY: The caller passes the buffer of a running dump.
        Ok(i32::try_from(unsafe { (*skb).len }).unwrap_or(0))
    })
}

/// Defines the operations that `src/netlink/family.c` names, each with the last type of its policy.
macro_rules! operations {
    ($($name:ident($last:expr) => $function:path,)*) => {
        $(
            /// # Safety
            ///
            /// Only C's family may call it, with the operation's arguments.
            #[no_mangle]
            #[expect(unsafe_code, reason = "C calls it, as the family's operation")]
            unsafe extern "C" fn $name(
                skb: *mut $crate::sys::raw::Skb,
                info: *mut $crate::sys::raw::Info,
            ) -> c_int {
                // SAFETY: The family calls it with the arguments of an operation, whose policy has
                // the last type that is named here.
                unsafe { $crate::sys::genl::carry_out(skb, info, $last, $function) }
            }
        )*
    };
}

pub(crate) use operations;

/// Defines the dumps that `src/netlink/family.c` names.
macro_rules! dumps {
    ($($name:ident => $function:path,)*) => {
        $(
            /// # Safety
            ///
            /// Only C's family may call it, with the operation's arguments.
            #[no_mangle]
            #[expect(unsafe_code, reason = "C calls it, as the family's dump")]
            unsafe extern "C" fn $name(
                skb: *mut $crate::sys::raw::Skb,
                callback: *mut $crate::sys::raw::Callback,
            ) -> c_int {
                // SAFETY: The family calls it with the arguments of a running dump.
                unsafe { $crate::sys::genl::go_on(skb, callback, $function) }
            }
        )*
    };
}

pub(crate) use dumps;
