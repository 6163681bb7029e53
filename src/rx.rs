// SPDX-License-Identifier: GPL-2.0

//! Receiving: from a flow's queue to the RX ring.
//!
//! UDP queues a packet on the sock when every hook has passed it, and calls `data_ready`. That
//! takes all that is queued, copies it into frames of the FILL ring and shows it in the RX ring.
//! What finds no frame or no room is dropped and counted: a softirq doesn't wait for a program.

use crate::channel::Channel;
use crate::flow::{Counter, Flow};
use crate::monitor::{self, Refusal, Seen};
use crate::netlink::events::{tell, Event};
use crate::pure::{
    abi::{
        Desc, Meta, CHAIN_MAX, DESC_META, DESC_MORE, MON_REASON_NO_FRAME, MON_REASON_RATE,
        MON_REASON_RING_FULL, MON_REASON_RULE, MON_REASON_TOO_LONG,
    },
    geometry::{Frame, Geometry},
    ring::{Consumer, Producer},
    rule::Direction, //
};
use crate::rules::{Outcome, Packets};
use crate::sys::{
    context::SoftirqsOff,
    family,
    monitor::Packet,
    region::{KernelVecBuffer, RegionRing},
    skb::SkBuff,
    sock::{LockedSock, Sock}, //
};
use kernel::prelude::*;

/// Entries of the FILL ring that are no frame, which are passed over for one packet.
const INVALID_MAX: u32 = 64;

/// Packets that are received at once where those who send don't wait for the receiver's lock.
const RECEIVED_MAX: u32 = 64;

/// The receiving half of a channel, under its lock.
pub(crate) struct Receiver {
    fill: RegionRing<Consumer<u64>>,
    ring: RegionRing<Producer<Desc>>,
    /// Frames taken from the FILL ring and not used yet.
    spare: KVec<Frame>,
    /// Frames of the packets that are being copied.
    frames: KVec<Frame>,
    pieces: KernelVecBuffer,
    /// Packets are being dropped for want of room or frames.
    overrun: bool,
    /// Entries of the FILL ring that are no frame and may still be passed over for a packet.
    left_invalid: u32,
    /// FILL entries that are no frame.
    pub(crate) invalid: u64,
    /// Times that an index of the program made no sense.
    pub(crate) broken: u64,
}

/// Why a packet isn't delivered.
#[derive(Clone, Copy)]
enum DropReason {
    RingFull,
    NoFrame,
    TooLong,
    Rule,
    Rate,
}

impl DropReason {
    fn counter(self, flow: &Flow) -> &Counter {
        match self {
            DropReason::RingFull => &flow.counters.rx_drop_ring_full,
            DropReason::NoFrame => &flow.counters.rx_drop_no_frame,
            DropReason::TooLong => &flow.counters.rx_drop_too_long,
            DropReason::Rule => &flow.counters.rx_drop_rule,
            DropReason::Rate => &flow.counters.rx_drop_rate,
        }
    }

    /// As monitors show it, for a packet that metadata was made of.
    fn refusal(self, flow: &Flow, sk: &Sock, meta: &Meta) -> Refusal {
        let reason = match self {
            DropReason::RingFull => MON_REASON_RING_FULL,
            DropReason::NoFrame => MON_REASON_NO_FRAME,
            DropReason::TooLong => MON_REASON_TOO_LONG,
            DropReason::Rule => MON_REASON_RULE,
            DropReason::Rate => MON_REASON_RATE,
        };
        let rule = match (self, flow.policy()) {
            (DropReason::Rule | DropReason::Rate, Some(policy)) => {
                policy.rule_for(sk, Direction::In, &meta.peer())
            }
            _ => 0,
        };
        Refusal { reason, rule }
    }
}

impl Receiver {
    pub(crate) fn new(
        fill: RegionRing<Consumer<u64>>,
        ring: RegionRing<Producer<Desc>>,
    ) -> Result<Self> {
        // The program starts by wanting to be woken. Its FILL ring needs no doorbell: it is looked
        // at whenever a packet comes.
        ring.preset_wakeup();
        Ok(Self {
            fill,
            ring,
            spare: KVec::with_capacity(CHAIN_MAX as usize, GFP_KERNEL_ACCOUNT)?,
            frames: KVec::with_capacity(CHAIN_MAX as usize, GFP_KERNEL_ACCOUNT)?,
            pieces: KernelVecBuffer::new(CHAIN_MAX as usize)?,
            overrun: false,
            left_invalid: 0,
            invalid: 0,
            broken: 0,
        })
    }

