// SPDX-License-Identifier: GPL-2.0

//! The GRO packets that one CPU coalesces from redirected frames, by the rules of `pure::gro`.

use crate::pure::gro::{
    are_alike,
    are_of_one_flow,
    FirstFrame,
    UdpFrame,
    GRO_BYTES_MAX,
    GRO_MAX, //
};
use crate::sys::direct::redirected::{datagrams_max, XdpFrame};
use kernel::prelude::*;

/// Maximum number of GRO packets that are being coalesced at once, on one CPU.
const COALESCED_MAX: usize = 16;

/// Datagrams that can be one GRO packet, or one frame that can't be part of any.
pub(super) struct Coalesced {
    pub(super) frames: KVec<XdpFrame>,
    /// The headers of the first datagram; [`FirstFrame::NONE`] for a frame that can't be part of
    /// any.
    pub(super) first: FirstFrame,
    /// Bytes of payload of the last datagram. All before it have as many bytes as the first one.
    last: usize,
    /// Number of datagrams that can still be added; 0 when it is closed.
    room: usize,
}

impl Coalesced {
    fn new() -> Result<Self> {
        Ok(Self {
            frames: KVec::with_capacity(GRO_MAX, GFP_KERNEL_ACCOUNT)?,
            first: FirstFrame::NONE,
            last: 0,
            room: 0,
        })
    }

    /// Begins it with the headers of a datagram, or with `None` for a frame that can't be part of
    /// any.
    fn begin(&mut self, datagram: Option<&UdpFrame<'_>>) {
        self.first = datagram.map_or(FirstFrame::NONE, FirstFrame::new);
        self.last = self.first.payload();
        let most = GRO_BYTES_MAX.checked_div(self.last).unwrap_or(0);
        self.room = most
            .min(GRO_MAX)
            .min(datagrams_max(self.last))
            .saturating_sub(1);
    }

    /// Adds a frame that belongs to it, or gives it back if there is no room.
    #[inline]
    fn push(&mut self, frame: XdpFrame) -> core::result::Result<(), XdpFrame> {
        if self.frames.len() == 1 {
            frame.begin_ids(&mut self.first);
        }
        self.frames
            .push_within_capacity(frame)
            .map_err(|error| error.0)
    }

    /// Whether a frame is the next datagram, of the same length and with the same headers as the
    /// first.
    #[inline]
    fn is_continued_by(&self, frame: &XdpFrame) -> bool {
        self.room > 0 && frame.follows(&self.first, self.frames.len())
    }

    /// Whether a datagram of the same flow with `len` bytes of payload becomes a part of it. Closes
    /// it if no later datagram can be added.
    fn join(&mut self, len: usize, is_alike: bool) -> bool {
        let segment = self.first.payload();
        let joins = is_alike && len <= segment && self.room > 0;
        if joins {
            self.last = len;
        }
        self.room = match joins && len == segment {
            true => self.room.saturating_sub(1),
            false => 0,
        };
        joins
    }

    /// Bytes of payload of all datagrams together.
    pub(super) fn payload(&self) -> usize {
        let before = self.frames.len().saturating_sub(1);
        self.first
            .payload()
            .saturating_mul(before)
            .saturating_add(self.last)
    }
}

/// GRO packets that are being coalesced on one CPU.
pub(super) struct GroTable {
    packets: KVec<Coalesced>,
    /// Number of them that are in use.
    used: usize,
}

impl GroTable {
    pub(super) fn new() -> Result<Self> {
        let mut packets = KVec::with_capacity(COALESCED_MAX, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..COALESCED_MAX {
            packets
                .push_within_capacity(Coalesced::new()?)
                .map_err(|_| ENOMEM)?;
        }
        Ok(Self { packets, used: 0 })
    }

    /// Adds a frame that continues the most recent GRO packet, as most do, or gives it back.
    #[inline(always)]
    pub(super) fn extend(&mut self, frame: XdpFrame) -> core::result::Result<(), XdpFrame> {
        match self.packets.get_mut(self.used.wrapping_sub(1)) {
            Some(last) if last.is_continued_by(&frame) => {
                last.room = last.room.saturating_sub(1);
                last.push(frame)
            }
            _ => Err(frame),
        }
    }

    /// Adds a frame that doesn't continue the most recent GRO packet, or gives it back if there are
    /// too many GRO packets.
    #[inline(never)]
    pub(super) fn insert(&mut self, frame: XdpFrame) -> core::result::Result<(), XdpFrame> {
        let Some((used, free)) = self.packets.split_at_mut_checked(self.used) else {
            return Err(frame);
        };
        let datagram = frame.datagram();
        let joined = match &datagram {
            Some(datagram) => join_one_of(used, datagram),
            None => {
                // The frame may belong to any flow, so no later datagram may overtake it.
                used.iter_mut().for_each(|packet| packet.room = 0);
                None
            }
        };
        let packet = match joined {
            Some(packet) => packet,
            None => {
                let Some(packet) = free.first_mut() else {
                    return Err(frame);
                };
                packet.begin(datagram.as_ref());
                self.used = self.used.wrapping_add(1);
                packet
            }
        };
        packet.push(frame)
    }

    /// Empties the table: the GRO packets, in the order in which they were begun. Each is to be emptied.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = &mut Coalesced> {
        let used = core::mem::take(&mut self.used);
        self.packets.iter_mut().take(used)
    }
}

/// Makes a datagram a part of its flow's GRO packet, if it can be one, and gives that packet. If the datagram can't,
/// the packet is closed.
fn join_one_of<'a>(
    packets: &'a mut [Coalesced],
    datagram: &UdpFrame<'_>,
) -> Option<&'a mut Coalesced> {
    let (headers, len) = (datagram.headers(), datagram.payload().len());
    let is_of_flow = |packet: &&mut Coalesced| {
        packet.room > 0 && are_of_one_flow(packet.first.headers(), headers)
    };
    let packet = packets.iter_mut().rev().find(is_of_flow)?;
    let first = &packet.first;
    let is_alike =
        are_alike(first.headers(), headers) && first.is_next(headers, packet.frames.len());
    packet.join(len, is_alike).then_some(packet)
}
