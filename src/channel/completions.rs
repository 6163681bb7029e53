// SPDX-License-Identifier: GPL-2.0

//! Completing descriptors: each one that is taken finds room in the COMPLETION ring.

use super::Channel;
use crate::pure::{abi::Desc, ring::Producer};
use crate::sys::{
    region::RegionRing,
    wait::{POLL_OUT, POLL_WRBAND}, //
};

/// The COMPLETION ring, and the entries that it will get.
pub(super) struct Completions {
    pub(super) ring: RegionRing<Producer<Desc>>,
    /// Descriptors that the stack has, each of which will need an entry.
    pub(super) pending: u32,
    pub(super) broken: u64,
}

impl Completions {
    /// Nothing was sent yet. At first the program wants to be woken.
    pub(super) fn new(ring: RegionRing<Producer<Desc>>) -> Self {
        ring.preset_wakeup();
        Self {
            ring,
            pending: 0,
            broken: 0,
        }
    }

    /// Number of descriptors that can be taken: each will find room for its completion.
    fn room(&mut self) -> u32 {
        // All the room, as the program may just have made some.
        match self.ring.room(u32::MAX) {
            Ok(room) => room.saturating_sub(self.pending),
            Err(_) => {
                self.broken = self.broken.wrapping_add(1);
                0
            }
        }
    }
}

impl Channel {
    /// Number of TX descriptors that can be taken.
    pub(crate) fn completion_room(&self) -> u32 {
        self.completions.lock().room()
    }

    /// Sets aside room for completions of descriptors that the stack gets; the caller knows from
    /// [`Channel::completion_room`] that there is some.
    pub(crate) fn reserve_completions(&self, count: u32) {
        let mut completions = self.completions.lock();
        completions.pending = completions.pending.saturating_add(count);
    }

    /// Gives back room that [`Channel::reserve_completions`] set aside.
    pub(crate) fn cancel_completions(&self, count: u32) {
        let mut completions = self.completions.lock();
        completions.pending = completions.pending.saturating_sub(count);
    }

    /// Gives frames back to the program, each with its errno or 0. The caller knows that there is
    /// room, of which `reserved` entries were set aside. Any context but hard interrupts.
    pub(crate) fn complete(&self, descs: impl Iterator<Item = Desc>, reserved: u32) {
        let wake = {
            let mut completions = self.completions.lock();
            for desc in descs {
                completions.ring.write(desc);
            }
            completions.pending = completions.pending.saturating_sub(reserved);
            completions.ring.submit();
            completions.ring.needs_wakeup()
        };
        if wake {
            self.wait.wake(POLL_WRBAND | POLL_OUT);
        }
    }
}
