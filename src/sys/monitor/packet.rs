// SPDX-License-Identifier: GPL-2.0

//! The packets that monitor devices show: skbs that belong to others, and copies of them.

use super::watched;
use crate::{
    pure::{
        abi::MonHdr,
        ip::{self, HEADER_MAX},
        peer::Peer,
    },
    sys::{
        bindings,
        family::{self, Protocol},
        pernet::NetRef,
        skb::SkBuff,
        sock::Sock,
    },
};
use core::{
    marker::PhantomData,
    ptr::{self, NonNull},
};
use kernel::{error::to_result, prelude::*, sync::rcu};

/// Maximum number of devices of a namespace that the search for a dropped packet's device compares.
pub(super) const DEVICES_MAX: u32 = 256;

/// A packet to be shown: an skb, or the bytes of a packet that didn't become one.
pub(crate) enum Packet<'a> {
    /// An skb.
    Skb(ProbedSkb<'a>),
    /// Header, payload, and whether the packet is IPv6.
    Bytes(&'a [u8], &'a [u8], bool),
}

/// An skb that belongs to other code, which keeps it for `'a`.
#[derive(Clone, Copy)]
pub(crate) struct ProbedSkb<'a>(
    NonNull<bindings::sk_buff>,
    PhantomData<&'a bindings::sk_buff>,
);

impl<'a> Packet<'a> {
    /// A packet that was taken off a sock's queue.
    pub(crate) fn of(skb: &'a SkBuff) -> Self {
        Self::Skb(ProbedSkb(skb.as_non_null(), PhantomData))
    }

    /// A packet in a sock's queue.
    pub(crate) fn first(first: &'a QueuedSkb) -> Self {
        Self::Skb(first.probed())
    }

    /// A copy, which may share the payload, with a monitor header in front; `None` if memory is
    /// short.
    pub(super) fn with_header(&self, header: MonHdr) -> Option<Copy> {
        let copy = match self {
            Self::Skb(probed) => probed.copy()?,
            Self::Bytes(header, payload, is_ipv6) => Copy::of_bytes(header, payload, *is_ipv6)?,
        };
        copy.put_header(header);
        Some(copy)
    }
}

/// The first packet in the queue of a UDP sock, which stays there.
///
/// # Invariants
///
/// This value owns a reference to the skb.
pub(crate) struct QueuedSkb(pub(super) NonNull<bindings::sk_buff>);

impl QueuedSkb {
    /// The first packet, if there is one. A pending error of the sock stays pending. Process
    /// context.
    pub(crate) fn of(sk: &Sock) -> Option<Self> {
        let (mut offset, mut errno) = (0, 0);
        let flags = bindings::MSG_PEEK | bindings::MSG_DONTWAIT;
        // SAFETY: The sock is borrowed, and a flow's sock is a UDP sock.
        let first =
            unsafe { bindings::__skb_recv_udp(sk.as_ptr(), flags, &mut offset, &mut errno) };
        if first.is_null() && errno != EAGAIN.to_errno() {
            sk.set_error(Error::from_errno(errno));
        }
        // INVARIANT: Peeking takes a reference.
        NonNull::new(first).map(Self)
    }

    /// The packet, for as long as this value keeps it.
    fn probed(&self) -> ProbedSkb<'_> {
        ProbedSkb(self.0, PhantomData)
    }

    /// The index of the device that received it.
    pub(crate) fn iif(&self) -> u32 {
        self.probed().iif()
    }

    /// Bytes of payload of each datagram of a GSO packet, or 0.
    pub(crate) fn gso_size(&self) -> u32 {
        self.probed().gso_size()
    }
}

impl Drop for QueuedSkb {
    fn drop(&mut self) {
        // SAFETY: This value owns the reference, and is not used any more.
        unsafe { bindings::consume_skb(self.0.as_ptr()) };
    }
}

