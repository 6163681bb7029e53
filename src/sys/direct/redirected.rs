// SPDX-License-Identifier: GPL-2.0

//! Frames that an XDP program has redirected, and the skbs that the stack gets for them.
//!
//! C headers: `include/net/xdp.h`, `include/linux/skbuff.h`

use crate::pure::gro::{destination_port, make_gro, udp_header, FirstFrame, UdpFrame};
use crate::sys::bindings;
use crate::sys::netdev::Device;
use core::{
    mem::ManuallyDrop,
    ptr::{self, NonNull},
    slice, //
};
use kernel::prelude::*;

/// Datagrams of a GRO packet with more payload than this many bytes are added by reference.
const COPYBREAK: usize = 128;
/// Maximum number of page fragments of an skb.
const FRAGMENTS_MAX: usize = bindings::KOPI_CONST_MAX_SKB_FRAGS as usize;

/// Maximum number of datagrams that one GRO packet can hold, with `payload` bytes each.
pub(crate) fn datagrams_max(payload: usize) -> usize {
    if payload > COPYBREAK {
        FRAGMENTS_MAX
    } else {
        usize::MAX
    }
}

/// The ones' complement sum of the 16-bit words of `bytes`, in memory order, and of `sum`.
fn add(bytes: &[u8], sum: u32) -> u32 {
    // SAFETY: The call reads the `bytes.len()` bytes of the slice, which is borrowed.
    unsafe { bindings::csum_partial(bytes.as_ptr().cast(), bytes.len() as i32, sum) }
}

/// A redirected frame.
///
/// # Invariants
///
/// This value owns the frame, whose data are contiguous.
pub(crate) struct XdpFrame(NonNull<bindings::xdp_frame>);

// SAFETY: A frame's memory lives until the frame is freed, on whichever CPU its owner is.
unsafe impl Send for XdpFrame {}

impl XdpFrame {
    /// # Safety
    ///
    /// The type's invariants must hold for `frame`.
    pub(super) unsafe fn from_raw(frame: NonNull<bindings::xdp_frame>) -> Self {
        // INVARIANT: Required of the caller.
        Self(frame)
    }

    pub(super) fn as_ptr(&self) -> *mut bindings::xdp_frame {
        self.0.as_ptr()
    }

    /// Whether it has so many bytes.
    pub(super) fn has(&self, len: usize) -> bool {
        self.bytes().len() >= len
    }

    /// Where its memory begins, which has the frame itself, room for headers, and the data.
    pub(super) fn memory(&self) -> *const c_void {
        self.as_ptr().cast()
    }

    /// The data of the frame, from the Ethernet header on.
    fn bytes(&self) -> &[u8] {
        // SAFETY: A frame has `len` contiguous bytes at `data`, by the invariants. The owner of the
        // frame is the only one to access them, and doesn't write.
        unsafe {
            let frame = self.0.as_ref();
            slice::from_raw_parts(frame.data.cast(), frame.len as usize)
        }
    }

    /// The frame's datagram, if it can be part of a GRO packet.
    #[inline]
    pub(crate) fn datagram(&self) -> Option<UdpFrame<'_>> {
        UdpFrame::parse(self.bytes(), add)
    }

    /// UDP's destination port of what an XDP program redirects: IPv4 packets without options, or
    /// IPv6 without extension headers.
    #[inline]
    pub(crate) fn destination_port(&self) -> u16 {
        destination_port(self.bytes())
    }

    /// Whether it is the next datagram, of the same length, of a GRO packet with this first
    /// datagram and `count` datagrams so far.
    #[inline]
    pub(crate) fn follows(&self, first: &FirstFrame, count: usize) -> bool {
        first.is_followed_by(self.bytes(), count, add)
    }

    /// Makes it the second datagram of a GRO packet with this first datagram: the two decide how IP
    /// IDs go on.
    pub(crate) fn begin_ids(&self, first: &mut FirstFrame) {
        first.begin_ids(self.bytes());
    }

    /// The id of the NAPI that received it, which SO_BUSY_POLL polls; 0 if the driver doesn't say. Softirqs are off.
    pub(crate) fn napi_id(&self) -> u32 {
        // SAFETY: The frame is owned, so its memory is its page pool's. A NAPI that the pool names is freed after an
        // RCU grace period, and softirqs are off.
        unsafe { bindings::kopi_xdp_frame_napi_id(self.as_ptr()) }
    }

    /// Gives it to the stack as received by the device: `ENOMEM`. `verified` means that its
    /// checksum was verified. Softirqs are off.
    pub(crate) fn deliver(self, device: &Device, verified: bool) -> Result {
        let napi_id = self.napi_id();
        // SAFETY: The frame is owned. If the call gives an skb, that owns the frame's memory, and
        // `self` is forgotten below; otherwise `self` keeps it. The device is referenced.
        let skb = unsafe { bindings::xdp_build_skb_from_frame(self.as_ptr(), device.as_ptr()) };
        let skb = NonNull::new(skb).ok_or(ENOMEM)?;
        let _gone = ManuallyDrop::new(self);
        // SAFETY: The skb was just made, and is owned here until the stack gets it.
        unsafe {
            if verified {
                bindings::kopi_skb_set_verified(skb.as_ptr());
            }
            bindings::kopi_skb_set_napi_id(skb.as_ptr(), napi_id);
            bindings::netif_receive_skb(skb.as_ptr());
        }
        Ok(())
    }

    /// Gives `len` bytes of its data, behind the first `skip` bytes, to an skb as a page fragment.
    /// Returns whether it has; a frame that is too short is freed instead.
    ///
    /// # Safety
    ///
    /// The skb must be valid, and have `index` fragments so far.
    unsafe fn add_to(
        self,
        skb: *mut bindings::sk_buff,
        index: usize,
        skip: usize,
        len: usize,
    ) -> bool {
        if index >= FRAGMENTS_MAX || self.bytes().len() < skip.saturating_add(len) {
            return false;
        }
        let frame = ManuallyDrop::new(self);
        let (index, skip, len) = (index as i32, skip as u32, len as u32);
        // SAFETY: The caller passes a valid skb with `index` fragments, below the maximum, as
        // checked. The frame has the bytes, as checked, and the skb owns its memory from here.
        unsafe { bindings::kopi_skb_add_xdp_frame(skb, index, frame.as_ptr(), skip, len) };
        true
    }
}

