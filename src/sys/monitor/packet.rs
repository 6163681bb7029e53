// SPDX-License-Identifier: GPL-2.0

//! What monitors show: packets that belong to others, and copies of them.

use super::devices::WATCHED;
use crate::{
    pure::{abi::MonHdr, ip::HEADER_MAX},
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
    sync::atomic::Ordering,
};
use kernel::{error::to_result, prelude::*, sync::rcu};

/// Devices of a namespace among which that of a dropped packet is looked for.
pub(super) const DEVICES_MAX: u32 = 64;

/// A packet that was seen: an skb, or what would have become one.
pub(crate) enum Packet<'a> {
    Skb(Seeing<'a>),
    /// Header and payload, which is of IPv6.
    Bytes(&'a [u8], &'a [u8], bool),
}

/// An skb that somebody else has, with an IP header.
#[derive(Clone, Copy)]
pub(crate) struct Seeing<'a>(
    NonNull<bindings::sk_buff>,
    PhantomData<&'a bindings::sk_buff>,
);

impl<'a> Packet<'a> {
    /// One that a sock had queued.
    pub(crate) fn of(skb: &'a SkBuff) -> Self {
        Self::Skb(Seeing(skb.as_non_null(), PhantomData))
    }

    /// One that a sock has queued.
    pub(crate) fn first(first: &'a First) -> Self {
        Self::Skb(first.seeing())
    }

    /// A copy, or one that shares the payload, with a header in front.
    pub(super) fn with_header(&self, header: MonHdr) -> Option<Copy> {
        let copy = match self {
            Self::Skb(seeing) => seeing.copy()?,
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
/// An skb of which this value has a reference.
pub(crate) struct First(pub(super) NonNull<bindings::sk_buff>);

impl First {
    /// `None` if there is none. An error that the sock has stays there, too. Process context.
    pub(crate) fn of(sk: &Sock) -> Option<Self> {
        let (mut offset, mut errno) = (0, 0);
        let flags = bindings::MSG_PEEK | bindings::MSG_DONTWAIT;
        // SAFETY: KOPI's socks are UDP's.
        let first =
            unsafe { bindings::__skb_recv_udp(sk.as_ptr(), flags, &mut offset, &mut errno) };
        if first.is_null() && errno != EAGAIN.to_errno() {
            sk.set_error(Error::from_errno(errno));
        }
        // INVARIANT: Peeking takes a reference.
        NonNull::new(first).map(Self)
    }

    fn seeing(&self) -> Seeing<'_> {
        Seeing(self.0, PhantomData)
    }

    /// The device that it came by.
    pub(crate) fn came_by(&self) -> u32 {
        self.seeing().came_by()
    }

    /// Bytes of payload of each datagram of a GSO packet, or 0.
    pub(crate) fn gso_size(&self) -> u32 {
        self.seeing().gso_size()
    }
}

impl Drop for First {
    fn drop(&mut self) {
        // SAFETY: By the invariants.
        unsafe { bindings::consume_skb(self.0.as_ptr()) };
    }
}

impl Seeing<'_> {
    /// What a probe was called with; `None` where sockets' locks can't be taken.
    ///
    /// # Safety
    ///
    /// `skb` must be null, or live as long as the result.
    pub(in crate::sys) unsafe fn by_probe(skb: *mut bindings::sk_buff) -> Option<Self> {
        let skb = Self(NonNull::new(skb)?, PhantomData);
        // SAFETY: Looks at this CPU.
        (!unsafe { bindings::kopi_irqs_disabled() }).then_some(skb)
    }

    fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    /// What tells it from other packets, as long as it is there.
    pub(crate) fn id(&self) -> usize {
        self.as_ptr() as usize
    }

    /// The flow whose sock it is of.
    pub(crate) fn flow<'b, T: Protocol>(&self, _rcu: &'b rcu::Guard) -> Option<(&'b Sock, &'b T)> {
        // SAFETY: An skb keeps its sock; RCU is held.
        unsafe { family::flow_of(bindings::kopi_skb_sk(self.as_ptr())) }
    }

    /// Bytes of payload of each datagram of a GSO packet, or 0.
    pub(crate) fn gso_size(&self) -> u32 {
        // SAFETY: A valid skb.
        unsafe { bindings::kopi_skb_gso_size(self.as_ptr()) }
    }

