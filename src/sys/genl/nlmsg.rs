// SPDX-License-Identifier: GPL-2.0

//! Messages, attribute by attribute.

use crate::sys::{bindings, pernet::NetRef};
use core::ptr::NonNull;
use kernel::{error::to_result, prelude::*};

/// The memory of a message.
///
/// # Invariants
///
/// This value owns the skb.
pub(super) struct Buffer(pub(super) NonNull<bindings::sk_buff>);

impl Buffer {
    pub(in crate::sys) fn new(gfp: u32) -> Result<Self> {
        // SAFETY: The callers, `send_event` and `Request::reply`, pass GFP_KERNEL only if they may
        // sleep.
        // INVARIANT: The skb is new.
        NonNull::new(unsafe { bindings::kopi_genlmsg_new(gfp) })
            .map(Self)
            .ok_or(ENOMEM)
    }

    pub(in crate::sys) fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    pub(in crate::sys) fn give(self) -> *mut bindings::sk_buff {
        core::mem::ManuallyDrop::new(self).as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: This value owns the skb, and isn't used any more.
        unsafe { bindings::kopi_nlmsg_free(self.0.as_ptr()) };
    }
}

/// A message that is being written. Everything that is put gives `EMSGSIZE` when there is no room.
pub(crate) struct Message(pub(super) NonNull<bindings::sk_buff>);

impl Message {
    /// Writes the attributes behind a header. If that fails, removes them and the header.
    pub(super) fn write(
        buffer: &Buffer,
        header: *mut c_void,
        write: impl FnOnce(&mut Self) -> Result,
    ) -> Result {
        if header.is_null() {
            return Err(EMSGSIZE);
        }
        let result = write(&mut Self(buffer.0));
        // SAFETY: The caller has just put the header into this buffer, and only attributes were put
        // behind it.
        unsafe {
            match result {
                Ok(()) => bindings::kopi_genlmsg_end(buffer.as_ptr(), header),
                Err(_) => bindings::kopi_genlmsg_cancel(buffer.as_ptr(), header),
            }
        }
        result
    }

    /// Puts bytes.
    pub(crate) fn bytes(&mut self, kind: u32, value: &[u8]) -> Result {
        let len = i32::try_from(value.len()).map_err(|_| EINVAL)?;
        // SAFETY: The message's buffer is valid as long as `write` of the message runs. The call
        // reads `len` bytes of the slice, and fails if the buffer has no room for them.
        to_result(unsafe {
            bindings::nla_put(
                self.0.as_ptr(),
                kind as i32,
                len,
                value.as_ptr().cast::<c_void>(),
            )
        })
    }

    /// Puts a byte.
    pub(crate) fn u8(&mut self, kind: u32, value: u8) -> Result {
        self.bytes(kind, &[value])
    }

    /// Puts a number of two bytes; in the byte order that it has.
    pub(crate) fn u16(&mut self, kind: u32, value: u16) -> Result {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Puts a number of four bytes.
    pub(crate) fn u32(&mut self, kind: u32, value: u32) -> Result {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Puts a number of as many bytes as it needs, four or eight.
    pub(crate) fn uint(&mut self, kind: u32, value: u64) -> Result {
        match u32::try_from(value) {
            Ok(value) => self.u32(kind, value),
            Err(_) => self.bytes(kind, &value.to_ne_bytes()),
        }
    }

    /// Puts a string; what is after its first zero is left out.
    pub(crate) fn string(&mut self, kind: u32, value: &[u8]) -> Result {
        let len = value
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(value.len());
        let mut string = KVec::with_capacity(len.saturating_add(1), GFP_ATOMIC)?;
        string.extend_from_slice(value.get(..len).unwrap_or(&[]), GFP_ATOMIC)?;
        string.push(0, GFP_ATOMIC)?;
        self.bytes(kind, &string)
    }

    /// Puts a flag, if it is set.
    pub(crate) fn flag(&mut self, kind: u32, value: bool) -> Result {
        if value {
            self.bytes(kind, &[])
        } else {
            Ok(())
        }
    }

    /// Puts attributes into one.
    pub(crate) fn nest(&mut self, kind: u32, write: impl FnOnce(&mut Self) -> Result) -> Result {
        // SAFETY: The message's buffer is valid as long as `write` of the message runs. `nest` is
        // the place of the attribute in it; if `write` fails, the whole message is removed.
        unsafe {
            let nest = bindings::kopi_nla_nest_start(self.0.as_ptr(), kind as i32);
            if nest.is_null() {
                return Err(EMSGSIZE);
            }
            write(self)?;
            bindings::kopi_nla_nest_end(self.0.as_ptr(), nest);
        }
        Ok(())
    }
}

/// Whether events of the namespace have listeners. Any context.
pub(crate) fn has_listeners(net: &NetRef) -> bool {
    // SAFETY: The namespace is borrowed. The family's structure is static, and has no listeners once it isn't registered.
    unsafe { bindings::kopi_genl_has_listeners(net.as_ptr()) }
}

/// Sends an event to all listeners in the namespace. `sleeps` says whether the context may sleep.
pub(crate) fn send_event(
    net: &NetRef,
    command: u32,
    sleeps: bool,
    write: impl FnOnce(&mut Message) -> Result,
) -> Result {
    let gfp = if sleeps {
        bindings::KOPI_CONST_GFP_KERNEL
    } else {
        bindings::KOPI_CONST_GFP_ATOMIC
    };
    let skb = Buffer::new(gfp)?;
    // SAFETY: The skb is new, and has room for the headers, or the call returns null.
    let header = unsafe { bindings::kopi_genlmsg_put_event(skb.as_ptr(), command as u8) };
    Message::write(&skb, header, write)?;
    // SAFETY: The message is complete, and netlink owns it from here. The namespace is borrowed.
    match unsafe { bindings::kopi_genlmsg_multicast(net.as_ptr(), skb.give(), gfp) } {
        // There are no listeners.
        error if error == ESRCH.to_errno() => Ok(()),
        error => to_result(error),
    }
}
