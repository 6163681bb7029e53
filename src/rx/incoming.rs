// SPDX-License-Identifier: GPL-2.0

//! Datagrams that come from a driver's frames to the RX ring, without the sock's queue.

use super::dropped::{free_lost, Loss};
use super::frames::INVALID_MAX;
use super::Receiver;
use crate::channel::Channel;
use crate::flow::Flow;
use crate::sys::{
    context::SoftirqsOff,
    direct::incoming::{Filtered, Incoming, SpareSkb},
    sock::Sock, //
};
use kernel::sync::lock::{spinlock::SpinLockBackend, Guard};

/// What became of a datagram.
enum Fate {
    /// It has to be queued.
    Queue,
    /// The sock's filters drop it.
    Filtered(Filtered),
    /// It is in the RX ring.
    Received,
    /// KOPI drops it.
    Lost(Loss),
}

impl Receiver {
    /// Delivers a datagram, unless earlier ones wait, or there is no room: then the sock's queue and
    /// its limits are for it.
    fn receive_frame(
        &mut self,
        channel: &Channel,
        flow: &Flow,
        sk: &Sock,
        datagram: &mut Incoming,
    ) -> Fate {
        let len = datagram.payload_len();
        self.left_invalid = INVALID_MAX;
        if !sk.is_queue_at_rest() || !self.set_aside(len, channel.geometry()) {
            return Fate::Queue;
        }
        if let Err(why) = datagram.filter(sk) {
            self.keep_ready();
            return Fate::Filtered(why);
        }
        let lost = datagram.with_skb(|skb| self.deliver(channel, flow, sk, skb, None));
        // The rules may not have let it pass.
        self.keep_ready();
        lost.map_or(Fate::Received, Fate::Lost)
    }
}

/// The datagrams of a bulk of frames that come to a flow one after another. The program sees them,
/// and is woken, at the end.
pub(crate) struct Delivery<'a> {
    channel: &'a Channel,
    flow: &'a Flow,
    sk: &'a Sock,
    softirqs: &'a SoftirqsOff,
    /// `None` in a pause.
    receiver: Option<Guard<'a, Receiver, SpinLockBackend>>,
    overrun: bool,
}

impl<'a> Delivery<'a> {
    /// Nothing so far.
    pub(crate) fn new(
        channel: &'a Channel,
        flow: &'a Flow,
        sk: &'a Sock,
        softirqs: &'a SoftirqsOff,
    ) -> Self {
        Self {
            channel,
            flow,
            sk,
            softirqs,
            receiver: None,
            overrun: false,
        }
    }

    /// Whether it is for this sock.
    pub(crate) fn is_for(&self, sk: &Sock) -> bool {
        core::ptr::eq(self.sk, sk)
    }

    /// Releases the receiver's lock. The stack must not be called with it, because it may deliver to
    /// the same flow.
    pub(crate) fn pause(&mut self) {
        self.receiver = None;
    }

    /// Delivers a datagram, or gives it back if it has to be queued. In an RCU read-side section.
    pub(crate) fn take(
        &mut self,
        mut datagram: Incoming,
        spare: &mut SpareSkb,
    ) -> Option<Incoming> {
        let (channel, flow, sk) = (self.channel, self.flow, self.sk);
        let softirqs = self.softirqs;
        let lock = || channel.receiver.lock_with(softirqs);
        let receiver = self.receiver.get_or_insert_with(lock);
        let was_overrun = receiver.overrun;
        match receiver.receive_frame(channel, flow, sk, &mut datagram) {
            Fate::Queue => return Some(datagram),
            Fate::Filtered(why) => datagram.drop(sk, why),
            // What monitors have seen is remembered under the lock.
            Fate::Lost(loss) => free_lost(channel, sk, datagram.into_skb(), &loss),
            Fate::Received => {
                datagram.with_skb(|skb| skb.count_received(sk));
                datagram.finish(spare);
            }
        }
        self.overrun |= receiver.overrun && !was_overrun;
        None
    }

    /// Shows the program what was delivered, and wakes it. In an RCU read-side section.
    pub(crate) fn end(mut self) {
        let (channel, flow, sk) = (self.channel, self.flow, self.sk);
        let wake = match &mut self.receiver {
            Some(receiver) => receiver.publish(self.softirqs),
            None => channel
                .receiver
                .lock_with(self.softirqs)
                .publish(self.softirqs),
        };
        self.receiver = None;
        channel.tell(flow, sk, self.overrun, wake);
    }
}
