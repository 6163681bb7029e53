// SPDX-License-Identifier: GPL-2.0

//! A message that a process gives to sendmsg, if it is plain: data, with or without a destination and
//! a source.
//!
//! C headers: `include/linux/socket.h`, `include/linux/uio.h`

use super::bindings;
use crate::pure::abi::{Meta, AF_INET, META_LOCAL};
use core::ptr::NonNull;

/// Flags that a plain message may have.
const FLAGS: u32 = bindings::MSG_DONTWAIT | bindings::MSG_NOSIGNAL | bindings::MSG_BATCH;

/// A plain message of sendmsg for a sock of IPv4.
///
/// # Invariants
///
/// `iter` is that of the `msghdr` of a running sendmsg, and has `len` bytes of data.
pub(crate) struct PlainMessage {
    iter: NonNull<bindings::iov_iter>,
    len: usize,
    /// Where it goes, as metadata say it; zeroes for the connected peer.
    pub(crate) meta: Meta,
}

/// A control message of IP_PKTINFO, without padding behind it.
#[repr(C, packed)]
struct SourceMessage {
    header: bindings::cmsghdr,
    info: bindings::in_pktinfo,
}

/// Reads the source out of the control messages: `false` unless IP_PKTINFO is all that there is, and has one.
///
/// # Safety
///
/// `header` must be the argument of a sendmsg operation.
unsafe fn read_source(header: &bindings::msghdr, meta: &mut Meta) -> bool {
    let len = header.msg_controllen;
    let message_len = size_of::<SourceMessage>();
    // io_uring may leave them where they are.
    if header.msg_control_is_user()
        || !(message_len..=message_len.next_multiple_of(8)).contains(&len)
    {
        return false;
    }
    // SAFETY: The control messages were copied to memory of the kernel, which has `len` bytes.
    let message = unsafe {
        let control = header.__bindgen_anon_1.msg_control;
        control.cast::<SourceMessage>().read_unaligned()
    };
    let (kind, info) = (message.header, message.info);
    let is_source = kind.cmsg_level == bindings::SOL_IP as i32
        && kind.cmsg_type == bindings::IP_PKTINFO as i32
        && kind.cmsg_len == message_len
        && info.ipi_spec_dst.s_addr != 0;
    let Ok(device) = u32::try_from(info.ipi_ifindex) else {
        return false;
    };
    let [a, b, c, d] = info.ipi_spec_dst.s_addr.to_ne_bytes();
    [meta.local[0], meta.local[1], meta.local[2], meta.local[3]] = [a, b, c, d];
    meta.ifindex = device;
    meta.family = AF_INET;
    meta.flags = META_LOCAL;
    is_source
}

impl PlainMessage {
    /// The message, if it is plain.
    ///
    /// # Safety
    ///
    /// `message` must be an argument of a sendmsg operation that outlasts the result, and have `len`
    /// bytes of data.
    pub(super) unsafe fn of(message: *mut bindings::msghdr, len: usize) -> Option<Self> {
        // SAFETY: The caller passes a valid message. Its name was copied to memory of the kernel,
        // which has room for any address.
        unsafe {
            let header = &mut *message;
            if header.msg_flags & !FLAGS != 0 || !header.msg_ubuf.is_null() {
                return None;
            }
            let mut meta = Meta::default();
            if header.msg_controllen != 0 && !read_source(header, &mut meta) {
                return None;
            }
            if !header.msg_name.is_null() {
                let name = header.msg_name.cast::<bindings::sockaddr_in>();
                if (header.msg_namelen as usize) < size_of::<bindings::sockaddr_in>() {
                    return None;
                }
                let name = name.read_unaligned();
                if u32::from(name.sin_family) != bindings::AF_INET || name.sin_port == 0 {
                    return None;
                }
                let [a, b, c, d] = name.sin_addr.s_addr.to_ne_bytes();
                meta.family = AF_INET;
                [meta.peer[0], meta.peer[1], meta.peer[2], meta.peer[3]] = [a, b, c, d];
                meta.peer_port = name.sin_port;
            }
            // INVARIANT: Required of the caller.
            Some(Self {
                iter: NonNull::from(&mut header.msg_iter),
                len,
                meta,
            })
        }
    }

    /// Bytes of data.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies the data, if `to` has as much room, and no page of them has to be fetched. The call never
    /// sleeps. [`Self::give_back`] undoes it.
    pub(crate) fn copy<'a>(&mut self, to: &'a mut [u8]) -> Option<&'a [u8]> {
        let to = to.get_mut(..self.len)?;
        // SAFETY: By the invariants, the iterator is valid; nobody else uses it while sendmsg runs.
        // `to` has `len` bytes.
        let copied = unsafe {
            bindings::kopi_copy_from_iter_nofault(
                to.as_mut_ptr().cast(),
                self.len,
                self.iter.as_ptr(),
            )
        };
        copied.then_some(to)
    }

    /// Has the data be there again, after [`Self::copy`], for UDP to send them.
    pub(crate) fn give_back(&mut self) {
        // SAFETY: As in `copy`, which has advanced the iterator by `len` bytes.
        unsafe { bindings::iov_iter_revert(self.iter.as_ptr(), self.len) };
    }
}