    /// Where the FILL and the RX ring are: the producers' indices and the consumers'.
    pub(crate) fn positions(&self) -> ((u32, u32), (u32, u32)) {
        (self.fill.positions(), self.ring.positions())
    }

    /// Whether the RX ring has entries that the program hasn't read.
    pub(crate) fn has_unread(&self) -> bool {
        self.ring.is_unread()
    }

    /// Takes the next frame from the FILL ring.
    #[inline(always)]
    fn next_frame(&mut self, geometry: &Geometry) -> core::result::Result<Frame, DropReason> {
        let Ok(available) = self.fill.available(1) else {
            self.broken = self.broken.wrapping_add(1);
            return Err(DropReason::NoFrame);
        };
        if available == 0 {
            return Err(DropReason::NoFrame);
        }
        match geometry.frame_at(self.fill.peek(0)) {
            Some(frame) => {
                self.fill.release(1);
                Ok(frame)
            }
            None => self.next_valid_frame(available, geometry),
        }
    }

    /// The same where entries of the `available` ones are no frame.
    ///
    /// The producer's index isn't looked at again, and [`INVALID_MAX`] entries a packet are passed over at
    /// the most: the program writes the ring meanwhile, and spinlocks are held.
    #[cold]
    fn next_valid_frame(
        &mut self,
        available: u32,
        geometry: &Geometry,
    ) -> core::result::Result<Frame, DropReason> {
        for _ in 0..available {
            if let Some(frame) = geometry.frame_at(self.fill.peek(0)) {
                self.fill.release(1);
                return Ok(frame);
            }
            if self.left_invalid == 0 {
                break;
            }
            self.left_invalid = self.left_invalid.saturating_sub(1);
            self.fill.release(1);
            self.invalid = self.invalid.wrapping_add(1);
        }
        Err(DropReason::NoFrame)
    }

    /// Takes `count` frames from the FILL ring into `frames`; all or none.
    fn take_frames(
        &mut self,
        count: u32,
        geometry: &Geometry,
    ) -> core::result::Result<(), DropReason> {
        // Most often, and then it needn't be set aside.
        if count == 1 && self.spare.is_empty() {
            let frame = self.next_frame(geometry)?;
            let _ = self.frames.push_within_capacity(frame);
            return Ok(());
        }
        while self.spare.len() < count as usize {
            let frame = self.next_frame(geometry)?;
            // There is room: no packet needs more than CHAIN_MAX.
            let _ = self.spare.push_within_capacity(frame);
        }
        for _ in 0..count {
            if let Some(frame) = self.spare.pop() {
                let _ = self.frames.push_within_capacity(frame);
            }
        }
        Ok(())
    }

    /// Finds room and frames for one packet of `len` bytes.
    #[inline]
    fn make_room(&mut self, len: u32, geometry: &Geometry) -> core::result::Result<(), DropReason> {
        let needed = geometry.frames_for(len);
        if needed > CHAIN_MAX || needed > self.ring.size() {
            return Err(DropReason::TooLong);
        }
        // Those of packets that are not written yet need room, too.
        let entries = needed.saturating_add(self.frames.len() as u32);
        match self.ring.room(entries) {
            Ok(room) if room >= entries => self.take_frames(needed, geometry),
            Ok(_) => Err(DropReason::RingFull),
            Err(_) => {
                self.broken = self.broken.wrapping_add(1);
                Err(DropReason::RingFull)
            }
        }
    }

    /// Delivers a packet, or a GRO packet of them, unless the rules don't let it pass.
    fn deliver(
        &mut self,
        channel: &Channel,
        flow: &Flow,
        sk: &Sock,
        skb: SkBuff,
        locked: Option<LockedSock<'_>>,
    ) {
        self.left_invalid = INVALID_MAX;
        let total = skb.payload_len();
        let gso_size = skb.gso_size();
        let unit = if gso_size == 0 { total } else { gso_size };
        let datagrams = u64::from(total.div_ceil(unit.max(1)).max(1));
        flow.counters.rx_taken.add(datagrams);
        let mut meta = Meta::default();
        skb.read_meta(sk, &mut meta);
        if channel.merges_received() {
            meta.gso_size = gso_size as u16;
        }
        if let Some(locked) = locked {
            locked.run_receive_hook(&mut meta);
        }

        let packets = Packets {
            datagrams,
            bytes: u64::from(total),
            again: false,
        };
        let result = match flow.decide(sk, Direction::In, || meta.peer(), packets) {
            Outcome::Pass => self.deliver_all(channel, flow, &skb, &mut meta, (total, gso_size)),
            Outcome::Denied => Err((0, DropReason::Rule)),
            Outcome::TooFast => Err((0, DropReason::Rate)),
        };
        if monitor::is_watched(flow) {
            let refusal = result
                .err()
                .map(|(_, reason)| reason.refusal(flow, sk, &meta));
            let seen = Seen::received(refusal, meta.ifindex, gso_size);
            monitor::show(flow, sk, seen, &Packet::of(&skb));
        }
        match result {
            Ok(()) => {
                self.overrun = false;
                skb.consume(sk);
            }
            Err((end, reason)) => {
                let lost = total.saturating_sub(end).div_ceil(unit.max(1)).max(1);
                self.count_lost(flow, reason, lost);
                give_up(channel, sk, skb, end, lost);
            }
        }
    }

