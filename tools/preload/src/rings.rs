// SPDX-License-Identifier: GPL-2.0

//! The process's rings for sending: a few, which threads share, and of this process only.

use crate::{
    settings,
    table::{self, Place},
};
use kopi::SendRing;
use std::{
    cell::Cell,
    io,
    os::fd::AsRawFd,
    ptr,
    sync::{
        atomic::{AtomicPtr, AtomicU32, AtomicU8, Ordering::Relaxed},
        Mutex, MutexGuard,
    },
};

/// Rings of a process, for threads that send at once.
const RINGS: usize = 16;
/// Processes, each a child of the one before, that have rings.
const GENERATIONS: usize = 8;

type Rings = [Mutex<Option<SendRing>>; RINGS];

/// Those of a process stay locked in its children if they were at fork(), so each has others.
static ALL: [Rings; GENERATIONS] = [const { [const { Mutex::new(None) }; RINGS] }; GENERATIONS];

/// How many processes have copied this memory, from parent to child, since it was made.
static GENERATION: AtomicU8 = AtomicU8::new(0);
/// A word that is 1 in the process that wrote it. The kernel clears it in a child, however that is
/// made.
static WRITTEN_HERE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Makes that word: `false` if there is no memory.
fn make_word() -> bool {
    if !WRITTEN_HERE.load(Relaxed).is_null() {
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
        (*page.cast::<AtomicU32>()).store(1, Relaxed);
        let _ = WRITTEN_HERE.compare_exchange(ptr::null_mut(), page.cast(), Relaxed, Relaxed);
    }
    true
}

/// The number of this process among those that have copied the memory; `None` before it has rings.
fn generation() -> Option<u8> {
    let word = WRITTEN_HERE.load(Relaxed);
    if word.is_null() {
        return None;
    }
    // SAFETY: Such a mapping is never taken back.
    let word = unsafe { &*word };
    if word.load(Relaxed) == 0 {
        // A new process, which has one thread.
        let next = GENERATION.load(Relaxed).saturating_add(1);
        GENERATION.store(next, Relaxed);
        word.store(1, Relaxed);
    }
    Some(GENERATION.load(Relaxed))
}

/// The ring of a place, if it is of this process and nobody uses it now.
pub(crate) fn at(place: Place) -> Option<MutexGuard<'static, Option<SendRing>>> {
    if generation() != Some(place.generation) {
        return None;
    }
    let rings = ALL.get(usize::from(place.generation))?;
    // Never waits: a signal handler may have interrupted the holder.
    rings.get(usize::from(place.ring))?.try_lock().ok()
}

/// Puts a flow on a ring: the thread's. `None` if another thread uses it now.
pub(crate) fn join(fd: i32) -> Option<io::Result<Place>> {
    thread_local! {
        static MINE: Cell<u8> = const { Cell::new(u8::MAX) };
    }
    static NEXT: AtomicU8 = AtomicU8::new(0);
    if !make_word() {
        return Some(Err(io::Error::from_raw_os_error(libc::ENOMEM)));
    }
    let generation = generation()?;
    // A thread that ends can't be asked any more.
    let number = MINE
        .try_with(|mine| {
            if mine.get() == u8::MAX {
                mine.set(NEXT.fetch_add(1, Relaxed) % RINGS as u8);
            }
            mine.get()
        })
        .unwrap_or(0);
    let Some(rings) = ALL.get(usize::from(generation)) else {
        return Some(Err(io::Error::from_raw_os_error(libc::EMFILE)));
    };
    let mut ring = rings.get(usize::from(number))?.try_lock().ok()?;
    let joined = join_ring(&mut ring, fd, generation, number);
    Some(joined.map(|flow| Place {
        generation,
        ring: number,
        flow,
    }))
}

fn join_ring(ring: &mut Option<SendRing>, fd: i32, generation: u8, number: u8) -> io::Result<u32> {
    if ring.is_some() {
        // By any flow that is on it. One whose descriptor is something else by now may lead to
        // another channel: then the doorbell doesn't find what was written, and nothing is sent.
        for other in table::on_ring(generation, number) {
            match SendRing::join(fd, other) {
                Ok(flow) => return Ok(flow),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(error),
                Err(_) => {}
            }
        }
    }
    let (new, first) = SendRing::open(fd)?;
    let flow = SendRing::join(fd, first.as_raw_fd())?;
    settings::explain(format_args!("made ring {number} for sending"));
    *ring = Some(new);
    Ok(flow)
}
