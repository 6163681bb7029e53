// SPDX-License-Identifier: GPL-2.0

//! Sending: from the TX ring to the stack.
//!
//! The doorbell, or an engine, takes descriptors in order. A packet goes through these steps:
//!
//! 1. `packet.rs` copies its descriptors out of the ring and checks them. Datagrams in a row to one
//!    peer become one GSO packet, if the channel asked for that.
//! 2. `judge.rs` asks KOPI's rules.
//! 3. `output.rs` hands it over to the flow's own socket. So every packet is routed, filtered,
//!    counted and queued as one from a UDP socket.
//! 4. `completion.rs` gives the frames back to the program, or leaves the descriptors in the ring.
//!
//! `call.rs` has what is different if the doorbell sends as sendmmsg() would. `sendmsg.rs` sends in the same way
//! what comes by sendmsg(), past the ring.

mod call;
mod completion;
mod judge;
mod output;
mod packet;
mod sendmsg;

use crate::channel::Channel;
use crate::counter::Counter;
use crate::engine::Schedule;
use crate::flow::Flow;
use crate::pure::{
    abi::{Desc, Meta, BELL_SEND_MAX, CHAIN_MAX},
    descriptor::Bad,
    ip::IpVersion,
    ring::Consumer, //
};
use crate::routes::RoutePlaces;
use crate::sys::{
    context::{cond_resched, fatal_signal_pending, signal_pending},
    errno::{eproto, SendErrorKind},
    region::RegionRing,
    socket::{Socket, SocketTable}, //
};
use call::{Call, Withheld};
use completion::{errno, CompletionBatch, DescsFate, Retry};
use judge::CountedPass;
use kernel::{
    prelude::*,
    sync::Arc,
    time::{delay::fsleep, Delta}, //
};
use output::{Output, Segmentation};
use packet::{Found, TxPacket};
use sendmsg::MessageBuffer;

pub(crate) use output::Destination;

/// Microseconds that a doorbell sleeps when others want the sender, and don't take it.
const WANTED_SLEEP_US: i64 = 100;

/// The sending half of a channel, under its lock.
pub(crate) struct Sender {
    ring: RegionRing<Consumer<Desc>>,
    /// Descriptors that a packet can have.
    longest: u32,
    /// The sockets of the channel's flows, by number.
    pub(crate) sockets: SocketTable,
    packet: TxPacket,
    output: Output,
    /// Completions of what was copied.
    done: CompletionBatch,
    /// Entries of the COMPLETION ring that are known to be free, besides those for `done`.
    room: u32,
    /// The ring goes on with the rest of a packet that is too long.
    skipping: bool,
    retry: Retry,
    passed: CountedPass,
    /// A doorbell with BELL_SEND is being carried out.
    call: Call,
    /// For what comes by sendmsg().
    message: MessageBuffer,
    /// What an engine knows of the channel.
    pub(crate) schedule: Schedule,
    counters: Arc<SenderCounters>,
}

/// What a sender counts besides its flows' packets; written under its lock.
#[derive(Default)]
pub(crate) struct SenderCounters {
    /// Invalid descriptors.
    pub(crate) invalid: Counter,
    /// Times that an index of the program made no sense.
    pub(crate) broken: Counter,
}

/// The result of one step of sending.
#[derive(Clone, Copy)]
enum Progress {
    /// That number of descriptors was taken.
    Took(u32),
    /// Nothing was taken, but the same packet can be tried once more.
    Again,
    /// The rest must wait.
    Stop,
}