impl ProbedSkb<'_> {
    /// The skb of a probe's arguments; `None` with interrupts off, where locks of socks can't be
    /// taken.
    ///
    /// # Safety
    ///
    /// `skb` must be null, or a valid skb that lives as long as the result.
    pub(in crate::sys) unsafe fn by_probe(skb: *mut bindings::sk_buff) -> Option<Self> {
        let skb = Self(NonNull::new(skb)?, PhantomData);
        // SAFETY: The call only reads the state of this CPU.
        (!unsafe { bindings::kopi_irqs_disabled() }).then_some(skb)
    }

    fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    /// A number that no other packet has as long as this one exists.
    pub(crate) fn id(&self) -> usize {
        self.as_ptr() as usize
    }

    /// The flow to whose sock it belongs.
    pub(crate) fn flow<'b, T: Protocol>(&self, _rcu: &'b rcu::Guard) -> Option<(&'b Sock, &'b T)> {
        // SAFETY: An skb with a sock keeps it, or has it under RCU. The guard proves that RCU is
        // held.
        unsafe { family::flow_of(bindings::kopi_skb_sk(self.as_ptr())) }
    }

    /// Bytes of payload of each datagram of a GSO packet, or 0.
    pub(crate) fn gso_size(&self) -> u32 {
        // SAFETY: Another part of the kernel keeps the skb valid for `'a`.
        unsafe { bindings::kopi_skb_gso_size(self.as_ptr()) }
    }

    /// The index of the device that received it; 0 for an outgoing packet.
    pub(crate) fn iif(&self) -> u32 {
        // SAFETY: Another part of the kernel keeps the skb valid for `'a`.
        unsafe { bindings::kopi_skb_iif(self.as_ptr()) as u32 }
    }

    /// The value of the field `dev`, which may not be a device: UDP's queues, and the trees of
    /// qdiscs and of fragments, use the same bytes for other data. It may be compared, and never
    /// dereferenced.
    fn device(&self) -> *mut bindings::net_device {
        // SAFETY: Another part of the kernel keeps the skb valid for `'a`.
        unsafe { bindings::kopi_skb_dev(self.as_ptr()) }
    }

    /// Whether its device is the one of this index in a namespace.
    fn is_at(&self, net: &NetRef, ifindex: u32, _rcu: &rcu::Guard) -> bool {
        let Ok(ifindex) = i32::try_from(ifindex) else {
            return false;
        };
        // SAFETY: The namespace is borrowed, and so valid. The guard proves that RCU is held, under
        // which devices may be looked up. The result is only compared.
        let found = unsafe { bindings::kopi_net_dev(net.as_ptr(), ifindex) };
        !found.is_null() && ptr::eq(found, self.device())
    }

    /// The namespace of the device that received it, if the namespace is watched.
    pub(crate) fn watched_net<'b>(&self, rcu: &'b rcu::Guard) -> Option<&'b NetRef> {
        watched::find(|net| self.is_at(net, self.iif(), rcu), rcu)
    }

    /// The index of the device that it is at, if that is one of a namespace's first
    /// [`DEVICES_MAX`]; 0 for an outgoing packet that has no device yet.
    ///
    /// `None` says that the packet may be in another namespace.
    pub(crate) fn ifindex_in(&self, net: &NetRef, rcu: &rcu::Guard) -> Option<u32> {
        let iif = self.iif();
        if iif == 0 && self.device().is_null() {
            return Some(0);
        }
        if self.is_at(net, iif, rcu) {
            return Some(iif);
        }
        // SAFETY: The namespace is borrowed, and so valid. The guard proves that RCU is held, under
        // which devices may be walked. The device's pointer is only compared.
        let found =
            unsafe { bindings::kopi_net_find_dev(net.as_ptr(), self.device(), DEVICES_MAX) };
        u32::try_from(found).ok().filter(|&ifindex| ifindex != 0)
    }

    /// The offset of its IP header from its data; `None` if the header isn't in the linear part.
    fn ip_header(&self) -> Option<i32> {
        // SAFETY: Another part of the kernel keeps the skb valid for `'a`.
        let (offset, headroom, headlen) = unsafe {
            (
                bindings::kopi_skb_network_offset(self.as_ptr()),
                bindings::kopi_skb_headroom(self.as_ptr()),
                bindings::kopi_skb_headlen(self.as_ptr()),
            )
        };
        let inside = match u32::try_from(offset) {
            Ok(offset) => offset < headlen,
            Err(_) => offset.unsigned_abs() <= headroom,
        };
        // SAFETY: Another part of the kernel keeps the skb valid for `'a`.
        (inside && unsafe { bindings::kopi_skb_is_ip(self.as_ptr()) }).then_some(offset)
    }

    /// Whether all its bytes from the IP header on were written.
    ///
    /// The stack may drop what it makes before. It opens the bytes of a datagram before it fills
    /// them, and gives the datagram a route when it is complete. IPsec makes room between headers,
    /// and writes its own later.
    pub(crate) fn is_complete(&self, _rcu: &rcu::Guard) -> bool {
        if self.iif() != 0 {
            return true;
        }
        // SAFETY: Another part of the kernel keeps the skb valid for `'a`. The guard proves that
        // RCU is held, under which its route may be looked at. The skb wasn't received, so that
        // the field holds nothing else.
        let (has_route, is_being_transformed) = unsafe {
            (
                bindings::kopi_skb_has_route(self.as_ptr()),
                bindings::kopi_skb_is_being_transformed(self.as_ptr()),
            )
        };
        // The route is given back when the packet is at a device.
        (has_route || !self.device().is_null()) && (!is_being_transformed || self.is_datagram())
    }

    /// Whether it is a UDP datagram, and as long as its IP header says.
    fn is_datagram(&self) -> bool {
        let Some(offset) = self
            .ip_header()
            .and_then(|offset| u32::try_from(offset).ok())
        else {
            return false;
        };
        // SAFETY: Another part of the kernel keeps the skb valid for `'a`.
        let len = unsafe { (*self.as_ptr()).len };
        self.first_bytes()
            .zip(len.checked_sub(offset))
            .is_some_and(|(bytes, len)| ip::is_datagram(&bytes, len))
    }

    /// Whether a sock that was found as its receiver is that of its namespace and ends. A UDP sock
    /// always is.
    pub(crate) fn is_for(&self, sk: &Sock, rcu: &rcu::Guard) -> bool {
        if !sk.is_stream() {
            return true;
        }
        if !self.is_at(sk.net(), self.iif(), rcu) {
            return false;
        }
        let ends = self.first_bytes();
        let ends = ends.and_then(|bytes| ip::ends_of(ip::TCP, &bytes));
        ends.is_some_and(|ends| {
            let local = sk.local_end();
            let peer_is =
                |peer: Peer| peer == ends.source && local.address == ends.destination.address;
            local.port == ends.destination.port
                && (sk.is_listening() || sk.peer().is_some_and(peer_is))
        })
    }

    /// Its first bytes from the IP header on.
    pub(crate) fn first_bytes(&self) -> Option<[u8; HEADER_MAX]> {
        let offset = u32::try_from(self.ip_header()?).ok()?;
        let mut bytes = [0u8; HEADER_MAX];
        // SAFETY: Another part of the kernel keeps the skb valid for `'a`.
        let (data, headlen) = unsafe {
            (
                (*self.as_ptr()).data,
                bindings::kopi_skb_headlen(self.as_ptr()),
            )
        };
        let len = HEADER_MAX.min(headlen.checked_sub(offset)? as usize);
        // SAFETY: The linear part has `headlen` bytes from `data` on, and `offset + len` is at most
        // that. `bytes` has room for `HEADER_MAX`.
        unsafe { ptr::copy_nonoverlapping(data.add(offset as usize), bytes.as_mut_ptr(), len) };
        Some(bytes)
    }

    /// A clone with a head of its own, which begins with the IP header and has room for a monitor
    /// header in front; `None` if memory is short.
    fn copy(&self) -> Option<Copy> {
        let offset = self.ip_header()?;
        // SAFETY: The skb is valid for `'a`. The clone is owned here. `pskb_expand_head` gives it a
        // head of its own, which has `MonHdr::LEN` bytes before the IP header. The IP header lies
        // in the linear part or its headroom, as `ip_header` checked, so pull and push stay within
        // the head.
        unsafe {
            let copy = Copy(NonNull::new(bindings::skb_clone(
                self.as_ptr(),
                bindings::KOPI_CONST_GFP_ATOMIC,
            ))?);
            // The field may hold other data than a device.
            bindings::kopi_skb_set_dev(copy.as_ptr(), ptr::null_mut());
            let room = i32::try_from(bindings::kopi_skb_headroom(copy.as_ptr())).ok()?;
            let needed = i32::try_from(MonHdr::LEN).ok()?;
            let more = needed.saturating_sub(room.saturating_add(offset)).max(0);
            to_result(bindings::pskb_expand_head(
                copy.as_ptr(),
                more,
                0,
                bindings::KOPI_CONST_GFP_ATOMIC,
            ))
            .ok()?;
            bindings::skb_scrub_packet(copy.as_ptr(), true);
            bindings::kopi_skb_gso_reset(copy.as_ptr());
            match u32::try_from(offset) {
                Ok(0) => {}
                Ok(offset) => _ = bindings::skb_pull(copy.as_ptr(), offset),
                Err(_) => _ = bindings::skb_push(copy.as_ptr(), offset.unsigned_abs()),
            }
            Some(copy)
        }
    }
}

