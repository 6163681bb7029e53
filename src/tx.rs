// SPDX-License-Identifier: GPL-2.0

//! Sending: from the TX ring to the stack.
//!
//! The doorbell takes descriptors in order, checks each, and gives what they name to the flow's
//! own `sendmsg`: so every packet is routed, filtered, counted and queued as one from a UDP socket.
//! Runs of datagrams to one peer go as one GSO packet, if the channel asked for GSO packets.

use crate::channel::Channel;
use crate::engine::Turn;
use crate::flow::{Counter, Flow};
use crate::monitor::{self, Unsent};
use crate::pure::{
    abi::{Desc, Meta, CHAIN_MAX, DESC_META, DESC_MORE},
    descriptor::{self, Bad},
    gso_batch::GsoBatch, //
    ring::Consumer,
    rule::{Direction, Peer},
};
use crate::routes::Routes;
use crate::rules::{Outcome, Packets};
use crate::sys::{
    context::{cond_resched, signal_pending},
    errno::{enobufs, eopnotsupp, eproto, Refusal},
    family,
    message::Message,
    region::{PageVec, RegionRing},
    sock::Sock,
    socket::{Socket, SocketTable},
    ubuf::{Notification, Released}, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc, //
    }, //
};

/// Longer payloads, in bytes, go by reference: the module's parameter.
pub(crate) fn copybreak() -> u32 {
    family::copybreak()
}

/// Pieces of pages that one skb can refer to, but one: an skb has 17, and may need one for headers.
const REFERENCES_MAX: usize = 16;

/// How often a full send buffer that has room again is tried at once.
const FULL_MAX: u32 = 64;

/// The longest payload that any datagram or GSO packet can have, in bytes.
const PAYLOAD_MAX: u32 = 0xffff;

/// Bytes of payload that monitors see of a datagram that the rules don't let pass.
const SHOWN_MAX: usize = 256;

/// Pieces of pages of the longest payload, in the worst of all cases.
const PIECES_MAX: usize = 2 * CHAIN_MAX as usize + 32;

/// The sending half of a channel, under its lock.
pub(crate) struct Sender {
    ring: RegionRing<Consumer<Desc>>,
    /// Descriptors that a packet can have.
    longest: u32,
    /// The sockets of the channel's flows, by number.
    pub(crate) sockets: SocketTable,
    batch: Batch,
    pub(crate) output: Output,
    /// Completions of what was copied.
    done: Done,
    /// Entries of the COMPLETION ring that are known to be free, besides those for `done`.
    room: u32,
    /// In the middle of a packet that is refused for its length.
    skipping: bool,
    /// Packets to be sent one by one, since as a GSO packet they can't be.
    singles: u32,
    /// Times in a row that the send buffer was full, and yet had room when looked at.
    full: u32,
    passed: Passed,
    /// What an engine knows of the channel.
    pub(crate) turn: Turn,
    counters: Arc<SenderCounters>,
}

/// What the rules have let pass, and counted, at the head of the ring: it wasn't sent yet.
struct Passed {
    flow: u32,
    peer: Peer,
    datagrams: u64,
    bytes: u32,
}

impl Passed {
    const NOTHING: Self = Self {
        flow: 0,
        peer: NOBODY,
        datagrams: 0,
        bytes: 0,
    };

    /// Whether so much for a peer of a flow was counted before.
    fn has(&self, flow: u32, peer: &Peer, datagrams: u64, bytes: u32) -> bool {
        (self.flow, self.peer) == (flow, *peer)
            && self.datagrams >= datagrams
            && self.bytes >= bytes
    }
}

/// No peer.
const NOBODY: Peer = Peer {
    address: [0; 16],
    port: 0,
};

/// What a sender counts besides its flows' packets; written under its lock.
#[derive(Default)]
pub(crate) struct SenderCounters {
    /// Descriptors refused.
    pub(crate) invalid: Counter,
    /// Times that an index of the program made no sense.
    pub(crate) broken: Counter,
}

/// The descriptors that are being sent: one packet, or those of one GSO packet.
struct Batch {
    descs: KVec<Desc>,
    /// Of payload.
    bytes: u32,
}