impl Channel {
    /// Takes what is in the TX ring, as far as it can be sent now; gives the number of descriptors.
    ///
    /// `EPROTO` when the ring's index makes no sense, `ENOMEM`. Process context.
    /// With BELL_SEND, `bell_send` is the number of the flow by whose file descriptor the process rang. On a channel
    /// that only sends, any process that has this file descriptor may ring; the other flows aren't the caller's then.
    pub(crate) fn transmit(this: &Arc<Self>, bell_send: Option<u32>) -> Result<u32> {
        if bell_send.is_none() || !this.is_tx_only() {
            this.owner().record_current()?;
        }
        let mut call = Call::of(bell_send);
        let mut left = bell_send.map_or(u32::MAX, |_| BELL_SEND_MAX);
        let mut taken = 0u32;
        loop {
            let mut sender = this.sender.lock();
            let (waiting, count) = if call.is_under_way() {
                sender.take_as_sendmmsg(this, &mut call, left)?
            } else {
                sender.take_for_doorbell(this, left)?
            };
            taken = taken.saturating_add(count);
            left = waiting.min(left).saturating_sub(count);
            // A call leaves nothing of its flow in the ring unless it is killed: what the program sends in
            // its place would be sent twice.
            let is_over = if call.is_under_way() {
                fatal_signal_pending()
            } else {
                signal_pending()
            };
            if left == 0 || is_over || !this.is_sender_wanted() {
                return Ok(taken);
            }
            drop(sender);
            if count == 0 {
                // The task that wants the sender hasn't run yet, and may have a lower priority than this one.
                fsleep(Delta::from_micros(WANTED_SLEEP_US));
            }
        }
    }
}

impl Sender {
    /// Takes nothing yet. `completions` is the size of the COMPLETION ring. `ENOMEM`; process
    /// context.
    pub(crate) fn new(
        ring: RegionRing<Consumer<Desc>>,
        completions: u32,
        counters: Arc<SenderCounters>,
    ) -> Result<Self> {
        // Unless an engine polls the ring, it is read only when the doorbell rings.
        ring.want_wakeup(true);
        Ok(Self {
            longest: CHAIN_MAX.min(completions).min(ring.size()),
            ring,
            sockets: SocketTable::new(),
            packet: TxPacket::new()?,
            output: Output::new()?,
            done: CompletionBatch::new()?,
            room: 0,
            skipping: false,
            retry: Retry::default(),
            passed: CountedPass::NOTHING,
            call: Call::default(),
            message: MessageBuffer::NONE,
            schedule: Schedule::default(),
            counters,
        })
    }

    /// Forgets what the rules let pass and which options were read, since numbers of flows are used again; and the
    /// routes, once there is no flow.
    pub(crate) fn forget_flows(&mut self) {
        self.output.routes.begin();
        self.passed = CountedPass::NOTHING;
        if self.sockets.len() == 0 {
            self.output.routes.forget();
        }
    }

    /// Whether there are places for an IP version's routes.
    pub(crate) fn has_route_places(&self, version: IpVersion) -> bool {
        self.output.routes.has_places(version)
    }

    /// Puts places for an IP version's routes there.
    pub(crate) fn put_route_places(&mut self, places: RoutePlaces) {
        self.output.routes.put_places(places);
    }

    /// Says whether the program must ring the doorbell for what it writes from now on. If it must,
    /// the ring is to be read once more afterwards.
    pub(crate) fn want_doorbell(&self, want: bool) {
        self.ring.want_wakeup(want);
    }

    /// Number of descriptors that wait in the ring, and the ring's size: `EPROTO`.
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

    /// Sends what can be sent now of the `available` descriptors, which [`Self::waiting`] counted, while `go_on`
    /// returns true. `go_on` gets the descriptors and payload bytes of each step. Returns the number of descriptors
    /// taken. Process context.
    pub(crate) fn take(
        &mut self,
        channel: &Arc<Channel>,
        available: u32,
        mut go_on: impl FnMut(u32, u32) -> bool,
    ) -> u32 {
        channel.unstall();
        self.output.routes.begin();
        self.output.direct.begin();
        let mut taken = 0u32;
        while taken < available && !channel.is_sender_wanted() {
            let left = available.wrapping_sub(taken);
            self.output.direct.set_ahead(left.wrapping_sub(1));
            let more = match self.step(channel, left) {
                Progress::Again => go_on(0, 0),
                Progress::Took(count) => {
                    taken = taken.wrapping_add(count);
                    go_on(count, self.packet.bytes())
                }
                Progress::Stop => break,
            };
            if !more {
                break;
            }
            cond_resched();
        }
        self.output.direct.flush();
        self.done.flush(channel);
        taken
    }

