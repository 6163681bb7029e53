// SPDX-License-Identifier: GPL-2.0

//! Everything that a process shares with the kernel, written at random while the doorbell rings.

use crate::{
    coverage::Coverage, is_over, options, pick, random, shared::Shared, sys, Ends, Run, PORTS,
};
use kopi::pure::abi::{
    ChannelReq, CHANNEL_ENGINE, CHANNEL_GRO, CHANNEL_GRO_MERGED, CHANNEL_GSO, CHANNEL_TX_ONLY,
    DESC_META, DESC_MORE, PROTO_UDP, PROTO_UDP6, RING_NEED_WAKEUP,
};
use rand::{rngs::SmallRng, Rng};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// How long one thread keeps ahead of the kernel.
const CHASE: Duration = Duration::from_secs(3);

/// A round's flows, and what its threads share.
struct Round {
    fds: Vec<i32>,
    /// Their destinations: each other, and the flows of another process.
    peers: Vec<SocketAddr>,
    shared: Shared,
    /// How often each kind of operation is done, so that rounds differ.
    weights: Vec<u32>,
}

/// All of them, in the order of `Round::weights`.
const OPERATIONS: [fn(&Round, &mut SmallRng); 15] = [
    send, gso, chain, odd_send, odd_index, heal, reap, refill, odd_fill, odd_meta, scribble,
    option, chase, bell, ask,
];

/// Rounds until the time is over.
pub(crate) fn run(run: &Run, ends: &Ends) -> io::Result<()> {
    let mut coverage = Coverage::new(run.coverage.as_deref())?;
    let (mut sent, mut received) = (0, 0);
    let operations = AtomicU64::new(0);
    let done = run.repeat(|seed, deadline| {
        let round = Round::open(seed, ends)?;
        thread::scope(|scope| {
            let workers: Vec<_> = (0..run.threads)
                .map(|number| {
                    let (round, trace, operations) = (&round, coverage.tracer(), &operations);
                    let record = move || {
                        let random = random(seed, number + 1);
                        operations
                            .fetch_add(work(round, random, run.operations, deadline), Relaxed);
                    };
                    scope.spawn(move || match trace {
                        Some(trace) => trace.record(record),
                        None => {
                            record();
                            Ok(Vec::new())
                        }
                    })
                })
                .collect();
            for worker in workers {
                let reached = worker
                    .join()
                    .map_err(|_| io::Error::other("a thread panicked"))??;
                coverage.add(reached);
            }
            io::Result::Ok(())
        })?;
        for &fd in &round.fds {
            let stats = sys::stats(fd)?;
            sent += stats.tx_packets;
            received += stats.rx_packets;
        }
        Ok(())
    })?;
    done.tell(&[
        ("operations", operations.into_inner()),
        ("datagrams sent", sent),
        ("datagrams received", received),
    ]);
    coverage.save()
}

/// Gives the number of operations that were done.
fn work(round: &Round, mut random: SmallRng, operations: u64, deadline: Option<Instant>) -> u64 {
    let total = round.weights.iter().sum();
    for done in 0..operations {
        if is_over(deadline) {
            return done;
        }
        let mut at = random.random_range(0..total);
        for (operation, &weight) in OPERATIONS.iter().zip(&round.weights) {
            if at < weight {
                operation(round, &mut random);
                break;
            }
            at -= weight;
        }
    }
    operations
}