impl Drop for XdpFrame {
    fn drop(&mut self) {
        // The NAPI poll that received it may be over: a program of the devmap's entry can drop the bulk that would end
        // a poll (bq_xmit_all()). A page pool finds out by itself whether its cache may have the page.
        // SAFETY: This value owns the frame.
        unsafe { bindings::xdp_return_frame(self.as_ptr()) };
    }
}

/// Gives datagrams of one flow to the stack as a GRO packet, as generic receive offload does, with
/// the headers of the first one: `ENOMEM`. Each has `segment` bytes of payload; only the last can
/// have less. All together have `payload` bytes. Softirqs are off.
pub(crate) fn deliver_gro(
    device: &Device,
    headers: &mut [u8],
    segment: usize,
    payload: usize,
    frames: &mut KVec<XdpFrame>,
) -> Result {
    let (count, start) = (frames.len(), headers.len());
    let by_reference = segment > COPYBREAK;
    let copied = if by_reference { 0 } else { payload };
    let linear = start.checked_add(copied).ok_or(EINVAL)?;
    let napi_id = frames.first().map_or(0, XdpFrame::napi_id);
    make_gro(headers, payload as u16);
    // SAFETY: The skb is new, and has room for `linear` bytes, which include the `start` bytes of
    // the headers that are put and written.
    let (skb, data) = unsafe {
        let gfp = bindings::KOPI_CONST_GFP_ATOMIC;
        let skb = bindings::__netdev_alloc_skb(device.as_ptr(), u32::try_from(linear)?, gfp);
        let skb = NonNull::new(skb).ok_or(ENOMEM)?.as_ptr();
        let data = bindings::skb_put(skb, start as u32).cast::<u8>();
        ptr::copy_nonoverlapping(headers.as_ptr(), data, start);
        (skb, data)
    };
    if by_reference {
        // SAFETY: The skb is new, and without fragments.
        unsafe { add_payload(skb, frames, start, (segment, payload)) };
    } else {
        // SAFETY: The skb has room for `payload` bytes behind the headers. What was written is put.
        unsafe {
            let written = copy_payload(data.add(start), frames, start, (segment, payload));
            bindings::skb_put(skb, written as u32);
        }
    }
    // SAFETY: The skb is valid and owned here until the stack gets it. It begins with the headers, of which `udp` is
    // an offset.
    unsafe {
        let udp = udp_header(headers) as u32;
        bindings::kopi_skb_set_udp_gro(skb, udp, segment as u16, count as u16);
        bindings::kopi_skb_set_received(skb, device.as_ptr());
        bindings::kopi_skb_set_napi_id(skb, napi_id);
        bindings::netif_receive_skb(skb);
    }
    Ok(())
}

/// Gives the payload of frames, each behind `start` bytes of headers, to an skb as page fragments: of each `segment`
/// bytes, of all together `payload`.
///
/// # Safety
///
/// The skb must be valid, and have no fragments.
unsafe fn add_payload(
    skb: *mut bindings::sk_buff,
    frames: &mut KVec<XdpFrame>,
    start: usize,
    (segment, payload): (usize, usize),
) {
    let (mut left, mut references) = (payload, 0);
    for frame in frames.drain_all() {
        let len = segment.min(left);
        left = left.saturating_sub(len);
        // SAFETY: The skb is valid, and `references` counts the fragments that were added to it.
        let added = unsafe { frame.add_to(skb, references, start, len) };
        references = references.wrapping_add(usize::from(added));
    }
}

/// Copies the payload of frames, as [`add_payload`] has it. Returns the bytes that were written, one frame's behind
/// the other's.
///
/// # Safety
///
/// `to` must have room for `payload` bytes.
unsafe fn copy_payload(
    to: *mut u8,
    frames: &mut KVec<XdpFrame>,
    start: usize,
    (segment, payload): (usize, usize),
) -> usize {
    let (mut left, mut written) = (payload, 0usize);
    for frame in frames.drain_all() {
        let len = segment.min(left);
        left = left.saturating_sub(len);
        let from = frame.bytes().get(start..).unwrap_or(&[]);
        let len = len.min(from.len());
        // SAFETY: The sum of all `len` is at most `payload`, as `left` ensures, so this is within the room that the
        // caller has promised.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.add(written), len) };
        written = written.wrapping_add(len);
    }
    written
}
