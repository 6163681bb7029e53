// SPDX-License-Identifier: GPL-2.0

//! Frames for drivers, and the pages in which they lie.
//!
//! C header: `include/net/xdp.h`

use crate::sys::{bindings, context::SoftirqsOff, netdev::Device};
use core::{
    mem::size_of,
    ptr::{self, NonNull}, //
};
use kernel::prelude::*;

/// Maximum number of frames that are given to a driver at once.
pub(super) const BULK: usize = 16;
/// Maximum size in bytes of one bulk's pages. A bulk exceeds it only if it is a single, longer
/// frame.
pub(super) const BULK_BYTES: usize = 32768;
/// Bytes in front of a frame's data for headers of drivers, in addition to `struct xdp_frame`.
const HEADROOM: usize = 64;
/// Alignment of frames, in bytes: a cache line.
pub(super) const LINE: usize = 64;

/// Bytes from the start of a frame's memory to its Ethernet header.
pub(super) const START: usize = size_of::<bindings::xdp_frame>().next_multiple_of(LINE) + HEADROOM;

/// Bytes of memory for a frame of `len` bytes, whole lines: [`START`], the frame, and an skb's shared
/// information.
pub(super) fn slot_of(len: usize) -> Option<usize> {
    START
        .checked_add(len)?
        .next_multiple_of(LINE)
        .checked_add(bindings::KOPI_CONST_SKB_SHARED_INFO_SIZE as usize)?
        .checked_next_multiple_of(LINE)
}

/// Pages for frames.
///
/// # Invariants
///
/// The pages are mapped in the kernel, and this value owns a reference to them.
#[repr(transparent)]
pub(super) struct FramePages(NonNull<bindings::page>);

impl FramePages {
    /// Pages with room for `bytes`; `None` if memory is short. Any context.
    pub(super) fn new(bytes: usize) -> Option<Self> {
        // SAFETY: The allocation doesn't sleep, so it may be made in any context.
        let page = unsafe {
            let order = bindings::kopi_get_order(bytes);
            bindings::kopi_alloc_pages_nowait(order)
        };
        // INVARIANT: The allocation gave its reference, and no high memory.
        NonNull::new(page).map(Self)
    }

    /// The address of the first byte.
    pub(super) fn start(&self) -> *mut u8 {
        // SAFETY: The reference keeps the pages, which are mapped, by the invariants.
        unsafe { bindings::kopi_page_address(self.0.as_ptr()) }.cast()
    }

    /// Number of bytes.
    pub(super) fn size(&self) -> usize {
        // SAFETY: The reference keeps the pages, which were allocated as one compound page.
        unsafe { bindings::kopi_page_size(self.0.as_ptr()) }
    }

    /// Takes one reference for each frame.
    pub(super) fn share(&self, frames: usize) {
        // SAFETY: This value's reference keeps the pages, so their count isn't 0.
        unsafe { bindings::kopi_page_ref_add(self.0.as_ptr(), frames as i32) };
    }

    /// Whether others have references to them, too.
    pub(super) fn is_shared(&self) -> bool {
        // SAFETY: The reference keeps the pages.
        unsafe { bindings::kopi_page_ref_count(self.0.as_ptr()) != 1 }
    }
}

impl Drop for FramePages {
    fn drop(&mut self) {
        // SAFETY: This value owns the reference, and is not used any more.
        unsafe { bindings::kopi_put_page(self.0.as_ptr()) };
    }
}

/// Frames for a driver.
///
/// # Invariants
///
/// The entries from `first` to `len` are complete frames, each of which owns a reference to its
/// pages.
pub(super) struct Frames {
    frames: [*mut bindings::xdp_frame; BULK],
    first: usize,
    len: usize,
}

impl Frames {
    /// No frames yet.
    pub(super) fn new() -> Self {
        Self {
            frames: [ptr::null_mut(); BULK],
            len: 0,
            first: 0,
        }
    }

    /// Number of frames.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends a frame of `len` bytes, which are behind [`START`] of its memory.
    ///
    /// # Safety
    ///
    /// The memory must have the `slot` bytes of such a frame, in pages of which the frame will own a
    /// reference before this value is dropped, and nothing else may use it.
    pub(super) unsafe fn push(&mut self, memory: *mut u8, len: u32, slot: usize) {
        let Some(place) = self.frames.get_mut(self.len) else {
            return;
        };
        let frame = memory.cast::<bindings::xdp_frame>();
        // SAFETY: The caller passes memory that begins with room for the structure. All zeroes mean
        // memory of type MEM_TYPE_PAGE_SHARED.
        unsafe {
            frame.write(core::mem::zeroed());
            (*frame).data = memory.add(START).cast();
            (*frame).len = len;
            (*frame).headroom = (START - size_of::<bindings::xdp_frame>()) as u32;
            (*frame).frame_sz = slot as u32;
        }
        *place = frame;
        self.len = self.len.wrapping_add(1);
    }

    /// Passes the frames to the driver. If these are the `last`, the driver tells the device to
    /// send. Returns the number of frames that the driver took; the others are freed with this
    /// value.
    pub(super) fn xmit(
        &mut self,
        device: &Device,
        last: bool,
        _softirqs: &SoftirqsOff,
    ) -> Result<u32> {
        let flags = if last { bindings::XDP_XMIT_FLUSH } else { 0 };
        // SAFETY: The array has `len` complete frames, by the invariants. The driver owns as many
        // of them as it returns, and none if it returns an error. Softirqs are off, as the argument
        // proves.
        let sent = unsafe {
            let frames = self.frames.as_mut_ptr();
            bindings::kopi_dev_xdp_xmit(device.as_ptr(), self.len as i32, frames, flags)
        };
        let sent = u32::try_from(sent).map_err(|_| Error::from_errno(sent))?;
        self.first = self.len.min(sent as usize);
        Ok(sent)
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        for frame in self.frames.get(self.first..self.len).unwrap_or(&[]) {
            // SAFETY: The frame lies in pages to which it owns a reference, by the invariants, and
            // the driver didn't take it.
            unsafe { bindings::page_frag_free(frame.cast()) };
        }
    }
}
