// SPDX-License-Identifier: GPL-2.0

//! Receiving: from a flow's queue to the RX ring.
//!
//! UDP queues a packet on the sock when every hook has passed it, and calls `data_ready`. That
//! takes up to [`RECEIVED_MAX`] of what is queued, asks KOPI's rules, copies payload into frames of the
//! FILL ring (`frames.rs`, `pieces.rs`) and adds entries to the RX ring. A packet that finds no frame or
//! no room is dropped and counted (`dropped.rs`): a softirq doesn't wait for a program. Datagrams from an
//! attached device come by `incoming.rs`, without the queue.

mod dropped;
mod frames;
mod incoming;
mod pieces;

pub(crate) use incoming::Delivery;

use crate::channel::Channel;
use crate::events::{notify, Event};
use crate::flow::Flow;
use crate::monitor::{self, PacketFate};
use crate::pure::{
    abi::{Desc, Meta, CHAIN_MAX, DESC_META, DESC_MORE},
    geometry::Frame,
    ring::{Consumer, Producer},
    rule::Direction, //
};
use crate::rules::{Counting, Outcome, Packets, Traffic};
use crate::sys::{
    context::{RxRun, SoftirqsOff},
    family,
    monitor::Packet,
    region::{KernelVecBuffer, RegionRing},
    skb::SkBuff,
    sock::{LockedSock, Sock}, //
};
use core::ops::Range;
use dropped::{free_lost, DropReason, Loss};
use frames::INVALID_MAX;
use kernel::prelude::*;
use pieces::{Piece, Pieces, Size};

/// Packets that one call of [`Channel::receive`] takes off a queue. Softirqs are off meanwhile, and the sock
/// may be locked; work delivers the rest.
const RECEIVED_MAX: u32 = 64;

/// Those who are woken for what was received.
#[derive(Clone, Copy)]
enum Wake {
    Nobody,
    /// Those who wait for the flow that has received it.
    OfFlow,
    /// Those who wait for the channel, too.
    All,
}

/// The receiving half of a channel, under its lock.
pub(crate) struct Receiver {
    fill: RegionRing<Consumer<u64>>,
    ring: RegionRing<Producer<Desc>>,
    /// Frames taken from the FILL ring and not used yet.
    spare: KVec<Frame>,
    /// A frame for the packet that is being delivered.
    ready: Option<Frame>,
    /// Frames of the packets that are being copied.
    frames: KVec<Frame>,
    pieces: KernelVecBuffer,
    /// The FILL ring has had an entry.
    had_frames: bool,
    /// Packets are being dropped, as there is no room or no frame.
    overrun: bool,
    /// Where the program had read up to when those who wait for the channel were woken last, and in
    /// which run of the softirq that was.
    woken: Option<(u32, RxRun)>,
    /// Entries of the FILL ring that are no frame and may still be passed over for a packet.
    left_invalid: u32,
    /// FILL entries that are no frame.
    pub(crate) invalid: u64,
    /// Times that an index of the program made no sense.
    pub(crate) broken: u64,
}

impl Receiver {
    pub(crate) fn new(
        fill: RegionRing<Consumer<u64>>,
        ring: RegionRing<Producer<Desc>>,
    ) -> Result<Self> {
        // At first the program wants to be woken. Its FILL ring needs no doorbell: each packet that
        // comes reads it.
        ring.preset_wakeup();
        Ok(Self {
            fill,
            ring,
            spare: KVec::with_capacity(CHAIN_MAX as usize, GFP_KERNEL_ACCOUNT)?,
            ready: None,
            frames: KVec::with_capacity(CHAIN_MAX as usize, GFP_KERNEL_ACCOUNT)?,
            pieces: KernelVecBuffer::new(CHAIN_MAX as usize)?,
            had_frames: false,
            overrun: false,
            woken: None,
            left_invalid: 0,
            invalid: 0,
            broken: 0,
        })
    }

    /// Notes, and says, whether the FILL ring has had an entry. Packets that come before stay in the queue of their
    /// sock, within its limits: the program could give no frame, since it has the rings only with the channel.
    fn note_frames(&mut self) -> bool {
        self.had_frames = self.had_frames || self.fill.positions() != (0, 0);
        self.had_frames
    }

