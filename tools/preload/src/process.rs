// SPDX-License-Identifier: GPL-2.0

//! Whose memory this is: a process made by fork() has a copy, and one made by vfork() has its parent's,
//! until it calls exec().

use crate::settings;
use std::{
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicU64, AtomicU8,
        Ordering::{Relaxed, SeqCst},
    },
};

/// How many processes have copied this memory, from parent to child, since it was made.
static GENERATION: AtomicU8 = AtomicU8::new(0);
/// A word that has the id of the process that wrote it, and above it the process's generation. The kernel
/// clears it in a child that has memory of its own, however that is made.
static WRITTEN_BY: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// What a process writes.
#[derive(Clone, Copy)]
struct Word(u64);

impl Word {
    fn own(generation: u8) -> Self {
        Self((u64::from(generation) << 32) | u64::from(std::process::id()))
    }

    fn process(self) -> u32 {
        self.0 as u32
    }

    fn generation(self) -> u8 {
        (self.0 >> 32) as u8
    }
}

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
        (*page.cast::<AtomicU64>()).store(Word::own(0).0, Relaxed);
        let _ = WRITTEN_BY.compare_exchange(ptr::null_mut(), page.cast(), Relaxed, Relaxed);
    }
    true
}

/// What the process wrote that this one is or that, after vfork(), is its parent; `None` before there is a
/// word.
fn written() -> Option<Word> {
    let word = WRITTEN_BY.load(Relaxed);
    if word.is_null() {
        return None;
    }
    // SAFETY: Such a mapping is never taken back.
    let word = unsafe { &*word };
    let found = match word.load(SeqCst) {
        // A new process. Several threads of it may be here: as long as the word isn't written, all of them
        // find the same number, and one of them writes.
        0 => {
            let own = Word::own(GENERATION.load(SeqCst).saturating_add(1));
            match word.compare_exchange(0, own.0, SeqCst, SeqCst) {
                Ok(_) => own,
                Err(others) => Word(others),
            }
        }
        found => Word(found),
    };
    // Before anything is done by that number: a child may be made meanwhile, and must get another one.
    if GENERATION.load(SeqCst) < found.generation() {
        GENERATION.fetch_max(found.generation(), SeqCst);
    }
    Some(found)
}

/// The number of the process among those that have copied the memory; `None` before `begin`.
pub(crate) fn generation() -> Option<u8> {
    written().map(Word::generation)
}

/// Whether what this process does to its descriptors is to be noted in this memory. Its parent's stay what they
/// are, if it is a child of vfork().
pub(crate) fn is_own() -> bool {
    settings::is_stopped() || written().is_none_or(|word| word.process() == std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Barrier, thread};

    /// In a child: whether all its threads, which ask at once, find that it is the next process.
    fn threads_agree(next: u8) -> bool {
        let barrier = Barrier::new(4);
        let ask = || {
            barrier.wait();
            generation() == Some(next)
        };
        thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(ask));
            threads.map(|thread| thread.join().unwrap()) == [true; 4]
        }) && generation() == Some(next)
    }

    #[test]
    fn threads_of_a_child_count_it_once() {
        assert!(begin());
        let next = generation().unwrap() + 1;
        for _ in 0..500 {
            // SAFETY: The child calls only what the C library allows there in fact, and ends.
            let status = unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::_exit(i32::from(!threads_agree(next)));
                }
                let mut status = -1;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                status
            };
            assert_eq!(status, 0);
        }
        assert_eq!(generation(), Some(next - 1));
    }
}
