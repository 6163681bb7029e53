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

/// Has each process write before another one can that has its memory, by vfork(). At the program's start.
pub(crate) fn start() {
    begin();
    // Of a child of vfork() the C library doesn't call it. Without memory for it the first process that asks
    // is the one that writes.
    // SAFETY: The function may be called wherever fork() may, and stays loaded.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

extern "C" fn in_child() {
    if !settings::is_stopped() {
        written();
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
pub(crate) mod tests {
    use super::*;
    use libc::{c_int, c_void};
    use std::{sync::Barrier, thread};

    fn wait_for(child: libc::pid_t) -> c_int {
        let mut status = -1;
        // SAFETY: A place for the status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        status
    }

    /// Whether `test` is true in a process of its own, by fork().
    pub(crate) fn in_child_process(test: impl FnOnce() -> bool) -> bool {
        // SAFETY: The child calls only what the C library allows there in fact, and ends.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(c_int::from(!test()));
            }
            child
        };
        wait_for(child) == 0
    }

    /// Runs something in a process that has this one's memory, as one made by vfork(); whether it gave 0.
    pub(crate) fn in_borrowed_memory(run: extern "C" fn(*mut c_void) -> c_int) -> bool {
        let mut stack = vec![0_u128; 1 << 12];
        // SAFETY: The child has a stack of its own, and its parent sleeps until it has ended.
        let child = unsafe {
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            let end = stack.as_mut_ptr_range().end;
            libc::clone(run, end.cast(), flags, ptr::null_mut())
        };
        wait_for(child) == 0
    }

    extern "C" fn asks_whose_memory_it_is(_: *mut c_void) -> c_int {
        c_int::from(is_own())
    }

    #[test]
    fn a_child_of_vfork_takes_nothing_over() {
        // The other test is of processes without this.
        assert!(in_child_process(|| {
            start();
            // This one has done nothing yet when it makes the next one.
            in_child_process(|| in_borrowed_memory(asks_whose_memory_it_is) && is_own())
        }));
    }

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

    /// Where the C library doesn't say that there is a child.
    #[test]
    fn threads_of_a_child_count_it_once() {
        assert!(begin());
        let next = generation().unwrap() + 1;
        for _ in 0..500 {
            assert!(in_child_process(|| threads_agree(next)));
        }
        assert_eq!(generation(), Some(next - 1));
    }
}
