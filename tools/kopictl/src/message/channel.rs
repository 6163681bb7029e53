// SPDX-License-Identifier: GPL-2.0

//! Channels, and their rings.

use crate::attributes::attributes;

attributes! {
    /// One of the four rings of a channel.
    Ring {
        /// Number of entries.
        1 size: Option<u32>,
        /// Free-running index of the next entry to be written.
        2 producer: Option<u32>,
        /// Free-running index of the next entry to be read.
        3 consumer: Option<u32>,
    }
}

attributes! {
    /// Memory that is mapped into a process, and the flows that use it.
    Channel {
        /// The channel's number in this network namespace.
        1 id: Option<u32>,
        /// Number of flows on the channel.
        2 flows: Option<u32>,
        /// Size of a frame in bytes, including its headroom.
        3 frame_size: Option<u32>,
        /// Number of frames.
        4 frame_count: Option<u32>,
        /// Size of the mapped region in bytes.
        5 region_size: Option<u64>,
        /// KOPI_CHANNEL_* of uapi/kopi.h.
        6 flags: Option<u32>,
        /// The TX ring.
        7 tx: Option<Ring>,
        /// The COMPLETION ring.
        8 completion: Option<Ring>,
        /// The FILL ring.
        9 fill: Option<Ring>,
        /// The RX ring.
        10 rx: Option<Ring>,
        /// Descriptors that the stack has not released.
        11 tx_pending: Option<u32>,
        /// TX descriptors that were refused.
        12 tx_invalid: Option<u64>,
        /// FILL entries that named no frame.
        13 fill_invalid: Option<u64>,
        /// Number of times that an index of the program was invalid.
        14 ring_broken: Option<u64>,
        /// User that owned the flow for which the channel was made.
        15 uid: Option<u32>,
        /// Nanoseconds that engines have spent on the channel.
        16 engine_time: Option<u64>,
    }
}

impl Ring {
    /// How many entries wait for their reader.
    pub(crate) fn filled(&self) -> u32 {
        self.producer
            .unwrap_or(0)
            .wrapping_sub(self.consumer.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_go_round() {
        let ring = Ring {
            size: Some(8),
            producer: Some(3),
            consumer: Some(u32::MAX),
        };
        assert_eq!(ring.filled(), 4);
    }
}
