// SPDX-License-Identifier: GPL-2.0

//! `struct sk_buff`: a received UDP packet, or a GRO packet of them.
//!
//! C header: `include/linux/skbuff.h`

use super::bindings;
use super::{
    region::KernelVec,
    sock::Sock, //
};
use crate::pure::{
    abi::{Meta, AF_INET, AF_INET6, META_MARK, META_TIMESTAMP},
    rule::mapped, //
};
use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    prelude::*,
    types::Opaque, //
};

/// A packet that a UDP sock had queued, whose data is its payload.
///
/// # Invariants
///
/// Owned, taken by the sock's `read_skb`; its network and transport headers are linear, and UDP
/// has pulled both before it queued the packet.
pub(crate) struct SkBuff(NonNull<bindings::sk_buff>);

// SAFETY: An skb is not bound to a CPU or task.
unsafe impl Send for SkBuff {}

impl SkBuff {
    /// # Safety
    ///
    /// `skb` must be as the type's invariants say.
    pub(super) unsafe fn from_raw(skb: NonNull<bindings::sk_buff>) -> Self {
        // INVARIANT: As the caller sees to.
        Self(skb)
    }

    fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    /// For monitors.
    pub(super) fn as_non_null(&self) -> NonNull<bindings::sk_buff> {
        self.0
    }

    /// What tells it from others while it lives.
    pub(crate) fn address(&self) -> usize {
        self.as_ptr() as usize
    }

    /// Bytes of payload, of all datagrams.
    pub(crate) fn payload_len(&self) -> u32 {
        // SAFETY: A valid skb.
        unsafe { (*self.as_ptr()).len }
    }

    /// Bytes of payload of each datagram of a GRO packet, or 0.
    pub(crate) fn gso_size(&self) -> u32 {
        // SAFETY: A valid skb.
        unsafe { bindings::kopi_skb_gso_size(self.as_ptr()) }
    }

    /// Copies payload from `at` on into the memory that `to` names.
    pub(crate) fn copy_payload(&self, at: u32, to: &KernelVec<'_>) -> Result {
        if let [piece] = to.pieces() {
            // SAFETY: `to` names writable memory by its invariants; the call checks the skb's bounds.
            return to_result(unsafe {
                bindings::skb_copy_bits(
                    self.as_ptr(),
                    i32::try_from(at)?,
                    piece.iov_base,
                    i32::try_from(piece.iov_len)?,
                )
            });
        }
        // SAFETY: A valid skb.
        let is_linear = unsafe { (*self.as_ptr()).data_len } == 0;
        if !is_linear && self.copy_in_turn(at, to) {
            return Ok(());
        }
        let iter = Opaque::<bindings::iov_iter>::uninit();
        let iter = iter.get();
        // SAFETY: `to` names writable memory by its invariants and outlives the iterator, which is
        // initialised by the first call; the second checks the skb's bounds.
        to_result(unsafe {
            bindings::iov_iter_kvec(
                iter,
                bindings::KOPI_CONST_ITER_DEST,
                to.pieces().as_ptr(),
                to.pieces().len(),
                to.bytes(),
            );
            bindings::skb_copy_datagram_iter(
                self.as_ptr(),
                i32::try_from(at)?,
                iter,
                i32::try_from(to.bytes())?,
            )
        })
    }

    /// As above, without the checks that copying to programs has for each piece of an skb: 300 instructions for
    /// each datagram of a GRO packet. Says whether all was copied, which it isn't where lists of skbs lie in lists.
    fn copy_in_turn(&self, at: u32, to: &KernelVec<'_>) -> bool {
        let end = at.saturating_add(u32::try_from(to.bytes()).unwrap_or(u32::MAX));
        let state = Opaque::<bindings::skb_seq_state>::uninit();
        let state = state.get();
        let mut done = 0usize;
        // SAFETY: A valid skb, and room for the state, which the first call initialises.
        unsafe { bindings::skb_prepare_seq_read(self.as_ptr(), at, end, state) };
        let all = to.pieces().iter().all(|piece| {
            let (start, len) = (done as c_int, piece.iov_len as c_int);
            done = done.saturating_add(piece.iov_len);
            // SAFETY: `to` names writable memory by its invariants; the call reads no more than the skb has.
            unsafe { bindings::skb_copy_seq_read(state, start, piece.iov_base, len) == 0 }
        });
        // SAFETY: Prepared above, and not read from any more.
        unsafe { bindings::skb_abort_seq_read(state) };
        all
    }

