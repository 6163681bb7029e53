// SPDX-License-Identifier: GPL-2.0

//! Frames that an XDP program has redirected, and the packets that the stack gets of them.
//!
//! C headers: `include/net/xdp.h`, `include/linux/skbuff.h`

use super::netdev::Device;
use crate::bindings;
use crate::pure::merge::{make_train, udp_header, Datagram};
use core::{
    mem::ManuallyDrop,
    ptr::NonNull,
    slice, //
};
use kernel::prelude::*;

/// Longer payloads of a train's datagrams go by reference, in bytes.
const COPYBREAK: usize = 128;

/// How many datagrams of a train one packet can hold, with so many bytes of payload each.
pub(crate) fn fit(payload: usize) -> usize {
    if payload > COPYBREAK {
        bindings::KOPI_CONST_MAX_SKB_FRAGS as usize
    } else {
        usize::MAX
    }
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

    /// The datagram in it that could be part of a train, if it is one.
    #[inline]
    pub(crate) fn datagram(&self) -> Option<Datagram<'_>> {
        Datagram::parse(self.bytes(), |bytes, sum| {
            // SAFETY: Reads so many bytes.
            unsafe { bindings::csum_partial(bytes.as_ptr().cast(), bytes.len() as i32, sum) }
        })
    }

    /// Gives it to the stack, as if the device had received it; `verified` says that its checksum is
    /// right. `ENOMEM`. Softirqs are off.
    pub(crate) fn deliver(self, device: &Device, verified: bool) -> Result {
        // SAFETY: A frame, which is the skb's if there is one; the device lives.
        let skb = unsafe { bindings::xdp_build_skb_from_frame(self.as_ptr(), device.as_ptr()) };
        let skb = NonNull::new(skb).ok_or(ENOMEM)?;
        let _gone = ManuallyDrop::new(self);
        // SAFETY: A valid skb, which the stack takes.
        unsafe {
            if verified {
                bindings::kopi_skb_set_verified(skb.as_ptr());
            }
            bindings::netif_receive_skb(skb.as_ptr());
        }
        Ok(())
    }

    /// Leaves its memory to an skb, as number `index` of what that refers to, but the first `skip`
    /// bytes.
    ///
    /// # Safety
    ///
    /// A valid skb, with room for one more; the frame has `len` bytes behind those.
    unsafe fn add_to(self, skb: *mut bindings::sk_buff, index: usize, skip: usize, len: usize) {
        let frame = ManuallyDrop::new(self);
        let (index, skip, len) = (index as i32, skip as u32, len as u32);
        // SAFETY: As required of the caller.
        unsafe { bindings::kopi_skb_add_xdp_frame(skb, index, frame.as_ptr(), skip, len) };
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: By the invariants, and as `from_raw` requires.
        unsafe { bindings::xdp_return_frame_rx_napi(self.as_ptr()) };
    }
}

/// Gives datagrams of one flow to the stack as a train, as generic receive offload does, with the headers of
/// the first one: `ENOMEM`. All have `segment` bytes of payload but the last, which can have less; in all
/// that is `payload` bytes. Softirqs are off.
pub(crate) fn deliver_train(
    device: &Device,
    headers: &mut [u8],
    segment: usize,
    payload: usize,
    frames: &mut KVec<Frame>,
) -> Result {
    let (count, start) = (frames.len(), headers.len());
    let copied = if segment > COPYBREAK { 0 } else { payload };
    let linear = start.checked_add(copied).ok_or(EINVAL)?;
    make_train(headers, payload as u16);
    // SAFETY: A new skb with as much room as is put; what lies there is written, or referred to, below.
    let (skb, data) = unsafe {
        let gfp = bindings::KOPI_CONST_GFP_ATOMIC;
        let skb = bindings::__netdev_alloc_skb(device.as_ptr(), u32::try_from(linear)?, gfp);
        let skb = NonNull::new(skb).ok_or(ENOMEM)?.as_ptr();
        (skb, bindings::skb_put(skb, linear as u32).cast::<u8>())
    };
    // SAFETY: So many bytes were put.
    let data = unsafe { slice::from_raw_parts_mut(data, linear) };
    let (to, mut rest) = data.split_at_mut(start);
    to.copy_from_slice(headers);
    let mut left = payload;
    for (index, frame) in frames.drain_all().enumerate() {
        let len = segment.min(left);
        left = left.saturating_sub(len);
        if copied == 0 {
            // SAFETY: There are no more than fit, of as many bytes.
            unsafe { frame.add_to(skb, index, start, len) };
        } else if let Some((to, after)) = core::mem::take(&mut rest).split_at_mut_checked(len) {
            if let Some(from) = frame
                .bytes()
                .get(start..)
                .and_then(|bytes| bytes.get(..len))
            {
                to.copy_from_slice(from);
            }
            rest = after;
        }
    }
    // SAFETY: A valid skb, which the stack takes; it begins with the headers.
    unsafe {
        let udp = udp_header(headers) as u32;
        bindings::kopi_skb_set_udp_train(skb, udp, segment as u16, count as u16);
        bindings::kopi_skb_set_received(skb, device.as_ptr());
        bindings::netif_receive_skb(skb);
    }
    Ok(())
}
