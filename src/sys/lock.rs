// SPDX-License-Identifier: GPL-2.0

//! Spinlocks that softirqs or interrupt handlers also take. While such a lock is held, softirqs or
//! interrupts are off on this CPU.

use super::context::{BottomHalvesOff, InterruptsOff, SoftirqsOff};
use core::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};
use kernel::{
    prelude::*,
    sync::{
        lock::{spinlock::SpinLockBackend, Guard},
        GlobalGuard,
        GlobalLock,
        GlobalLockBackend,
        SpinLock, //
    },
};

/// A spinlock that softirqs also take. It may be taken in any context but hard interrupts.
pub(crate) type SpinLockBh<T> = ContextLock<T, BottomHalvesOff>;

/// A spinlock that may be taken in any context.
pub(crate) type SpinLockIrq<T> = ContextLock<T, InterruptsOff>;

/// A guard that keeps softirqs, or interrupts, off this CPU while it lives.
pub(crate) trait Exclusion {
    /// Turns them off.
    fn begin() -> Self;
}

impl Exclusion for BottomHalvesOff {
    #[inline]
    fn begin() -> Self {
        Self::new()
    }
}

impl Exclusion for InterruptsOff {
    #[inline]
    fn begin() -> Self {
        Self::new()
    }
}

/// A spinlock. A holder keeps other users of the same lock off its CPU by an `E`.
#[pin_data]
pub(crate) struct ContextLock<T, E> {
    #[pin]
    lock: SpinLock<T>,
    _exclusion: PhantomData<fn() -> E>,
}

impl<T, E: Exclusion> ContextLock<T, E> {
    /// A lock made of the result of `new_spinlock!`, whose place in the source is the lock's class
    /// for lockdep.
    pub(crate) fn new(lock: impl PinInit<SpinLock<T>>) -> impl PinInit<Self> {
        pin_init!(Self {
            lock <- lock,
            _exclusion: PhantomData,
        })
    }

    /// Takes the lock.
    #[inline]
    pub(crate) fn lock(&self) -> ContextGuard<Guard<'_, T, SpinLockBackend>, E> {
        let exclusion = E::begin();
        ContextGuard {
            guard: self.lock.lock(),
            _exclusion: exclusion,
        }
    }
}

impl<T> SpinLockBh<T> {
    /// Takes the lock in a context in which softirqs are already off.
    #[inline]
    pub(crate) fn lock_with<'a>(&'a self, _: &'a SoftirqsOff) -> Guard<'a, T, SpinLockBackend> {
        self.lock.lock()
    }
}

/// Global spinlocks that may be taken in any context, as a [`SpinLockIrq`].
pub(crate) trait LockIrq<B: GlobalLockBackend> {
    /// Turns interrupts off, and takes the lock. Any context.
    fn lock_irq(&'static self) -> ContextGuard<GlobalGuard<B>, InterruptsOff>;
}

impl<B: GlobalLockBackend<Backend = SpinLockBackend>> LockIrq<B> for GlobalLock<B> {
    fn lock_irq(&'static self) -> ContextGuard<GlobalGuard<B>, InterruptsOff> {
        let exclusion = InterruptsOff::begin();
        ContextGuard {
            guard: self.lock(),
            _exclusion: exclusion,
        }
    }
}

/// A held lock, which is released when this value is dropped.
#[must_use = "the lock is released at once if the guard isn't kept"]
pub(crate) struct ContextGuard<G, E> {
    // Fields are dropped in this order: softirqs or interrupts come back after the release.
    guard: G,
    _exclusion: E,
}

impl<G: Deref, E> Deref for ContextGuard<G, E> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.guard
    }
}

impl<G: DerefMut, E> DerefMut for ContextGuard<G, E> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.guard
    }
}
