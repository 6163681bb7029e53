// SPDX-License-Identifier: GPL-2.0

//! The port map of an XDP program: the memory of a BPF map that says which ports the program
//! redirects, as `struct kopi_port_map` of `uapi/kopi.h`.
//!
//! C headers: `include/linux/mm.h`

use crate::pure::abi;
use crate::sys::{bindings, context::might_sleep, region::PAGE_SIZE};
use core::{
    mem::{offset_of, size_of},
    ptr,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed}, //
};
use kernel::prelude::*;

/// Words with a bit for each port.
const WORDS: usize = 1024;
const PAGES: usize = size_of::<abi::PortMap>().div_ceil(PAGE_SIZE);

/// The pinned memory of a port map.
///
/// # Invariants
///
/// This value has pinned the pages, and they are mapped in the kernel.
pub(crate) struct PinnedPortMap {
    pages: [*mut bindings::page; PAGES],
    /// The bits of ports with a flow that asked for GRO packets. Programs don't see them.
    gro: KVec<AtomicU64>,
}

// SAFETY: Pinned pages are not bound to a task: any may write and unpin them.
unsafe impl Send for PinnedPortMap {}
// SAFETY: Through a shared reference, the array of pages is only read, and the pages' memory is
// accessed by atomic operations only.
unsafe impl Sync for PinnedPortMap {}

impl PinnedPortMap {
    /// Pins the port map at an address of the current process, and clears it. `EINVAL` if the
    /// address isn't a page's, `EFAULT` if the process can't write there, `ENOMEM`. Process
    /// context.
    pub(crate) fn pin(address: u64) -> Result<Self> {
        might_sleep();
        let address = usize::try_from(address)?;
        if address % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }
        let mut gro = KVec::with_capacity(WORDS, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..WORDS {
            gro.push_within_capacity(AtomicU64::new(0))
                .map_err(|_| ENOMEM)?;
        }
        let mut pages = [ptr::null_mut(); PAGES];
        let flags = bindings::KOPI_CONST_FOLL_WRITE | bindings::KOPI_CONST_FOLL_LONGTERM;
        // SAFETY: The array has room for `PAGES` pages; the call checks the address.
        let pinned = unsafe {
            bindings::pin_user_pages_fast(address, PAGES as i32, flags, pages.as_mut_ptr())
        };
        let count = usize::try_from(pinned).map_err(|_| Error::from_errno(pinned))?;
        if count < PAGES {
            // SAFETY: The first `count` entries are the pages that were just pinned.
            unsafe { bindings::unpin_user_pages(pages.as_mut_ptr(), count) };
            return Err(EFAULT);
        }
        // INVARIANT: Just pinned. KOPI is for 64 bits, where all memory is mapped in the kernel.
        let port_map = Self { pages, gro };
        port_map.clear();
        Ok(port_map)
    }

    /// The address of the byte at an offset, valid to the end of its page; null if there is none.
    fn at(&self, offset: usize) -> *mut u8 {
        let page = self.pages.get(offset / PAGE_SIZE).copied();
        // SAFETY: By the invariants, the page is pinned, and mapped in the kernel.
        let start = page.map(|page| unsafe { bindings::kopi_page_address(page) });
        start.map_or(ptr::null_mut(), |start| {
            start.cast::<u8>().wrapping_add(offset % PAGE_SIZE)
        })
    }

    /// The bits of 64 ports.
    fn ports(&self, index: usize) -> Option<&AtomicU64> {
        let offset = offset_of!(abi::PortMap, ports).checked_add(index.checked_mul(8)?)?;
        // SAFETY: The pointer is null, or points into a page that stays pinned as long as `self`.
        // The offset is a multiple of 8, so the word is aligned and doesn't cross the page's end.
        unsafe { self.at(offset).cast::<AtomicU64>().as_ref() }
    }

    /// The index of the redirect device.
    fn ifindex(&self) -> Option<&AtomicU32> {
        let offset = offset_of!(abi::PortMap, ifindex);
        // SAFETY: The pointer is null, or points into a page that stays pinned as long as `self`.
        // The offset is a multiple of 4, so the word is aligned and doesn't cross the page's end.
        unsafe { self.at(offset).cast::<AtomicU32>().as_ref() }
    }

    /// Makes the program redirect datagrams to a port, or not, and notes whether a flow of it asked
    /// for GRO packets.
    pub(crate) fn set(&self, port: u16, redirected: bool, gro: bool) {
        let set = |ports: Option<&AtomicU64>, on| match ports {
            Some(ports) if on => ports.fetch_or(1 << (port % 64), Relaxed),
            Some(ports) => ports.fetch_and(!(1 << (port % 64)), Relaxed),
            None => 0,
        };
        let index = usize::from(port / 64);
        set(self.gro.get(index), gro);
        set(self.ports(index), redirected);
    }

    /// Whether a flow of a port asked for GRO packets.
    #[inline]
    pub(crate) fn has_gro(&self, port: u16) -> bool {
        let ports = self.gro.get(usize::from(port / 64));
        ports.is_some_and(|ports| ports.load(Relaxed) >> (port % 64) & 1 != 0)
    }

    /// Makes the program redirect no port.
    pub(crate) fn clear(&self) {
        for index in 0..WORDS {
            if let Some(ports) = self.ports(index) {
                ports.store(0, Relaxed);
            }
        }
    }

    /// Sets the index of the redirect device.
    pub(crate) fn send_to(&self, ifindex: u32) {
        if let Some(place) = self.ifindex() {
            place.store(ifindex, Relaxed);
        }
    }
}

impl Drop for PinnedPortMap {
    fn drop(&mut self) {
        self.clear();
        self.send_to(0);
        // SAFETY: This value has pinned the pages, and doesn't use them any more.
        unsafe { bindings::unpin_user_pages(self.pages.as_mut_ptr(), PAGES) };
    }
}
