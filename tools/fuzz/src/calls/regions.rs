// SPDX-License-Identifier: GPL-2.0

//! Channels, and their regions, mapped and changed in odd ways.

use super::round::Round;
use crate::{pick, sys};
use kopi::pure::abi::{ChannelReq, Layout};
use rand::{rngs::SmallRng, Rng};
use std::ptr;

/// A mapping of a channel's region, into which nobody looks but the kernel. While it is in a round's
/// list, all of it is mapped.
#[derive(Clone, Copy)]
pub(super) struct Map {
    pub(super) address: usize,
    pub(super) size: usize,
    pub(super) layout: Layout,
    /// Of the flow by which it was mapped, unless that has been closed.
    pub(super) fd: i32,
}

pub(super) fn channel(round: &Round, random: &mut SmallRng) {
    let mut request = ChannelReq {
        flags: pick(random, &[0, 1, 2, 3, 6, 8, 9, 15, 4, 16]),
        frame_size: pick(random, &[512, 2048, 2048, 4096, 65536, 1000, 0]),
        frame_count: pick(random, &[1, 16, 64, 0, u32::MAX]),
        tx_entries: pick(random, &[1, 16, 64, 256, 3, 0]),
        completion_entries: 16,
        fill_entries: 16,
        rx_entries: 16,
        ..ChannelReq::default()
    };
    if random.random_ratio(1, 8) {
        request.reserved[0] = 1;
    }
    let _ = sys::make_channel(round.fd(random), &request);
}

pub(super) fn join(round: &Round, random: &mut SmallRng) {
    let _ = sys::join(round.fd(random), round.fd(random));
}

pub(super) fn map(round: &Round, random: &mut SmallRng) {
    let protection = pick(random, &[1, 2, 3, 3, 3, 0, 7]);
    let flags = pick(
        random,
        &[libc::MAP_SHARED, libc::MAP_SHARED, libc::MAP_PRIVATE],
    ) | pick(random, &[0, 0, libc::MAP_POPULATE, libc::MAP_LOCKED]);
    let offset = pick(random, &[0, 0, 0, 4096, 1 << 40]);
    let odd = random.random_ratio(1, 4);
    let fd = round.fd(random);
    map_as(round, fd, protection, flags, offset, |size| {
        if odd {
            random.random_range(1..2 * size)
        } else {
            size
        }
    });
}

/// Maps the flow's region, of which `size` says how much.
pub(super) fn map_as(
    round: &Round,
    fd: i32,
    protection: i32,
    flags: i32,
    offset: i64,
    size: impl FnOnce(usize) -> usize,
) {
    let Ok(layout) = sys::layout(fd) else { return };
    let size = size(layout.region_size as usize);
    // SAFETY: A new mapping, which replaces none.
    let address = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, fd, offset) };
    if address != libc::MAP_FAILED {
        round.add_map(Map {
            address: address as usize,
            size,
            layout,
            fd,
        });
    }
}

pub(super) fn unmap(round: &Round, random: &mut SmallRng) {
    let Some(map) = round.take_map(random) else {
        return;
    };
    if random.random() && map.size > 4096 {
        // The first page only: the rest stays.
        unmap_at(map.address, 4096);
        round.add_map(Map {
            address: map.address + 4096,
            size: map.size - 4096,
            ..map
        });
    } else {
        unmap_at(map.address, map.size);
    }
}

pub(super) fn unmap_at(address: usize, size: usize) {
    // SAFETY: A mapping of KOPI's that was taken from the list, or what is left of it; nothing in
    // this process looks into it.
    unsafe { libc::munmap(address as *mut _, size) };
}

pub(super) fn protect(round: &Round, random: &mut SmallRng) {
    let Some(map) = round.take_map(random) else {
        return;
    };
    let (address, size) = (map.address, map.size);
    let part = random.random_range(1..=size);
    let advice = pick(
        random,
        &[
            libc::MADV_DONTNEED,
            libc::MADV_DONTFORK,
            libc::MADV_DOFORK,
            libc::MADV_REMOVE,
            libc::MADV_FREE,
            libc::MADV_HUGEPAGE,
            libc::MADV_PAGEOUT,
            libc::MADV_MERGEABLE,
        ],
    );
    // SAFETY: A mapping of KOPI's, into which nothing in this process looks.
    unsafe {
        match random.random_range(0..4) {
            0 => libc::mprotect(address as *mut _, part, random.random_range(0..8)),
            1 => libc::madvise(address as *mut _, part, advice),
            2 => libc::mlock(address as *const _, part),
            _ => libc::msync(address as *mut _, part, libc::MS_SYNC),
        };
    }
    round.add_map(map);
}

pub(super) fn remap(round: &Round, random: &mut SmallRng) {
    let Some(map) = round.take_map(random) else {
        return;
    };
    let (address, size) = (map.address, map.size);
    let new = random.random_range(1..=2 * size);
    let old = if random.random_ratio(1, 8) { 0 } else { size };
    // SAFETY: A mapping of KOPI's, into which nothing in this process looks; it moves to where there
    // is none.
    let moved = unsafe { libc::mremap(address as *mut _, old, new, libc::MREMAP_MAYMOVE) };
    if moved != libc::MAP_FAILED {
        round.add_map(Map {
            address: moved as usize,
            size: new,
            ..map
        });
    }
    if moved == libc::MAP_FAILED || old == 0 {
        round.add_map(map);
    }
}
