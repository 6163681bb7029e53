// SPDX-License-Identifier: GPL-2.0

//! A CPU's queue of an attached device: packets in flight wait, are with the driver, and complete.

mod sending;

use super::{counters::Counters, path::TxPath, waiting::Waiting};
use crate::flow::Flow;
use crate::sys::{
    context::{now, SoftirqsOff},
    direct::{list::List, taken::TakenSkb},
    netdev::{Device, Polled}, //
};
use core::{ptr, sync::atomic::Ordering::Relaxed};
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{rcu, Arc, SpinLock},
};

/// Interval of polling a queue with packets in flight, in nanoseconds. It doubles, up to the
/// maximum, each time that polling changes nothing. It is the maximum from the start if nobody waits
/// for these packets.
const TICK: u64 = 50_000;
const TICK_MAX: u64 = 1_600_000;
/// How long the driver may take no frame of a packet, and how long a packet may be with the
/// driver before it counts as sent, in nanoseconds.
const DRIVER_MAX: u64 = 1_000_000_000;
/// How many packets that hooks have kept are looked at each time.
const KEPT_LOOKS: u32 = 64;

/// The queue of one CPU and one attached device.
#[pin_data]
pub(crate) struct Queue {
    /// The attached device's number.
    number: u32,
    device: Arc<Device>,
    counters: Arc<Counters>,
    #[pin]
    lists: SpinLock<Lists>,
}

struct Lists {
    /// Packets to be sent.
    waiting: Waiting,
    /// Packets with the driver, in order.
    with_driver: List,
    /// Packets with the driver of whose memory a hook has a part, apart from the others, which would have to wait
    /// for that hook.
    kept: List,
    /// The queue will be polled again.
    awake: bool,
    /// The interval until then, in nanoseconds; `None` for [`TICK_MAX`], as nobody waits for a packet.
    tick: Option<u64>,
    /// The time at which the timer expires, in nanoseconds; 0 if it isn't running.
    expires: u64,
    /// Somebody waits for packets with the driver: a sender for room, or a program for frames.
    hurry: bool,
    /// `None` while a caller of `poll` on this CPU has it, to use it without the lock.
    done: Option<Done>,
}

/// Packets to be freed, or passed to the stack, without the lock.
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

impl Polled for Queue {
    fn on_expiry(&self, softirqs: &SoftirqsOff) {
        let is_empty = {
            let mut lists = self.lists.lock();
            lists.expires = 0;
            lists.is_empty()
        };
        if !is_empty {
            self.device.reap(softirqs);
        }
    }

    /// Sends the packets that can be sent, and completes the packets that the driver has freed. On
    /// the queue's CPU.
    fn poll(&self, softirqs: &SoftirqsOff) -> Option<u64> {
        let done = {
            let mut lists = self.lists.lock();
            // `None` if this call is nested in another one on this CPU, which then starts the
            // timer.
            let mut done = lists.done.take()?;
            lists.awake = true;
            let moved =
                self.complete(&mut lists, &mut done) | self.send(&mut lists, &mut done, softirqs);
            lists.set_tick(moved);
            done
        };
        let done = self.finish(done);
        let mut lists = self.lists.lock();
        lists.done = Some(done);
        lists.awake = !lists.is_empty();
        lists.arm_timer()
    }
}

impl Queue {
    pub(super) fn new(
        number: u32,
        device: Arc<Device>,
        counters: Arc<Counters>,
    ) -> Result<impl PinInit<Self, Error>> {
        let lists = Lists {
            waiting: Waiting::new()?,
            with_driver: List::new()?,
            kept: List::new()?,
            awake: false,
            tick: None,
            expires: 0,
            hurry: false,
            done: Some(Done::new()?),
        };
        Ok(try_pin_init!(Self {
            number,
            device,
            counters,
            lists <- new_spinlock!(lists, "kopi::Queue::lists"),
        }))
    }

    /// Whether no packet is in flight: none waits, none is with the driver, and none is just being passed on,
    /// behind which others of its flow would be put here.
    pub(super) fn is_empty(&self) -> bool {
        let mut lists = self.lists.lock();
        lists.done.is_some() && lists.is_empty()
    }

    /// Appends a packet, if there is room for its user. The caller polls the queue afterwards. Softirqs are
    /// off.
    pub(super) fn add(&self, user: u32, packet: TakenSkb) {
        let without_room = self.lists.lock().waiting.add(user, packet);
        if let Some(packet) = without_room {
            self.turn_away(packet);
        }
    }

    /// Appends a packet from another CPU, if there is room for its user. Gives the packet back if the queue
    /// won't be polled again. Softirqs are off.
    pub(super) fn join(&self, user: u32, packet: TakenSkb) -> core::result::Result<(), TakenSkb> {
        let without_room = {
            let mut lists = self.lists.lock();
            if !lists.awake {
                return Err(packet);
            }
            lists.waiting.add(user, packet)
        };
        if let Some(packet) = without_room {
            self.turn_away(packet);
        }
        Ok(())
    }

    /// Passes a packet for which there is no room to the stack, or drops it if it would overtake
    /// earlier ones of its flows.
    fn turn_away(&self, packet: TakenSkb) {
        if self.has_others_in_flight(&packet) {
            return self.drop(packet);
        }
        let rcu = rcu::read_lock();
        for part in packet.parts::<Flow>(&rcu) {
            let direct = &part.flow.direct;
            direct.record_path(self.number, TxPath::Behind);
            direct.leave();
            direct.end_charge(part.charge);
        }
        let is_gso = u64::from(packet.is_gso());
        self.counters.passed.fetch_add(is_gso, Relaxed);
        self.pass_on(packet);
    }