impl Batch {
    fn new() -> Result<Self> {
        Ok(Self {
            descs: KVec::with_capacity(CHAIN_MAX as usize, GFP_KERNEL_ACCOUNT)?,
            bytes: 0,
        })
    }

    fn clear(&mut self) {
        self.descs.clear();
        self.bytes = 0;
    }

    /// Appends one, of no more than CHAIN_MAX.
    fn push(&mut self, desc: Desc) {
        if self.descs.push_within_capacity(desc).is_ok() {
            self.bytes = self.bytes.saturating_add(desc.len);
        }
    }

    /// Number of descriptors.
    fn count(&self) -> u32 {
        self.descs.len() as u32
    }

    /// The first one; of an empty batch, one of nothing.
    fn first(&self) -> Desc {
        self.descs.first().copied().unwrap_or_default()
    }

    /// Number of datagrams, if a GSO packet has them of `segment` bytes.
    fn datagrams(&self, segment: u32) -> u64 {
        u64::from(match segment {
            0 => 1,
            segment => self.bytes.div_ceil(segment).max(1),
        })
    }
}

/// Completions that are written together: the ring's lock, with interrupts off, once for many.
struct Done(KVec<Desc>);

impl Done {
    /// Completes a batch, with an errno or 0, at the next [`Done::flush`] at the latest.
    fn add(&mut self, channel: &Channel, batch: &[Desc], error: u16) {
        if self.0.spare_capacity_mut().len() < batch.len() {
            self.flush(channel);
        }
        for desc in batch {
            // There is room: a batch has no more than CHAIN_MAX.
            let _ = self.0.push_within_capacity(Desc { error, ..*desc });
        }
    }

    /// Writes those that have gathered.
    fn flush(&mut self, channel: &Channel) {
        if !self.0.is_empty() {
            channel.complete(self.0.iter().copied(), 0);
            self.0.clear();
        }
    }
}

/// What came of looking at the head of the TX ring.
enum Step {
    /// So many descriptors were taken.
    Took(u32),
    /// The rest must wait.
    Stop,
}

/// Descriptors that went by reference: completed when the stack has let go of them.
struct InFlight {
    channel: Arc<Channel>,
    descs: [Desc; REFERENCES_MAX],
    count: usize,
    /// What to complete them with: an errno, 0, or [`InFlight::CANCELLED`].
    verdict: Atomic<u32>,
}

impl InFlight {
    /// They were not sent and stay in the TX ring.
    const CANCELLED: u32 = u32::MAX;
}

impl Released for InFlight {
    fn released(&self) {
        let descs = self.descs.get(..self.count).unwrap_or(&[]);
        match self.verdict.load(Relaxed) {
            Self::CANCELLED => self.channel.cancel_completions(self.count as u32),
            verdict => {
                let error = verdict as u16;
                let done = descs.iter().map(|desc| Desc { error, ..*desc });
                self.channel.complete(done, self.count as u32);
            }
        }
    }
}

/// The errno of a completion.
fn errno(error: Error) -> u16 {
    u16::try_from(error.to_errno().unsigned_abs()).unwrap_or(0)
}

/// What is wrong with a descriptor, as an errno.
fn refusal(bad: Bad) -> Error {
    match bad {
        Bad::Range => EFAULT,
        Bad::Field => EINVAL,
        Bad::Flow => EBADF,
        Bad::Chain => EMSGSIZE,
    }
}

/// Where a packet goes.
fn peer_of(meta: &Meta, sk: &Sock) -> Peer {
    if meta.peer_port == 0 {
        return sk.peer().unwrap_or(NOBODY);
    }
    meta.peer().or_loopback()
}

/// Where a packet is counted that the stack refused.
fn drop_counter(flow: &Flow, error: Error) -> &Counter {
    match Refusal::of(error) {
        Refusal::Denied => &flow.counters.tx_drop_denied,
        Refusal::Unreachable => &flow.counters.tx_drop_unreachable,
        Refusal::TooLong => &flow.counters.tx_drop_too_long,
        Refusal::NoBuffer => &flow.counters.tx_drop_no_buffer,
        Refusal::Other => &flow.counters.tx_drop_other,
    }
}

/// Whether an error may be one of the GSO packet, not of the packets in it.
fn is_of_gso(error: Error) -> bool {
    [EMSGSIZE, EINVAL, EIO, eopnotsupp()].contains(&error)
}