impl Round {
    /// Opens flows on a channel, both as the seed says.
    fn open(seed: u64, ends: &Ends) -> io::Result<Self> {
        let random = &mut random(seed, 0);
        let ipv6 = random.random();
        let of_version = |addresses: &[IpAddr]| {
            let found = addresses.iter().find(|address| address.is_ipv6() == ipv6);
            found.copied()
        };
        let near = of_version(&ends.near);
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
        let request = ChannelReq {
            flags: gso | gro | merged | engine | tx_only,
            frame_size: pick(random, &[512, 1024, 2048, 4096, 65536]),
            frame_count: random.random_range(1..64),
            tx_entries: 1 << random.random_range(0..9),
            completion_entries: 1 << random.random_range(0..9),
            fill_entries: 1 << random.random_range(0..7),
            rx_entries: 1 << random.random_range(0..9),
            ..ChannelReq::default()
        };
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
                sys::make_channel(fd, &request)?;
            } else {
                sys::join(fd, fds[0])?;
            }
            fds.push(fd);
        }
        if random.random() {
            let _ = sys::connect(fds[0], &sys::name(pick(random, &peers)));
        }
        // Each kind often, seldom, or not at all; sending, and ringing for it, always.
        let mut weights: Vec<u32> = (0..OPERATIONS.len())
            .map(|_| pick(random, &[0, 1, 4, 16]))
            .collect();
        weights[0] += 8;
        weights[1] += 8;
        weights[OPERATIONS.len() - 2] += 8;
        let shared = Shared::map(fds[0])?;
        let round = Self {
            fds,
            peers,
            shared,
            weights,
        };
        refill(&round, random);
        Ok(round)
    }

    /// Writes a descriptor, wherever the TX ring's producer stands, and says that it is there; unless the
    /// ring is full.
    fn push(&self, offset: u32, len: u32, flow: u32, flags: u16, error: u16) {
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
    fn address(&self, frame: u32, peer: SocketAddr, gso_size: u16) {
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

    fn peer(&self, random: &mut SmallRng) -> SocketAddr {
        pick(random, &self.peers)
    }

    fn room(&self) -> u32 {
        self.shared.layout.frame_size - 64
    }

    fn flow(&self, random: &mut SmallRng) -> u32 {
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

/// Numbers that are likely to be off by one somewhere.
fn odd(random: &mut SmallRng, near: &[u32]) -> u32 {
    match random.random_range(0..4) {
        0 => random.random(),
        1 => pick(random, &[0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX]),
        _ => pick(random, near).wrapping_add_signed(random.random_range(-2..=2)),
    }
}

/// A datagram as a well-behaved program sends it.
fn send(round: &Round, random: &mut SmallRng) {
    let frame = round.shared.frame(random.random());
    let len = random.random_range(0..=round.room());
    let gso_size = if random.random_ratio(1, 4) {
        let most = pick(random, &[len, len.min(1472)]);
        random.random_range(0..=most)
    } else {
        0
    };
    round.address(frame, round.peer(random), gso_size as u16);
    round.push(frame + 64, len, round.flow(random), DESC_META, 0);
}

/// Several that can travel as one.
fn gso(round: &Round, random: &mut SmallRng) {
    let (flow, peer) = (round.flow(random), round.peer(random));
    let len = random.random_range(0..=round.room().min(1472));
    for _ in 0..random.random_range(1..=40.min(round.shared.layout.tx.size)) {
        let frame = round.shared.frame(random.random());
        round.address(frame, peer, 0);
        round.push(frame + 64, len, flow, DESC_META, 0);
    }
}

/// One of several frames, the last of which may be missing.
fn chain(round: &Round, random: &mut SmallRng) {
    let flow = round.flow(random);
    for number in 0..random.random_range(1..20) {
        let frame = round.shared.frame(random.random());
        let meta = if number == 0 { DESC_META } else { 0 };
        if number == 0 {
            round.address(frame, round.peer(random), 0);
        }
        let len = random.random_range(0..=round.room());
        round.push(frame + 64, len, flow, meta | DESC_MORE, 0);
    }
    if random.random() {
        round.push(round.shared.frame(random.random()) + 64, 1, flow, 0, 0);
    }
}

/// A descriptor that makes no sense.
fn odd_send(round: &Round, random: &mut SmallRng) {
    let shared = &round.shared;
    let frame = shared.frame(random.random());
    let offset = odd(
        random,
        &[frame, frame + 64, shared.layout.frames, shared.size(), 0],
    );
    let len = odd(
        random,
        &[
            0,
            round.room(),
            shared.layout.frame_size,
            shared.size() - frame,
        ],
    );
    let flow = odd(random, &[0, round.fds.len() as u32]);
    let flags = pick(
        random,
        &[0, DESC_META, DESC_MORE, DESC_META | DESC_MORE, 4, 0xffff],
    );
    round.push(offset, len, flow, flags, pick(random, &[0, 0, 1, 0xffff]));
}

/// An index or the flags of a ring, changed: for a doorbell, as a rule, since a ring whose index has
/// gone sends nothing any more.
fn odd_index(round: &Round, random: &mut SmallRng) {
    let shared = &round.shared;
    let ring = pick(random, &shared.rings());
    let at = pick(random, &[ring.producer, ring.consumer, ring.flags]);
    let (producer, consumer) = (shared.get(ring.producer), shared.get(ring.consumer));
    let near = [
        producer,
        consumer,
        consumer.wrapping_add(ring.size),
        ring.size,
    ];
    let before = shared.get(at);
    shared.put(at, odd(random, &near));
    if !random.random_ratio(1, 64) {
        bell(round, random);
        shared.put(at, before);
    }
}

/// Indices that make sense again: a ring without entries, or with some that may have been used before.
/// The kernel's own index may be ahead of what is written there.
fn heal(round: &Round, random: &mut SmallRng) {
    let shared = &round.shared;
    let [tx, completion, fill, rx] = shared.rings();
    for ring in [tx, fill] {
        if random.random() {
            let entries = pick(random, &[0, ring.size]);
            let ahead = random.random_range(0..=entries);
            shared.put(ring.producer, shared.get(ring.consumer).wrapping_add(ahead));
        }
    }
    shared.put(completion.consumer, shared.get(completion.producer));
    shared.put(rx.consumer, shared.get(rx.producer));
}

/// Takes all that came.
fn reap(round: &Round, _: &mut SmallRng) {
    let shared = &round.shared;
    let [_, completion, _, rx] = shared.rings();
    shared.put(completion.consumer, shared.get(completion.producer));
    shared.put(rx.consumer, shared.get(rx.producer));
}

/// Gives the kernel frames to receive in, even those that are in use.
fn refill(round: &Round, random: &mut SmallRng) {
    for _ in 0..random.random_range(1..16) {
        put_fill(round, round.shared.frame(random.random()));
    }
}

/// And what isn't a frame.
fn odd_fill(round: &Round, random: &mut SmallRng) {
    let shared = &round.shared;
    let frame = shared.frame(random.random());
    put_fill(
        round,
        odd(random, &[frame, shared.layout.frames, shared.size()]),
    );
}

fn put_fill(round: &Round, frame: u32) {
    let ring = &round.shared.layout.fill;
    let index = round.shared.get(ring.producer);
    let at = round.shared.entry(ring, index);
    round.shared.put(at, frame);
    round.shared.put(at + 4, 0);
    round.shared.put(ring.producer, index.wrapping_add(1));
}

/// Metadata of which one field makes no sense, and the descriptor to it.
fn odd_meta(round: &Round, random: &mut SmallRng) {
    let frame = round.shared.frame(random.random());
    round.address(frame, round.peer(random), 0);
    let field = frame + 4 * random.random_range(0..16);
    let value = odd(random, &[0, 1, 2, 10, 64, 127, 255, 1400, 65535]);
    round.shared.put(field, value);
    let len = random.random_range(0..=round.room());
    round.push(frame + 64, len, round.flow(random), DESC_META, 0);
}

/// Bytes anywhere.
fn scribble(round: &Round, random: &mut SmallRng) {
    let at = if random.random() {
        random.random_range(0..round.shared.size())
    } else {
        let ring = pick(random, &round.shared.rings());
        round.shared.entry(&ring, random.random())
    };
    let bytes: [u8; 16] = random.random();
    round
        .shared
        .write(at, &bytes[..random.random_range(1..=16)]);
}

/// An option of the sockets that the rings belong to.
fn option(round: &Round, random: &mut SmallRng) {
    let (level, name, value) = options::option(random);
    let _ = sys::set(pick(random, &round.fds), level, name, &value);
}

/// Entries without end, while somebody sends: a ring's producer keeps ahead of the kernel, which finds
/// nothing good there. Most rounds have no patience for that.
fn chase(round: &Round, random: &mut SmallRng) {
    if !random.random_ratio(1, 2000) {
        return;
    }
    let shared = &round.shared;
    let ring = pick(random, &[shared.layout.fill, shared.layout.tx]);
    for index in 0..ring.size {
        let at = shared.entry(&ring, index);
        for word in (0..ring.entry_size).step_by(4) {
            shared.put(at + word, u32::MAX);
        }
    }
    let end = Instant::now() + CHASE;
    while Instant::now() < end {
        for _ in 0..1000 {
            let ahead = shared.get(ring.consumer).wrapping_add(ring.size);
            shared.put(ring.producer, ahead);
        }
    }
}

/// The doorbell; seldom while an engine polls, which is to find something.
fn bell(round: &Round, random: &mut SmallRng) {
    let polled = round.shared.get(round.shared.layout.tx.flags) & RING_NEED_WAKEUP == 0;
    if polled && random.random_ratio(7, 8) {
        return;
    }
    let flags = if random.random_ratio(1, 16) {
        random.random()
    } else {
        random.random_range(0..16)
    };
    let result = sys::doorbell(pick(random, &round.fds), flags);
    if random.random() {
        return;
    }
    // As a program that goes on after its fault: a ring that stays broken sends nothing.
    match result.err().and_then(|error| error.raw_os_error()) {
        Some(libc::EPROTO) => heal(round, random),
        Some(libc::EAGAIN) => reap(round, random),
        _ => {}
    }
}

/// What can be asked.
fn ask(round: &Round, random: &mut SmallRng) {
    let fd = pick(random, &round.fds);
    let mut answer = [0; 300];
    let room = random.random_range(0..answer.len());
    let _ = sys::get(
        fd,
        kopi::pure::abi::SOL_KOPI,
        random.random_range(0..6),
        &mut answer[..room],
    );
    sys::poll(fd, random.random());
}
