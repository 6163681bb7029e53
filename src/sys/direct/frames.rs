// SPDX-License-Identifier: GPL-2.0

//! Frames for drivers, and the pages that they lie in.
//!
//! C header: `include/net/xdp.h`

use crate::sys::{bindings, netdev::Device};
use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use kernel::prelude::*;

/// Frames that are given to a driver at once.
pub(super) const BULK: usize = 16;
/// Bytes of pages for them, at most, as long as there can be two.
pub(super) const BULK_BYTES: usize = 32768;
/// Bytes in front of a frame for what drivers put there, besides `struct xdp_frame`.
pub(super) const HEADROOM: usize = 64;
/// What frames are aligned to.
pub(super) const LINE: usize = 64;

/// Pages for frames.
///
/// # Invariants
///
/// Pages with an address, one reference of which is this one's.
pub(super) struct Pages(NonNull<bindings::page>);

impl Pages {
    pub(super) fn new(bytes: usize) -> Option<Self> {
        // SAFETY: May be called in any context.
        let page = unsafe {
            let order = bindings::kopi_get_order(bytes);
            bindings::kopi_alloc_pages_atomic(order)
        };
        // INVARIANT: Just made.
        NonNull::new(page).map(Self)
    }

    /// Those of a note, which gives its reference away.
    pub(super) fn from_note(page: *mut bindings::page) -> Option<Self> {
        // INVARIANT: As a note's.
        NonNull::new(page).map(Self)
    }

    pub(super) fn start(&self) -> *mut u8 {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_page_address(self.0.as_ptr()) }.cast()
    }

    /// Takes so many references, one for each frame.
    pub(super) fn share(&self, frames: usize) {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_page_ref_add(self.0.as_ptr(), frames as i32) };
    }

    pub(super) fn into_raw(self) -> *mut bindings::page {
        ManuallyDrop::new(self).0.as_ptr()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: The reference is this one's.
        unsafe { bindings::kopi_put_page(self.0.as_ptr()) };
    }
}

/// Frames for a driver.
///
/// # Invariants
///
/// Those from `first` to `len` are whole frames, each with a reference to its pages.
pub(super) struct Frames {
    pub(super) frames: [*mut bindings::xdp_frame; BULK],
    pub(super) first: usize,
    pub(super) len: usize,
}

impl Frames {
    /// Gives them to the driver, which is to send all that it has if these are the last. Gives the number
    /// that it took; the others are freed.
    pub(super) fn give(&mut self, device: &Device, last: bool) -> Result<u32> {
        let flags = if last { bindings::XDP_XMIT_FLUSH } else { 0 };
        // SAFETY: As many frames as is said, which are the driver's from then on, but those behind the
        // number that is returned, or all if that is an error. Softirqs are off.
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
            // SAFETY: In the pages that it has a reference to.
            unsafe { bindings::page_frag_free(frame.cast()) };
        }
    }
}
