// SPDX-License-Identifier: GPL-2.0

//! A channel's datagrams that leave directly, as frames without an skb for each: those that nothing
//! behind netfilter looks at, by a device that is attached and is asked anew for each batch.

use super::{device::AttachedDevice, path::TxPath};
use crate::flow::Flow;
use crate::pure::lookahead::{Lookahead, Prospect};
use crate::sys::{
    context::{BottomHalvesOff, SoftirqsOff},
    datagram::Datagram,
    direct::{
        frame_batch::{Fit, FrameBatch},
        taken::{Part, TakenSkb},
    },
    sock::Sock, //
};
use core::sync::atomic::Ordering::Relaxed;
use kernel::{cpu::CpuId, sync::rcu};

/// The datagrams of one sender that leave directly.
pub(crate) struct DatagramSender {
    batch: FrameBatch,
    /// The address of a device by which, in this run of the sender, all datagrams take the stack. It is only
    /// compared; 0 for none.
    stack_device: usize,
    lookahead: Lookahead,
    /// The user who is charged for the frames that are there.
    user: u32,
    /// The number of the attached device by which they leave.
    device_number: u32,
}

impl DatagramSender {
    /// Without datagrams.
    pub(crate) fn new() -> Self {
        Self {
            batch: FrameBatch::new(send),
            stack_device: 0,
            lookahead: Lookahead::default(),
            user: 0,
            device_number: 0,
        }
    }

    /// Prepares the batch for a flow's datagram. Whether that may leave directly: then it can be given to the batch. If
    /// not, and for another flow or device, the earlier ones leave now. Process context.
    #[inline]
    pub(crate) fn prepare_for(&mut self, sk: &Sock, flow: &Flow, datagram: &Datagram<'_>) -> bool {
        if datagram.device() == self.stack_device {
            self.flush();
            return false;
        }
        match self.batch.fit(sk, datagram) {
            Fit::Yes => true,
            other => self.join_or_begin(other, sk, flow, datagram),
        }
    }

    /// The same as [`Self::prepare_for`], of a datagram that doesn't simply fit.
    // Apart from what each datagram of a flow takes, which would lose its registers.
    #[inline(never)]
    fn join_or_begin(&mut self, fit: Fit, sk: &Sock, flow: &Flow, datagram: &Datagram<'_>) -> bool {
        match fit {
            Fit::IfJoined if self.join_batch(sk, flow, datagram) => return true,
            Fit::Yes | Fit::NoRoom => {}
            Fit::IfJoined | Fit::No => {
                self.flush();
                self.lookahead.note_end(self.batch.last());
            }
        }
        self.begin_batch(sk, flow, datagram)
    }

    /// The batch for such a datagram.
    pub(crate) fn batch(&mut self) -> &mut FrameBatch {
        &mut self.batch
    }

    /// Has a datagram go with those of other flows, if it may leave directly.
    fn join_batch(&mut self, sk: &Sock, flow: &Flow, datagram: &Datagram<'_>) -> bool {
        // The flow enters the direct path only with what can leave so.
        if flow.charged_user() != self.user
            || !FrameBatch::accepts(sk, datagram, &rcu::read_lock())
            || !flow.direct.enter_or_follow(self.device_number)
        {
            return false;
        }
        match self.batch.join(sk, datagram) {
            Some(charge) => {
                flow.direct.charge.fetch_add(charge, Relaxed);
                true
            }
            None => false,
        }
    }

    /// Begins a batch with a datagram, if it may leave directly.
    fn begin_batch(&mut self, sk: &Sock, flow: &Flow, datagram: &Datagram<'_>) -> bool {
        self.flush();
        let prospect = self.lookahead.prospect();
        match prospect {
            Prospect::Enough => {}
            Prospect::Few | Prospect::Alone if !flow.direct.has_in_flight() => return false,
            Prospect::Few => {}
            Prospect::Alone => {
                flow.direct.leave();
                return false;
            }
        }
        match ask(sk, flow, datagram, prospect) {
            Answer::Yes(number) => self.device_number = number,
            Answer::NotNow => return false,
            Answer::NotHere => {
                self.stack_device = datagram.device();
                // By another device, datagrams may leave directly. How many follow isn't looked at any more.
                self.lookahead.expect_enough();
                return false;
            }
        }
        let Some(charge) = self.batch.begin(sk, datagram, self.lookahead.ahead()) else {
            return false;
        };
        self.user = flow.charged_user();
        // The stack doesn't hold these: the flow may be alone all the same.
        flow.direct.charge.fetch_add(charge, Relaxed);
        true
    }