    /// Whether any flow of a packet has another one in flight, too.
    fn has_others_in_flight(&self, packet: &TakenSkb) -> bool {
        let rcu = rcu::read_lock();
        let has_others = |flow: &Flow| {
            let parts = packet.parts::<Flow>(&rcu);
            let own = parts.filter(|part| ptr::eq(part.flow, flow)).count();
            flow.direct.in_flight_at(self.number) != Some(own as u32)
        };
        let mut parts = packet.parts(&rcu);
        parts.any(|part| has_others(part.flow))
    }

    /// Gives a packet whose charge was left to the stack, and counts what is lost if memory is short.
    /// Softirqs are off.
    fn pass_on(&self, packet: TakenSkb) {
        // Ended only when the stack has the packet: the flow's next one might overtake it.
        let lost = packet.pass_on(|flow: &Flow| flow.direct.end_flight());
        self.counters.dropped.fetch_add(lost.into(), Relaxed);
    }

    /// Completes a packet as dropped, and counts its datagrams that weren't sent.
    fn drop(&self, packet: TakenSkb) {
        end_flights(&packet);
        let datagrams = u64::from(packet.datagrams_left());
        self.counters.dropped.fetch_add(datagrams, Relaxed);
    }

    /// Completes the packets that the driver has freed; returns whether there were any.
    fn complete(&self, lists: &mut Lists, done: &mut Done) -> bool {
        let mut any = false;
        let now = now();
        let is_sent =
            |packet: &mut TakenSkb| packet.has_returned() || packet.since_xmit(now) > DRIVER_MAX;
        while lists.with_driver.first(is_sent) == Some(true) {
            any |= complete_first(&mut lists.with_driver, done);
        }
        // Hooks let go of packets in any order. Those of one user must not stand before those of others.
        for _ in 0..lists.kept.len().min(KEPT_LOOKS) {
            match lists.kept.first(is_sent) {
                Some(true) => any |= complete_first(&mut lists.kept, done),
                _ => lists.kept.rotate(),
            }
        }
        any
    }

    /// Frees the packets, or passes them to the stack. Called without the lock, because freeing may
    /// wake processes that wait for room, and the stack may call this hook again.
    fn finish(&self, mut done: Done) -> Done {
        while let Some(packet) = done.sent.pop() {
            packet.finish();
        }
        while let Some(packet) = done.dropped.pop() {
            self.drop(packet);
        }
        while let Some(packet) = done.to_stack.pop() {
            self.pass_on(packet);
        }
        done
    }

    /// Drops the packets that wait, and completes the packets with the driver. Softirqs are off.
    pub(super) fn empty(&self) {
        let with_driver = || {
            let lists = &mut self.lists.lock();
            lists.with_driver.pop().or_else(|| lists.kept.pop())
        };
        while let Some(packet) = with_driver() {
            end_flights(&packet);
            packet.finish();
        }
        let waiting = || {
            let waiting = &mut self.lists.lock().waiting;
            waiting.next(0).and_then(|at| waiting.pop(at, false))
        };
        while let Some(packet) = waiting() {
            self.drop(packet);
        }
    }
}

/// Completes the first packet of a list; returns whether there is one.
fn complete_first(list: &mut List, done: &mut Done) -> bool {
    let Some(packet) = list.pop() else {
        return false;
    };
    end_flights(&packet);
    done.sent.push(packet);
    true
}

/// Ends the time in flight of what flows have of a packet.
fn end_flights(packet: &TakenSkb) {
    let rcu = rcu::read_lock();
    let had_begun = packet.has_begun();
    for part in packet.parts::<Flow>(&rcu) {
        part.flow.direct.complete(part.charge, had_begun);
    }
}

impl Lists {
    fn is_empty(&mut self) -> bool {
        self.waiting.is_empty() && self.has_none_with_driver()
    }

    fn has_none_with_driver(&mut self) -> bool {
        self.with_driver.first(|_| ()).is_none() && self.kept.first(|_| ()).is_none()
    }

    /// Appends a packet that the driver was given.
    fn push_given(&mut self, packet: TakenSkb) {
        match packet.is_kept() {
            true => self.kept.push(packet),
            false => self.with_driver.push(packet),
        }
    }

    /// Chooses the interval until the queue is polled again.
    fn set_tick(&mut self, moved: bool) {
        self.hurry &= !self.has_none_with_driver();
        self.tick = match self.tick {
            _ if !self.hurry && self.waiting.is_empty() => None,
            Some(tick) if !moved => Some(TICK_MAX.min(tick.saturating_mul(2))),
            _ => Some(TICK),
        };
    }

    /// Notes when the timer is to expire. Gives in how many nanoseconds that is; `None` if it expires before that
    /// already, or the queue is empty.
    fn arm_timer(&mut self) -> Option<u64> {
        if !self.awake {
            return None;
        }
        let tick = self.tick.unwrap_or(TICK_MAX);
        let now = now();
        let end = now.saturating_add(tick);
        if (now..=end).contains(&self.expires) {
            return None;
        }
        self.expires = end;
        Some(tick)
    }
}
