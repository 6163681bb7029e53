// SPDX-License-Identifier: GPL-2.0

//! What a program wants to send, if a ring can have it.

use kopi::{
    pure::abi::{Meta, AF_INET, AF_INET6, META_LOCAL},
    SendRing,
};
use libc::{c_int, iovec, msghdr};
use std::{mem::size_of, net::Ipv6Addr, ptr};

/// Flags of messages with which a ring's datagram is the same.
const FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
/// Pieces of payload that are added up; the kernel takes more.
const PIECES_MAX: usize = 64;

/// A datagram that a ring can send.
pub(crate) struct Datagram {
    meta: Option<Meta>,
    pieces: *const iovec,
    count: usize,
    /// Bytes of payload.
    pub(crate) len: usize,
}

/// Where memory of a program's ends, and the last page, which it never has.
const USER_END: usize = (1 << 47) - 4096;

/// Whether memory of a program's may be there. Where it surely isn't, the kernel says so.
fn is_plausible<T>(at: *const T, len: usize) -> bool {
    let first = at as usize;
    first >= 1 << 16 && first.checked_add(len).is_some_and(|end| end <= USER_END)
}

/// Whether the kernel may take this piece. It compares the address of an empty one, too, which may be NULL.
fn may_be_taken(piece: &iovec) -> bool {
    if piece.iov_len == 0 {
        return piece.iov_base as usize <= USER_END;
    }
    is_plausible(piece.iov_base, piece.iov_len)
}

/// Whether flags of a call leave it to rings.
pub(crate) fn flags_go(flags: c_int) -> bool {
    flags & !FLAGS == 0
}

impl Datagram {
    /// A message of a flow's; `None` if rings can't have all of it, or if the kernel may refuse it.
    ///
    /// # Safety
    ///
    /// As for sendmsg(2): where `message` points, there is a message. Where the kernel would find no
    /// memory of the process, this may not look either, except in the first and the last pages of
    /// the address space.
    pub(crate) unsafe fn of(message: *const msghdr, ipv6: bool) -> Option<Self> {
        if !is_plausible(message, size_of::<msghdr>()) {
            return None;
        }
        // SAFETY: There is a message, as the caller says.
        let message = unsafe { ptr::read_unaligned(message) };
        let pieces = message.msg_iov.cast_const();
        let count = message.msg_iovlen;
        if !(1..=PIECES_MAX).contains(&count) || !is_plausible(pieces, count * size_of::<iovec>()) {
            return None;
        }
        let mut len = 0usize;
        for at in 0..count {
            // SAFETY: There are so many pieces, as the caller says.
            let piece = unsafe { ptr::read_unaligned(pieces.add(at)) };
            if !may_be_taken(&piece) {
                return None;
            }
            len = len.checked_add(piece.iov_len)?;
        }
        if len > SendRing::PAYLOAD_MAX {
            return None;
        }
        let mut meta = Meta::default();
        // SAFETY: As the caller says.
        unsafe {
            if !message.msg_name.is_null() && !read_name(&message, ipv6, &mut meta) {
                return None;
            }
            if message.msg_controllen != 0 && !read_source(&message, ipv6, &mut meta) {
                return None;
            }
        }
        let is_plain = meta == Meta::default();
        Some(Self {
            meta: (!is_plain).then_some(meta),
            pieces,
            count,
            len,
        })
    }

    /// Writes it into a ring, for the flow of that number; says whether there was room.
    ///
    /// # Safety
    ///
    /// The message must still be there.
    pub(crate) unsafe fn write(&self, ring: &mut SendRing, flow: u32) -> bool {
        ring.write(flow, self.meta.as_ref(), self.len, |mut to| {
            for at in 0..self.count {
                // SAFETY: The message has so many pieces. Another thread may have changed them: no
                // more is copied than there is room for.
                let (from, rest) = unsafe {
                    let piece = ptr::read_unaligned(self.pieces.add(at));
                    let count = piece.iov_len.min(to.len());
                    let (now, rest) = to.split_at_mut(count);
                    ptr::copy_nonoverlapping(piece.iov_base.cast(), now.as_mut_ptr(), count);
                    (count, rest)
                };
                let _ = from;
                to = rest;
            }
        })
    }
}