    /// Delivers all `total` bytes of a packet, or of a GRO packet of datagrams of `gso_size`; otherwise says where
    /// it ended, and why.
    #[inline(always)]
    fn deliver_all(
        &mut self,
        channel: &Channel,
        flow: &Flow,
        skb: &SkBuff,
        meta: &mut Meta,
        (total, gso_size): (u32, u32),
    ) -> core::result::Result<(), (u32, DropReason)> {
        // Bytes of each packet that the program gets.
        let step = if gso_size == 0 || channel.merges_received() {
            total
        } else {
            gso_size
        };
        let mut at = 0u32;
        loop {
            at = self.deliver_some(channel, flow, skb, meta, at..total, step)?;
            if at >= total {
                return Ok(());
            }
        }
    }

    /// Counts datagrams that aren't delivered.
    fn count_lost(&mut self, flow: &Flow, reason: DropReason, lost: u32) {
        self.overrun |= matches!(reason, DropReason::RingFull | DropReason::NoFrame);
        reason.counter(flow).add(u64::from(lost));
    }

    /// Delivers as many packets of `step` bytes out of `range` as one copy can, and says where it
    /// ended, and why it can't go on there.
    fn deliver_some(
        &mut self,
        channel: &Channel,
        flow: &Flow,
        skb: &SkBuff,
        meta: &mut Meta,
        range: core::ops::Range<u32>,
        step: u32,
    ) -> core::result::Result<u32, (u32, DropReason)> {
        let geometry = channel.geometry();
        self.frames.clear();
        let whole = range.end.saturating_sub(range.start);
        if whole <= step && whole <= geometry.capacity() {
            return self
                .deliver_one(channel, flow, skb, meta, &range)
                .map_err(|reason| (range.start, reason));
        }
        let mut end = range.start;
        let mut stop = None;
        loop {
            let len = step.min(range.end.saturating_sub(end));
            let frames = self.frames.len() as u32;
            if frames > 0 && frames.saturating_add(geometry.frames_for(len)) > CHAIN_MAX {
                break;
            }
            if let Err(reason) = self.make_room(len, geometry) {
                stop = Some(reason);
                break;
            }
            end = end.saturating_add(len);
            if end >= range.end {
                break;
            }
        }
        if self.frames.is_empty() {
            return stop.map_or(Ok(range.end), |reason| Err((end, reason)));
        }
        if self.copy(channel, skb, range.start..end, step).is_err() {
            // The skb doesn't hold what it says: nothing of it can be delivered.
            return Err((range.start, DropReason::TooLong));
        }
        self.publish(channel, flow, meta, range.start..end, step);
        stop.map_or(Ok(end), |reason| Err((end, reason)))
    }

    /// The same of one packet that one frame holds, in half as many steps.
    fn deliver_one(
        &mut self,
        channel: &Channel,
        flow: &Flow,
        skb: &SkBuff,
        meta: &mut Meta,
        range: &core::ops::Range<u32>,
    ) -> core::result::Result<u32, DropReason> {
        let piece = Piece {
            len: range.end.saturating_sub(range.start),
            first: true,
            more: false,
        };
        self.make_room(piece.len, channel.geometry())?;
        let frame = self.frames.pop().ok_or(DropReason::NoFrame)?;
        let mut pieces = self.pieces.of(channel.region());
        pieces
            .push(frame.payload(), piece.len)
            .and_then(|()| skb.copy_payload(range.start, &pieces))
            .map_err(|_| DropReason::TooLong)?;
        meta.len = piece.len;
        show(&mut self.ring, channel, flow.number(), frame, &piece, meta);
        count(flow, meta, 1, piece.len);
        Ok(range.end)
    }