/// A packet of this module, with room for a monitor header. It owns the skb.
pub(super) struct Copy(pub(super) NonNull<bindings::sk_buff>);

impl Copy {
    fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    /// A packet of these bytes; `None` if memory is short.
    fn of_bytes(header: &[u8], payload: &[u8], is_ipv6: bool) -> Option<Self> {
        let len = u32::try_from(header.len().checked_add(payload.len())?).ok()?;
        let size = u32::try_from(MonHdr::LEN).ok()?.checked_add(len)?;
        // SAFETY: The new skb has room for `size` bytes, the sum of all bytes that are put.
        // `skb_put` returns the place of the bytes that are written there. The bytes that are put
        // and pulled at once become the room for the monitor header.
        unsafe {
            let skb = bindings::kopi_alloc_skb(size, bindings::KOPI_CONST_GFP_ATOMIC);
            let copy = Self(NonNull::new(skb)?);
            bindings::skb_put(skb, MonHdr::LEN as u32);
            bindings::skb_pull(skb, MonHdr::LEN as u32);
            for bytes in [header, payload] {
                let room = bindings::skb_put(skb, bytes.len() as u32).cast::<u8>();
                ptr::copy_nonoverlapping(bytes.as_ptr(), room, bytes.len());
            }
            bindings::kopi_skb_reset_network_header(skb);
            let protocol = if is_ipv6 {
                bindings::ETH_P_IPV6
            } else {
                bindings::ETH_P_IP
            };
            bindings::kopi_skb_set_protocol(skb, protocol as u16);
            Some(copy)
        }
    }

