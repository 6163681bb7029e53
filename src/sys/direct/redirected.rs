// SPDX-License-Identifier: GPL-2.0

//! Frames that an XDP program has redirected, and the packets that the stack gets of them.
//!
//! C headers: `include/net/xdp.h`, `include/linux/skbuff.h`

use crate::pure::gro::{make_gro, udp_header, Datagram, First};
use crate::sys::bindings;
use crate::sys::netdev::Device;
use core::{
    mem::ManuallyDrop,
    ptr::{self, NonNull},
    slice, //
};
use kernel::prelude::*;

/// Longer payloads of a GRO packet's datagrams go by reference, in bytes.
const COPYBREAK: usize = 128;
/// Pieces of pages that an skb can refer to.
const REFERENCES_MAX: usize = bindings::KOPI_CONST_MAX_SKB_FRAGS as usize;

/// How many datagrams of a GRO packet one packet can hold, with so many bytes of payload each.
pub(crate) fn fit(payload: usize) -> usize {
    if payload > COPYBREAK {
        REFERENCES_MAX
    } else {
        usize::MAX
    }
}

/// The sum of the 16-bit words of bytes, as they lie in memory, and of another one.
fn add(bytes: &[u8], sum: u32) -> u32 {
    // SAFETY: Reads so many bytes.
    unsafe { bindings::csum_partial(bytes.as_ptr().cast(), bytes.len() as i32, sum) }
}

/// A frame.
///
/// # Invariants
///
/// Owned, and in one piece.
pub(crate) struct Frame(NonNull<bindings::xdp_frame>);

// SAFETY: What a frame is of lives until it is freed.
unsafe impl Send for Frame {}

impl Frame {
    /// # Safety
    ///
    /// As the type's invariants say. It must be dropped within the call of NAPI that received it.
    pub(super) unsafe fn from_raw(frame: NonNull<bindings::xdp_frame>) -> Self {
        // INVARIANT: As the caller sees to.
        Self(frame)
    }

    fn as_ptr(&self) -> *mut bindings::xdp_frame {
        self.0.as_ptr()
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: By the invariants; nobody writes to it.
        unsafe {
            let frame = self.0.as_ref();
            slice::from_raw_parts(frame.data.cast(), frame.len as usize)
        }
    }

    /// The datagram in it that could be part of a GRO packet, if it is one.
    #[inline]
    pub(crate) fn datagram(&self) -> Option<Datagram<'_>> {
        Datagram::parse(self.bytes(), add)
    }

    /// Whether it is the next datagram of a GRO packet, which begins so, and as long.
    #[inline]
    pub(crate) fn follows(&self, first: &First, count: usize) -> bool {
        first.is_followed_by(self.bytes(), count, add)
    }

    /// Makes it the second datagram of a GRO packet that begins so.
    pub(crate) fn begin_numbers(&self, first: &mut First) {
        first.begin_numbers(self.bytes());
    }

    /// The number of the NAPI that received it, 0 if the driver doesn't say: SO_BUSY_POLL polls that.
    fn napi_id(&self) -> u32 {
        // SAFETY: A frame, within the call of that NAPI.
        unsafe { bindings::kopi_xdp_frame_napi_id(self.as_ptr()) }
    }

    /// Gives it to the stack, as if the device had received it; `verified` says that its checksum is
    /// right. `ENOMEM`. Softirqs are off.
    pub(crate) fn deliver(self, device: &Device, verified: bool) -> Result {
        let napi_id = self.napi_id();
        // SAFETY: A frame, which is the skb's if there is one; the device lives.
        let skb = unsafe { bindings::xdp_build_skb_from_frame(self.as_ptr(), device.as_ptr()) };
        let skb = NonNull::new(skb).ok_or(ENOMEM)?;
        let _gone = ManuallyDrop::new(self);
        // SAFETY: A valid skb, which the stack takes.
        unsafe {
            if verified {
                bindings::kopi_skb_set_verified(skb.as_ptr());
            }
            bindings::kopi_skb_set_napi_id(skb.as_ptr(), napi_id);
            bindings::netif_receive_skb(skb.as_ptr());
        }
        Ok(())
    }

    /// Leaves its memory to an skb, but the first `skip` bytes, if there are `len` behind those; says
    /// whether it has.
    ///
    /// # Safety
    ///
    /// A valid skb, which refers to `index` others.
    unsafe fn add_to(
        self,
        skb: *mut bindings::sk_buff,
        index: usize,
        skip: usize,
        len: usize,
    ) -> bool {
        if index >= REFERENCES_MAX || self.bytes().len() < skip.saturating_add(len) {
            return false;
        }
        let frame = ManuallyDrop::new(self);
        let (index, skip, len) = (index as i32, skip as u32, len as u32);
        // SAFETY: As required of the caller, and checked.
        unsafe { bindings::kopi_skb_add_xdp_frame(skb, index, frame.as_ptr(), skip, len) };
        true
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: By the invariants, and as `from_raw` requires.
        unsafe { bindings::xdp_return_frame_rx_napi(self.as_ptr()) };
    }
}

/// Gives datagrams of one flow to the stack as a GRO packet, as generic receive offload does, with the headers of
/// the first one: `ENOMEM`. All have `segment` bytes of payload but the last, which can have less; in all
/// that is `payload` bytes. Softirqs are off.
pub(crate) fn deliver_gro(
    device: &Device,
    headers: &mut [u8],
    segment: usize,
    payload: usize,
    frames: &mut KVec<Frame>,
) -> Result {
    let (count, start) = (frames.len(), headers.len());
    let by_reference = segment > COPYBREAK;
    let copied = if by_reference { 0 } else { payload };
    let linear = start.checked_add(copied).ok_or(EINVAL)?;
    let napi_id = frames.first().map_or(0, Frame::napi_id);
    make_gro(headers, payload as u16);
    // SAFETY: A new skb, with room for as many bytes as are written.
    let (skb, data) = unsafe {
        let gfp = bindings::KOPI_CONST_GFP_ATOMIC;
        let skb = bindings::__netdev_alloc_skb(device.as_ptr(), u32::try_from(linear)?, gfp);
        let skb = NonNull::new(skb).ok_or(ENOMEM)?.as_ptr();
        let data = bindings::skb_put(skb, start as u32).cast::<u8>();
        ptr::copy_nonoverlapping(headers.as_ptr(), data, start);
        (skb, data)
    };
    let mut left = payload;
    let (mut end, mut references) = (start, 0);
    for frame in frames.drain_all() {
        let len = segment.min(left);
        left = left.saturating_sub(len);
        if by_reference {
            // SAFETY: A valid skb, which refers to so many.
            let added = unsafe { frame.add_to(skb, references, start, len) };
            references = references.wrapping_add(usize::from(added));
            continue;
        }
        let from = frame.bytes().get(start..).unwrap_or(&[]);
        let len = len.min(from.len());
        // SAFETY: There is room for `payload` bytes behind the headers, and no more than so many are copied.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), data.add(end), len) };
        end = end.wrapping_add(len);
    }
    // SAFETY: A valid skb, which the stack takes; what is put was written, and begins with the headers.
    unsafe {
        if !by_reference {
            bindings::skb_put(skb, end.wrapping_sub(start) as u32);
        }
        let udp = udp_header(headers) as u32;
        bindings::kopi_skb_set_udp_gro(skb, udp, segment as u16, count as u16);
        bindings::kopi_skb_set_received(skb, device.as_ptr());
        bindings::kopi_skb_set_napi_id(skb, napi_id);
        bindings::netif_receive_skb(skb);
    }
    Ok(())
}
