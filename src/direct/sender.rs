// SPDX-License-Identifier: GPL-2.0

//! A channel's datagrams that leave directly, as frames without an skb for each: those that nothing
//! behind netfilter looks at, by a device that is attached and is asked anew for each batch.

use super::device::AttachedDevice;
use crate::flow::Flow;
use crate::sys::{
    context::{BottomHalvesOff, SoftirqsOff},
    datagram::Datagram,
    direct::{egress::TakenSkb, frame_batch::FrameBatch},
    sock::Sock, //
};
use core::sync::atomic::Ordering::Relaxed;
use kernel::sync::rcu;

/// The fewest datagrams of the same flow that must follow in the TX ring before a flow with nothing in flight
/// begins the direct path; for fewer the stack costs less.
const OTHERS_MIN: u32 = 2;

/// The datagrams of one sender that leave directly.
pub(crate) struct DatagramSender {
    batch: FrameBatch,
    /// The address of the device by which no datagram of this batch of the ring leaves directly. It is only
    /// compared; 0 for none.
    refused: usize,
    /// The number of the flow that sent last.
    flow: u32,
    /// Enough of its datagrams follow in the ring for the first one to leave directly.
    is_worth_it: bool,
    /// Datagrams that may follow in the ring, of whichever flow.
    pub(crate) ahead: u32,
}

impl DatagramSender {
    /// Without datagrams.
    pub(crate) fn new() -> Self {
        Self {
            batch: FrameBatch::new(leave),
            refused: 0,
            flow: 0,
            is_worth_it: false,
            ahead: 0,
        }
    }

    /// Whether a flow's datagram may leave directly: then it can be given to the batch. If not, and
    /// for another flow or device, the earlier ones leave now. Process context.
    #[inline]
    pub(crate) fn take(&mut self, sk: &Sock, flow: &Flow, datagram: &Datagram<'_>) -> bool {
        if datagram.device() == self.refused {
            self.flush();
            return false;
        }
        self.batch.fits(sk, datagram) || self.begin_batch(sk, flow, datagram)
    }

    /// The batch for such a datagram.
    pub(crate) fn batch(&mut self) -> &mut FrameBatch {
        &mut self.batch
    }

    /// Begins a batch with a datagram, if it may leave directly.
    fn begin_batch(&mut self, sk: &Sock, flow: &Flow, datagram: &Datagram<'_>) -> bool {
        self.flush();
        if !self.is_worth_it && !flow.direct.has_in_flight() {
            return false;
        }
        match ask(sk, flow, datagram, self.is_worth_it) {
            Answer::Yes => {}
            Answer::NotNow => return false,
            Answer::NotHere => {
                self.refused = datagram.device();
                // By another device some may leave directly: from now on they aren't counted.
                self.is_worth_it = true;
                return false;
            }
        }
        let Some(charge) = self.batch.begin(sk, datagram, self.ahead) else {
            return false;
        };
        // The stack doesn't hold these: the flow may be alone all the same.
        flow.direct.charge.fetch_add(charge, Relaxed);
        true
    }

    /// Finds out whether enough datagrams of a flow are in the ring for it to begin to leave directly: the first
    /// `count` descriptors are being sent, and `flow_at` says whose those behind them are.
    #[inline]
    pub(crate) fn look_ahead(&mut self, flow: u32, count: u32, flow_at: impl Fn(u32) -> u32) {
        let is_other = core::mem::replace(&mut self.flow, flow) != flow;
        if self.refused == 0 && (is_other || !self.batch.is_open()) {
            self.is_worth_it = self.ahead >= OTHERS_MIN
                && (count..=OTHERS_MIN).all(|ahead| flow_at(ahead) == flow);
        }
    }

    /// Forgets what was found out of devices: they may have been attached since. Process context.
    pub(crate) fn begin(&mut self) {
        self.refused = 0;
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
    Yes,
    /// The flow's datagrams may not.
    NotNow,
    /// No datagram may by this device.
    NotHere,
}

/// Asks whether a flow's datagram may leave directly now: as the first one of several, or behind what is in
/// flight.
fn ask(sk: &Sock, flow: &Flow, datagram: &Datagram<'_>, is_worth_it: bool) -> Answer {
    let softirqs = BottomHalvesOff::new();
    let rcu = rcu::read_lock();
    match FrameBatch::only_hook::<AttachedDevice>(datagram, &rcu) {
        Some(attached) if attached.is_open(attached.tx_path(&softirqs)) => {
            // The flow enters the direct path only with what can leave so.
            let may_begin = is_worth_it || attached.has_in_flight(flow);
            if may_begin && FrameBatch::accepts(sk, datagram, &rcu) && attached.may_leave(flow) {
                Answer::Yes
            } else {
                Answer::NotNow
            }
        }
        _ => Answer::NotHere,
    }
}

/// Has a batch leave by its device, or by the stack if the device isn't attached any more.
fn leave(packet: TakenSkb) {
    let softirqs = BottomHalvesOff::new();
    let rcu = rcu::read_lock();
    let attached = packet.only_hook::<AttachedDevice>(&rcu);
    let flow = packet.flow::<Flow>(&rcu);
    if let Some(flow) = flow {
        flow.direct.charge.fetch_sub(packet.charge(), Relaxed);
    }
    if packet.datagrams() == 0 {
        return packet.finish();
    }
    match (attached, flow) {
        (Some(attached), Some(flow)) => attached.send_batch(flow, packet, &softirqs),
        _ => {
            packet.pass_to_hooks();
        }
    }
}

impl AttachedDevice {
    /// Whether a flow's datagrams may take the direct path, if it is open.
    fn may_leave(&self, flow: &Flow) -> bool {
        let direct = &flow.direct;
        match direct.in_flight_at(self.number) {
            None => false,
            Some(0) => direct.may_leave_by(self.number),
            Some(_) => direct.leaves_by(self.number),
        }
    }

    /// Whether packets of a flow are in flight here.
    fn has_in_flight(&self, flow: &Flow) -> bool {
        flow.direct.in_flight_at(self.number).unwrap_or(0) != 0
    }

    /// Sends a batch of a flow's datagrams, behind what the flow has in flight. In an RCU read-side
    /// section.
    fn send_batch(&self, flow: &Flow, mut packet: TakenSkb, softirqs: &SoftirqsOff) {
        let direct = &flow.direct;
        let path = self.tx_path(softirqs);
        let directly = self.is_open(path) && self.may_leave(flow);
        let in_flight = direct.in_flight_at(self.number);
        let goes_here = directly || in_flight.is_some_and(|count| count != 0);
        if !goes_here || !direct.take(self.number, packet.charge()) {
            // The stack may have it at once: nothing of the flow is here.
            if direct.leaves_by(self.number) {
                direct.leave();
            }
            let lost = u64::from(packet.pass_to_hooks());
            self.counters.dropped.fetch_add(lost, Relaxed);
            return;
        }
        direct.record_bulk();
        direct.record_path(self.number, path);
        if directly {
            packet.count_frames(&self.device, self.tx_queue(), softirqs);
        } else {
            packet.leave_to_stack();
        }
        self.enqueue(flow, packet, in_flight.unwrap_or(0), softirqs);
    }
}