    /// Finds out whether enough datagrams are in the ring for a flow to enter the direct path. The first
    /// `count` descriptors are being sent; `flow_at` gives the flow of each descriptor behind them.
    #[inline]
    pub(crate) fn look_ahead(&mut self, flow: u32, count: u32, flow_at: impl Fn(u32) -> u32) {
        let is_other = self.lookahead.is_other(flow);
        if self.stack_device == 0 && (is_other || !self.batch.is_open()) {
            self.lookahead.look(count, flow_at);
        }
    }

    /// So many datagrams may follow in the ring, of whichever flow, behind the one that is sent next.
    #[inline]
    pub(crate) fn set_ahead(&mut self, ahead: u32) {
        self.lookahead.set_ahead(ahead);
    }

    /// Forgets what was found out of devices: they may have been attached since. Process context.
    pub(crate) fn begin(&mut self) {
        self.stack_device = 0;
        self.lookahead.begin();
    }

    /// Has the datagrams leave that were gathered. Process context.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if self.batch.is_open() {
            self.batch.flush();
        }
    }
}

/// Whether a datagram may leave directly.
enum Answer {
    /// By the attached device of this number.
    Yes(u32),
    /// The flow's datagrams may not.
    NotNow,
    /// No datagram may by this device.
    NotHere,
}

/// Asks whether a flow's datagram may leave directly now: as the first one of several, or behind what is in
/// flight.
fn ask(sk: &Sock, flow: &Flow, datagram: &Datagram<'_>, prospect: Prospect) -> Answer {
    let softirqs = BottomHalvesOff::new();
    let rcu = rcu::read_lock();
    match FrameBatch::only_hook::<AttachedDevice>(datagram, &rcu) {
        Some(attached) if attached.is_open(attached.tx_path(&softirqs)) => {
            // The flow enters the direct path only with what can leave so.
            let may_begin = prospect == Prospect::Enough || attached.has_in_flight(flow);
            if may_begin
                && FrameBatch::accepts(sk, datagram, &rcu)
                && flow.direct.enter_or_follow(attached.number)
            {
                Answer::Yes(attached.number)
            } else {
                Answer::NotNow
            }
        }
        _ => Answer::NotHere,
    }
}

/// Has a batch leave by its device, or by the stack if the device isn't attached any more.
fn send(mut packet: TakenSkb) {
    let softirqs = BottomHalvesOff::new();
    let rcu = rcu::read_lock();
    if packet.is_mixed() {
        end_surplus(&mut packet, &rcu);
    }
    let attached = packet.only_hook::<AttachedDevice>(&rcu);
    if packet.datagrams() == 0 {
        end_charges(&packet, &rcu);
        return packet.finish();
    }
    match (attached, packet.flow::<Flow>(&rcu)) {
        (Some(attached), Some(flow)) if packet.is_mixed() => {
            attached.send_mixed(flow.charged_user(), packet, &softirqs, &rcu);
        }
        (Some(attached), Some(flow)) => {
            end_charges(&packet, &rcu);
            attached.send_batch(flow, packet, &softirqs);
        }
        _ => {
            end_charges(&packet, &rcu);
            packet.pass_to_hooks();
        }
    }
}

/// Records on which CPU's queue a packet is.
fn set_cpu(packet: &TakenSkb, cpu: u32, rcu: &rcu::Guard) {
    for part in packet.parts::<Flow>(rcu) {
        part.flow.direct.cpu.store(cpu as u16, Relaxed);
    }
}

/// Reduces the charge of the first frame's sock by the bytes that other socks are charged for, too.
fn end_surplus(packet: &mut TakenSkb, rcu: &rcu::Guard) {
    packet.end_surplus(|packet, surplus| {
        // Before the sock's charge: so the flow is never taken to be alone while it isn't.
        let first = packet.parts::<Flow>(rcu).next();
        if let Some(first) = first.filter(|part| part.number == 0) {
            first.flow.direct.charge.fetch_sub(surplus, Relaxed);
        }
    });
}

/// Subtracts a packet from what the direct path holds of its flows.
fn end_charges(packet: &TakenSkb, rcu: &rcu::Guard) {
    for part in packet.parts::<Flow>(rcu) {
        part.flow.direct.charge.fetch_sub(part.charge, Relaxed);
    }
}