/// Reads the destination: `false` if it is none that rings can have.
///
/// # Safety
///
/// The message has a name, of the length that it says.
unsafe fn read_name(message: &msghdr, ipv6: bool, meta: &mut Meta) -> bool {
    let (name, len) = (message.msg_name, message.msg_namelen as usize);
    if !is_plausible(name, len) {
        return false;
    }
    if ipv6 {
        if len != size_of::<libc::sockaddr_in6>() {
            return false;
        }
        // SAFETY: The name is of that length.
        let name: libc::sockaddr_in6 = unsafe { ptr::read_unaligned(name.cast()) };
        meta.family = AF_INET6;
        meta.peer = name.sin6_addr.s6_addr;
        meta.peer_port = name.sin6_port;
        meta.ifindex = name.sin6_scope_id;
        // Without an address it is the loopback address, and for others the kernel knows.
        c_int::from(name.sin6_family) == libc::AF_INET6
            && name.sin6_port != 0
            && name.sin6_flowinfo == 0
            && meta.peer != [0; 16]
    } else {
        if len != size_of::<libc::sockaddr_in>() {
            return false;
        }
        // SAFETY: The name is of that length.
        let name: libc::sockaddr_in = unsafe { ptr::read_unaligned(name.cast()) };
        meta.family = AF_INET;
        meta.peer[..4].copy_from_slice(&name.sin_addr.s_addr.to_ne_bytes());
        meta.peer_port = name.sin_port;
        c_int::from(name.sin_family) == libc::AF_INET
            && name.sin_port != 0
            && name.sin_addr.s_addr != 0
    }
}

/// Reads the control messages: `false` unless there is one, the source of the flow's family.
///
/// # Safety
///
/// The message has control messages, of the length that it says.
unsafe fn read_source(message: &msghdr, ipv6: bool, meta: &mut Meta) -> bool {
    let (control, len) = (message.msg_control, message.msg_controllen);
    let header = size_of::<libc::cmsghdr>();
    if len < header || !is_plausible(control, len) {
        return false;
    }
    // SAFETY: There is room for a header.
    let first: libc::cmsghdr = unsafe { ptr::read_unaligned(control.cast()) };
    let (level, kind, size) = if ipv6 {
        (
            libc::IPPROTO_IPV6,
            libc::IPV6_PKTINFO,
            size_of::<libc::in6_pktinfo>(),
        )
    } else {
        (
            libc::IPPROTO_IP,
            libc::IP_PKTINFO,
            size_of::<libc::in_pktinfo>(),
        )
    };
    // With its padding, which may be missing, it is all that there is.
    let end = header + size;
    if (first.cmsg_level, first.cmsg_type, first.cmsg_len) != (level, kind, end)
        || !(end..=end.next_multiple_of(8)).contains(&len)
    {
        return false;
    }
    // SAFETY: There is room for that, as just checked.
    unsafe {
        let data = control.cast::<u8>().add(header);
        if ipv6 {
            let info: libc::in6_pktinfo = ptr::read_unaligned(data.cast());
            // The scope of a peer and the device are one field in a ring. The kernel compares the device with the
            // sock's, if such an address has no scope.
            let peer = Ipv6Addr::from(meta.peer);
            let is_scoped = peer.is_unicast_link_local() || peer.is_multicast();
            if meta.ifindex != info.ipi6_ifindex && (meta.ifindex != 0 || is_scoped) {
                return false;
            }
            meta.family = AF_INET6;
            meta.local = info.ipi6_addr.s6_addr;
            meta.ifindex = info.ipi6_ifindex;
        } else {
            let info: libc::in_pktinfo = ptr::read_unaligned(data.cast());
            meta.family = AF_INET;
            meta.local[..4].copy_from_slice(&info.ipi_spec_dst.s_addr.to_ne_bytes());
            let Ok(ifindex) = u32::try_from(info.ipi_ifindex) else {
                return false;
            };
            meta.ifindex = ifindex;
        }
    }
    meta.flags |= META_LOCAL;
    meta.local != [0; 16]
}