impl Channel {
    /// Takes what is in the TX ring, as far as it can be sent now; gives the number of descriptors.
    ///
    /// `EPROTO` when the ring's index makes no sense, `ENOMEM`. Process context.
    pub(crate) fn transmit(this: &Arc<Self>) -> Result<u32> {
        this.user().note_current()?;
        let mut sender = this.sender.lock();
        let mut taken = 0u32;
        loop {
            this.start_ringing();
            let result = sender
                .waiting()
                .map(|(available, _)| sender.take(this, available, |_, _| !signal_pending()));
            this.stop_ringing();
            // What was written before the program could see that is this doorbell's to send.
            let again = this.unpoll_if_asked(&mut sender);
            taken = taken.saturating_add(result?);
            if !again {
                return Ok(taken);
            }
        }
    }
}

impl Sender {
    /// Takes nothing yet; the COMPLETION ring has so many entries: `ENOMEM`. Process context.
    pub(crate) fn new(
        ring: RegionRing<Consumer<Desc>>,
        completions: u32,
        counters: Arc<SenderCounters>,
    ) -> Result<Self> {
        // The ring is looked at when the doorbell rings, and only then; but for engines.
        ring.want_wakeup(true);
        Ok(Self {
            longest: CHAIN_MAX.min(completions).min(ring.size()),
            ring,
            sockets: SocketTable::new(),
            batch: Batch::new()?,
            output: Output {
                pages: PageVec::new(PIECES_MAX)?,
                message: Message::new(NOBODY),
                routes: Routes::new(),
            },
            done: Done(KVec::with_capacity(CHAIN_MAX as usize, GFP_KERNEL_ACCOUNT)?),
            room: 0,
            skipping: false,
            singles: 0,
            full: 0,
            passed: Passed::NOTHING,
            turn: Turn::default(),
            counters,
        })
    }

    /// What the rules let pass is forgotten: numbers of flows are used again.
    pub(crate) fn forget_passed(&mut self) {
        self.passed = Passed::NOTHING;
    }

    /// Says whether the program must ring the doorbell for what it writes from now on. To be looked
    /// at once more afterwards, if it must.
    pub(crate) fn want_doorbell(&self, want: bool) {
        self.ring.want_wakeup(want);
    }

    /// Number of descriptors that wait in the ring, of how many: `EPROTO`.
    pub(crate) fn waiting(&mut self) -> Result<(u32, u32)> {
        match self.ring.available(u32::MAX) {
            Ok(available) => Ok((available, self.ring.size())),
            Err(_) => {
                self.counters.broken.add(1);
                Err(eproto())
            }
        }
    }

    /// The flow of the first descriptor; there is one, as the caller knows from [`Self::waiting`].
    pub(crate) fn first_flow(&self) -> Option<&Socket> {
        self.sockets.get(self.ring.peek(0).flow)
    }

    /// Takes of the descriptors that [`Self::waiting`] counted what can be sent now, as long as `go_on`
    /// says, which is told how many descriptors, and bytes of payload, were taken last. Gives the number
    /// of all. Process context.
    pub(crate) fn take(
        &mut self,
        channel: &Arc<Channel>,
        available: u32,
        mut go_on: impl FnMut(u32, u32) -> bool,
    ) -> u32 {
        channel.unstall();
        self.output.routes.begin();
        let mut taken = 0u32;
        while taken < available {
            let more = match self.step(channel, available.wrapping_sub(taken)) {
                Step::Took(0) => go_on(0, 0),
                Step::Took(count) => {
                    taken = taken.wrapping_add(count);
                    go_on(count, self.batch.bytes)
                }
                Step::Stop => break,
            };
            if !more {
                break;
            }
            cond_resched();
        }
        self.done.flush(channel);
        taken
    }

