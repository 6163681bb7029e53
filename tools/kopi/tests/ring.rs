// SPDX-License-Identifier: GPL-2.0

//! Rings against a model, with a friendly and with a hostile other side.
#![cfg(not(loom))]

use kopi::pure::{
    abi::Desc,
    ring::{Broken, Consumer, Entry, Producer},
};
use proptest::prelude::*;
use std::{
    collections::VecDeque,
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

/// The memory of a ring.
struct Memory {
    producer: AtomicU32,
    consumer: AtomicU32,
    flags: AtomicU32,
    entries: Vec<AtomicU64>,
    size: u32,
}

impl Memory {
    fn new<E: Entry>(size: u32, start: u32) -> Box<Self> {
        Box::new(Self {
            producer: AtomicU32::new(start),
            consumer: AtomicU32::new(start),
            flags: AtomicU32::new(0),
            entries: (0..size as usize * E::WORDS)
                .map(|_| AtomicU64::new(0))
                .collect(),
            size,
        })
    }

    fn producer<E: Entry>(&self) -> Producer<E> {
        // SAFETY: The tests keep the memory as long as the sides.
        unsafe {
            Producer::new(
                NonNull::from(&self.producer),
                NonNull::from(&self.consumer),
                NonNull::from(&self.flags),
                NonNull::from(self.entries.as_slice()).cast(),
                self.size,
            )
        }
    }

    fn consumer<E: Entry>(&self) -> Consumer<E> {
        // SAFETY: The tests keep the memory as long as the sides.
        unsafe {
            Consumer::new(
                NonNull::from(&self.producer),
                NonNull::from(&self.consumer),
                NonNull::from(&self.flags),
                NonNull::from(self.entries.as_slice()).cast(),
                self.size,
            )
        }
    }
}

/// What either side does.
#[derive(Clone, Debug)]
enum Step {
    Room(u32),
    Write(u32),
    Submit,
    Available(u32),
    Peek,
    Release(u32),
    Read(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..40u32).prop_map(Step::Room),
        (0..20u32).prop_map(Step::Write),
        Just(Step::Submit),
        (0..40u32).prop_map(Step::Available),
        Just(Step::Peek),
        (0..20u32).prop_map(Step::Release),
        (0..20u32).prop_map(Step::Read),
    ]
}

/// Starts of indices, mostly shortly before they wrap.
fn start() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), any::<u32>(), (u32::MAX - 70)..=u32::MAX]
}

fn desc(number: u64) -> Desc {
    Desc {
        offset: number as u32,
        len: !number as u32,
        flow: (number >> 32) as u32 ^ 5,
        flags: number as u16 | 1,
        error: (number >> 8) as u16,
    }
}

/// Less than there is may be known only where enough is.
fn check_known(known: u32, there: u32, want: u32) {
    assert!(known <= there);
    assert!(known == there || known >= want);
}

