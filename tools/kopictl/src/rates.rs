// SPDX-License-Identifier: GPL-2.0

//! What flows and processes did between two dumps.

use crate::message::{flow::Flow, stats::Stats};
use serde::Serialize;
use std::{
    collections::HashMap,
    ops::{AddAssign, Mul},
    time::Instant,
};

/// Packets, bytes and drops, both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Counts {
    /// Datagrams sent.
    pub(crate) out_packets: f64,
    /// Their payload.
    pub(crate) out_bytes: f64,
    /// Datagrams received.
    pub(crate) in_packets: f64,
    /// Their payload.
    pub(crate) in_bytes: f64,
    /// Datagrams lost, both ways.
    pub(crate) drops: f64,
}

/// Counters as of now. Exact up to 2^53, and for people.
#[expect(clippy::cast_precision_loss)]
impl From<&Stats> for Counts {
    fn from(stats: &Stats) -> Self {
        let number = |value: Option<u64>| value.unwrap_or(0) as f64;
        Self {
            out_packets: number(stats.tx_packets),
            out_bytes: number(stats.tx_bytes),
            in_packets: number(stats.rx_packets),
            in_bytes: number(stats.rx_bytes),
            drops: stats.drops().map(|(_, _, drops)| drops as f64).sum(),
        }
    }
}

impl Counts {
    /// Packets, both ways.
    pub(crate) fn packets(&self) -> f64 {
        self.out_packets + self.in_packets
    }

    /// Payload, both ways.
    pub(crate) fn bytes(&self) -> f64 {
        self.out_bytes + self.in_bytes
    }

    /// What came since `before`.
    fn since(self, before: Self) -> Self {
        Self {
            out_packets: (self.out_packets - before.out_packets).max(0.0),
            out_bytes: (self.out_bytes - before.out_bytes).max(0.0),
            in_packets: (self.in_packets - before.in_packets).max(0.0),
            in_bytes: (self.in_bytes - before.in_bytes).max(0.0),
            drops: (self.drops - before.drops).max(0.0),
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.out_packets += more.out_packets;
        self.out_bytes += more.out_bytes;
        self.in_packets += more.in_packets;
        self.in_bytes += more.in_bytes;
        self.drops += more.drops;
    }
}

impl Mul<f64> for Counts {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self {
            out_packets: self.out_packets * factor,
            out_bytes: self.out_bytes * factor,
            in_packets: self.in_packets * factor,
            in_bytes: self.in_bytes * factor,
            drops: self.drops * factor,
        }
    }
}

/// What was seen of the flows the last time.
#[derive(Default)]
pub(crate) struct Last {
    flows: HashMap<u32, Counts>,
    at: Option<Instant>,
}

impl Last {
    /// What each of `flows` did since the last time (or ever, if it is new), and the seconds since then.
    pub(crate) fn changes(&mut self, flows: &[Flow], now: Instant) -> (Vec<Counts>, Option<f64>) {
        let seconds = self.at.replace(now).map(|last| (now - last).as_secs_f64());
        let mut next = HashMap::new();
        let changes = flows.iter().map(|flow| {
            let counts = flow.stats.as_ref().map(Counts::from).unwrap_or_default();
            let id = flow.id.unwrap_or(0);
            next.insert(id, counts);
            counts.since(self.flows.get(&id).copied().unwrap_or_default())
        });
        let changes = changes.collect();
        self.flows = next;
        (changes, seconds)
    }
}

/// A process, as far as it is of interest.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub(crate) struct Process {
    /// Its number.
    pub(crate) pid: u32,
    /// Its program's name.
    pub(crate) program: String,
    /// Its user.
    pub(crate) uid: u32,
}

impl Process {
    /// That of a flow.
    pub(crate) fn of(flow: &Flow) -> Self {
        Self {
            pid: flow.pid.unwrap_or(0),
            program: flow.program().unwrap_or("?").to_owned(),
            uid: flow.uid.unwrap_or(u32::MAX),
        }
    }
}

/// Sums of processes, with the number of their flows.
pub(crate) fn by_process<'a>(
    flows: impl IntoIterator<Item = (&'a Flow, Counts)>,
) -> HashMap<Process, (usize, Counts)> {
    let mut sums = HashMap::<_, (usize, Counts)>::new();
    for (flow, counts) in flows {
        let sum = sums.entry(Process::of(flow)).or_default();
        sum.0 += 1;
        sum.1 += counts;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn flow(id: u32, pid: u32, packets: u64) -> Flow {
        let stats = Stats {
            tx_packets: Some(packets),
            tx_drop_rule: Some(2),
            ..Stats::default()
        };
        Flow {
            id: Some(id),
            pid: Some(pid),
            stats: Some(stats),
            ..Flow::default()
        }
    }

    #[test]
    fn changes_are_since_the_last_time() {
        let mut last = Last::default();
        let start = Instant::now();
        let (changes, seconds) = last.changes(&[flow(1, 7, 10)], start);
        assert_eq!(
            (changes[0].packets(), changes[0].drops, seconds),
            (10.0, 2.0, None)
        );
        let later = start + Duration::from_secs(2);
        let flows = [flow(1, 7, 15), flow(2, 7, 3)];
        let (changes, seconds) = last.changes(&flows, later);
        assert_eq!(seconds, Some(2.0));
        assert_eq!(
            (changes[0].packets(), changes[0].drops, changes[1].packets()),
            (5.0, 0.0, 3.0)
        );
        let sums = by_process(flows.iter().zip(changes));
        assert_eq!(sums[&Process::of(&flows[0])].1.packets(), 8.0);
    }
}
