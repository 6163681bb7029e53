// SPDX-License-Identifier: GPL-2.0

//! The region, as memory that anyone writes at any time.

use crate::sys;
use kopi::pure::abi::{Layout, RingLayout};
use std::{
    io,
    sync::atomic::{AtomicU32, AtomicU8, Ordering::Relaxed},
};

/// A mapped region.
///
/// # Invariants
///
/// `base` is `size` bytes that are mapped for as long as this lives.
pub(crate) struct Shared {
    base: *mut u8,
    size: usize,
    pub(crate) layout: Layout,
}

// SAFETY: All accesses are atomic.
unsafe impl Send for Shared {}
// SAFETY: As above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps the region of the flow's channel.
    pub(crate) fn map(fd: i32) -> io::Result<Self> {
        let layout = sys::layout(fd)?;
        let size = layout.region_size as usize;
        // SAFETY: A new mapping, which replaces none.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // INVARIANT: It was mapped with that size, and is unmapped by `drop` only.
        Ok(Self {
            base: base.cast(),
            size,
            layout,
        })
    }

    /// Bytes of it.
    pub(crate) fn size(&self) -> u32 {
        self.size as u32
    }

    fn word(&self, at: u32) -> &AtomicU32 {
        let at = at as usize & !3;
        assert!(at + 4 <= self.size);
        // SAFETY: By the invariant, four bytes there are mapped, and they are aligned; the kernel and
        // other threads may write them, as they may an atomic's.
        unsafe { AtomicU32::from_ptr(self.base.add(at).cast()) }
    }

    /// Reads a word.
    pub(crate) fn get(&self, at: u32) -> u32 {
        self.word(at).load(Relaxed)
    }

    /// Writes a word.
    pub(crate) fn put(&self, at: u32, value: u32) {
        self.word(at).store(value, Relaxed);
    }

    /// Writes bytes, as far as there are any.
    pub(crate) fn write(&self, at: u32, bytes: &[u8]) {
        for (i, &byte) in bytes.iter().enumerate() {
            let at = at as usize + i;
            if at < self.size {
                // SAFETY: As in `word`.
                unsafe { AtomicU8::from_ptr(self.base.add(at)) }.store(byte, Relaxed);
            }
        }
    }

    /// Where an entry of a ring lies.
    pub(crate) fn entry(&self, ring: &RingLayout, index: u32) -> u32 {
        ring.entries + (index & (ring.size - 1)) * ring.entry_size
    }

    /// The four rings.
    pub(crate) fn rings(&self) -> [RingLayout; 4] {
        let layout = &self.layout;
        [layout.tx, layout.completion, layout.fill, layout.rx]
    }

    /// The offset of a frame.
    pub(crate) fn frame(&self, number: u32) -> u32 {
        self.layout.frames + number % self.layout.frame_count * self.layout.frame_size
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: By the invariant, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.cast(), self.size) };
    }
}
