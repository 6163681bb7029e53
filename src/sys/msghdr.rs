// SPDX-License-Identifier: GPL-2.0

//! `struct msghdr`: a message that the module sends by sendmsg.
//!
//! C headers: `include/linux/socket.h`, `include/linux/uio.h`

use super::bindings;
use super::{
    datagram::Datagram,
    direct::frame_batch::FrameBatch,
    family::{self, Judged, Protocol, RingMessage},
    region::PageVec,
    socket::Socket,
    ubuf::{Notification, Released}, //
};
use crate::pure::abi::{
    Meta,
    AF_INET6,
    META_LOCAL,
    META_MARK,
    META_TOS,
    META_TTL,
    META_TXTIME, //
};
use core::{
    mem::{size_of, MaybeUninit},
    ptr, //
};
use kernel::{
    error::to_result,
    prelude::*, //
};

/// The size in words of all control messages that a [`SendMsg`] can have.
const CONTROL_WORDS: usize = 32;

/// The destination and the control messages of a message. `P` of its methods is the protocol of the
/// sockets.
pub(crate) struct SendMsg {
    name: bindings::sockaddr_in6,
    name_len: usize,
    control: [u64; CONTROL_WORDS],
    /// Words of `control` in use.
    control_len: usize,
    /// What the rules judged of the message.
    pub(crate) judged: Judged,
    /// The last message wasn't sent since the send buffer was full.
    pub(crate) was_full: bool,
}

impl SendMsg {
    /// A message to the connected peer.
    pub(crate) fn new(judged: Judged) -> Self {
        Self {
            judged,
            name: pin_init::zeroed(),
            name_len: 0,
            control: [0; CONTROL_WORDS],
            control_len: 0,
            was_full: false,
        }
    }

    /// Sets the destination and the control messages according to `meta`, for a socket that is IPv6
    /// if `ipv6` is set.
    pub(crate) fn address(&mut self, meta: &Meta, ipv6: bool) {
        self.name_len = 0;
        self.control_len = 0;
        // Each IP version takes only the options of its own level. `meta` doesn't say to which
        // version a connected peer belongs, so such a message has the options of both.
        let connected = meta.family == 0;
        let mapped = meta.family != AF_INET6 || is_mapped(&meta.peer);
        let as_ipv6 = ipv6 && (connected || !mapped);
        let as_ipv4 = !ipv6 || connected || mapped;
        let push = |message: &mut Self, option_v6, option_v4, value: u8| {
            let value = i32::from(value).to_ne_bytes();
            if as_ipv6 {
                message.push(bindings::SOL_IPV6, option_v6, &value);
            }
            if as_ipv4 {
                message.push(bindings::SOL_IP, option_v4, &value);
            }
        };
        if meta.peer_port != 0 {
            self.set_peer(meta);
        }
        if meta.flags & META_LOCAL != 0 {
            self.set_source(meta);
        }
        if meta.flags & META_TOS != 0 {
            push(self, bindings::IPV6_TCLASS, bindings::IP_TOS, meta.tos);
        }
        if meta.flags & META_TTL != 0 {
            push(self, bindings::IPV6_HOPLIMIT, bindings::IP_TTL, meta.ttl);
        }
        if meta.flags & META_MARK != 0 {
            self.push(
                bindings::SOL_SOCKET,
                bindings::SO_MARK,
                &meta.mark.to_ne_bytes(),
            );
        }
        if meta.flags & META_TXTIME != 0 {
            self.push(
                bindings::SOL_SOCKET,
                bindings::SCM_TXTIME,
                &meta.timestamp.to_ne_bytes(),
            );
        }
    }

    /// Makes the stack segment the payload into datagrams of `size` bytes.
    pub(crate) fn segment(&mut self, size: u16) {
        self.push(
            bindings::SOL_UDP,
            bindings::UDP_SEGMENT,
            &size.to_ne_bytes(),
        );
    }

    /// Sets the destination.
    fn set_peer(&mut self, meta: &Meta) {
        if meta.family == AF_INET6 {
            self.name.sin6_family = bindings::AF_INET6 as u16;
            self.name.sin6_port = meta.peer_port;
            // An IPv4 address may have been in the same bytes before.
            self.name.sin6_flowinfo = 0;
            self.name.sin6_addr.in6_u.u6_addr8 = meta.peer;
            self.name.sin6_scope_id = meta.ifindex;
            self.name_len = size_of::<bindings::sockaddr_in6>();
        } else {
            let [a, b, c, d, ..] = meta.peer;
            let name = bindings::sockaddr_in {
                sin_family: bindings::AF_INET as u16,
                sin_port: meta.peer_port,
                sin_addr: bindings::in_addr {
                    s_addr: u32::from_ne_bytes([a, b, c, d]),
                },
                ..pin_init::zeroed()
            };
            // SAFETY: A sockaddr_in is smaller than a sockaddr_in6, and has no stricter alignment.
            // Any bytes are a valid sockaddr_in6. The name is borrowed exclusively.
            unsafe {
                ptr::from_mut(&mut self.name)
                    .cast::<bindings::sockaddr_in>()
                    .write(name)
            };
            self.name_len = size_of::<bindings::sockaddr_in>();
        }
    }