    /// Copies payload into the frames taken.
    fn copy(
        &mut self,
        channel: &Channel,
        skb: &SkBuff,
        range: core::ops::Range<u32>,
        step: u32,
    ) -> Result {
        let mut pieces = self.pieces.of(channel.region());
        for (frame, piece) in self
            .frames
            .iter()
            .zip(Pieces::new(&range, step, channel.geometry()))
        {
            pieces.push(frame.payload(), piece.len)?;
        }
        skb.copy_payload(range.start, &pieces)
    }

    /// Writes metadata and RX entries of what was copied.
    fn publish(
        &mut self,
        channel: &Channel,
        flow: &Flow,
        meta: &mut Meta,
        range: core::ops::Range<u32>,
        step: u32,
    ) {
        let number = flow.number();
        let mut packets = 0u64;
        let mut at = range.start;
        for (frame, piece) in self
            .frames
            .iter()
            .zip(Pieces::new(&range, step, channel.geometry()))
        {
            if piece.first {
                meta.len = step.min(range.end.saturating_sub(at));
                at = at.saturating_add(meta.len);
                packets = packets.wrapping_add(1);
            }
            show(&mut self.ring, channel, number, *frame, &piece, meta);
        }
        count(flow, meta, packets, range.end.saturating_sub(range.start));
    }
}

/// Lets go of a packet of which only the first `end` bytes were delivered, and `lost` datagrams weren't.
fn give_up(channel: &Channel, sk: &Sock, skb: SkBuff, end: u32, lost: u32) {
    skb.count_dropped(sk, lost);
    if end > 0 {
        skb.consume(sk);
    } else {
        // Monitors have seen it, and needn't as one that the stack drops.
        channel.refuse(skb.address());
        drop(skb);
        channel.refuse(0);
    }
}

/// Writes the RX entry of a frame, and metadata if a packet begins there.
fn show(
    ring: &mut RegionRing<Producer<Desc>>,
    channel: &Channel,
    flow: u32,
    frame: Frame,
    piece: &Piece,
    meta: &Meta,
) {
    let mut flags = 0;
    if piece.first {
        flags |= DESC_META;
        // A frame's headroom is always within the region.
        let _ = channel.region().write_meta(frame, meta);
    }
    if piece.more {
        flags |= DESC_MORE;
    }
    ring.write(Desc {
        offset: frame.payload(),
        len: piece.len,
        flow,
        flags,
        error: 0,
    });
}

/// Counts packets that were delivered, or the datagrams of merged ones.
fn count(flow: &Flow, meta: &Meta, packets: u64, bytes: u32) {
    let datagrams = match u32::from(meta.gso_size) {
        0 => packets,
        size => u64::from(bytes.div_ceil(size)),
    };
    flow.counters.rx_packets.add(datagrams);
    flow.counters.rx_bytes.add(u64::from(bytes));
}

/// What goes into one frame.
struct Piece {
    len: u32,
    /// It begins a packet.
    first: bool,
    /// The packet goes on in the next frame.
    more: bool,
}

/// Cuts payload into packets of `step` bytes, and those into frames.
struct Pieces {
    capacity: u32,
    step: u32,
    /// Bytes left of all.
    left: u32,
    /// Bytes left of the packet; `None` before the first.
    packet: Option<u32>,
}

impl Pieces {
    fn new(range: &core::ops::Range<u32>, step: u32, geometry: &Geometry) -> Self {
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

impl Channel {
    /// Moves what is queued on the flow's sock to the RX ring. If the sock is locked some may be left,
    /// which is the answer.
    pub(crate) fn receive(
        &self,
        flow: &Flow,
        sk: &Sock,
        locked: Option<LockedSock<'_>>,
        softirqs: &SoftirqsOff,
    ) -> bool {
        let mut receiver = self.receiver.lock_with(softirqs);
        let was_overrun = receiver.overrun;
        // Else all who send wait, each for its packet, for the receiver's lock.
        let mut left = if locked.is_some() {
            RECEIVED_MAX
        } else {
            u32::MAX
        };
        while left > 0 && !sk.is_queue_empty() {
            let Some(skb) = family::next_packet(sk, &mut left) else {
                break;
            };
            receiver.deliver(self, flow, sk, skb, locked);
        }
        receiver.ring.submit();
        let wake = receiver.ring.needs_wakeup() && receiver.has_unread();
        let overrun = receiver.overrun && !was_overrun;
        drop(receiver);

        if overrun {
            tell(flow, sk, Event::Overrun);
        }

        if wake {
            self.wake_readers();
            if flow.was_polled_early() {
                sk.wake_readers();
            }
            sk.signal_io();
        }
        locked.is_some() && !sk.is_queue_empty()
    }
}