    /// Where the FILL and the RX ring are: the producers' indices and the consumers'.
    pub(crate) fn positions(&self) -> ((u32, u32), (u32, u32)) {
        (self.fill.positions(), self.ring.positions())
    }

    /// Whether the RX ring has entries that the program hasn't read.
    pub(crate) fn has_unread(&self) -> bool {
        self.ring.is_unread()
    }

    /// Delivers a packet, or a GRO packet of them, unless the rules don't let it pass. Says what of
    /// it was lost.
    fn deliver(
        &mut self,
        channel: &Channel,
        flow: &Flow,
        sk: &Sock,
        skb: &SkBuff,
        locked: Option<LockedSock<'_>>,
    ) -> Option<Loss> {
        self.left_invalid = INVALID_MAX;
        let size = Size::of(skb);
        flow.counters.rx_taken.add(size.datagrams());
        let mut meta = Meta::default();
        skb.read_meta(sk, &mut meta);
        if channel.has_gro_merged() {
            meta.gso_size = size.gso_size as u16;
        }
        if let Some(locked) = locked {
            locked.run_receive_hook(&mut meta);
        }

        let outcome = judge(flow, sk, skb, &meta, &size);
        let result = match outcome {
            Outcome::Pass => self.deliver_all(channel, flow, skb, &mut meta, &size),
            Outcome::Denied => Err((0, DropReason::Rule)),
            Outcome::TooFast => Err((0, DropReason::Rate)),
        };

        if monitor::is_watched(flow) {
            let refusal = result
                .err()
                .map(|(_, reason)| reason.refusal(flow, sk, &meta));
            let fate = PacketFate::received(refusal, meta.ifindex, size.gso_size);
            monitor::show(flow, sk, fate, &Packet::of(skb));
        }
        match result {
            Ok(()) => {
                self.overrun = false;
                None
            }
            Err((end, reason)) => {
                let datagrams = size.datagrams_from(end);
                self.overrun |= reason.is_overrun();
                reason.counter(flow).add(u64::from(datagrams));
                Some(Loss { end, datagrams })
            }
        }
    }

    /// Shows the program the entries that were written; says whom to wake.
    ///
    /// A program that was woken in this run of the softirq, and has read nothing since, needn't be woken
    /// again: it doesn't sleep while there are entries.
    fn publish(&mut self, softirqs: &SoftirqsOff) -> Wake {
        self.ring.submit();
        if !self.ring.needs_wakeup() {
            return Wake::Nobody;
        }
        let Some(unread_from) = self.ring.unread_from() else {
            return Wake::Nobody;
        };
        let wake = (unread_from, RxRun::current(softirqs));
        if self.woken == Some(wake) {
            return Wake::OfFlow;
        }
        self.woken = Some(wake);
        Wake::All
    }

    /// Delivers all of a packet, or of a GRO packet; otherwise gives the place where that ended,
    /// and why.
    #[inline(always)]
    fn deliver_all(
        &mut self,
        channel: &Channel,
        flow: &Flow,
        skb: &SkBuff,
        meta: &mut Meta,
        size: &Size,
    ) -> core::result::Result<(), (u32, DropReason)> {
        // Bytes of each packet that the program gets.
        let step = if channel.has_gro_merged() {
            size.total
        } else {
            size.unit
        };
        let mut at = 0u32;
        loop {
            at = self.deliver_some(channel, flow, skb, meta, at..size.total, step)?;
            if at >= size.total {
                return Ok(());
            }
        }
    }

    /// Delivers as many packets of `step` bytes out of `range` as one copy can; gives the place
    /// where that ended, and why it can't go on there.
    fn deliver_some(
        &mut self,
        channel: &Channel,
        flow: &Flow,
        skb: &SkBuff,
        meta: &mut Meta,
        range: Range<u32>,
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
        self.write_entries(channel, flow, meta, range.start..end, step);
        stop.map_or(Ok(end), |reason| Err((end, reason)))
    }