    /// Takes `most` descriptors that are in the ring, for a doorbell. Gives how many there were, and
    /// how many were taken.
    fn take_for_doorbell(&mut self, channel: &Arc<Channel>, most: u32) -> Result<(u32, u32)> {
        let (mut waited, mut taken) = (0u32, 0u32);
        loop {
            channel.start_ringing();
            let result = self.waiting().map(|(waiting, _)| {
                waited = taken.saturating_add(waiting);
                let most = waiting.min(most.saturating_sub(taken));
                self.take(channel, most, |_, _| !signal_pending())
            });
            channel.stop_ringing();
            // What was written before the program could see that is this doorbell's to send.
            let again = channel.unpoll_if_asked(self);
            taken = taken.saturating_add(result?);
            if !again {
                if taken < waited {
                    // If an engine had the ring: others may sleep who wait for what it was to send.
                    channel.wake_if_must_ring();
                }
                return Ok((waited, taken));
            }
        }
    }

    /// Takes `most` descriptors that are in the ring as sendmmsg() would, without waiting. Gives how
    /// many there were, and how many were taken.
    fn take_as_sendmmsg(
        &mut self,
        channel: &Arc<Channel>,
        call: &mut Call,
        most: u32,
    ) -> Result<(u32, u32)> {
        let (waiting, _) = self.waiting()?;
        // The sender has the call while it is locked for it; in between, others lock it.
        core::mem::swap(&mut self.call, call);
        self.output.copies_all = true;
        // As sendmmsg(), this ends early only for an error.
        let taken = self.take(channel, waiting.min(most), |_, _| true);
        self.output.copies_all = false;
        core::mem::swap(&mut self.call, call);
        Ok((waiting, taken))
    }

    /// Takes the first of `available` descriptors, and all that go together with it.
    fn step(&mut self, channel: &Arc<Channel>, available: u32) -> Progress {
        if self.room < CHAIN_MAX {
            self.done.flush(channel);
            self.room = channel.completion_room();
        }
        if self.room == 0 {
            channel.stall_completion(1);
            return Progress::Stop;
        }
        if self.skipping {
            self.skip();
            return self.complete_invalid(channel, Bad::Chain);
        }
        if self.call.is_under_way() && self.begins_with_another() {
            // The caller may neither send nor complete that packet. take() has cleared a stall, so writers are woken.
            channel.wake_writers();
            return Progress::Stop;
        }
        let mut meta = Meta::default();
        match self.validate(channel, available, &mut meta) {
            Found::Packet(segment) => self.send(channel, &meta, segment),
            Found::Invalid(bad) => self.reject(channel, bad),
            Found::Incomplete => {
                channel.stall_chain(self.ring.known_producer());
                Progress::Stop
            }
            Found::NoRoom => {
                channel.stall_completion(self.packet.count());
                Progress::Stop
            }
        }
    }

    /// Whether the ring begins with a packet of another flow than that of the call under way.
    fn begins_with_another(&self) -> bool {
        let head = self.ring.peek(0).flow;
        self.call.is_of_another(head) && self.sockets.get(head).is_some()
    }

    /// Sends the packet, as a GSO packet of datagrams of `segment` bytes if that isn't 0.
    // Apart from the walk over descriptors, which would lose its registers.
    #[inline(never)]
    fn send(&mut self, channel: &Arc<Channel>, meta: &Meta, segment: u32) -> Progress {
        let number = self.packet.first().flow;
        let Some(to) = self.sockets.get(number).and_then(Destination::of) else {
            return self.reject(channel, Bad::Flow);
        };
        let Destination { socket, flow } = to;
        if let Some(held) = self.call.withholds(channel, flow) {
            return self.hold_back(channel, held);
        }
        let (sk, mark) = (socket.sk(), socket.sk().mark());
        let segmentation = Segmentation::of(socket, segment);
        let packet = &mut self.packet;
        let (gso, segmentation) = self
            .output
            .made_gso(channel, to, packet, meta, segmentation);
        let (count, bytes) = (self.packet.count(), self.packet.bytes());
        let datagrams = self.packet.datagrams(segmentation.size);

        let judged = (datagrams, segmentation.segment);
        let passed = &mut self.passed;
        if let Err(error) = passed.judge(channel, (flow, sk), (&self.packet, meta), judged) {
            return self.complete(channel, error);
        }
        if gso.is_by_route() && sk.mark() != mark {
            // A rule has just marked the sock, so the packet may take another route.
            return Progress::Again;
        }
        self.output.message.judged = self.passed.judged();
        let (output, ring) = (&mut self.output, &self.ring);
        let flow_at = |ahead| ring.peek(ahead).flow;
        output.direct.look_ahead(number, count, flow_at);

        let (answer, notification) =
            output.hand_over(channel, to, &self.packet, meta, segmentation);
        // Even if nothing completes: what was reserved by reference may come back later.
        self.room = self.room.saturating_sub(count);

        let decided = self.retry.decide(channel, socket, answer, (count, gso));
        let fate = self.call.settle(channel, decided);
        let descs = self.packet.descs();
        let by_reference = self.done.carry_out(channel, descs, fate, notification);
        match (fate, decided) {
            (DescsFate::Again, _) => return Progress::Again,
            (DescsFate::Wait, _) => return Progress::Stop,
            // A call that fails for a full send buffer: the packet isn't counted, since it may come again.
            (_, DescsFate::Wait) => return self.release(),
            _ => {}
        }
        self.passed.spend(datagrams, bytes);
        count_sent(flow, answer.result, (datagrams, bytes), by_reference);
        if answer.result.is_ok() {
            // The stack may have chosen a port.
            flow.update_redirected_port(sk);
        }
        self.release()
    }