    /// Appends IP_PKTINFO or IPV6_PKTINFO: the source address and the device.
    fn set_source(&mut self, meta: &Meta) {
        let mut info = [0u8; 20];
        if meta.family == AF_INET6 {
            // struct in6_pktinfo has the address, then the device.
            let (address, device) = info.split_at_mut(16);
            address.copy_from_slice(&meta.local);
            device.copy_from_slice(&meta.ifindex.to_ne_bytes());
            self.push(bindings::SOL_IPV6, bindings::IPV6_PKTINFO, &info);
        } else {
            // struct in_pktinfo has the device, ipi_spec_dst, ipi_addr.
            let [a, b, c, d, ..] = meta.local;
            let [e, f, g, h] = meta.ifindex.to_ne_bytes();
            let info = [e, f, g, h, a, b, c, d, 0, 0, 0, 0];
            self.push(bindings::SOL_IP, bindings::IP_PKTINFO, &info);
        }
    }

    /// Appends a control message: a header of two words, then the data.
    fn push(&mut self, level: u32, kind: u32, data: &[u8]) {
        let header = size_of::<bindings::cmsghdr>();
        let len = header.wrapping_add(data.len()) as u64;
        let tag = u64::from(level) | u64::from(kind) << 32;
        let mut words = [len, tag, 0, 0, 0];
        for (word, chunk) in words.iter_mut().skip(2).zip(data.chunks(8)) {
            let mut bytes = [0u8; 8];
            for (to, from) in bytes.iter_mut().zip(chunk) {
                *to = *from;
            }
            *word = u64::from_ne_bytes(bytes);
        }
        let used = 2usize.wrapping_add(data.len().div_ceil(8));
        for (to, from) in self
            .control
            .iter_mut()
            .skip(self.control_len)
            .zip(words.iter().take(used))
        {
            *to = *from;
        }
        self.control_len = self.control_len.wrapping_add(used).min(CONTROL_WORDS);
    }

    /// Sends `data`, and never sleeps until there is room: `EAGAIN` if the send buffer is full.
    /// Process context.
    ///
    /// The data are sent by reference if there is a `notification`, and the device and the packet
    /// allow it. Otherwise they are copied before this returns.
    pub(crate) fn send<P: Protocol, T: Released>(
        &mut self,
        socket: &Socket,
        data: &PageVec,
        notification: Option<&Notification<T>>,
    ) -> Result {
        let mut message = self.message(None);
        if let Some(notification) = notification {
            message.header.msg_flags |= bindings::MSG_ZEROCOPY;
            message.header.msg_ubuf = notification.as_ptr();
        }
        // SAFETY: The pieces of `data` are parts of pages of a channel's region, which the caller
        // keeps during the call. An skb that keeps one takes a reference to the page and to the
        // notification. The message has no datagram. The caller holds the channel's sender, and a
        // socket is on one channel at most, so this is the only such call for the socket.
        let sent = unsafe {
            bindings::iov_iter_bvec(
                &mut message.header.msg_iter,
                bindings::KOPI_CONST_ITER_SOURCE,
                data.as_ptr(),
                data.count(),
                data.bytes(),
            );
            family::send_ring_message::<P>(socket, &mut message)
        };
        self.was_full = message.full;
        to_result(sent.min(0))
    }

    /// Sends a copy of a datagram's data. It becomes one of `frames`, if there are some and it can; else an skb by
    /// its remembered route; else UDP's sendmsg makes the skb, as in [`SendMsg::send`]. The security module is
    /// asked once, whichever way it goes. Process context.
    pub(crate) fn send_copy<P: Protocol>(
        &mut self,
        socket: &Socket,
        datagram: &Datagram<'_>,
        frames: Option<&mut FrameBatch>,
    ) -> Result {
        let piece = bindings::kvec {
            iov_base: datagram.data().as_ptr().cast_mut().cast(),
            iov_len: datagram.data().len(),
        };
        let mut message = self.message(Some(datagram));
        message.frames = frames;
        // SAFETY: The datagram's data are bytes of a region, whose borrow lasts for the call, and
        // are only read. The datagram was made for this socket. The caller holds the channel's
        // sender, and a socket is on one channel at most, so this is the only such call for the
        // socket.
        let sent = unsafe {
            bindings::iov_iter_kvec(
                &mut message.header.msg_iter,
                bindings::KOPI_CONST_ITER_SOURCE,
                &piece,
                1,
                piece.iov_len,
            );
            family::send_ring_message::<P>(socket, &mut message)
        };
        self.was_full = message.full;
        to_result(sent.min(0))
    }

    /// The message, without data.
    fn message<'a>(&mut self, datagram: Option<&'a Datagram<'a>>) -> RingMessage<'a> {
        let mut message = RingMessage {
            // SAFETY: A msghdr has pointers, integers and a union of pointers, for all of which
            // zeroes are valid.
            header: unsafe { MaybeUninit::zeroed().assume_init() },
            datagram,
            frames: None,
            full: false,
            judged: self.judged,
        };
        let header = &mut message.header;
        header.msg_flags = bindings::MSG_DONTWAIT;
        if self.name_len != 0 {
            header.msg_name = ptr::from_mut(&mut self.name).cast();
            header.msg_namelen = self.name_len as i32;
        }
        if self.control_len != 0 {
            header.__bindgen_anon_1.msg_control = self.control.as_mut_ptr().cast();
            header.msg_controllen = self.control_len.wrapping_mul(8);
        }
        message
    }
}

/// Whether an IPv6 address is an IPv4-mapped one.
fn is_mapped(address: &[u8; 16]) -> bool {
    core::net::Ipv6Addr::from(*address)
        .to_ipv4_mapped()
        .is_some()
}
