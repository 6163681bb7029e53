// SPDX-License-Identifier: GPL-2.0

//! Which packets of the TX ring go as one GSO packet.

/// The most datagrams in a GSO packet (half of the stack's UDP_MAX_SEGMENTS).
pub const SEGMENTS_MAX: u32 = 64;
/// The most payload in a GSO packet, in bytes: it must fit an IPv4 packet with options.
pub const BYTES_MAX: u32 = 65000;

/// A GSO packet under construction: datagrams of one size, but for a shorter last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GsoBatch {
    segment: u32,
    count: u32,
    bytes: u32,
    closed: bool,
}

impl GsoBatch {
    /// Begins with a datagram of `len` bytes.
    pub fn new(len: u32) -> Self {
        Self {
            segment: len,
            count: 1,
            bytes: len,
            closed: len == 0,
        }
    }

    /// Takes one more datagram of `len` bytes, if it fits on.
    pub fn push(&mut self, len: u32) -> bool {
        let bytes = self.bytes.saturating_add(len);
        if self.closed
            || len == 0
            || len > self.segment
            || self.count >= SEGMENTS_MAX
            || bytes > BYTES_MAX
        {
            return false;
        }
        self.count = self.count.wrapping_add(1);
        self.bytes = bytes;
        self.closed = len < self.segment;
        true
    }

    /// Number of datagrams.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Payload of each datagram but the last, in bytes.
    pub fn segment(&self) -> u32 {
        self.segment
    }

    /// All payload, in bytes.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }
}
