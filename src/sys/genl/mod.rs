// SPDX-License-Identifier: GPL-2.0

//! Generic netlink: requests, replies, dumps and events of the family in `src/netlink/family.c`.
//!
//! That file, made from `uapi/kopi.yaml`, checks attributes and names functions
//! that [`operations`] and [`dumps`] define.
//!
//! C header: `include/net/genetlink.h`

mod message;
mod request;

use crate::sys::{bindings, raw};
use core::{
    marker::PhantomData,
    ptr::{self, NonNull},
};
use kernel::{
    error::{from_result, to_result},
    prelude::*,
};
use message::Buffer;
pub(crate) use message::{has_listeners, send_event, Message};
pub(crate) use request::{Attribute, Request, Requester, RuleInput};

/// The registered family.
pub(crate) struct Family(());

impl Family {
    /// Registers it: `EEXIST`, `ENOMEM`. There can be one registration at a time.
    pub(crate) fn register() -> Result<Self> {
        // SAFETY: Process context; only the module's init registers it.
        to_result(unsafe { bindings::kopi_genl_register() })?;
        Ok(Self(()))
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        // SAFETY: Registered by `register`. No operation runs when this returns.
        unsafe { bindings::kopi_genl_unregister() };
    }
}

/// A dump that goes on from message to message.
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

    /// Where to go on: what [`Dump::go_on_at`] said last, or 0.
    pub(crate) fn position(&self) -> u64 {
        // SAFETY: The callback is the dump's; `ctx` begins with zeroes, and is only ever this.
        unsafe { ptr::read((&raw const (*self.callback.as_ptr()).__bindgen_anon_1).cast::<u64>()) }
    }

    /// Says where the next call goes on.
    pub(crate) fn go_on_at(&mut self, position: u64) {
        // SAFETY: As above.
        unsafe {
            ptr::write(
                (&raw mut (*self.callback.as_ptr()).__bindgen_anon_1).cast::<u64>(),
                position,
            );
        }
    }

    /// Says which state is being shown: if it changes before the dump ends, the requester is told.
    pub(crate) fn shows(&mut self, generation: u64) {
        // SAFETY: The callback is the dump's. Never 0, which means that nothing was shown yet.
        unsafe { (*self.callback.as_ptr()).seq = (generation as u32) | 1 << 31 };
    }

    /// Adds a message; `Ok(false)` when it must go into the next buffer.
    pub(crate) fn add(
        &mut self,
        command: u32,
        write: impl FnOnce(&mut Message) -> Result,
    ) -> Result<bool> {
        // It isn't freed here.
        let buffer = core::mem::ManuallyDrop::new(Buffer(self.skb));
        // SAFETY: The callback and the buffer are the dump's.
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

/// Carries out a request, of whose policy `last` is the last type.
///
/// # Safety
///
/// To be called with the arguments of an operation of the family.
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
/// To be called with the arguments of a dump of the family.
pub(crate) unsafe fn go_on(
    skb: *mut raw::Skb,
    callback: *mut raw::Callback,
    function: fn(&mut Dump<'_>) -> Result,
) -> c_int {
    from_result(|| {
        let callback = NonNull::new(callback).ok_or(EINVAL)?;
        // SAFETY: The callback is that of a running dump, which keeps its request.
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
        // Asked again until nothing is added.
        // SAFETY: The buffer is the dump's.
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
                // SAFETY: The arguments are those of the operation.
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
                // SAFETY: The arguments are those of the dump.
                unsafe { $crate::sys::genl::go_on(skb, callback, $function) }
            }
        )*
    };
}

pub(crate) use dumps;
