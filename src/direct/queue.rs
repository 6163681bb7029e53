// SPDX-License-Identifier: GPL-2.0

//! A CPU's queue of an attached device: what was taken waits, is with the driver, and is completed.

use super::counters::Counters;
use crate::flow::Flow;
use crate::sys::{
    context::now,
    direct::egress::{List, Sent, TakenSkb},
    netdev::{Device, Polled},
    sock::Sock, //
};
use core::sync::atomic::Ordering::Relaxed;
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{Arc, SpinLock},
};

/// Between two looks at a queue on which something waits, or is with the driver, in nanoseconds; twice as long
/// each time that nothing has changed.
const TICK: u64 = 50_000;
const TICK_MAX: u64 = 1_600_000;
/// How long a queue waits for what the stack still has of the flows whose first GSO packets are at its head, one after
/// the other, in nanoseconds; anew when the driver has taken something.
const PATIENCE: u64 = 1_000_000;
/// When it tries again if that was in vain, in nanoseconds.
const PAUSE: u64 = 1_000_000_000;
/// How long a driver may take nothing of a packet that it is offered, and how long it may have one before that
/// counts as sent, in nanoseconds.
const DRIVER_MAX: u64 = 1_000_000_000;
/// How long the stack has all packets when a driver has taken nothing for so long, in nanoseconds.
const REFUSED_PAUSE: u64 = 60_000_000_000;
/// Datagrams that may wait on a queue, as many as fq_codel keeps.
const WAITING_MAX: u32 = 10_240;

/// What a CPU has of a port.
#[pin_data]
pub(crate) struct Queue {
    /// The port's.
    number: u32,
    device: Arc<Device>,
    counters: Arc<Counters>,
    #[pin]
    lists: SpinLock<Lists>,
}

struct Lists {
    /// Packets that are to be sent, in order, and the number of datagrams.
    waiting: List,
    datagrams: u32,
    /// Packets that the driver has frames of.
    with_driver: List,
    /// From when on it has waited as [`PATIENCE`] says, in nanoseconds; `None` if it doesn't.
    patient_from: Option<u64>,
    /// The queue will be looked at.
    awake: bool,
    /// When, in nanoseconds.
    tick: u64,
    /// As below, while the lock isn't held.
    done: Option<Done>,
}

/// What is to be freed, or passed on, without the lock.
struct Done {
    sent: List,
    dropped: List,
    to_stack: List,
}

impl Done {
    fn new() -> Result<Self> {
        Ok(Self {
            sent: List::new()?,
            dropped: List::new()?,
            to_stack: List::new()?,
        })
    }
}

/// What became of the first of those that waited.
enum Step {
    Given,
    ToStack,
    Drop,
}

/// Whether a packet can be given to the driver.
enum Turn {
    Now,
    Later,
    /// The stack is to have it.
    Never,
}

impl Polled for Queue {
    fn reap(&self) {
        self.device.reap();
    }

    /// Sends what can be sent, and completes what has left. On the queue's CPU.
    fn poll(&self) -> Option<u64> {
        let done = {
            let mut lists = self.lists.lock();
            // Else somebody is at it, further up on this CPU.
            let mut done = lists.done.take()?;
            lists.awake = true;
            let moved = self.complete(&mut lists, &mut done) | self.send(&mut lists, &mut done);
            lists.tick = if moved {
                TICK
            } else {
                TICK_MAX.min(lists.tick.saturating_mul(2))
            };
            done
        };
        let done = self.finish(done);
        let mut lists = self.lists.lock();
        lists.done = Some(done);
        lists.awake = !lists.is_empty();
        lists.awake.then_some(lists.tick)
    }
}