    /// Looks at the first of `available` descriptors, and at as many more as go with it.
    fn step(&mut self, channel: &Arc<Channel>, available: u32) -> Step {
        if self.room < CHAIN_MAX {
            self.done.flush(channel);
            self.room = channel.completion_room();
        }
        if self.room == 0 {
            channel.stall_completion(1);
            return Step::Stop;
        }
        if self.skipping {
            let desc = self.ring.peek(0);
            self.skipping = desc.flags & DESC_MORE != 0;
            self.batch.clear();
            self.batch.push(desc);
            return self.discard(channel, Bad::Chain);
        }
        if !self.gather(available) {
            // The program hasn't submitted the packet's end.
            return Step::Stop;
        }
        if self.batch.count() > self.room {
            self.skipping = false;
            channel.stall_completion(self.batch.count());
            return Step::Stop;
        }
        if self.skipping {
            return self.refuse(channel, Bad::Chain);
        }
        let mut meta = Meta::default();
        if let Err(bad) = self.check(channel, &mut meta) {
            return self.refuse(channel, bad);
        }
        let segment = self.extend(channel, &meta, available.min(self.room));
        self.send(channel, &meta, segment)
    }

    /// Copies the descriptors of the next packet; says whether all of it is there.
    ///
    /// Of one that is too long, copies as many as it may have, and leaves `skipping` set.
    fn gather(&mut self, available: u32) -> bool {
        self.batch.clear();
        for ahead in 0..self.longest {
            if ahead >= available {
                return false;
            }
            let desc = self.ring.peek(ahead);
            self.batch.push(desc);
            if desc.flags & DESC_MORE == 0 {
                return true;
            }
        }
        self.skipping = true;
        true
    }

    /// Checks the packet in the batch, and reads its metadata if it has any.
    fn check(&self, channel: &Channel, meta: &mut Meta) -> core::result::Result<(), Bad> {
        let (first, rest) = self.batch.descs.split_first().ok_or(Bad::Chain)?;
        let frame = descriptor::check(first, channel.geometry())?;
        if first.flags & DESC_META != 0 {
            *meta = channel.region().read_meta(frame).map_err(|_| Bad::Range)?;
            descriptor::check_meta(meta)?;
        }
        for desc in rest {
            descriptor::check(desc, channel.geometry())?;
            if desc.flow != first.flow || desc.flags & DESC_META != 0 {
                return Err(Bad::Field);
            }
        }
        if meta.gso_size != 0 && !channel.has_gso() {
            return Err(Bad::Field);
        }
        Ok(())
    }

    /// Appends the packets that can go in one GSO packet with the one in the batch.
    ///
    /// Gives the size of the GSO packet's datagrams, or 0 if it is none.
    fn extend(&mut self, channel: &Channel, meta: &Meta, limit: u32) -> u32 {
        if meta.gso_size != 0 {
            return u32::from(meta.gso_size);
        }
        if self.singles > 0 {
            self.singles = self.singles.wrapping_sub(1);
            return 0;
        }
        if !channel.has_gso() || self.batch.count() > 1 {
            return 0;
        }
        let first = self.batch.first();
        let mut gso = GsoBatch::new(first.len);
        for ahead in 1..limit.min(CHAIN_MAX) {
            let desc = self.ring.peek(ahead);
            if desc.flow != first.flow || desc.flags != first.flags {
                break;
            }
            let Ok(frame) = descriptor::check(&desc, channel.geometry()) else {
                break;
            };
            if desc.flags & DESC_META != 0
                && channel.region().read_meta(frame).ok().as_ref() != Some(meta)
            {
                break;
            }
            if !gso.push(desc.len) {
                break;
            }
            self.batch.push(desc);
        }
        if gso.count() > 1 {
            gso.segment()
        } else {
            0
        }
    }

