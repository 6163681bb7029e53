// SPDX-License-Identifier: GPL-2.0

//! Attached devices.

use super::paths::{RxPath, TxPath};
use crate::attributes::attributes;

attributes! {
    /// An attached network device, whose driver gives and takes frames of flows.
    Device {
        /// Index of the device.
        1 ifindex: Option<u32>,
        /// The current TX path of flows' packets through the device, with the reason.
        2 tx_path: Option<TxPath>,
        /// Datagrams that the driver accepted.
        3 packets: Option<u64>,
        /// GSO packets that some of these were segmented from.
        4 gso_packets: Option<u64>,
        /// GSO packets that left through the stack.
        5 passed: Option<u64>,
        /// Datagrams that were dropped because too many waited, memory was short, the driver took no
        /// more, or the device went down.
        6 dropped: Option<u64>,
        /// In a request, the address of a struct kopi_port_map in the requesting process. The
        /// device's XDP program shares this memory, and redirects the datagrams for the ports that
        /// it names. Without this attribute the device's packets arrive through the stack.
        7 port_map: Option<u64>,
        /// The current RX path of flows' packets from the device, with the reason.
        8 rx_path: Option<RxPath>,
        /// Datagrams that were redirected.
        9 received: Option<u64>,
        /// GRO packets that were made of these.
        10 gro_packets: Option<u64>,
        /// Redirected datagrams that were dropped because memory was short.
        11 receive_dropped: Option<u64>,
        /// Redirected datagrams that went to their flows without the stack, or were dropped on that
        /// way, where the flow counts them.
        12 received_direct: Option<u64>,
    }
}
