// SPDX-License-Identifier: GPL-2.0

//! Single-producer single-consumer rings in memory shared with the other side.
//!
//! ```text
//!    producer                               consumer
//!
//!    if (cached consumer says room)         if (cached producer says entries)
//!      LOAD.acquire consumer   (A)            LOAD.acquire producer   (C)
//!      write entries                          read entries
//!      STORE.release producer  (B)            STORE.release consumer  (D)
//! ```
//!
//! (A) pairs with (D): the producer doesn't overwrite an entry that is still being read.
//! (B) pairs with (C): the consumer sees the entries that the index says are there.
//!
//! Verbs, as in AF_XDP: a producer **reserves** room, **writes** and **submits**; a consumer asks
//! what is **available**, **reads** and **releases**.
//!
//! Indices are free running and wrap at 2^32. Each side keeps its own index in private memory and
//! only publishes a copy, so the other side can't move it. What the other side publishes is read
//! once and checked: an index that is behind, or ahead by more than the ring's size, is
//! [`Broken`].

#[cfg(not(loom))]
use core::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

use super::abi::{Desc, RING_NEED_WAKEUP};
use core::{marker::PhantomData, ptr::NonNull};

/// The other side's index makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// What a ring holds: something of a few 64-bit words.
pub trait Entry: Copy {
    /// Words of one entry.
    const WORDS: usize;
    /// Makes the entry from its words.
    fn load(word: impl Fn(usize) -> u64) -> Self;
    /// Gives its words to `word`.
    fn store(self, word: impl FnMut(usize, u64));
}

impl Entry for u64 {
    const WORDS: usize = 1;

    fn load(word: impl Fn(usize) -> u64) -> Self {
        word(0)
    }

    fn store(self, mut word: impl FnMut(usize, u64)) {
        word(0, self);
    }
}

impl Entry for Desc {
    const WORDS: usize = 2;

    fn load(word: impl Fn(usize) -> u64) -> Self {
        // SAFETY: `Desc` is `repr(C)` of 16 bytes without padding, and any bytes make one.
        unsafe { core::mem::transmute([word(0), word(1)]) }
    }

    fn store(self, mut word: impl FnMut(usize, u64)) {
        // SAFETY: `Desc` is `repr(C)` of 16 bytes without padding, so all its bytes are
        // initialised.
        let [first, second]: [u64; 2] = unsafe { core::mem::transmute(self) };
        word(0, first);
        word(1, second);
    }
}

/// Where a ring lies in memory.
///
/// # Invariants
///
/// The pointers are valid for atomic access, `entries` for `size * E::WORDS` words, as long as this
/// value lives; `size` is a power of two.
struct Memory<E> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<AtomicU64>,
    size: u32,
    _entry: PhantomData<E>,
}

// SAFETY: The memory is not bound to a thread: by the invariants it lives as long as this value.
unsafe impl<E> Send for Memory<E> {}
// SAFETY: All accesses through the pointers are atomic.
unsafe impl<E> Sync for Memory<E> {}

impl<E: Entry> Memory<E> {
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: By the type's invariants, the pointer is valid for atomic access during the
        // borrow.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: By the type's invariants, the pointer is valid for atomic access during the
        // borrow.
        unsafe { self.consumer.as_ref() }
    }

    fn flags(&self) -> &AtomicU32 {
        // SAFETY: By the type's invariants, the pointer is valid for atomic access during the
        // borrow.
        unsafe { self.flags.as_ref() }
    }

    fn word(&self, index: u32, word: usize) -> &AtomicU64 {
        let at = (index & self.size.wrapping_sub(1)) as usize * E::WORDS + word;
        // SAFETY: `index & (size - 1)` is below `size` and `word` below `E::WORDS`, so by the
        // type's invariants `at` is within the entries.
        unsafe { self.entries.add(at).as_ref() }
    }
}

/// The producing side of a ring.
pub struct Producer<E> {
    memory: Memory<E>,
    /// The next entry to write.
    index: u32,
    /// What has been submitted.
    submitted: u32,
    /// The consumer's index when last read.
    consumer: u32,
}

impl<E: Entry> Producer<E> {
    /// Takes the producing side of the ring at these places.
    ///
    /// # Safety
    ///
    /// The pointers must be aligned and valid for atomic access as long as the `Producer` lives,
    /// `entries` for `size * E::WORDS` words; `size` must be a power of two.
    pub unsafe fn new(
        producer: NonNull<AtomicU32>,
        consumer: NonNull<AtomicU32>,
        flags: NonNull<AtomicU32>,
        entries: NonNull<AtomicU64>,
        size: u32,
    ) -> Self {
        // INVARIANT: As required of the caller.
        let memory = Memory {
            producer,
            consumer,
            flags,
            entries,
            size,
            _entry: PhantomData,
        };
        let index = memory.producer().load(Ordering::Relaxed);
        // As if the ring were full: `room` then reads, and checks, the consumer's index.
        let consumer = index.wrapping_sub(memory.size);
        Self {
            memory,
            index,
            submitted: index,
            consumer,
        }
    }

    /// Number of entries that the ring holds.
    pub fn size(&self) -> u32 {
        self.memory.size
    }

    /// The indices as both sides show them now, the producer's first; nothing for this side to rely on.
    pub fn positions(&self) -> (u32, u32) {
        (
            self.memory.producer().load(Ordering::Relaxed),
            self.memory.consumer().load(Ordering::Relaxed),
        )
    }

