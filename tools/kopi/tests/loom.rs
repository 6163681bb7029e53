// SPDX-License-Identifier: GPL-2.0

//! Every order in which two sides of a ring can run, as far as the memory model tells them apart.
//!
//! What the model can't show: a store that overtakes a load before it, which is why (A) of the ring
//! acquires. Of the other orderings each is needed for these to pass.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kopi --release --test loom`
#![cfg(loom)]

use kopi::pure::{
    abi::Desc,
    ring::{Consumer, Entry, Producer},
};
use loom::{
    sync::{
        atomic::{AtomicU32, AtomicU64},
        Arc, Condvar, Mutex,
    },
    thread,
};
use std::ptr::NonNull;

struct Memory {
    producer: AtomicU32,
    consumer: AtomicU32,
    flags: AtomicU32,
    entries: Vec<AtomicU64>,
    size: u32,
}

impl Memory {
    fn new<E: Entry>(size: u32, start: u32) -> Arc<Self> {
        Arc::new(Self {
            producer: AtomicU32::new(start),
            consumer: AtomicU32::new(start),
            flags: AtomicU32::new(0),
            entries: (0..size as usize * E::WORDS)
                .map(|_| AtomicU64::new(0))
                .collect(),
            size,
        })
    }
}

/// A side of a ring, and the memory that it needs.
struct Side<R> {
    ring: R,
    _memory: Arc<Memory>,
}

fn sides<E: Entry>(memory: &Arc<Memory>) -> (Side<Producer<E>>, Side<Consumer<E>>) {
    // SAFETY: The memory is kept with the sides.
    let (producer, consumer) = unsafe {
        (
            Producer::new(
                NonNull::from(&memory.producer),
                NonNull::from(&memory.consumer),
                NonNull::from(&memory.flags),
                NonNull::from(memory.entries.as_slice()).cast(),
                memory.size,
            ),
            Consumer::new(
                NonNull::from(&memory.producer),
                NonNull::from(&memory.consumer),
                NonNull::from(&memory.flags),
                NonNull::from(memory.entries.as_slice()).cast(),
                memory.size,
            ),
        )
    };
    (
        Side {
            ring: producer,
            _memory: memory.clone(),
        },
        Side {
            ring: consumer,
            _memory: memory.clone(),
        },
    )
}

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Without a bound it takes half a minute, and finds no more in rings this small.
    builder.preemption_bound.get_or_insert(4);
    builder.check(check);
}

fn desc(number: u32) -> Desc {
    Desc {
        offset: number,
        len: number + 1,
        flow: number + 2,
        flags: 1,
        error: 0,
    }
}

/// Entries come in order and whole, over a ring that is full and wraps, as do its indices.
#[test]
fn entries_arrive_whole() {
    model(|| {
        const COUNT: u32 = 3;
        let memory = Memory::new::<Desc>(2, u32::MAX);
        let (mut producer, mut consumer) = sides::<Desc>(&memory);
        let sender = thread::spawn(move || {
            let mut number = 0;
            while number < COUNT {
                if producer.ring.room(1).unwrap() > 0 {
                    producer.ring.write(desc(number));
                    producer.ring.submit();
                    number += 1;
                } else {
                    thread::yield_now();
                }
            }
        });
        let mut number = 0;
        while number < COUNT {
            if consumer.ring.available(1).unwrap() > 0 {
                assert_eq!(consumer.ring.read(), desc(number));
                consumer.ring.release(0);
                number += 1;
            } else {
                thread::yield_now();
            }
        }
        sender.join().unwrap();
    });
}

/// As above, in batches: one index for several entries.
#[test]
fn batches_arrive_whole() {
    model(|| {
        let memory = Memory::new::<u64>(2, u32::MAX);
        let (mut producer, mut consumer) = sides::<u64>(&memory);
        let sender = thread::spawn(move || {
            assert_eq!(producer.ring.room(2), Ok(2));
            producer.ring.write(1);
            producer.ring.write(2);
            producer.ring.submit();
            while producer.ring.room(2).unwrap() < 2 {
                thread::yield_now();
            }
            producer.ring.write(3);
            producer.ring.write(4);
            producer.ring.submit();
        });
        let mut seen = vec![];
        while seen.len() < 4 {
            let available = consumer.ring.available(1).unwrap();
            if available == 0 {
                thread::yield_now();
            }
            for ahead in 0..available {
                seen.push(consumer.ring.peek(ahead));
            }
            consumer.ring.release(available);
        }
        assert_eq!(seen, [1, 2, 3, 4]);
        sender.join().unwrap();
    });
}

/// Where a sleeper sleeps: a wake-up that comes first is not forgotten.
struct Bed {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Bed {
    fn new() -> Self {
        Self {
            woken: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    fn sleep(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.changed.wait(woken).unwrap();
        }
        *woken = false;
    }

    fn wake(&self) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

/// A consumer that says so, looks once more and sleeps is woken for every entry; loom sees it if
/// everybody sleeps.
#[test]
fn no_wakeup_is_lost() {
    model(|| {
        const COUNT: u64 = 2;
        let memory = Memory::new::<u64>(2, 0);
        let (mut producer, mut consumer) = sides::<u64>(&memory);
        let bed = Arc::new(Bed::new());
        let waker = bed.clone();
        let sender = thread::spawn(move || {
            for number in 0..COUNT {
                assert!(producer.ring.room(1).unwrap() > 0);
                producer.ring.write(number);
                producer.ring.submit();
                if producer.ring.needs_wakeup() {
                    waker.wake();
                }
            }
        });
        let mut number = 0;
        while number < COUNT {
            if consumer.ring.available(1).unwrap() == 0 {
                consumer.ring.want_wakeup(true);
                if consumer.ring.available(1).unwrap() == 0 {
                    bed.sleep();
                }
                consumer.ring.want_wakeup(false);
                continue;
            }
            assert_eq!(consumer.ring.read(), number);
            consumer.ring.release(0);
            number += 1;
        }
        sender.join().unwrap();
    });
}
