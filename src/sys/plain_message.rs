// SPDX-License-Identifier: GPL-2.0

//! A message that a process gives to sendmsg, if it is plain: data, with or without a destination and
//! a source.
//!
//! C headers: `include/linux/socket.h`, `include/linux/uio.h`

use super::bindings;
use crate::pure::abi::{Meta, AF_INET, AF_INET6, META_LOCAL};
use core::{net::Ipv6Addr, ptr::NonNull};

/// Flags that a plain message may have.
const FLAGS: u32 = bindings::MSG_DONTWAIT | bindings::MSG_NOSIGNAL | bindings::MSG_BATCH;

/// A plain message of sendmsg.
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

/// What a socket of IPv4, or of IPv6, has for an address, and for a control message with a source.
///
/// # Safety
///
/// Any bytes must be a `Name` and an `Info`.
unsafe trait Version {
    const LEVEL: u32;
    const KIND: u32;
    type Name;
    type Info: Copy;

    /// Has metadata say where to: `false` if that isn't plain.
    fn to(name: Self::Name, meta: &mut Meta) -> bool;

    /// Has metadata say from where: `false` if that isn't plain.
    fn from(info: Self::Info, meta: &mut Meta) -> bool;
}

struct V4;

// SAFETY: Both types consist of integers.
unsafe impl Version for V4 {
    const LEVEL: u32 = bindings::SOL_IP;
    const KIND: u32 = bindings::IP_PKTINFO;
    type Name = bindings::sockaddr_in;
    type Info = bindings::in_pktinfo;

    fn to(name: Self::Name, meta: &mut Meta) -> bool {
        let [a, b, c, d] = name.sin_addr.s_addr.to_ne_bytes();
        meta.family = AF_INET;
        [meta.peer[0], meta.peer[1], meta.peer[2], meta.peer[3]] = [a, b, c, d];
        meta.peer_port = name.sin_port;
        u32::from(name.sin_family) == bindings::AF_INET
    }

    fn from(info: Self::Info, meta: &mut Meta) -> bool {
        let Ok(device) = u32::try_from(info.ipi_ifindex) else {
            return false;
        };
        let [a, b, c, d] = info.ipi_spec_dst.s_addr.to_ne_bytes();
        [meta.local[0], meta.local[1], meta.local[2], meta.local[3]] = [a, b, c, d];
        meta.ifindex = device;
        meta.family = AF_INET;
        info.ipi_spec_dst.s_addr != 0
    }
}

struct V6;

// SAFETY: Both types consist of integers.
unsafe impl Version for V6 {
    const LEVEL: u32 = bindings::SOL_IPV6;
    const KIND: u32 = bindings::IPV6_PKTINFO;
    type Name = bindings::sockaddr_in6;
    type Info = bindings::in6_pktinfo;

    fn to(name: Self::Name, meta: &mut Meta) -> bool {
        let scope = name.sin6_scope_id;
        // SAFETY: Any bytes are an address.
        let peer = unsafe { name.sin6_addr.in6_u.u6_addr8 };
        if meta.flags & META_LOCAL == 0 {
            meta.ifindex = scope;
        } else if scope != meta.ifindex
            && (scope != 0 || Ipv6Addr::from(peer).is_unicast_link_local())
        {
            // Metadata have one device. udpv6_sendmsg() compares that of the source with the sock's, if an
            // address of the link has none.
            return false;
        }
        meta.family = AF_INET6;
        meta.peer = peer;
        meta.peer_port = name.sin6_port;
        u32::from(name.sin6_family) == bindings::AF_INET6 && name.sin6_flowinfo == 0
    }

    fn from(info: Self::Info, meta: &mut Meta) -> bool {
        // SAFETY: Any bytes are an address.
        meta.local = unsafe { info.ipi6_addr.in6_u.u6_addr8 };
        meta.ifindex = info.ipi6_ifindex as u32;
        meta.family = AF_INET6;
        info.ipi6_ifindex >= 0
    }
}

/// A control message, without padding behind it.
#[repr(C, packed)]
struct SourceMessage<I> {
    header: bindings::cmsghdr,
    info: I,
}

/// Reads the source out of the control messages: `false` unless one is all that there is.
///
/// # Safety
///
/// `header` must be the argument of a sendmsg operation.
unsafe fn read_source<V: Version>(header: &bindings::msghdr, meta: &mut Meta) -> bool {
    let len = header.msg_controllen;
    let message_len = size_of::<SourceMessage<V::Info>>();
    // io_uring may leave them where they are.
    if header.msg_control_is_user()
        || !(message_len..=message_len.next_multiple_of(8)).contains(&len)
    {
        return false;
    }
    // SAFETY: The control messages were copied to memory of the kernel, which has `len` bytes. Any
    // bytes are a message.
    let message = unsafe {
        let control = header.__bindgen_anon_1.msg_control;
        control.cast::<SourceMessage<V::Info>>().read_unaligned()
    };
    let (kind, info) = (message.header, message.info);
    meta.flags = META_LOCAL;
    kind.cmsg_level == V::LEVEL as i32
        && kind.cmsg_type == V::KIND as i32
        && kind.cmsg_len == message_len
        && V::from(info, meta)
}

/// Where a message goes, and from where: `None` if that isn't plain.
///
/// # Safety
///
/// `header` must be the argument of a sendmsg operation.
unsafe fn read_meta<V: Version>(header: &bindings::msghdr) -> Option<Meta> {
    let mut meta = Meta::default();
    // SAFETY: As the caller says.
    if header.msg_controllen != 0 && !unsafe { read_source::<V>(header, &mut meta) } {
        return None;
    }
    if !header.msg_name.is_null() {
        if (header.msg_namelen as usize) < size_of::<V::Name>() {
            return None;
        }
        // SAFETY: The name was copied to memory of the kernel, and is at least as long. Any bytes are an
        // address.
        let name = unsafe { header.msg_name.cast::<V::Name>().read_unaligned() };
        if !V::to(name, &mut meta) || meta.peer_port == 0 {
            return None;
        }
    }
    Some(meta)
}

impl PlainMessage {
    /// The message, if it is plain, for a sock that is of IPv6 if `ipv6` is set.
    ///
    /// # Safety
    ///
    /// `message` must be an argument of a sendmsg operation that outlasts the result, and have `len`
    /// bytes of data.
    pub(super) unsafe fn of(
        message: *mut bindings::msghdr,
        len: usize,
        ipv6: bool,
    ) -> Option<Self> {
        // SAFETY: The caller passes a valid message.
        unsafe {
            let header = &mut *message;
            if header.msg_flags & !FLAGS != 0 || !header.msg_ubuf.is_null() {
                return None;
            }
            let meta = match ipv6 {
                false => read_meta::<V4>(header)?,
                true => read_meta::<V6>(header)?,
            };
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
