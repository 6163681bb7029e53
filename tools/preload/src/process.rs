// SPDX-License-Identifier: GPL-2.0

//! Whose memory this is: a process made by fork() has a copy, and one made by vfork() has its parent's,
//! until it calls exec().

use crate::settings;
use std::{
    ptr,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU8, Ordering::Relaxed},
};

/// How many processes have copied this memory, from parent to child, since it was made.
static GENERATION: AtomicU8 = AtomicU8::new(0);
/// A word that is the id of the process that wrote it. The kernel clears it in a child that has memory of
/// its own, however that is made.
static WRITTEN_BY: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Makes that word: `false` if there is no memory.
pub(crate) fn begin() -> bool {
    if !WRITTEN_BY.load(Relaxed).is_null() {
        return true;
    }
    // SAFETY: A new mapping, of which only the first word is used. If another thread has made one
    // meanwhile, this one stays unused.
    unsafe {
        let page = libc::mmap(
            ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page == libc::MAP_FAILED || libc::madvise(page, 4096, libc::MADV_WIPEONFORK) != 0 {
            return false;
        }
        (*page.cast::<AtomicU32>()).store(std::process::id(), Relaxed);
        let _ = WRITTEN_BY.compare_exchange(ptr::null_mut(), page.cast(), Relaxed, Relaxed);
    }
    true
}

/// The process that wrote the word, which is this one or, after vfork(), its parent; `None` before there is
/// one.
fn written_by() -> Option<u32> {
    let word = WRITTEN_BY.load(Relaxed);
    if word.is_null() {
        return None;
    }
    // SAFETY: Such a mapping is never taken back.
    let word = unsafe { &*word };
    match word.load(Relaxed) {
        0 => {
            // A new process, which has one thread.
            let next = GENERATION.load(Relaxed).saturating_add(1);
            GENERATION.store(next, Relaxed);
            let own = std::process::id();
            word.store(own, Relaxed);
            Some(own)
        }
        by => Some(by),
    }
}

/// The number of the process among those that have copied the memory; `None` before `begin`.
pub(crate) fn generation() -> Option<u8> {
    written_by()?;
    Some(GENERATION.load(Relaxed))
}

/// Whether what this process does to its descriptors is to be noted in this memory. Its parent's stay what they
/// are, if it is a child of vfork().
pub(crate) fn is_own() -> bool {
    settings::is_stopped() || written_by().is_none_or(|by| by == std::process::id())
}