    /// Delivers a packet that one frame holds, as [`Self::deliver_some`] does, in half as many steps.
    fn deliver_one(
        &mut self,
        channel: &Channel,
        flow: &Flow,
        skb: &SkBuff,
        meta: &mut Meta,
        range: &Range<u32>,
    ) -> core::result::Result<u32, DropReason> {
        let piece = Piece {
            len: range.end.saturating_sub(range.start),
            first: true,
            more: false,
        };
        let frame = self.take_frame(piece.len, channel.geometry())?;
        let mut pieces = self.pieces.of(channel.region());
        pieces
            .push(frame.payload(), piece.len)
            .and_then(|()| skb.copy_payload(range.start, &pieces))
            .map_err(|_| DropReason::TooLong)?;
        meta.len = piece.len;
        write_entry(&mut self.ring, channel, flow.number(), frame, &piece, meta);
        count(flow, meta, 1, piece.len);
        Ok(range.end)
    }

    /// Copies payload into the frames taken.
    fn copy(&mut self, channel: &Channel, skb: &SkBuff, range: Range<u32>, step: u32) -> Result {
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
    fn write_entries(
        &mut self,
        channel: &Channel,
        flow: &Flow,
        meta: &mut Meta,
        range: Range<u32>,
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
            write_entry(&mut self.ring, channel, number, *frame, &piece, meta);
        }
        count(flow, meta, packets, range.end.saturating_sub(range.start));
    }
}

/// Writes the RX entry of a frame, and metadata if a packet begins there.
fn write_entry(
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

impl Channel {
    /// Whether the program has given frames for receiving. Process context.
    pub(crate) fn has_had_frames(&self) -> bool {
        self.receiver.lock().note_frames()
    }

    /// Moves packets that are queued on the flow's sock to the RX ring, at most [`RECEIVED_MAX`];
    /// says whether some may be left. Before the program has given a frame for the first time, they stay queued.
    pub(crate) fn receive(
        &self,
        flow: &Flow,
        sk: &Sock,
        locked: Option<LockedSock<'_>>,
        softirqs: &SoftirqsOff,
    ) -> bool {
        let mut receiver = self.receiver.lock_with(softirqs);
        if !receiver.note_frames() {
            drop(receiver);
            // epoll asks again about what was woken, and only about that: by then there may be frames.
            self.tell(flow, sk, false, Wake::All);
            return false;
        }
        let was_overrun = receiver.overrun;
        let mut left = RECEIVED_MAX;
        while let Some(skb) = family::next_packet(sk, &mut left) {
            match receiver.deliver(self, flow, sk, &skb, locked) {
                None => skb.consume(sk),
                Some(loss) => free_lost(self, sk, skb, &loss),
            }
            if sk.is_queue_empty() {
                break;
            }
        }
        let wake = receiver.publish(softirqs);
        let overrun = receiver.overrun && !was_overrun;
        drop(receiver);
        self.tell(flow, sk, overrun, wake);
        // Without the sock's lock, the CPU that queues another packet calls this for it.
        (locked.is_some() || left == 0) && !sk.is_queue_empty()
    }

    /// Tells listeners that a flow's packets are being dropped, and wakes those that wait for what it
    /// receives, each if that is due. Softirqs are off.
    fn tell(&self, flow: &Flow, sk: &Sock, overrun: bool, wake: Wake) {
        if overrun {
            notify(flow, sk, Event::Overrun);
        }
        match wake {
            Wake::Nobody => return,
            Wake::OfFlow => (),
            Wake::All => self.wake_readers(),
        }
        if flow.was_polled_early() {
            sk.wake_readers();
        }
        sk.signal_io();
    }
}

/// The rules' verdict on a packet that comes. Softirqs are off.
fn judge(flow: &Flow, sk: &Sock, skb: &SkBuff, meta: &Meta, size: &Size) -> Outcome {
    let Some(policy) = flow.policy_in_force() else {
        return Outcome::Pass;
    };
    let traffic = Traffic {
        direction: Direction::In,
        peer: meta.peer(),
        packets: Packets {
            datagrams: size.datagrams(),
            bytes: u64::from(size.total),
            counting: Counting::Now,
        },
    };
    let outcome = flow.decide_in_ring(policy, sk, &traffic);
    outcome.unless(|| flow.cant_judge(skb.is_mapped(), || skb.is_of_old_end(sk)))
}