    /// The device that it came by; 0 for one that goes out.
    pub(crate) fn came_by(&self) -> u32 {
        // SAFETY: A valid skb.
        unsafe { bindings::kopi_skb_iif(self.as_ptr()) as u32 }
    }

    /// What its field for a device holds, which needn't be one: UDP's queues, and trees of qdiscs and of
    /// fragments, use the same bytes for something else. To be compared, and never followed.
    fn device(&self) -> *mut bindings::net_device {
        // SAFETY: A valid skb.
        unsafe { bindings::kopi_skb_dev(self.as_ptr()) }
    }

    /// The namespace of the device that it came by, if that is watched.
    pub(crate) fn watched_net<'b>(&self, _rcu: &'b rcu::Guard) -> Option<&'b NetRef> {
        let ifindex = i32::try_from(self.came_by()).ok()?;
        WATCHED.iter().find_map(|slot| {
            let net = NonNull::new(slot.load(Ordering::Acquire))?;
            // SAFETY: A namespace leaves the list before its devices are gone, and is freed a grace
            // period later; the caller holds RCU.
            unsafe {
                let found = bindings::kopi_net_dev(net.as_ptr(), ifindex);
                (!found.is_null() && ptr::eq(found, self.device()))
                    .then(|| NetRef::from_raw(net.as_ptr()))
            }
        })
    }

    /// The number of the device that it is on, in a namespace; 0 for one that isn't found among the
    /// first [`DEVICES_MAX`].
    pub(crate) fn ifindex_in(&self, net: &NetRef, _rcu: &rcu::Guard) -> u32 {
        // SAFETY: A valid namespace; pointers are compared, and RCU is held.
        unsafe { bindings::kopi_net_find_dev(net.as_ptr(), self.device(), DEVICES_MAX) as u32 }
    }

    /// Where its IP header is, from its data on; `None` if that isn't in its linear part.
    fn ip_header(&self) -> Option<i32> {
        // SAFETY: A valid skb.
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
        // SAFETY: A valid skb.
        (inside && unsafe { bindings::kopi_skb_is_ip(self.as_ptr()) }).then_some(offset)
    }

    /// Its first bytes from the IP header on.
    pub(crate) fn first_bytes(&self) -> Option<[u8; HEADER_MAX]> {
        let offset = u32::try_from(self.ip_header()?).ok()?;
        let mut bytes = [0u8; HEADER_MAX];
        // SAFETY: A valid skb.
        let (data, headlen) = unsafe {
            (
                (*self.as_ptr()).data,
                bindings::kopi_skb_headlen(self.as_ptr()),
            )
        };
        let len = HEADER_MAX.min(headlen.checked_sub(offset)? as usize);
        // SAFETY: So many bytes are in the linear part behind the offset.
        unsafe { ptr::copy_nonoverlapping(data.add(offset as usize), bytes.as_mut_ptr(), len) };
        Some(bytes)
    }

    fn copy(&self) -> Option<Copy> {
        let offset = self.ip_header()?;
        // SAFETY: A valid skb. The clone is this function's; expanding gives it a head of its own,
        // with room for the header before the IP header, which lies in it.
        unsafe {
            let copy = Copy(NonNull::new(bindings::skb_clone(
                self.as_ptr(),
                bindings::KOPI_CONST_GFP_ATOMIC,
            ))?);
            // It needn't be one.
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

/// A packet of its own, with room for a header.
pub(super) struct Copy(pub(super) NonNull<bindings::sk_buff>);

impl Copy {
    fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    fn of_bytes(header: &[u8], payload: &[u8], is_ipv6: bool) -> Option<Self> {
        let len = u32::try_from(header.len().checked_add(payload.len())?).ok()?;
        let size = u32::try_from(MonHdr::LEN).ok()?.checked_add(len)?;
        // SAFETY: A new skb with room for all of it; what `skb_put` gives has room for what is
        // written there. Pulled again, the monitor's header has room before the data.
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

    fn put_header(&self, header: MonHdr) {
        let bytes = header.to_bytes();
        // SAFETY: The makers of copies left room for it.
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
        // SAFETY: As required of the caller; the skb is this value's. Sockets get clones.
        unsafe {
            bindings::kopi_skb_set_dev(self.as_ptr(), device);
            bindings::kopi_dev_lstats_add(device, (*self.as_ptr()).len);
            bindings::dev_queue_xmit_nit(self.as_ptr(), device);
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // SAFETY: A valid skb, this value's.
        unsafe { bindings::consume_skb(self.as_ptr()) };
    }
}
