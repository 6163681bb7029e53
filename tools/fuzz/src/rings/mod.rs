// SPDX-License-Identifier: GPL-2.0

//! Everything that a process shares with the kernel, written at random while the doorbell rings.

mod round;

use self::round::Round;
use crate::{coverage::Coverage, is_over, options, pick, random, sys, Ends, Run};
use kopi::pure::abi::{DESC_META, DESC_MORE, RING_NEED_WAKEUP};
use rand::{rngs::SmallRng, Rng};
use std::{
    io,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// How long one thread keeps ahead of the kernel.
const CHASE: Duration = Duration::from_secs(3);

/// All kinds of operations, in the order of `Round::weights`.
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
        coverage.threads(run.threads, |number| {
            let random = random(seed, number + 1);
            operations.fetch_add(work(&round, random, run.operations, deadline), Relaxed);
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
/// nothing good there.
fn chase(round: &Round, random: &mut SmallRng) {
    if !random.random_ratio(1, 500) || !round.chases {
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
