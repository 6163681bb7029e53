// SPDX-License-Identifier: GPL-2.0

//! A row of the benchmark.

use serde::{Deserialize, Serialize};
use std::io;

/// How much two runs of a row may differ.
const TOLERANCE: f64 = 0.03;

/// What one mode cost in one situation.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Row {
    /// Name of the mode.
    pub(crate) mode: String,
    /// send, recv, serve, ask or rtt, or what of TCP.
    pub(crate) direction: String,
    /// The server that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) program: Option<String>,
    /// Whether the NIC does checksums and segmentation.
    pub(crate) offloads: bool,
    /// Transmit queues of the NIC, if they are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queues: Option<u32>,
    /// Bytes of payload of each datagram.
    pub(crate) payload: usize,
    /// What the administrator has installed.
    pub(crate) policy: String,
    /// Whether the policy saw the packets; `None` without one.
    pub(crate) policy_holds: Option<bool>,
    /// Sockets or flows.
    pub(crate) flows: u32,
    /// To how many peers the packets went, each to a random one.
    pub(crate) peers: usize,
    /// Packets that the program handed over at once.
    pub(crate) batch: usize,
    /// Mean of the last two runs, which agree; `None` unless under icount.
    pub(crate) insn_per_packet: Option<f64>,
    /// Each run, in instructions or packets per second.
    pub(crate) runs: Vec<f64>,
    /// Median of the runs; only by the clock on the wall.
    pub(crate) packets_per_second: Option<f64>,
    /// How often the program slept and was woken, for a packet.
    pub(crate) wakeups_per_packet: f64,
    /// Packets sent before the runs.
    pub(crate) warm_up: u64,
    /// Packets of all runs.
    pub(crate) sent: u64,
    /// Those that arrived, where there is somebody to receive them.
    pub(crate) delivered: Option<u64>,
    /// Those that left, by the NIC's own count.
    pub(crate) nic_packets: u64,
    /// Their bytes, Ethernet headers included.
    pub(crate) nic_bytes: u64,
    /// What the policy's own counter counted, with the packets before the runs.
    pub(crate) policy_packets: Option<u64>,
    /// What the stack was handed, a GSO packet as one, with the packets before the runs; `None` if that
    /// depends on chance.
    pub(crate) handed: Option<u64>,
    /// Time of a round trip, idle time with it: the median of the last run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) median_ns: Option<u64>,
    /// The 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_ns: Option<u64>,
    /// Kernel memory that the flows took, with their channel, where many flows were compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kernel_bytes: Option<u64>,
    /// The kernel.
    pub(crate) kernel: String,
}

impl Row {
    /// Whether it is of the same mode in the same situation.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        let kind = |row: &Self| {
            (
                row.offloads,
                row.queues,
                row.payload,
                row.flows,
                row.peers,
                row.kernel_bytes.is_some(),
            )
        };
        self.mode == other.mode
            && self.direction == other.direction
            && self.policy == other.policy
            && kind(self) == kind(other)
    }
}

/// The mean of the runs, if they agree.
pub(crate) fn agreed(runs: &[f64]) -> Option<f64> {
    let mean = runs.iter().sum::<f64>() / runs.len() as f64;
    let low = runs.iter().copied().fold(f64::INFINITY, f64::min);
    let high = runs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (mean.is_finite() && low > 0.0 && high <= low * (1.0 + TOLERANCE)).then_some(mean)
}

/// The mean of the last two runs, which must agree; they are in instructions for each of `what`.
pub(crate) fn mean_of_last(runs: &[f64], what: &str) -> io::Result<f64> {
    agreed(&runs[runs.len() - 2..]).ok_or_else(|| {
        io::Error::other(format!(
            "its runs don't agree: {runs:?} instructions {what}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_agree_within_the_tolerance() {
        assert_eq!(agreed(&[100.0, 102.0]), Some(101.0));
        assert_eq!(agreed(&[104.0, 100.0]), None);
        assert_eq!(agreed(&[0.0, 0.0]), None);
        assert_eq!(agreed(&[-5.0, -5.0]), None);
        assert_eq!(agreed(&[f64::NAN, 5.0]), None);
        assert_eq!(agreed(&[]), None);
    }
}