    /// Sends the batch, as a GSO packet of datagrams of `segment` bytes if that isn't 0.
    fn send(&mut self, channel: &Arc<Channel>, meta: &Meta, segment: u32) -> Step {
        let Some((socket, flow)) = self
            .sockets
            .get(self.batch.first().flow)
            .and_then(with_flow)
        else {
            return self.refuse(channel, Bad::Flow);
        };
        let count = self.batch.count();
        let bytes = self.batch.bytes;
        // Else the socket's option cuts what a descriptor has.
        let pieces = match segment {
            0 => socket.sk().gso_size(),
            segment => segment,
        };
        let datagrams = self.batch.datagrams(pieces);
        // What comes again, since there was no room for it, was counted before. It may be another
        // packet: the ring is the program's.
        let number = self.batch.first().flow;
        // Without rules nobody asks. Where they come meanwhile, the hook of LOCAL_OUT finds that this peer
        // wasn't judged.
        let is_ruled = flow.policy_in_force().is_some();
        let peer = if is_ruled {
            peer_of(meta, socket.sk())
        } else {
            NOBODY
        };
        let again = self.passed.has(number, &peer, datagrams, bytes);
        let packets = Packets {
            datagrams,
            bytes: u64::from(bytes),
            again,
        };
        let outcome = if is_ruled {
            flow.decide(socket.sk(), Direction::Out, || peer, packets)
        } else {
            Outcome::Pass
        };
        let stopped = match outcome {
            Outcome::Pass => None,
            Outcome::Denied => Some((&flow.counters.tx_drop_rule, EACCES)),
            Outcome::TooFast => Some((&flow.counters.tx_drop_rate, enobufs())),
        };
        if let Some((counter, error)) = stopped {
            if monitor::is_watched(flow) {
                self.show_unsent(channel, flow, socket.sk(), meta, outcome, segment);
            }
            counter.add(datagrams);
            flow.counters.tx_taken.add(datagrams);
            return self.finish(channel, error);
        }
        if !again {
            self.passed = Passed {
                flow: number,
                peer,
                datagrams,
                bytes,
            };
        }
        self.output.message.judged = peer;
        let (result, notification) = self.output.hand_over(
            channel,
            (socket, flow),
            &self.batch,
            meta,
            (segment, pieces),
        );
        // Even if nothing is completed: what was set aside by reference may come back later.
        self.room = self.room.saturating_sub(count);

        // What becomes of the descriptors: if they stay in the ring, what is to be done.
        let mut retry = None;
        let verdict = match result {
            Ok(()) => 0,
            Err(error) if error == EAGAIN && Channel::stall_buffer(channel, socket) => {
                retry = Some(Step::Stop);
                InFlight::CANCELLED
            }
            // It drained meanwhile; but a hook, too, may say EAGAIN, and for ever.
            Err(error) if error == EAGAIN && self.full < FULL_MAX => {
                self.full = self.full.wrapping_add(1);
                retry = Some(Step::Took(0));
                InFlight::CANCELLED
            }
            Err(error) if segment != 0 && meta.gso_size == 0 && is_of_gso(error) => {
                self.singles = count;
                retry = Some(Step::Took(0));
                InFlight::CANCELLED
            }
            Err(error) => u32::from(errno(error)),
        };
        let by_reference = match notification {
            Some(notification) => {
                notification.value().verdict.store(verdict, Relaxed);
                !notification.put()
            }
            None => {
                if verdict != InFlight::CANCELLED {
                    self.done.add(channel, &self.batch.descs, verdict as u16);
                }
                false
            }
        };
        if let Some(step) = retry {
            return step;
        }
        self.full = 0;
        self.passed.datagrams = self.passed.datagrams.saturating_sub(datagrams);
        self.passed.bytes = self.passed.bytes.saturating_sub(bytes);
        if let Err(error) = result {
            flow.counters.tx_errors.add(datagrams);
            drop_counter(flow, error).add(datagrams);
        } else {
            flow.counters.tx_packets.add(datagrams);
            flow.counters.tx_bytes.add(u64::from(bytes));
            // The stack may have chosen one.
            flow.follow_port(socket.sk());
            if by_reference {
                flow.counters.tx_zerocopy.add(datagrams);
            }
        }
        flow.counters.tx_taken.add(datagrams);
        self.release()
    }

    /// Shows the batch to who looks, which the rules don't let pass.
    fn show_unsent(
        &self,
        channel: &Channel,
        flow: &Flow,
        sk: &Sock,
        meta: &Meta,
        outcome: Outcome,
        segment: u32,
    ) {
        let first = self.batch.first();
        let mut begins = [0u8; SHOWN_MAX];
        let len = SHOWN_MAX.min(first.len as usize);
        let begins = begins.get_mut(..len).unwrap_or_default();
        if channel.region().read(first.offset, begins).is_err() {
            return;
        }
        let unsent = Unsent {
            peer: peer_of(meta, sk),
            begins,
            len: self.batch.bytes,
            gso_size: segment,
        };
        monitor::show_unsent(flow, sk, outcome, &unsent);
    }

