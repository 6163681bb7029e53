// SPDX-License-Identifier: GPL-2.0

//! `struct sk_buff`: a received UDP datagram, or a GRO packet.
//!
//! C header: `include/linux/skbuff.h`

use super::bindings;
use super::{
    region::KernelVec,
    sock::Sock, //
};
use crate::pure::{
    abi::{Meta, AF_INET, AF_INET6, META_MARK, META_TIMESTAMP},
    peer::mapped, //
};
use core::{
    mem::ManuallyDrop,
    ptr::{self, NonNull}, //
};
use kernel::{
    error::to_result,
    prelude::*,
    types::Opaque, //
};

const UNSPECIFIED: bindings::skb_drop_reason =
    bindings::skb_drop_reason_SKB_DROP_REASON_NOT_SPECIFIED;

/// A packet that was taken off a UDP sock's queue. Its data begin with the payload.
///
/// # Invariants
///
/// This value owns the skb. Its network and transport headers are in the linear part, in front of
/// the data: UDP has pulled both before it queued the packet.
pub(crate) struct SkBuff(NonNull<bindings::sk_buff>);

// SAFETY: An skb is not bound to a CPU or task, and this value is its only owner.
unsafe impl Send for SkBuff {}

impl SkBuff {
    /// # Safety
    ///
    /// The type's invariants must hold for `skb`.
    pub(super) unsafe fn from_raw(skb: NonNull<bindings::sk_buff>) -> Self {
        // INVARIANT: Required of the caller.
        Self(skb)
    }

    fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    /// The skb, for code that shows it on monitor devices.
    pub(super) fn as_non_null(&self) -> NonNull<bindings::sk_buff> {
        self.0
    }

    /// Whether it came by IPv6 from an IPv4-mapped address.
    pub(crate) fn is_mapped(&self) -> bool {
        // SAFETY: This value owns the skb, whose network header is in the linear part.
        unsafe { bindings::kopi_skb_is_mapped(self.as_ptr()) }
    }

    /// Whether it came to another port or device than the sock has now.
    pub(crate) fn is_of_old_end(&self, sk: &Sock) -> bool {
        // SAFETY: This value owns the skb, whose UDP header is in the linear part. The sock is borrowed.
        unsafe { bindings::kopi_udp_is_of_old_end(sk.as_ptr(), self.as_ptr()) }
    }

    /// The skb's address, by which it differs from all other skbs that exist at the same time.
    pub(crate) fn address(&self) -> usize {
        self.as_ptr() as usize
    }

    /// Bytes of payload of all datagrams together.
    pub(crate) fn payload_len(&self) -> u32 {
        // SAFETY: This value owns the skb, so its fields may be read.
        unsafe { (*self.as_ptr()).len }
    }

    /// Bytes of payload of each datagram of a GRO packet, or 0.
    pub(crate) fn gso_size(&self) -> u32 {
        // SAFETY: This value owns the skb, and with it the shared info that has the size.
        unsafe { bindings::kopi_skb_gso_size(self.as_ptr()) }
    }