impl Queue {
    pub(super) fn new(
        number: u32,
        device: Arc<Device>,
        counters: Arc<Counters>,
    ) -> Result<impl PinInit<Self, Error>> {
        let lists = Lists {
            waiting: List::new()?,
            datagrams: 0,
            with_driver: List::new()?,
            patient_from: None,
            awake: false,
            tick: TICK,
            done: Some(Done::new()?),
        };
        Ok(try_pin_init!(Self {
            number,
            device,
            counters,
            lists <- new_spinlock!(lists, "kopi::Queue::lists"),
        }))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lists.lock().is_empty()
    }

    /// Appends a packet, which the caller has looked at then; one too many is dropped. Softirqs are off.
    pub(super) fn add(&self, packet: TakenSkb) {
        let refused = self.lists.lock().add(packet);
        if let Some(packet) = refused {
            self.drop(packet);
        }
    }

    /// As above, from another CPU: gives the packet back if nobody is going to look.
    pub(super) fn join(&self, packet: TakenSkb) -> core::result::Result<(), TakenSkb> {
        let refused = {
            let mut lists = self.lists.lock();
            if !lists.awake {
                return Err(packet);
            }
            lists.add(packet)
        };
        if let Some(packet) = refused {
            self.drop(packet);
        }
        Ok(())
    }

    fn drop(&self, packet: TakenSkb) {
        packet.with_flow(|_, flow: &Flow| flow.direct.complete(&packet));
        let datagrams = u64::from(packet.datagrams_left());
        self.counters.dropped.fetch_add(datagrams, Relaxed);
    }

    /// Lets go of what the driver has let go of; says whether that was any.
    fn complete(&self, lists: &mut Lists, done: &mut Done) -> bool {
        let mut any = false;
        let now = now();
        let is_sent =
            |packet: &mut TakenSkb| packet.has_returned() || packet.given_for(now) > DRIVER_MAX;
        while lists.with_driver.first(is_sent) == Some(true) {
            let Some(packet) = lists.with_driver.pop() else {
                break;
            };
            packet.with_flow(|_, flow: &Flow| flow.direct.complete(&packet));
            done.sent.push(packet);
            any = true;
        }
        any
    }

    /// Sends those that wait, as far as they can be sent now; says whether any could.
    fn send(&self, lists: &mut Lists, done: &mut Done) -> bool {
        let mut any = false;
        loop {
            let patient_from = &mut lists.patient_from;
            let step = lists
                .waiting
                .first(|packet| self.step(packet, patient_from));
            let Some(step) = step.flatten() else {
                break;
            };
            let Some(mut packet) = lists.pop_waiting() else {
                break;
            };
            any = true;
            match step {
                Step::Given => {
                    lists.patient_from = None;
                    packet.given_at(now());
                    lists.with_driver.push(packet);
                }
                Step::ToStack => {
                    packet.with_flow(|_, flow: &Flow| {
                        // Those behind it wait until that has sent it.
                        flow.direct.entering.store(true, Relaxed);
                        flow.direct.complete(&packet);
                    });
                    done.to_stack.push(packet);
                }
                Step::Drop => done.dropped.push(packet),
            }
        }
        if lists.waiting.first(|_| ()).is_none() {
            lists.patient_from = None;
        }
        any
    }

