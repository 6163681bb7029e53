// SPDX-License-Identifier: GPL-2.0

//! The size of a packet that comes, and how it is cut into datagrams and frames.

use crate::pure::{geometry::Geometry, gso::datagrams};
use crate::sys::skb::SkBuff;
use core::ops::Range;

/// The size of a packet, or of a GRO packet.
pub(super) struct Size {
    /// Bytes of payload.
    pub(super) total: u32,
    /// Of each datagram of a GRO packet; else 0.
    pub(super) gso_size: u32,
    /// Of each datagram.
    pub(super) unit: u32,
}

impl Size {
    #[inline(always)]
    pub(super) fn of(skb: &SkBuff) -> Self {
        let (total, gso_size) = (skb.payload_len(), skb.gso_size());
        let unit = if gso_size == 0 { total } else { gso_size };
        Self {
            total,
            gso_size,
            unit,
        }
    }

    /// Number of datagrams.
    #[inline(always)]
    pub(super) fn datagrams(&self) -> u64 {
        u64::from(self.datagrams_from(0))
    }

    /// Number of datagrams behind the first `end` bytes; one at least.
    #[inline(always)]
    pub(super) fn datagrams_from(&self, end: u32) -> u32 {
        datagrams(self.total.saturating_sub(end), self.gso_size)
    }
}

/// What goes into one frame.
pub(super) struct Piece {
    pub(super) len: u32,
    /// It begins a packet.
    pub(super) first: bool,
    /// The packet goes on in the next frame.
    pub(super) more: bool,
}

/// Cuts payload into packets of `step` bytes, and those into frames.
pub(super) struct Pieces {
    capacity: u32,
    step: u32,
    /// Bytes left of all.
    left: u32,
    /// Bytes left of the packet; `None` before the first.
    packet: Option<u32>,
}

impl Pieces {
    pub(super) fn new(range: &Range<u32>, step: u32, geometry: &Geometry) -> Self {
        Self {
            capacity: geometry.capacity(),
            step,
            left: range.end.saturating_sub(range.start),
            packet: None,
        }
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let first = self.packet.is_none_or(|left| left == 0);
        if first && self.left == 0 && self.packet.is_some() {
            return None;
        }
        let packet = match self.packet {
            Some(left) if left > 0 => left,
            _ => self.step.min(self.left),
        };
        let len = packet.min(self.capacity);
        let rest = packet.saturating_sub(len);
        self.packet = Some(rest);
        self.left = self.left.saturating_sub(len);
        Some(Piece {
            len,
            first,
            more: rest > 0,
        })
    }
}