    /// Completes the batch, which is a packet or the start of one, with an error.
    fn refuse(&mut self, channel: &Channel, bad: Bad) -> Step {
        let number = self.batch.first().flow;
        if let Some((_, flow)) = self.sockets.get(number).and_then(with_flow) {
            flow.counters.tx_drop_invalid.add(1);
            flow.counters.tx_taken.add(1);
        }
        self.discard(channel, bad)
    }

    /// Completes the batch with an error.
    fn discard(&mut self, channel: &Channel, bad: Bad) -> Step {
        let count = u64::from(self.batch.count());
        self.counters.invalid.add(count);
        self.finish(channel, refusal(bad))
    }

    /// Completes the batch with an error, and goes on after it.
    fn finish(&mut self, channel: &Channel, error: Error) -> Step {
        self.done.add(channel, &self.batch.descs, errno(error));
        self.room = self.room.saturating_sub(self.batch.count());
        self.release()
    }

    /// Gives the batch's descriptors back to the program's side of the ring.
    fn release(&mut self) -> Step {
        let count = self.batch.count();
        self.ring.release(count);
        Step::Took(count)
    }
}

/// What gives packets to the stack.
pub(crate) struct Output {
    /// What their descriptors name.
    pages: PageVec,
    /// Where they go.
    message: Message,
    /// How they go there, if they are nothing special.
    pub(crate) routes: Routes,
}

impl Output {
    /// Gives it the batch. If it goes by reference, gives what is told when the stack has let go of it.
    fn hand_over(
        &mut self,
        channel: &Arc<Channel>,
        (socket, flow): (&Socket, &Flow),
        batch: &Batch,
        meta: &Meta,
        (segment, pieces): (u32, u32),
    ) -> (Result, Option<Notification<InFlight>>) {
        self.message.address(meta, socket.sk().is_ipv6());
        // What a descriptor holds decides: each costs a reference, whatever it is cut into.
        let each = batch.bytes.checked_div(batch.count()).unwrap_or(0);
        let copied = each <= copybreak();
        let region = channel.region();
        if let ([desc], 0, true) = (&batch.descs[..], segment, copied) {
            if let Ok(data) = region.bytes(desc.offset, desc.len) {
                let datagram = self
                    .routes
                    .datagram(desc.flow, flow, socket.sk(), meta, data);
                if let Some(datagram) = datagram {
                    return (self.message.send_copy::<Flow>(socket, datagram), None);
                }
            }
        }
        // As it was counted, whatever becomes of the socket's option meanwhile.
        if pieces != 0 || flow.policy_in_force().is_some() {
            if let Ok(size) = u16::try_from(pieces) {
                self.message.segment(size);
            }
        }
        self.pages.clear();
        let mut pieces = batch.descs.iter();
        let pages = &mut self.pages;
        if batch.bytes > PAYLOAD_MAX
            || !pieces.all(|desc| pages.push(region, desc.offset, desc.len).is_ok())
        {
            return (Err(EMSGSIZE), None);
        }
        let few = pages.count() <= REFERENCES_MAX && batch.descs.len() <= REFERENCES_MAX;
        let notification = if !copied && few {
            in_flight(channel, &batch.descs)
        } else {
            None
        };
        let result = self
            .message
            .send::<Flow, _>(socket, pages, notification.as_ref());
        (result, notification)
    }
}

/// A socket of the table, and the flow that it is.
fn with_flow(socket: &Socket) -> Option<(&Socket, &Flow)> {
    Some((socket, family::protocol(socket)?))
}

/// Prepares descriptors to go by reference; `None` if they must be copied for want of memory.
fn in_flight(channel: &Arc<Channel>, batch: &[Desc]) -> Option<Notification<InFlight>> {
    channel.reserve_completions(batch.len() as u32);
    let in_flight = init!(InFlight {
        channel: channel.clone(),
        descs <- pin_init::init_array_from_fn(|at| batch.get(at).copied().unwrap_or_default()),
        count: batch.len(),
        verdict: Atomic::new(0),
    });
    match Notification::new(in_flight) {
        Ok(notification) => Some(notification),
        Err(_) => {
            channel.cancel_completions(batch.len() as u32);
            None
        }
    }
}