    /// Sends the first one, if its turn has come; `None` if it has to wait.
    fn step(&self, packet: &mut TakenSkb, patient_from: &mut Option<u64>) -> Option<Step> {
        if packet.is_to_stack() {
            return self.may_pass_on(packet);
        }
        let begun = packet.has_begun();
        let turn = match begun {
            true => None,
            false => packet.with_flow(|sk, flow: &Flow| self.turn(sk, flow, patient_from)),
        };
        match turn.unwrap_or(Turn::Now) {
            Turn::Now => {}
            Turn::Later => return None,
            Turn::Never => {
                packet.leave_to_stack();
                return self.may_pass_on(packet);
            }
        }
        let sent = packet.send(&self.device);
        if !begun && packet.has_begun() {
            packet.with_flow(|_, flow: &Flow| flow.direct.with_driver.fetch_add(1, Relaxed));
        }
        match sent {
            Sent::All => {
                let datagrams = packet.datagrams();
                let counters = &self.counters;
                counters.packets.fetch_add(u64::from(datagrams), Relaxed);
                counters
                    .gso_packets
                    .fetch_add(u64::from(datagrams > 1), Relaxed);
                Some(Step::Given)
            }
            Sent::Some => {
                packet.refused(now(), true);
                None
            }
            // In its midst the program was taken away, say, or there is no memory: that may change.
            Sent::None | Sent::Failed if packet.has_begun() || sent == Sent::None => {
                let now = now();
                if packet.refused(now, false) < DRIVER_MAX {
                    return None;
                }
                if sent == Sent::None {
                    let until = now.saturating_add(REFUSED_PAUSE);
                    self.counters.refused_until.store(until, Relaxed);
                }
                if packet.has_begun() {
                    return Some(Step::Drop);
                }
                packet.leave_to_stack();
                self.may_pass_on(packet)
            }
            Sent::None | Sent::Failed => {
                packet.leave_to_stack();
                self.may_pass_on(packet)
            }
        }
    }

    /// Whether a packet of a flow can be given to the driver; never if the stack has had another one of the
    /// flow for too long, or if somebody looks at what leaves who didn't when the packet came.
    fn turn(&self, sk: &Sock, flow: &Flow, patient_from: &mut Option<u64>) -> Turn {
        let direct = &flow.direct;
        if !direct.goes_by(self.number) || self.device.is_tapped() || self.counters.is_refused() {
            return Turn::Never;
        }
        if !direct.entering.load(Relaxed) {
            return Turn::Now;
        }
        if direct.is_alone(sk) {
            direct.entering.store(false, Relaxed);
            return Turn::Now;
        }
        let now = now();
        if now.saturating_sub(*patient_from.get_or_insert(now)) < PATIENCE {
            return Turn::Later;
        }
        direct.leave();
        direct.pause.store(now.wrapping_add(PAUSE), Relaxed);
        Turn::Never
    }

    /// Whether the stack can have a packet: not before the driver has sent all that came earlier.
    fn may_pass_on(&self, packet: &TakenSkb) -> Option<Step> {
        match packet.with_flow(|_, flow: &Flow| flow.direct.with_driver.load(Relaxed)) {
            None | Some(0) => Some(Step::ToStack),
            Some(_) => None,
        }
    }

    /// Frees, or passes on. Without the lock: who waits for room may be woken.
    fn finish(&self, mut done: Done) -> Done {
        while let Some(packet) = done.sent.pop() {
            packet.finish();
        }
        while let Some(packet) = done.dropped.pop() {
            self.drop(packet);
        }
        while let Some(packet) = done.to_stack.pop() {
            packet.pass_on();
        }
        done
    }

    /// Drops what waits, and lets go of what the driver has. Softirqs are off.
    pub(super) fn empty(&self) {
        let given = || self.lists.lock().with_driver.pop();
        while let Some(packet) = given() {
            packet.with_flow(|_, flow: &Flow| flow.direct.complete(&packet));
            packet.finish();
        }
        let waiting = || self.lists.lock().pop_waiting();
        while let Some(packet) = waiting() {
            self.drop(packet);
        }
    }
}

impl Lists {
    /// Appends a packet; gives it back if there are too many.
    fn add(&mut self, packet: TakenSkb) -> Option<TakenSkb> {
        let all = self.datagrams.saturating_add(packet.datagrams());
        if all > WAITING_MAX {
            return Some(packet);
        }
        self.datagrams = all;
        self.waiting.push(packet);
        None
    }

    /// Takes the first of those that wait.
    fn pop_waiting(&mut self) -> Option<TakenSkb> {
        let packet = self.waiting.pop()?;
        self.datagrams = self.datagrams.saturating_sub(packet.datagrams());
        Some(packet)
    }

    fn is_empty(&mut self) -> bool {
        self.waiting.first(|_| ()).is_none() && self.with_driver.first(|_| ()).is_none()
    }
}