    /// Doesn't send the packet, for a reason of [`Call::withholds`].
    #[cold]
    #[inline(never)]
    fn hold_back(&mut self, channel: &Arc<Channel>, held: Withheld) -> Progress {
        match held {
            Withheld::WithError(error) => self.complete(channel, error),
            // As if the send buffer were full.
            Withheld::Busy if self.call.is_under_way() => self.complete(channel, EAGAIN),
            Withheld::Busy => {
                let to = self
                    .sockets
                    .get(self.packet.first().flow)
                    .and_then(Destination::of);
                match channel.stall_while(|| to.is_some_and(|to| to.flow.is_busy())) {
                    true => Progress::Stop,
                    false => Progress::Again,
                }
            }
        }
    }

    /// Counts an invalid packet, all of which is here or the start, on its flow; and completes it.
    #[cold]
    fn reject(&mut self, channel: &Channel, bad: Bad) -> Progress {
        let number = self.packet.first().flow;
        if let Some(Destination { flow, .. }) = self.sockets.get(number).and_then(Destination::of) {
            flow.counters.tx_drop_invalid.add(1);
            flow.counters.tx_taken.add(1);
        }
        self.complete_invalid(channel, bad)
    }

    /// Completes the packet with the error of an invalid one.
    fn complete_invalid(&mut self, channel: &Channel, bad: Bad) -> Progress {
        let count = u64::from(self.packet.count());
        self.counters.invalid.add(count);
        let error = match bad {
            Bad::Range => EFAULT,
            Bad::Field => EINVAL,
            Bad::Flow => EBADF,
            Bad::Chain => EMSGSIZE,
        };
        self.complete(channel, error)
    }

    /// Completes the packet with an error, and goes on after it.
    fn complete(&mut self, channel: &Channel, error: Error) -> Progress {
        self.call.fail();
        self.done.add(channel, self.packet.descs(), errno(error));
        self.room = self.room.saturating_sub(self.packet.count());
        self.release()
    }

    /// Gives the packet's entries of the TX ring back to the program.
    fn release(&mut self) -> Progress {
        let count = self.packet.count();
        self.ring.release(count);
        Progress::Took(count)
    }
}

/// Counts datagrams that the stack was given, by the result. `by_reference`: it still holds their frames.
fn count_sent(flow: &Flow, result: Result, (datagrams, bytes): (u64, u32), by_reference: bool) {
    let counters = &flow.counters;
    match result {
        Ok(()) => {
            counters.tx_packets.add(datagrams);
            counters.tx_bytes.add(u64::from(bytes));
            if by_reference {
                counters.tx_zerocopy.add(datagrams);
            }
        }
        Err(error) => {
            let dropped = match SendErrorKind::of(error) {
                SendErrorKind::Denied => &counters.tx_drop_denied,
                SendErrorKind::Unreachable => &counters.tx_drop_unreachable,
                SendErrorKind::TooLong => &counters.tx_drop_too_long,
                SendErrorKind::NoBuffer => &counters.tx_drop_no_buffer,
                SendErrorKind::Other => &counters.tx_drop_other,
            };
            dropped.add(datagrams);
        }
    }
    counters.tx_taken.add(datagrams);
}
