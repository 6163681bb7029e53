// SPDX-License-Identifier: GPL-2.0

//! What well-behaved programs write into the rings.

use super::{regions::Map, round::Round};
use crate::{pick, sys};
use kopi::pure::abi::{RingLayout, DESC_META};
use rand::{rngs::SmallRng, Rng};
use std::net::SocketAddr;

/// What a well-behaved program writes into the rings: datagrams to send, frames to receive in.
pub(super) fn post(round: &Round, random: &mut SmallRng) {
    let to = round.address(random);
    let mut fd = None;
    round.with_map(random, |map, random| {
        for _ in 0..random.random_range(1..8) {
            map.post(to, random);
        }
        fd = Some(map.fd);
    });
    if let Some(fd) = fd {
        let _ = sys::doorbell(fd, 1);
    }
}

impl Map {
    /// One datagram to send, and one frame to receive in.
    fn post(&self, to: SocketAddr, random: &mut SmallRng) {
        let layout = &self.layout;
        let (tx, fill) = (&layout.tx, &layout.fill);
        let frame = |number: u32| layout.frames + number % layout.frame_count * layout.frame_size;
        let entry = |ring: &RingLayout, index: u32| {
            ring.entries + (index & (ring.size - 1)) * ring.entry_size
        };
        let at = frame(random.random());
        self.poke(at, &meta(to));
        let index = self.peek(tx.producer);
        let len = random.random_range(0..layout.frame_size - 64);
        let mut desc = [0u8; 16];
        desc[..4].copy_from_slice(&(at + 64).to_ne_bytes());
        desc[4..8].copy_from_slice(&len.to_ne_bytes());
        desc[12..14].copy_from_slice(&pick(random, &[0, DESC_META]).to_ne_bytes());
        self.poke(entry(tx, index), &desc);
        self.poke(tx.producer, &index.wrapping_add(1).to_ne_bytes());
        let index = self.peek(fill.producer);
        let address = u64::from(frame(random.random()));
        self.poke(entry(fill, index), &address.to_ne_bytes());
        self.poke(fill.producer, &index.wrapping_add(1).to_ne_bytes());
    }

    /// Writes at this offset in bytes, unless the mapping ends before.
    fn poke(&self, offset: u32, bytes: &[u8]) {
        if offset as usize + bytes.len() <= self.size {
            sys::poke(self.address + offset as usize, bytes);
        }
    }

    /// A word at this offset in bytes, or 0 if the mapping ends before.
    fn peek(&self, offset: u32) -> u32 {
        if offset as usize + size_of::<u32>() <= self.size {
            sys::peek(self.address + offset as usize)
        } else {
            0
        }
    }
}

/// A descriptor's meta header with a destination.
fn meta(to: SocketAddr) -> [u8; 64] {
    let mut meta = [0u8; 64];
    let name = sys::name(to);
    let (ip, family) = if to.is_ipv6() {
        (&name[8..24], libc::AF_INET6 as u16)
    } else {
        (&name[4..8], libc::AF_INET as u16)
    };
    meta[..ip.len()].copy_from_slice(ip);
    meta[32..34].copy_from_slice(&to.port().to_be_bytes());
    meta[36..38].copy_from_slice(&family.to_ne_bytes());
    meta
}