    /// Writes down what its headers say, for a reader of `sk`, where there is nothing yet; lengths are left 0.
    ///
    /// Not inlined: in parts, and put together again, it takes twice as long.
    #[inline(never)]
    pub(crate) fn read_meta(&self, sk: &Sock, meta: &mut Meta) {
        meta.local_port = sk.local_port();
        meta.family = if sk.is_ipv6() { AF_INET6 } else { AF_INET };
        // Headers needn't be aligned: not every driver leaves two bytes before the Ethernet header.
        // SAFETY: A valid skb whose headers are linear, by the invariants.
        unsafe {
            let udp = bindings::kopi_udp_hdr(self.as_ptr()).read_unaligned();
            meta.peer_port = udp.source;
            let device;
            if bindings::kopi_skb_is_ipv4(self.as_ptr()) {
                let ip = bindings::kopi_ip_hdr(self.as_ptr()).read_unaligned();
                let addrs = ip.__bindgen_anon_1.addrs;
                put_ipv4(&mut meta.peer, addrs.saddr, meta.family);
                put_ipv4(&mut meta.local, addrs.daddr, meta.family);
                meta.tos = ip.tos;
                meta.ttl = ip.ttl;
                device = bindings::kopi_pktinfo_cb_ifindex(self.as_ptr());
            } else {
                let header = bindings::kopi_ipv6_hdr(self.as_ptr());
                let ip = header.read_unaligned();
                let addrs = ip.__bindgen_anon_1.addrs;
                meta.peer = addrs.saddr.in6_u.u6_addr8;
                meta.local = addrs.daddr.in6_u.u6_addr8;
                meta.tos = bindings::kopi_ipv6_get_dsfield(header);
                meta.ttl = ip.hop_limit;
                device = bindings::kopi_ip6cb_iif(self.as_ptr());
            }
            // As in IP_PKTINFO. Without that option UDP leaves 0 for IPv4; but in a VRF the skb's
            // own is that of the VRF.
            meta.ifindex = match device {
                0 => bindings::kopi_skb_iif(self.as_ptr()),
                device => device,
            } as u32;
        }
        if sk.wants_timestamp() {
            // SAFETY: A valid skb.
            meta.timestamp = unsafe { bindings::kopi_skb_timestamp_ns(self.as_ptr()) };
            meta.flags |= META_TIMESTAMP;
        }
        if sk.wants_mark() {
            // SAFETY: A valid skb.
            meta.mark = unsafe { bindings::kopi_skb_mark(self.as_ptr()) };
            meta.flags |= META_MARK;
        }
    }

    /// Frees it as delivered, which the protocol's counters show. Softirqs are off.
    pub(crate) fn consume(self, sk: &Sock) {
        let skb = ManuallyDrop::new(self);
        // SAFETY: A valid skb, owned, and not used any more. With softirqs off this CPU's list of skbs for NAPI is
        // this call's.
        unsafe {
            bindings::kopi_udp_count_received(sk.as_ptr(), skb.as_ptr());
            bindings::napi_consume_skb(skb.as_ptr(), 1);
        }
    }

    /// Counts `datagrams` of it as dropped for lack of room, as by a full receive buffer.
    pub(crate) fn count_dropped(&self, sk: &Sock, datagrams: u32) {
        let datagrams = i32::try_from(datagrams).unwrap_or(i32::MAX);
        // SAFETY: A valid skb and a valid UDP sock.
        unsafe { bindings::kopi_udp_count_dropped(sk.as_ptr(), self.as_ptr(), datagrams) };
    }
}

impl Drop for SkBuff {
    fn drop(&mut self) {
        // SAFETY: A valid skb, owned, and not used any more.
        unsafe {
            bindings::sk_skb_reason_drop(
                (*self.as_ptr()).sk,
                self.as_ptr(),
                bindings::skb_drop_reason_SKB_DROP_REASON_SOCKET_RCVBUFF,
            );
        }
    }
}

/// Writes an IPv4 address as a socket of `family` sees it, where there is nothing yet.
fn put_ipv4(to: &mut [u8; 16], address: u32, family: u16) {
    let address = address.to_ne_bytes();
    if family == AF_INET6 {
        *to = mapped(address);
    } else if let Some(place) = to.first_chunk_mut() {
        *place = address;
    }
}
