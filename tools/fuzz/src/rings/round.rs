// SPDX-License-Identifier: GPL-2.0

//! A round: flows on a channel, and what its threads share.

use super::{refill, OPERATIONS};
use crate::{pick, random, shared::Shared, sys, Ends, PORTS};
use kopi::pure::abi::{
    ChannelReq, CHANNEL_ENGINE, CHANNEL_GRO, CHANNEL_GRO_MERGED, CHANNEL_GSO, CHANNEL_TX_ONLY,
    PROTO_UDP, PROTO_UDP6,
};
use rand::{rngs::SmallRng, Rng};
use std::{
    io,
    net::{IpAddr, SocketAddr},
};

/// In one of how many rounds a thread may keep ahead of the kernel: it takes longer than all else.
const CHASE_ROUNDS: u64 = 8;

/// A round's flows, and what its threads share.
pub(super) struct Round {
    pub(super) fds: Vec<i32>,
    /// Their destinations: each other, and the flows of another process.
    pub(super) peers: Vec<SocketAddr>,
    pub(super) shared: Shared,
    /// A thread may keep ahead of the kernel.
    pub(super) chases: bool,
    /// How often each kind of operation is done, so that rounds differ.
    pub(super) weights: Vec<u32>,
}

impl Round {
    /// Opens flows on a channel, both as the seed says.
    pub(super) fn open(seed: u64, ends: &Ends) -> io::Result<Self> {
        let random = &mut random(seed, 0);
        let ipv6 = random.random();
        let request = channel_request(seed, random);
        let (fds, peers) = open_flows(&request, ipv6, ends, random)?;
        if random.random() {
            let _ = sys::connect(fds[0], &sys::name(pick(random, &peers)));
        }
        let weights = weights(random);
        let shared = Shared::map(fds[0])?;
        let round = Self {
            fds,
            peers,
            shared,
            chases: seed % CHASE_ROUNDS == 0,
            weights,
        };
        refill(&round, random);
        Ok(round)
    }

    /// Writes a descriptor, wherever the TX ring's producer stands, and says that it is there; unless the
    /// ring is full.
    pub(super) fn push(&self, offset: u32, len: u32, flow: u32, flags: u16, error: u16) {
        let ring = &self.shared.layout.tx;
        let index = self.shared.get(ring.producer);
        if index.wrapping_sub(self.shared.get(ring.consumer)) == ring.size {
            return;
        }
        let at = self.shared.entry(ring, index);
        for (i, word) in [
            offset,
            len,
            flow,
            u32::from(flags) | (u32::from(error) << 16),
        ]
        .into_iter()
        .enumerate()
        {
            self.shared.put(at + 4 * i as u32, word);
        }
        self.shared.put(ring.producer, index.wrapping_add(1));
    }

    /// Metadata that makes sense.
    pub(super) fn address(&self, frame: u32, peer: SocketAddr, gso_size: u16) {
        let mut meta = [0; 88];
        let family: u16 = match peer.ip() {
            IpAddr::V4(address) => {
                meta[..4].copy_from_slice(&address.octets());
                2
            }
            IpAddr::V6(address) => {
                meta[..16].copy_from_slice(&address.octets());
                10
            }
        };
        meta[32..34].copy_from_slice(&peer.port().to_be_bytes());
        meta[36..38].copy_from_slice(&family.to_ne_bytes());
        meta[38..40].copy_from_slice(&gso_size.to_ne_bytes());
        self.shared.write(frame, &meta);
    }

    pub(super) fn peer(&self, random: &mut SmallRng) -> SocketAddr {
        pick(random, &self.peers)
    }

    pub(super) fn room(&self) -> u32 {
        self.shared.layout.frame_size - 64
    }

    pub(super) fn flow(&self, random: &mut SmallRng) -> u32 {
        random.random_range(0..self.fds.len() as u32)
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        for &fd in &self.fds {
            sys::close(fd);
        }
    }
}

/// A channel of any kind.
fn channel_request(seed: u64, random: &mut SmallRng) -> ChannelReq {
    let gso = if random.random() { CHANNEL_GSO } else { 0 };
    let gro = if random.random() { CHANNEL_GRO } else { 0 };
    let merged = if random.random() && gro != 0 {
        CHANNEL_GRO_MERGED
    } else {
        0
    };
    // Each second round's, so that a short run has some.
    let engine = if seed % 2 == 0 { CHANNEL_ENGINE } else { 0 };
    // Receiving is most of what there is to find.
    let tx_only = if seed % 8 == 3 && gro == 0 {
        CHANNEL_TX_ONLY
    } else {
        0
    };
    ChannelReq {
        flags: gso | gro | merged | engine | tx_only,
        frame_size: pick(random, &[512, 1024, 2048, 4096, 65536]),
        frame_count: random.random_range(1..64),
        tx_entries: 1 << random.random_range(0..9),
        completion_entries: 1 << random.random_range(0..9),
        fill_entries: 1 << random.random_range(0..7),
        rx_entries: 1 << random.random_range(0..9),
        ..ChannelReq::default()
    }
}

/// Some flows on one channel, and to whom they can send.
fn open_flows(
    request: &ChannelReq,
    ipv6: bool,
    ends: &Ends,
    random: &mut SmallRng,
) -> io::Result<(Vec<i32>, Vec<SocketAddr>)> {
    let of_version = |addresses: &[IpAddr]| {
        let found = addresses.iter().find(|address| address.is_ipv6() == ipv6);
        found.copied()
    };
    let near = of_version(&ends.near);
    let family = kopi::family()?;
    let protocol = if ipv6 { PROTO_UDP6 } else { PROTO_UDP };
    let mut fds = Vec::new();
    let mut peers = Vec::new();
    if let Some(far) = of_version(&ends.far) {
        peers.extend(PORTS.map(|port| SocketAddr::new(far, port)));
    }
    for number in 0..random.random_range(1..4) {
        let fd = sys::socket(family, protocol)?;
        let local = near.unwrap_or(sys::loopback(ipv6));
        let first = near.map_or(0, |_| random.random_range(PORTS));
        // Another flow of the round may have it; and addresses may come and go.
        sys::bind(fd, &sys::name(SocketAddr::new(local, first)))
            .or_else(|_| sys::bind(fd, &sys::name(SocketAddr::new(local, 0))))
            .or_else(|_| sys::bind(fd, &sys::name(SocketAddr::new(sys::loopback(ipv6), 0))))?;
        peers.push(SocketAddr::new(local, sys::port(fd)?));
        if number == 0 {
            sys::make_channel(fd, request)?;
        } else {
            sys::join(fd, fds[0])?;
        }
        fds.push(fd);
    }
    Ok((fds, peers))
}

/// Each kind of operation often, seldom, or not at all; sending, and ringing for it, always.
fn weights(random: &mut SmallRng) -> Vec<u32> {
    let mut weights: Vec<u32> = (0..OPERATIONS.len())
        .map(|_| pick(random, &[0, 1, 4, 16]))
        .collect();
    weights[0] += 8;
    weights[1] += 8;
    weights[OPERATIONS.len() - 2] += 8;
    weights
}
