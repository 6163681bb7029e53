// SPDX-License-Identifier: GPL-2.0

//! Memory that an XDP program has as a map: what it redirects to KOPI, as `struct kopi_port_map` of
//! `uapi/kopi.h` says.
//!
//! C headers: `include/linux/mm.h`

use crate::pure::abi;
use crate::sys::bindings;
use core::{
    mem::{offset_of, size_of},
    ptr,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed}, //
};
use kernel::prelude::*;

const PAGE: usize = bindings::KOPI_CONST_PAGE_SIZE as usize;
const PAGES: usize = size_of::<abi::PortMap>().div_ceil(PAGE);

/// The memory.
///
/// # Invariants
///
/// The pages are pinned by this value, and lie in memory that the kernel has addresses for.
pub(crate) struct PortMap {
    pages: [*mut bindings::page; PAGES],
}

// SAFETY: Pages are not bound to a task.
unsafe impl Send for PortMap {}
// SAFETY: They are written to by atomic operations only.
unsafe impl Sync for PortMap {}

impl PortMap {
    /// That at an address of the current process: `EINVAL` if no page begins there, `EFAULT` if the
    /// process can't write there, `ENOMEM`. Process context.
    pub(crate) fn pin(address: u64) -> Result<Self> {
        let address = usize::try_from(address)?;
        if address % PAGE != 0 {
            return Err(EINVAL);
        }
        let mut pages = [ptr::null_mut(); PAGES];
        let flags = bindings::KOPI_CONST_FOLL_WRITE | bindings::KOPI_CONST_FOLL_LONGTERM;
        // SAFETY: Room for so many pages.
        let pinned = unsafe {
            bindings::pin_user_pages_fast(address, PAGES as i32, flags, pages.as_mut_ptr())
        };
        let count = usize::try_from(pinned).map_err(|_| Error::from_errno(pinned))?;
        if count < PAGES {
            // SAFETY: So many were pinned.
            unsafe { bindings::unpin_user_pages(pages.as_mut_ptr(), count) };
            return Err(EFAULT);
        }
        // INVARIANT: Just pinned; KOPI is for 64 bits, where all memory has addresses.
        let wanted = Self { pages };
        wanted.clear();
        Ok(wanted)
    }

    /// Where the bytes from an offset on are: those of one number.
    fn at(&self, offset: usize) -> *mut u8 {
        let page = self.pages.get(offset / PAGE).copied();
        // SAFETY: By the invariants.
        let start = page.map(|page| unsafe { bindings::kopi_page_address(page) });
        start.map_or(ptr::null_mut(), |start| {
            start.cast::<u8>().wrapping_add(offset % PAGE)
        })
    }

    fn ports(&self, index: usize) -> Option<&AtomicU64> {
        let offset = offset_of!(abi::PortMap, ports).checked_add(index.checked_mul(8)?)?;
        // SAFETY: Null, or eight bytes within a page that is pinned, aligned as they must be.
        unsafe { self.at(offset).cast::<AtomicU64>().as_ref() }
    }

    fn ifindex(&self) -> Option<&AtomicU32> {
        let offset = offset_of!(abi::PortMap, ifindex);
        // SAFETY: As above.
        unsafe { self.at(offset).cast::<AtomicU32>().as_ref() }
    }

    /// Says that datagrams to a port are wanted, or not.
    pub(crate) fn set(&self, port: u16, wanted: bool) {
        let bit = 1 << (port % 64);
        let Some(ports) = self.ports(usize::from(port / 64)) else {
            return;
        };
        if wanted {
            ports.fetch_or(bit, Relaxed);
        } else {
            ports.fetch_and(!bit, Relaxed);
        }
    }

    /// Says that none are.
    pub(crate) fn clear(&self) {
        for index in 0..1024 {
            if let Some(ports) = self.ports(index) {
                ports.store(0, Relaxed);
            }
        }
    }

    /// Says to which device they are to go.
    pub(crate) fn send_to(&self, ifindex: u32) {
        if let Some(place) = self.ifindex() {
            place.store(ifindex, Relaxed);
        }
    }
}

impl Drop for PortMap {
    fn drop(&mut self) {
        self.clear();
        self.send_to(0);
        // SAFETY: By the invariants.
        unsafe { bindings::unpin_user_pages(self.pages.as_mut_ptr(), PAGES) };
    }
}
