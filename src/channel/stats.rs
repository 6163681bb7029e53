// SPDX-License-Identifier: GPL-2.0

//! The counters of a channel, and the indices of its rings.

use super::Channel;
use crate::flow::FlowCounters;
use crate::pure::abi::Stats;
use kernel::sync::atomic::ordering::Relaxed;

/// The indices of a channel's rings: the producer's and the consumer's.
#[derive(Default)]
pub(crate) struct Positions {
    pub(crate) tx: (u32, u32),
    pub(crate) completion: (u32, u32),
    pub(crate) fill: (u32, u32),
    pub(crate) rx: (u32, u32),
}

impl Channel {
    /// Fills in the channel's counters and those of a flow on it.
    pub(crate) fn fill_stats(&self, counters: &FlowCounters, stats: &mut Stats) {
        self.fill(Some(counters), stats);
    }

    /// Fills in the channel's counters; gives the indices of its rings.
    pub(crate) fn fill_own_stats(&self, stats: &mut Stats) -> Positions {
        self.fill(None, stats)
    }

    fn fill(&self, counters: Option<&FlowCounters>, stats: &mut Stats) -> Positions {
        let mut at = Positions::default();
        {
            // Counters agree with each other while nothing is sent. While something is, the reader
            // doesn't wait: a dump would have all sockets of the namespace wait.
            let _sender = self.sender.try_lock();
            if let Some(counters) = counters {
                counters.fill_sent(stats);
            }
            stats.tx_invalid = self.counters.invalid.get();
            stats.ring_broken = self.counters.broken.get();
            stats.flows = u64::from(self.flows.load(Relaxed));
            stats.engine_time = self.engine_time.get();
            at.tx = self.tx.positions();
        }
        {
            let receiver = self.receiver.lock();
            if let Some(counters) = counters {
                counters.fill_received(stats);
            }
            stats.fill_invalid = receiver.invalid;
            stats.ring_broken = stats.ring_broken.wrapping_add(receiver.broken);
            (at.fill, at.rx) = receiver.positions();
        }
        let completions = self.completions.lock();
        stats.ring_broken = stats.ring_broken.wrapping_add(completions.broken);
        stats.tx_pending = u64::from(completions.pending);
        at.completion = completions.ring.positions();
        at
    }
}