    /// Writes the monitor header in front. To be called once.
    fn put_header(&self, header: MonHdr) {
        let bytes = header.to_bytes();
        // SAFETY: `copy` and `of_bytes` leave `MonHdr::LEN` bytes of headroom in a head of the
        // skb's own.
        unsafe {
            let room = bindings::skb_push(self.as_ptr(), MonHdr::LEN as u32).cast::<u8>();
            ptr::copy_nonoverlapping(bytes.as_ptr(), room, bytes.len());
            bindings::kopi_skb_reset_mac_header(self.as_ptr());
        }
    }

    /// Shows it to the packet sockets of a device.
    ///
    /// # Safety
    ///
    /// The device must be valid, softirqs off, and RCU held.
    pub(in crate::sys) unsafe fn show_on(&self, device: NonNull<bindings::net_device>) {
        let device = device.as_ptr();
        // SAFETY: The caller passes a valid device, with softirqs off and RCU held. This value owns
        // the skb, and packet sockets get clones of it.
        unsafe {
            bindings::kopi_skb_set_dev(self.as_ptr(), device);
            bindings::kopi_dev_lstats_add(device, (*self.as_ptr()).len);
            bindings::dev_queue_xmit_nit(self.as_ptr(), device);
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // SAFETY: This value owns the skb, and is not used any more.
        unsafe { bindings::consume_skb(self.as_ptr()) };
    }
}
