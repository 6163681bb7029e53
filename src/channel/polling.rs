// SPDX-License-Identifier: GPL-2.0

//! The consumer of the TX ring: an engine that polls it, or the doorbell.

use super::Channel;
use crate::tx::Sender;
use kernel::sync::atomic::ordering::{Full, Relaxed};

impl Channel {
    /// From now on an engine polls the TX ring, or none does; the caller has the sender.
    pub(crate) fn set_polled(&self, sender: &mut Sender, polled: bool) {
        sender.schedule.polled = polled;
        self.polled.store(polled, Relaxed);
        sender.want_doorbell(!polled);
    }

    /// Asks that the TX ring is said to be polled no more, by the holder of the sender, or the next
    /// one. The caller tries to be the next holder, unless the channel [`Channel::is_ringing`].
    pub(crate) fn ask_to_unpoll(&self) {
        // Full order: pairs with that in stop_ringing(). Either this is seen there, or the end of
        // the ringing here.
        self.unpoll_asked.xchg(true, Full);
    }

    /// Whether a doorbell has the sender, and calls [`Channel::unpoll_if_asked`] before it gives
    /// that back.
    pub(crate) fn is_ringing(&self) -> bool {
        self.ringing.load(Relaxed)
    }

    /// The caller, a doorbell, has the sender from now on.
    pub(crate) fn start_ringing(&self) {
        if self.wants_engine() {
            self.ringing.store(true, Relaxed);
        }
    }

    /// The doorbell is about to give the sender back. To be followed by
    /// [`Channel::unpoll_if_asked`].
    pub(crate) fn stop_ringing(&self) {
        if self.wants_engine() {
            self.ringing.xchg(false, Full);
        }
    }

    /// Has the program ring from now on, if that was asked for; says whether it was. The TX ring is
    /// to be read once more then.
    pub(crate) fn unpoll_if_asked(&self, sender: &mut Sender) -> bool {
        let asked = self.unpoll_asked.load(Relaxed);
        if asked {
            self.unpoll_asked.store(false, Relaxed);
            self.set_polled(sender, false);
        }
        asked
    }
}
