// SPDX-License-Identifier: GPL-2.0

//! Spinlocks that softirqs, or interrupts, take too: these are off while one is held.

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

/// A spinlock that softirqs take, too. Any context but hard interrupts.
pub(crate) type SpinLockBh<T> = ContextLock<T, BottomHalvesOff>;

/// A spinlock that may be taken in any context.
pub(crate) type SpinLockIrq<T> = ContextLock<T, InterruptsOff>;

/// What keeps others off this CPU while it lives.
pub(crate) trait Exclusion {
    /// From now on.
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

/// A spinlock, with what others are kept off by that take it on the same CPU.
#[pin_data]
pub(crate) struct ContextLock<T, E> {
    #[pin]
    lock: SpinLock<T>,
    _exclusion: PhantomData<fn() -> E>,
}

impl<T, E: Exclusion> ContextLock<T, E> {
    /// Of what `new_spinlock!` gives: its place is the lock's class.
    pub(crate) fn new(lock: impl PinInit<SpinLock<T>>) -> impl PinInit<Self> {
        pin_init!(Self {
            lock <- lock,
            _exclusion: PhantomData,
        })
    }

    /// Takes it.
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
    /// Takes it where softirqs are off anyway.
    #[inline]
    pub(crate) fn lock_with<'a>(&'a self, _: &'a SoftirqsOff) -> Guard<'a, T, SpinLockBackend> {
        self.lock.lock()
    }
}

/// Global locks, as [`SpinLockIrq`] takes others.
pub(crate) trait LockIrq<B: GlobalLockBackend> {
    /// Takes it, with interrupts off. Any context.
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

/// A lock that is held.
#[must_use = "the lock is released at once if the guard isn't kept"]
pub(crate) struct ContextGuard<G, E> {
    // Fields are dropped in this order: others come back to this CPU when the lock is free.
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