    /// Number of entries for which there is room; reads the other side's index only when fewer
    /// than `want` are known.
    pub fn room(&mut self, want: u32) -> Result<u32, Broken> {
        let size = self.memory.size;
        let known = size.saturating_sub(self.index.wrapping_sub(self.consumer));
        if known >= want {
            return Ok(known);
        }
        // (A)
        let consumer = self.memory.consumer().load(Ordering::Acquire);
        let used = self.index.wrapping_sub(consumer);
        if used > size {
            return Err(Broken);
        }
        self.consumer = consumer;
        Ok(size.wrapping_sub(used))
    }

    /// Writes the next entry; the caller knows from [`Producer::room`] that there is room.
    pub fn write(&mut self, entry: E) {
        let index = self.index;
        entry.store(|word, value| {
            self.memory
                .word(index, word)
                .store(value, Ordering::Relaxed);
        });
        self.index = index.wrapping_add(1);
    }

    /// Shows the consumer all that was written.
    pub fn submit(&mut self) {
        if self.submitted != self.index {
            // (B)
            self.memory.producer().store(self.index, Ordering::Release);
            self.submitted = self.index;
        }
    }

    /// Whether the consumer has entries to read, or says nonsense.
    pub fn is_unread(&self) -> bool {
        self.unread_from().is_some()
    }

    /// The consumer's index, if it has entries to read, or says nonsense.
    pub fn unread_from(&self) -> Option<u32> {
        let consumer = self.memory.consumer().load(Ordering::Acquire);
        (consumer != self.submitted).then_some(consumer)
    }

    /// Says for the consumer, before it has the ring, that it wants to be woken.
    pub fn preset_wakeup(&self) {
        self.memory
            .flags()
            .store(RING_NEED_WAKEUP, Ordering::Relaxed);
    }

    /// Whether the consumer wants to be woken for what was submitted.
    ///
    /// The fence pairs with that in [`Consumer::want_wakeup`]: either this sees the consumer's
    /// wish, or the consumer sees the entry.
    pub fn needs_wakeup(&self) -> bool {
        fence(Ordering::SeqCst);
        self.memory.flags().load(Ordering::Relaxed) & RING_NEED_WAKEUP != 0
    }
}

/// The consuming side of a ring.
pub struct Consumer<E> {
    memory: Memory<E>,
    /// The next entry to read.
    index: u32,
    /// The producer's index when last read.
    producer: u32,
}

impl<E: Entry> Consumer<E> {
    /// Takes the consuming side of the ring at these places.
    ///
    /// # Safety
    ///
    /// As for [`Producer::new`].
    pub unsafe fn new(
        producer: NonNull<AtomicU32>,
        consumer: NonNull<AtomicU32>,
        flags: NonNull<AtomicU32>,
        entries: NonNull<AtomicU64>,
        size: u32,
    ) -> Self {
        // INVARIANT: As required of the caller.
        let memory = Memory {
            producer,
            consumer,
            flags,
            entries,
            size,
            _entry: PhantomData,
        };
        let index = memory.consumer().load(Ordering::Relaxed);
        Self {
            memory,
            index,
            producer: index,
        }
    }

    /// Number of entries that the ring holds.
    pub fn size(&self) -> u32 {
        self.memory.size
    }

    /// The indices as both sides show them now, the producer's first; nothing for this side to rely on.
    pub fn positions(&self) -> (u32, u32) {
        (
            self.memory.producer().load(Ordering::Relaxed),
            self.memory.consumer().load(Ordering::Relaxed),
        )
    }

    /// The producer's index as it was read last.
    pub fn known_producer(&self) -> u32 {
        self.producer
    }

    /// Number of entries to read; reads the other side's index only when fewer than `want` are
    /// known.
    pub fn available(&mut self, want: u32) -> Result<u32, Broken> {
        let known = self.producer.wrapping_sub(self.index);
        if known >= want {
            return Ok(known);
        }
        // (C)
        let producer = self.memory.producer().load(Ordering::Acquire);
        let available = producer.wrapping_sub(self.index);
        if available > self.memory.size {
            return Err(Broken);
        }
        self.producer = producer;
        Ok(available)
    }

    /// Copies the entry `ahead` of the next one, which must be among those available.
    pub fn peek(&self, ahead: u32) -> E {
        let index = self.index.wrapping_add(ahead);
        E::load(|word| self.memory.word(index, word).load(Ordering::Relaxed))
    }

    /// Gives the next `count` entries back to the producer.
    pub fn release(&mut self, count: u32) {
        self.index = self.index.wrapping_add(count);
        // (D)
        self.memory.consumer().store(self.index, Ordering::Release);
    }

    /// Copies the next entry and steps past it; [`Consumer::release`]`(0)` gives it back.
    pub fn read(&mut self) -> E {
        let entry = self.peek(0);
        self.index = self.index.wrapping_add(1);
        entry
    }

    /// Says whether the producer must wake, or ring, this side for a new entry.
    ///
    /// Having asked for it, check once more whether an entry is available before going to sleep.
    pub fn want_wakeup(&self, want: bool) {
        let flags = if want { RING_NEED_WAKEUP } else { 0 };
        self.memory.flags().store(flags, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}