    /// Copies payload from the offset `at` on to the pieces of `to`: `EFAULT` if the skb has less.
    pub(crate) fn copy_payload(&self, at: u32, to: &KernelVec<'_>) -> Result {
        if let [piece] = to.pieces() {
            let (at, len) = (at as usize, piece.iov_len);
            // SAFETY: This value owns the skb, so its fields may be read.
            let (data, bytes, paged) = unsafe {
                let skb = &*self.as_ptr();
                (skb.data, skb.len as usize, skb.data_len)
            };
            if paged == 0 && at.saturating_add(len) <= bytes {
                // SAFETY: A linear skb has `len` bytes at its data, and the piece is writable memory
                // of that length, by the invariants of `to`. The two don't overlap: a region's memory
                // is never an skb's linear part.
                unsafe { ptr::copy_nonoverlapping(data.add(at), piece.iov_base.cast(), len) };
                return Ok(());
            }
            // SAFETY: By the invariants of `to`, the piece is writable memory of that length. This
            // value owns the skb, and the call checks the skb's bounds.
            return to_result(unsafe {
                bindings::skb_copy_bits(
                    self.as_ptr(),
                    i32::try_from(at)?,
                    piece.iov_base,
                    i32::try_from(len)?,
                )
            });
        }
        // SAFETY: This value owns the skb, so its fields may be read.
        let is_linear = unsafe { (*self.as_ptr()).data_len } == 0;
        if !is_linear && self.copy_in_turn(at, to) {
            return Ok(());
        }
        let iter = Opaque::<bindings::iov_iter>::uninit();
        let iter = iter.get();
        // SAFETY: By the invariants of `to`, its pieces are writable memory. They outlive the
        // iterator, which the first call initialises. This value owns the skb, and the second call
        // checks the skb's bounds.
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

    /// Copies as [`Self::copy_payload`], without the checks for copies to user memory, which cost
    /// 300 instructions for each datagram of a GRO packet. Returns whether it has copied
    /// everything: it can't if an skb in the list of fragments has a list of its own.
    fn copy_in_turn(&self, at: u32, to: &KernelVec<'_>) -> bool {
        let end = at.saturating_add(u32::try_from(to.bytes()).unwrap_or(u32::MAX));
        let state = Opaque::<bindings::skb_seq_state>::uninit();
        let state = state.get();
        let mut done = 0usize;
        // SAFETY: This value owns the skb, which outlives the state. `state` is memory for a state,
        // which the call initialises.
        unsafe { bindings::skb_prepare_seq_read(self.as_ptr(), at, end, state) };
        let all = to.pieces().iter().all(|piece| {
            let (start, len) = (done as c_int, piece.iov_len as c_int);
            done = done.saturating_add(piece.iov_len);
            // SAFETY: By the invariants of `to`, the piece is writable memory of `len` bytes. The
            // state is initialised, and the call fails if the skb has fewer bytes.
            unsafe { bindings::skb_copy_seq_read(state, start, piece.iov_base, len) == 0 }
        });
        // SAFETY: The state is initialised, and isn't used any more. The call unmaps the page that
        // the state may have mapped.
        unsafe { bindings::skb_abort_seq_read(state) };
        all
    }

    /// Writes the metadata of the packet, for a reader of `sk`, to `meta`, whose bytes are zeroes.
    /// Lengths stay 0.
    ///
    /// It isn't inlined, because the compiler then takes `meta` apart and assembles it again, which
    /// takes twice as long.
    #[inline(never)]
    pub(crate) fn read_meta(&self, sk: &Sock, meta: &mut Meta) {
        meta.local_port = sk.local_port();
        meta.family = if sk.is_ipv6() { AF_INET6 } else { AF_INET };
        // Headers needn't be aligned: not every driver leaves two bytes before the Ethernet header.
        // SAFETY: By the invariants, this value owns the skb, and its headers are in the linear
        // part. A queued UDP packet's control block has the fields that the last calls read.
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
            // The index is that of IP_PKTINFO. Without that option UDP leaves 0 for IPv4, so the
            // skb's field is used, which in a VRF is the index of the VRF.
            meta.ifindex = match device {
                0 => bindings::kopi_skb_iif(self.as_ptr()),
                device => device,
            } as u32;
        }
        if sk.wants_timestamp() {
            // SAFETY: This value owns the skb, whose time stamp the call may convert in place.
            meta.timestamp = unsafe { bindings::kopi_skb_timestamp_ns(self.as_ptr()) };
            meta.flags |= META_TIMESTAMP;
        }
        if sk.wants_mark() {
            // SAFETY: This value owns the skb, so its fields may be read.
            meta.mark = unsafe { bindings::kopi_skb_mark(self.as_ptr()) };
            meta.flags |= META_MARK;
        }
    }

    /// Counts the packet as received in the protocol's counters. Softirqs are off.
    pub(crate) fn count_received(&self, sk: &Sock) {
        // SAFETY: This value owns the skb. The sock is borrowed, and is the UDP sock that received
        // the packet.
        unsafe { bindings::kopi_udp_count_received(sk.as_ptr(), self.as_ptr()) };
    }

    /// Counts the packet as received in the protocol's counters, and frees it. Softirqs are off.
    pub(crate) fn consume(self, sk: &Sock) {
        self.count_received(sk);
        let skb = ManuallyDrop::new(self);
        // SAFETY: The skb was this value's, and isn't used any more. Softirqs are off, as
        // `napi_consume_skb` requires for a budget that isn't 0: it uses a list of this CPU.
        unsafe { bindings::napi_consume_skb(skb.as_ptr(), 1) };
    }

    /// Frees the packet as one that the sock has no room for.
    pub(crate) fn drop_for(self, sk: &Sock) {
        let skb = ManuallyDrop::new(self);
        // SAFETY: The skb was this value's, and isn't used any more. The sock is borrowed.
        unsafe {
            bindings::sk_skb_reason_drop(
                sk.as_ptr(),
                skb.as_ptr(),
                bindings::skb_drop_reason_SKB_DROP_REASON_SOCKET_RCVBUFF,
            );
        }
    }

    /// Counts `datagrams` of the packet as dropped for lack of room, as for a full receive buffer.
    pub(crate) fn count_dropped(&self, sk: &Sock, datagrams: u32) {
        let datagrams = i32::try_from(datagrams).unwrap_or(i32::MAX);
        // SAFETY: This value owns the skb. The sock is borrowed, and is the UDP sock whose queue
        // had the packet.
        unsafe { bindings::kopi_udp_count_dropped(sk.as_ptr(), self.as_ptr(), datagrams) };
    }
}

impl Drop for SkBuff {
    fn drop(&mut self) {
        // SAFETY: This value owns the skb, which isn't used any more.
        unsafe { bindings::sk_skb_reason_drop(ptr::null_mut(), self.as_ptr(), UNSPECIFIED) };
    }
}

/// Writes an IPv4 address in the form that a socket of `family` uses, to bytes that are zeroes.
fn put_ipv4(to: &mut [u8; 16], address: u32, family: u16) {
    let address = address.to_ne_bytes();
    if family == AF_INET6 {
        *to = mapped(address);
    } else if let Some(place) = to.first_chunk_mut() {
        *place = address;
    }
}
