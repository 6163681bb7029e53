// SPDX-License-Identifier: GPL-2.0

//! Counters of packets: a flow's, and the sums of all flows.

use crate::attributes::{attributes, Row, Set};

attributes! {
    /// Counters of a flow, in datagrams and bytes of payload. Sent are those of a TX ring,
    /// received those of an RX ring; tx-taken is tx-packets and all tx-drop-*, rx-taken is rx-
    /// packets and all rx-drop-*.
    Stats {
        /// Datagrams that the stack accepted.
        1 tx_packets: Option<u64>,
        /// Their payload, in bytes.
        2 tx_bytes: Option<u64>,
        /// Those of tx-packets whose pages the stack still referenced after sending.
        3 tx_zerocopy: Option<u64>,
        /// Datagrams taken from the TX ring, and those that sendmsg() sent by the channel's
        /// routes.
        4 tx_taken: Option<u64>,
        /// Dropped: EPERM or EACCES of a filter, a cgroup's program or a security module.
        5 tx_drop_denied: Option<u64>,
        /// Dropped: a rule of KOPI denied them.
        6 tx_drop_rule: Option<u64>,
        /// Dropped: they exceeded the rate that a rule of KOPI allows.
        7 tx_drop_rate: Option<u64>,
        /// Dropped: no route to the peer, or its host had reported the port as unreachable.
        8 tx_drop_unreachable: Option<u64>,
        /// Dropped: longer than a datagram can be, or than the path's MTU allows.
        9 tx_drop_too_long: Option<u64>,
        /// Dropped: memory was short, or a queue was full.
        10 tx_drop_no_buffer: Option<u64>,
        /// Dropped: the descriptors or metadata were invalid.
        11 tx_drop_invalid: Option<u64>,
        /// Dropped: any other error of the stack.
        12 tx_drop_other: Option<u64>,
        /// Datagrams delivered to the RX ring.
        13 rx_packets: Option<u64>,
        /// Their payload, in bytes.
        14 rx_bytes: Option<u64>,
        /// Datagrams that reached the flow.
        15 rx_taken: Option<u64>,
        /// Dropped: the RX ring had no room.
        16 rx_drop_ring_full: Option<u64>,
        /// Dropped: the FILL ring had too few frames.
        17 rx_drop_no_frame: Option<u64>,
        /// Dropped: they needed more frames than a packet can have.
        18 rx_drop_too_long: Option<u64>,
        /// Dropped: a rule of KOPI denied them.
        19 rx_drop_rule: Option<u64>,
        /// Dropped: they exceeded the rate that a rule of KOPI allows.
        20 rx_drop_rate: Option<u64>,
    }
}

impl Stats {
    /// Drops by direction and reason, those of zero included.
    pub(crate) fn drops(&self) -> impl Iterator<Item = (&'static str, String, u64)> {
        self.rows().into_iter().filter_map(
            |Row {
                 attribute, number, ..
             }| {
                let (way, reason) = attribute.name.split_once("_drop_")?;
                let direction = if way == "tx" { "out" } else { "in" };
                Some((direction, reason.replace('_', "-"), number?))
            },
        )
    }
}

attributes! {
    /// Totals of the network namespace.
    Totals {
        /// Sums over all flows, including closed ones.
        1 stats: Option<Stats>,
        /// Number of flows that were opened, including closed ones.
        2 flows_opened: Option<u64>,
        /// Number of calls that rules refused, of flows that they stopped, and of a few packets.
        3 flows_denied: Option<u64>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_have_reasons() {
        let stats = Stats {
            tx_packets: Some(1 << 33),
            rx_drop_no_frame: Some(4),
            ..Stats::default()
        };
        let drops = stats.drops().collect::<Vec<_>>();
        assert_eq!(drops, [("in", "no-frame".to_owned(), 4)]);
    }
}