/// Runs steps on a ring and on a model of it.
fn run<E: Entry + PartialEq + std::fmt::Debug>(
    size: u32,
    start: u32,
    steps: &[Step],
    make: impl Fn(u64) -> E,
) {
    let memory = Memory::new::<E>(size, start);
    let (mut producer, mut consumer) = (memory.producer::<E>(), memory.consumer::<E>());
    // Written and not submitted; submitted and not read; read and not released.
    let mut written = VecDeque::new();
    let mut submitted = VecDeque::new();
    let mut read = 0;
    let mut number = 0;
    for step in steps {
        let used = (written.len() + submitted.len()) as u32 + read;
        match *step {
            Step::Room(want) => {
                check_known(producer.room(want).unwrap(), size - used, want);
            }
            Step::Write(count) => {
                let room = producer.room(count).unwrap();
                for _ in 0..count.min(room) {
                    number += 1;
                    producer.write(make(number));
                    written.push_back(make(number));
                }
            }
            Step::Submit => {
                producer.submit();
                submitted.append(&mut written);
                assert_eq!(producer.is_unread(), submitted.len() as u32 + read > 0);
            }
            Step::Available(want) => {
                let available = consumer.available(want).unwrap();
                check_known(available, submitted.len() as u32, want);
            }
            Step::Peek => {
                for ahead in 0..consumer.available(u32::MAX).unwrap() {
                    assert_eq!(consumer.peek(ahead), submitted[ahead as usize]);
                }
            }
            Step::Release(count) => {
                let count = count.min(consumer.available(count).unwrap());
                consumer.release(count);
                submitted.drain(..count as usize);
                read = 0;
            }
            Step::Read(count) => {
                for _ in 0..count.min(consumer.available(count).unwrap()) {
                    assert_eq!(Some(consumer.read()), submitted.pop_front());
                    read += 1;
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn like_a_queue(
        bits in 0..5u32,
        start in start(),
        steps in prop::collection::vec(step(), 0..200),
    ) {
        run(1 << bits, start, &steps, |number| number);
        run(1 << bits, start, &steps, desc);
    }

    /// Whatever is written to the shared words, a consumer gets no more than the ring holds, and
    /// its place is its own.
    #[test]
    fn hostile_producer(
        bits in 0..5u32,
        start in start(),
        words in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>(), 0..9u32), 1..50),
    ) {
        let size = 1 << bits;
        let memory = Memory::new::<u64>(size, start);
        let mut consumer = memory.consumer::<u64>();
        let mut index = start;
        for (producer, mine, flags, take) in words {
            // Half of the time something that is nearly right.
            let producer = if producer % 2 == 0 {
                index.wrapping_add(producer >> 25).wrapping_sub(16)
            } else {
                producer
            };
            memory.producer.store(producer, Ordering::Relaxed);
            memory.consumer.store(mine, Ordering::Relaxed);
            memory.flags.store(flags, Ordering::Relaxed);
            match consumer.available(u32::MAX) {
                Ok(count) => {
                    prop_assert!(count <= size);
                    prop_assert_eq!(count, producer.wrapping_sub(index));
                    for ahead in 0..count {
                        consumer.peek(ahead);
                    }
                    let take = take.min(count);
                    consumer.release(take);
                    index = index.wrapping_add(take);
                    prop_assert_eq!(memory.consumer.load(Ordering::Relaxed), index);
                }
                Err(Broken) => prop_assert!(producer.wrapping_sub(index) > size),
            }
        }
    }

    /// The same for a producer, from the start on.
    #[test]
    fn hostile_consumer(
        bits in 0..5u32,
        start in start(),
        at_first in any::<u32>(),
        words in prop::collection::vec((any::<u32>(), any::<u32>(), 0..9u32), 1..50),
    ) {
        let size = 1 << bits;
        let memory = Memory::new::<u64>(size, start);
        memory.consumer.store(at_first, Ordering::Relaxed);
        let mut producer = memory.producer::<u64>();
        let mut index = start;
        if let Ok(room) = producer.room(1) {
            prop_assert!(room <= size);
        }
        for (consumer, mine, put) in words {
            let consumer = if consumer % 2 == 0 {
                index.wrapping_sub(consumer >> 25).wrapping_add(16)
            } else {
                consumer
            };
            memory.consumer.store(consumer, Ordering::Relaxed);
            memory.producer.store(mine, Ordering::Relaxed);
            match producer.room(u32::MAX) {
                Ok(room) => {
                    prop_assert!(room <= size);
                    prop_assert_eq!(room, size - index.wrapping_sub(consumer));
                    for _ in 0..put.min(room) {
                        producer.write(7);
                        index = index.wrapping_add(1);
                    }
                    producer.submit();
                    if put.min(room) > 0 {
                        prop_assert_eq!(memory.producer.load(Ordering::Relaxed), index);
                    }
                }
                Err(Broken) => prop_assert!(index.wrapping_sub(consumer) > size),
            }
        }
    }
}

#[test]
fn nothing_is_seen_before_it_is_submitted() {
    let memory = Memory::new::<u64>(4, u32::MAX);
    let (mut producer, mut consumer) = (memory.producer::<u64>(), memory.consumer::<u64>());
    producer.write(1u64);
    assert_eq!(consumer.available(1), Ok(0));
    producer.submit();
    assert_eq!(consumer.available(1), Ok(1));
    assert_eq!(consumer.peek(0), 1);
}

#[test]
fn flags_are_those_of_the_sleeper() {
    let memory = Memory::new::<u64>(4, 0);
    let (producer, consumer) = (memory.producer::<u64>(), memory.consumer::<u64>());
    assert!(!producer.needs_wakeup());
    consumer.want_wakeup(true);
    assert!(producer.needs_wakeup());
    consumer.want_wakeup(false);
    assert!(!producer.needs_wakeup());
    memory.flags.store(!1, Ordering::Relaxed);
    assert!(!producer.needs_wakeup());
}

#[test]
fn sides_go_on_where_the_indices_are() {
    let memory = Memory::new::<u64>(4, 0);
    let mut producer = memory.producer();
    producer.write(1u64);
    producer.write(2u64);
    producer.submit();
    let mut producer = memory.producer();
    producer.write(3u64);
    producer.submit();
    let mut consumer = memory.consumer::<u64>();
    assert_eq!(consumer.available(3), Ok(3));
    assert_eq!(
        [consumer.read(), consumer.read(), consumer.read()],
        [1u64, 2, 3]
    );
}

/// Two threads, for real.
#[test]
fn between_threads() {
    const COUNT: u64 = 200_000;
    let memory = Memory::new::<Desc>(64, u32::MAX - 1000);
    let (mut producer, mut consumer) = (memory.producer::<Desc>(), memory.consumer::<Desc>());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut number = 0;
            while number < COUNT {
                let room = producer.room(8).unwrap();
                for _ in 0..u64::from(room).min(COUNT - number) {
                    producer.write(desc(number));
                    number += 1;
                }
                producer.submit();
                if room == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut number = 0;
        while number < COUNT {
            let available = consumer.available(1).unwrap();
            for _ in 0..available {
                assert_eq!(consumer.read(), desc(number));
                number += 1;
            }
            consumer.release(0);
            if available == 0 {
                std::thread::yield_now();
            }
        }
    });
}
