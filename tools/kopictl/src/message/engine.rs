// SPDX-License-Identifier: GPL-2.0

//! Engines: kernel threads that send for busy channels.

use crate::attributes::attributes;

attributes! {
    /// A kernel thread that polls the TX rings of busy channels, of all network namespaces.
    Engine {
        /// Number of the CPU on which the engine runs.
        1 cpu: Option<u32>,
        /// Microseconds for which the engine polls an empty ring before the doorbell is needed.
        2 idle: Option<u64>,
        /// Bytes that the engine sends for one channel before it turns to the next one.
        3 budget: Option<u32>,
        /// Number of channels that the engine polls now.
        4 channels: Option<u32>,
        /// Number of visits to channels that had packets to send.
        5 visits: Option<u64>,
        /// Number of times that the engine was woken when it had no channel.
        6 wakeups: Option<u64>,
        /// Nanoseconds that the engine worked for channels.
        7 busy: Option<u64>,
        /// Nanoseconds that the engine was awake.
        8 awake: Option<u64>,
    }
}

attributes! {
    /// All engines of the machine.
    Engines {
        /// Number of a CPU that gets an engine. Without this attribute there are no engines.
        1 cpu: Vec<u32>,
        /// The idle attribute of each engine; by default 1000.
        2 idle: Option<u64>,
        /// The budget attribute of each engine; by default 65536.
        3 budget: Option<u32>,
    }
}
