// SPDX-License-Identifier: GPL-2.0

//! The namespaces in which a monitor device is up, and in which the sock of a packet is looked up
//! that the stack drops before it has found it.
//!
//! Each packet that the machine drops may be compared with all of them, so there are few places:
//! one for the initial namespace, and others that users share. A namespace without a place waits.

use crate::{
    pure::share,
    sys::{bindings, pernet::NetRef},
};
use core::ptr::{self, NonNull};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Full, Relaxed, Release},
            Atomic,
        },
        rcu,
    },
};

/// Places that users share.
const SHARED: usize = 15;

static INITIAL: Atomic<*mut bindings::net> = Atomic::new(ptr::null_mut());
static PLACES: [Atomic<*mut bindings::net>; SHARED] =
    [const { Atomic::new(ptr::null_mut()) }; SHARED];

/// Finds a namespace that has a place.
pub(super) fn find<'a>(
    mut is_wanted: impl FnMut(&NetRef) -> bool,
    _rcu: &'a rcu::Guard,
) -> Option<&'a NetRef> {
    Iterator::chain(PLACES.iter(), [&INITIAL]).find_map(|place| {
        let net = NonNull::new(place.load(Acquire))?;
        // SAFETY: A namespace loses its place before its last monitor device is gone, and is freed
        // a grace period later at the earliest. The guard proves that RCU is held.
        let net = unsafe { NetRef::from_raw(net.as_ptr()) };
        is_wanted(net).then_some(net)
    })
}

/// A namespace, which is only compared, and put into a place.
struct WaitingNet {
    net: NonNull<bindings::net>,
    user: u32,
}

// SAFETY: A namespace belongs to no thread.
unsafe impl Send for WaitingNet {}

/// Who has the places, and who waits for one.
pub(super) struct Watched {
    users: [Option<u32>; SHARED],
    waiting: KVec<WaitingNet>,
}

impl Watched {
    /// Nobody.
    pub(super) const fn new() -> Self {
        Self {
            users: [None; SHARED],
            waiting: KVec::new(),
        }
    }

    /// Adds a namespace, whose first device comes up, on behalf of a user: `ENOMEM`. Under RTNL.
    pub(super) fn add(&mut self, net: &NetRef, user: u32) -> Result {
        if net.is_initial() {
            INITIAL.store(net.as_ptr(), Release);
            return Ok(());
        }
        let comes = WaitingNet {
            net: NonNull::new(net.as_ptr()).ok_or(EINVAL)?,
            user,
        };
        // Both may have to wait: the namespace, and the one whose place it gets.
        self.waiting.reserve(1, GFP_KERNEL)?;
        let waits = match share::place_for(&self.users, user) {
            Some(at) => self.put(at, comes),
            None => Some(comes),
        };
        if let Some(waits) = waits {
            self.waiting.push(waits, GFP_KERNEL)?;
        }
        self.clear_got_room();
        Ok(())
    }

    /// Removes a namespace, whose last device goes down. Under RTNL.
    pub(super) fn remove(&mut self, net: &NetRef) {
        if net.is_initial() {
            INITIAL.store(ptr::null_mut(), Release);
            return;
        }
        self.waiting
            .retain(|waits| !ptr::eq(waits.net.as_ptr(), net.as_ptr()));
        for (at, (place, user)) in PLACES.iter().zip(&mut self.users).enumerate() {
            if ptr::eq(place.load(Relaxed), net.as_ptr()) {
                place.store(ptr::null_mut(), Release);
                *user = None;
                self.give(at);
                break;
            }
        }
        self.clear_got_room();
    }

    /// Puts a namespace into a place, and returns the one that had it.
    fn put(&mut self, at: usize, comes: WaitingNet) -> Option<WaitingNet> {
        let (place, user) = PLACES.get(at).zip(self.users.get_mut(at))?;
        let had = user.replace(comes.user);
        let net = place.xchg(comes.net.as_ptr(), Full);
        Some(WaitingNet {
            net: NonNull::new(net)?,
            user: had?,
        })
    }

    /// Gives a free place to one that waits.
    fn give(&mut self, at: usize) {
        let waiting = self.waiting.iter().map(|waits| waits.user);
        let next = share::next(&self.users, waiting).map(|next| self.waiting.remove(next));
        if let Some(Ok(comes)) = next {
            self.put(at, comes);
        }
    }

    /// Frees the room for those that wait, when nobody does: nothing drops a static.
    fn clear_got_room(&mut self) {
        if self.waiting.is_empty() {
            self.waiting = KVec::new();
        }
    }
}
