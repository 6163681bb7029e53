// SPDX-License-Identifier: GPL-2.0

//! The process's rings for sending: a few, which threads share, and of this process only.

use crate::{
    process, settings, sockets,
    table::{self, RingSlot},
};
use kopi::SendRing;
use std::{
    cell::Cell,
    io,
    os::fd::AsRawFd,
    sync::{
        atomic::{AtomicU8, Ordering::Relaxed},
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

/// Whether a place is of this process. A handler of signals may have called fork() meanwhile.
pub(crate) fn is_own(place: RingSlot) -> bool {
    process::generation() == Some(place.generation)
}

/// The ring of a place, if it is of this process and nobody uses it now.
pub(crate) fn at(place: RingSlot) -> Option<MutexGuard<'static, Option<SendRing>>> {
    if !is_own(place) {
        return None;
    }
    let rings = ALL.get(usize::from(place.generation))?;
    // Never waits: a signal handler may have interrupted the holder.
    rings.get(usize::from(place.ring))?.try_lock().ok()
}

/// Puts a flow on a ring: the thread's, or the next one that nobody uses now, which is the thread's from then on. One
/// that a signal handler has left by siglongjmp() is used for ever. `None` if all of them are.
pub(crate) fn join(fd: i32) -> Option<io::Result<RingSlot>> {
    thread_local! {
        static MINE: Cell<u8> = const { Cell::new(u8::MAX) };
    }
    static NEXT: AtomicU8 = AtomicU8::new(0);
    if !process::begin() {
        return Some(Err(io::Error::from_raw_os_error(libc::ENOMEM)));
    }
    let generation = process::generation()?;
    // A thread that ends can't be asked any more.
    let first = MINE
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
    let (number, mut ring) = (0..RINGS as u8)
        .map(|step| (first + step) % RINGS as u8)
        .find_map(|number| Some((number, rings[usize::from(number)].try_lock().ok()?)))?;
    let _ = MINE.try_with(|mine| mine.set(number));
    let joined = join_ring(&mut ring, fd, generation, number).map(|flow| RingSlot {
        generation,
        ring: number,
        flow,
    });
    Some(joined.or_else(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => place_of_copy(fd, generation).ok_or(error),
        _ => Err(error),
    }))
}

/// The place of a flow that is on a ring of this process already, by another descriptor. This one is a copy that
/// was made before. Where what is noted of the other one is out of date, the doorbell sends nothing.
fn place_of_copy(fd: i32, generation: u8) -> Option<RingSlot> {
    let (number, cookie) = (sockets::number(fd)?, sockets::cookie(fd)?);
    table::on_rings(generation)
        .find(|(other, place)| place.flow == number && sockets::cookie(*other) == Some(cookie))
        .map(|(_, place)| place)
}

fn join_ring(ring: &mut Option<SendRing>, fd: i32, generation: u8, number: u8) -> io::Result<u32> {
    if ring.is_some() {
        // By any flow that is on it. One whose descriptor is something else by now may lead to
        // another channel: then the doorbell doesn't find what was written, and nothing is sent.
        let mine = table::on_rings(generation).filter(|(_, place)| place.ring == number);
        for (other, _) in mine {
            match SendRing::join(fd, other) {
                Ok(flow) => return Ok(flow),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(error),
                Err(_) => {}
            }
        }
    }
    if ring.is_some() {
        settings::count_anew();
    }
    let family = settings::family().unwrap_or(0);
    let (new, first) = SendRing::open(family, fd)?;
    let flow = SendRing::join(fd, first.as_raw_fd())?;
    settings::explain(format_args!("made ring {number} for sending"));
    *ring = Some(new);
    Ok(flow)
}
