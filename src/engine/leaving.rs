// SPDX-License-Identifier: GPL-2.0

//! The end of an engine: its channels go to other engines, or their programs ring from now on.

use super::{kick, Engine, Visit};
use crate::channel::Channel;
use crate::sys::{
    context::{cond_resched, now, smp_mb},
    kthread::Running, //
};
use kernel::{
    list::{List, ListArc},
    sync::{atomic::ordering::Relaxed, Arc},
    time::{delay::fsleep, Delta}, //
};

/// The time between two tries of an engine that ends to lock a sender, in microseconds.
const LEAVING_TICK: i64 = 100;
/// The longest time in which an engine that ends sends what is in rings, in nanoseconds.
const LEAVING_MAX: u64 = 1_000_000_000;

impl Engine {
    /// Has several engines leave their channels at the same time.
    pub(super) fn retire(engines: &[Arc<Engine>]) {
        let until = now().saturating_add(LEAVING_MAX);
        for engine in engines {
            engine.leave_until.store(until, Relaxed);
            engine.wait.wake(0);
        }
    }

    /// Whether it is to leave its channels. One that never had any may be stopped at once.
    pub(super) fn is_over(&self, thread: &Running) -> bool {
        self.leave_until.load(Relaxed) != 0 || thread.should_stop()
    }

    /// Gives up all channels. Other engines take them over, or their programs ring from now on.
    pub(super) fn leave(&self, active: &mut List<Channel>) {
        self.take_pending(active);
        let mut left = List::new();
        while let Some(channel) = active.pop_front() {
            let channel = channel.into_arc();
            smp_mb();
            // The engine that takes it over finds it polled.
            if kick(&channel) {
                self.channels.fetch_sub(1, Relaxed);
                continue;
            }
            self.leave_to_doorbell(&channel);
            match ListArc::try_from_arc(channel) {
                Ok(channel) => left.push_back(channel),
                // One that came just now has it.
                Err(_) => {
                    self.channels.fetch_sub(1, Relaxed);
                }
            }
        }
        // Only this engine sends what was written before the programs knew: in turns, because
        // there may be many rings, and all of them full.
        let until = self.leave_until.load(Relaxed);
        while let Some(channel) = left.pop_front() {
            if now() < until && self.send_rest(channel.as_arc()) {
                left.push_back(channel);
            } else {
                self.give_up(channel);
            }
            cond_resched();
        }
    }

    /// Has the program of a channel ring from now on. A doorbell that has the sender does that in
    /// its place, and sends the rest: a process can make it last long.
    fn leave_to_doorbell(&self, channel: &Arc<Channel>) {
        channel.ask_to_unpoll();
        while !channel.is_ringing() {
            if let Some(mut sender) = channel.sender.try_lock() {
                channel.unpoll_if_asked(&mut sender);
                return;
            }
            // All other holders have it for a moment.
            fsleep(Delta::from_micros(LEAVING_TICK));
        }
    }

    /// Sends a share of what is in the ring of a channel that is not polled any more; says whether
    /// there is more to send.
    fn send_rest(&self, channel: &Arc<Channel>) -> bool {
        if channel.is_ringing() {
            return false;
        }
        let Some(mut sender) = channel.sender.try_lock() else {
            fsleep(Delta::from_micros(LEAVING_TICK));
            return true;
        };
        let (visit, _) = self.count_time(channel, || self.serve(channel, &mut sender, || false));
        matches!(visit, Visit::Sent | Visit::Waits)
    }
}
