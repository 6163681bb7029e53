// SPDX-License-Identifier: GPL-2.0

//! Packets at the egress hook of a device.
//!
//! C header: `include/linux/skbuff.h`

use crate::pure::gso::{is_udp, Headers, HEADERS_MAX, PROTOCOL_BYTES};
use crate::sys::{
    bindings,
    family::{self, Protocol},
    netdev::Device,
    sock::Sock, //
};
use core::{marker::PhantomData, ptr::NonNull};
use kernel::error::to_result;

use super::taken::{SkbCb, TakenSkb};

/// A packet at the egress hook, which begins with the Ethernet header.
///
/// # Invariants
///
/// The skb is valid for `'a`. During `'a`, softirqs are off, and an RCU read-side section lasts.
pub(crate) struct EgressSkb<'a> {
    skb: NonNull<bindings::sk_buff>,
    _call: PhantomData<&'a ()>,
}

impl<'a> EgressSkb<'a> {
    /// # Safety
    ///
    /// The type's invariants must hold for `skb`.
    pub(in crate::sys) unsafe fn from_raw(skb: NonNull<bindings::sk_buff>) -> Self {
        // INVARIANT: Required of the caller.
        Self {
            skb,
            _call: PhantomData,
        }
    }

    fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.skb.as_ptr()
    }

    /// The flow that sent it, if it belongs to one that is still open, and is no stream.
    pub(crate) fn flow<T: Protocol>(&self) -> Option<(&'a Sock, &'a T)> {
        // SAFETY: An outgoing skb holds its sock by its charge to the send buffer. RCU keeps the
        // flow for `'a`, by the invariants.
        let found = unsafe { family::flow_of(bindings::kopi_skb_sk(self.as_ptr())) };
        found.filter(|(sk, _)| !sk.is_stream())
    }

    /// Whether it is a GSO UDP packet.
    pub(crate) fn is_gso(&self) -> bool {
        // SAFETY: The skb is valid, by the invariants, and the call only reads it.
        unsafe { bindings::kopi_skb_is_udp_gso(self.as_ptr()) }
    }

    /// Whether it is a datagram or a GSO packet that needs nothing from a driver but segmentation
    /// and checksums.
    pub(crate) fn is_plain(&self) -> bool {
        // SAFETY: The skb is valid and begins with the Ethernet header, by the type's invariants.
        !self.has_extras() && unsafe { headers(self.as_ptr()) }.is_some()
    }

    /// Whether it needs more from a driver, according to the skb's fields.
    pub(crate) fn has_extras(&self) -> bool {
        // SAFETY: The skb is valid, by the invariants, and the call only reads it.
        !unsafe { bindings::kopi_skb_is_plain(self.as_ptr()) }
    }

    /// Whether it is UDP, after hooks may have transformed it.
    pub(crate) fn is_udp(&self) -> bool {
        let mut bytes = [0; PROTOCOL_BYTES];
        // SAFETY: The skb is valid, by the invariants. `bytes` has room for `PROTOCOL_BYTES`, and
        // `skb_copy_bits` fails if the skb has fewer.
        let copied = unsafe {
            let (start, len) = (bytes.as_mut_ptr().cast(), PROTOCOL_BYTES as i32);
            bindings::skb_copy_bits(self.as_ptr(), 0, start, len)
        };
        copied == 0 && is_udp(&bytes)
    }

    /// Counts it at the qdisc of a transmit queue, as the stack counts a packet that bypasses the
    /// qdisc. `queue` must be below [`Device::queues`].
    pub(crate) fn count(&self, device: &Device, queue: u32) {
        // SAFETY: The skb is valid, and RCU, which is held by the invariants, keeps the qdisc.
        // The caller passes the index of a queue that the device has.
        unsafe { bindings::kopi_qdisc_bstats_update(device.as_ptr(), queue, self.as_ptr()) };
    }

    /// Bytes that the sock is charged for it.
    pub(crate) fn charge(&self) -> u32 {
        // SAFETY: The skb is valid, by the invariants.
        unsafe { bindings::kopi_skb_truesize(self.as_ptr()) }
    }

    /// Takes it from the stack: a device's driver is to send it.
    pub(crate) fn take_for_driver(self) -> TakenSkb {
        self.take(false)
    }

    /// Takes it from the stack, to which it goes back behind others.
    pub(crate) fn take_for_stack(self) -> TakenSkb {
        self.take(true)
    }

    fn take(self, to_stack: bool) -> TakenSkb {
        // SAFETY: The skb is valid, and the hook owns it from here, as its verdict says. At the
        // egress hook the control block has no user: a qdisc uses it later.
        unsafe {
            bindings::kopi_skb_dst_force(self.as_ptr());
            if to_stack {
                // It comes through dev_queue_xmit() again, which has made this stamp.
                bindings::kopi_skb_forget_sched_stamp(self.as_ptr());
            }
            let datagrams = bindings::kopi_skb_gso_segs(self.as_ptr()).max(1);
            let cb = SkbCb::of_packet(datagrams, to_stack);
            TakenSkb::new(self.skb, cb)
        }
    }
}

/// The headers of a packet; `None` if it is no plain datagram.
///
/// # Safety
///
/// The skb must be valid, and begin with the Ethernet header.
pub(super) unsafe fn headers(skb: *mut bindings::sk_buff) -> Option<Headers> {
    let mut bytes = [0; HEADERS_MAX];
    // SAFETY: The caller passes a valid skb. `len` is at most the size of `bytes`.
    unsafe {
        let len = HEADERS_MAX.min((*skb).len as usize);
        let start = bytes.as_mut_ptr().cast();
        to_result(bindings::skb_copy_bits(skb, 0, start, len as i32)).ok()?;
        Headers::parse(bytes.get(..len)?, !bindings::kopi_skb_is_partial(skb))
    }
}