impl AttachedDevice {
    /// Whether packets of a flow are in flight here.
    fn has_in_flight(&self, flow: &Flow) -> bool {
        flow.direct.in_flight_at(self.number).unwrap_or(0) != 0
    }

    /// Sends a batch of a flow's datagrams, behind what the flow has in flight. In an RCU read-side
    /// section.
    fn send_batch(&self, flow: &Flow, mut packet: TakenSkb, softirqs: &SoftirqsOff) {
        let direct = &flow.direct;
        let path = self.tx_path(softirqs);
        let directly = self.is_open(path) && direct.enter_or_follow(self.number);
        let in_flight = direct.in_flight_at(self.number);
        let goes_here = directly || in_flight.is_some_and(|count| count != 0);
        if !goes_here || !direct.begin_flight(self.number, packet.charge()) {
            // The stack may have it at once: nothing of the flow is here.
            if direct.leaves_by(self.number) {
                direct.leave();
            }
            return self.pass_batch(packet);
        }
        direct.end_datagram_run();
        direct.record_path(self.number, path);
        if directly {
            packet.count_frames(&self.device, self.tx_queue(), softirqs);
        } else {
            packet.leave_to_stack();
        }
        self.enqueue(flow, packet, in_flight.unwrap_or(0), softirqs);
    }

    /// Sends a batch of a user's flows, if the datagrams of each may leave directly by one CPU's queue. If not,
    /// each datagram comes to the egress hook, which knows what its flow has in flight.
    fn send_mixed(&self, user: u32, packet: TakenSkb, softirqs: &SoftirqsOff, rcu: &rcu::Guard) {
        let path = self.tx_path(softirqs);
        let cpu = match self.is_open(path) {
            true => self.take_all(&packet, path, rcu),
            false => None,
        };
        let Some(cpu) = cpu else {
            end_charges(&packet, rcu);
            return self.pass_batch(packet);
        };
        packet.count_frames(&self.device, self.tx_queue(), softirqs);
        self.enqueue_mixed(user, packet, cpu, softirqs, rcu);
    }

    /// Counts what flows have of a packet as in flight here: all, or nothing and `None`. They are charged for it
    /// already. Gives the CPU whose queue it has to join: that of what the flows have in flight.
    fn take_all(&self, packet: &TakenSkb, path: TxPath, rcu: &rcu::Guard) -> Option<u32> {
        let mut flows = packet.parts::<Flow>(rcu).map(|part| &part.flow.direct);
        let cpu = match flows.find(|direct| direct.has_in_flight()) {
            Some(direct) => direct.cpu.load(Relaxed).into(),
            None => CpuId::current().as_u32(),
        };
        let take = |flow: &Flow| {
            let direct = &flow.direct;
            let is_there = !direct.has_in_flight() || u32::from(direct.cpu.load(Relaxed)) == cpu;
            let can = is_there
                && direct.enter_or_follow(self.number)
                && direct.begin_flight(self.number, 0);
            if can {
                direct.cpu.store(cpu as u16, Relaxed);
                direct.end_datagram_run();
                direct.record_path(self.number, path);
            }
            can
        };
        let not_taken = packet.parts(rcu).find(|part| !take(part.flow));
        let Some(not_taken) = not_taken else {
            return Some(cpu);
        };
        let before = |part: &Part<'_, '_, Flow>| part.number < not_taken.number;
        for part in packet.parts::<Flow>(rcu).filter(before) {
            part.flow.direct.end_flight();
        }
        None
    }

    /// Puts a batch of several flows into a CPU's queue, or into this one's if that won't be polled.
    fn enqueue_mixed(
        &self,
        user: u32,
        mut packet: TakenSkb,
        cpu: u32,
        softirqs: &SoftirqsOff,
        rcu: &rcu::Guard,
    ) {
        let here = CpuId::current().as_u32();
        if cpu != here {
            let Some(back) = self.join_queue(cpu, user, packet) else {
                return;
            };
            packet = back;
            set_cpu(&packet, here, rcu);
        }
        self.enqueue_here(user, packet, softirqs);
    }

    /// Gives the datagrams of a batch to the stack.
    fn pass_batch(&self, packet: TakenSkb) {
        let lost = u64::from(packet.pass_to_hooks());
        self.counters.dropped.fetch_add(lost, Relaxed);
    }
}
