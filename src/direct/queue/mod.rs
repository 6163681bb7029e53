// SPDX-License-Identifier: GPL-2.0

//! A CPU's queue of an attached device: packets in flight wait, are with the driver, and complete.

use super::{
    counters::Counters,
    path::TxPath,
    waiting::{bit, Patience, Waiting}, //
};
use crate::flow::Flow;
use crate::sys::{
    context::{now, SoftirqsOff},
    direct::{
        egress::{TakenSkb, XmitResult},
        list::List,
    },
    netdev::{Device, Polled},
    sock::Sock, //
};
use core::sync::atomic::Ordering::Relaxed;
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
/// How long a user's packets wait for flows that enter, until the stack has sent their earlier
/// packets, in nanoseconds. All flows of the user that reach the head of the list one after
/// another share this time. It begins anew when the driver has taken a packet of the user.
const PATIENCE: u64 = 1_000_000;
/// How long the driver may refuse all frames of a packet, and how long a packet may be with the
/// driver before it counts as sent, in nanoseconds.
const DRIVER_MAX: u64 = 1_000_000_000;
/// How long all packets take the stack after the driver has refused frames for [`DRIVER_MAX`], in
/// nanoseconds.
const REFUSED_PAUSE: u64 = 60_000_000_000;

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
    /// The same of those whose memory a hook has kept: they would make the others wait.
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

/// What happens to the first packet of a user.
enum Step {
    /// The driver was given all of it.
    Given,
    /// The stack sends it.
    ToStack,
    /// It is dropped.
    Drop,
    /// It has to wait, with the user's packets behind it.
    Wait,
    /// The driver has no room: all have to wait.
    Full,
}

/// Whether a packet can be given to the driver.
enum Turn {
    /// It can.
    Now,
    /// It has to wait.
    Later,
    /// It can't: the stack sends it.
    Never,
}

impl Polled for Queue {
    fn expired(&self, softirqs: &SoftirqsOff) {
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
        lists.time_to_start()
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

    /// Whether no packet is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.lists.lock().is_empty()
    }

    /// Appends a flow's packet, if there is room for its user. The caller polls the queue
    /// afterwards. Softirqs are off.
    pub(super) fn add(&self, flow: &Flow, packet: TakenSkb) {
        let refused = self.lists.lock().waiting.add(flow.charged_user(), packet);
        if let Some(packet) = refused {
            self.refuse(flow, packet);
        }
    }

    /// Appends a flow's packet from another CPU, if there is room for its user. Gives the packet
    /// back if the queue won't be polled again. Softirqs are off.
    pub(super) fn join(&self, flow: &Flow, packet: TakenSkb) -> core::result::Result<(), TakenSkb> {
        let refused = {
            let mut lists = self.lists.lock();
            if !lists.awake {
                return Err(packet);
            }
            lists.waiting.add(flow.charged_user(), packet)
        };
        if let Some(packet) = refused {
            self.refuse(flow, packet);
        }
        Ok(())
    }

    /// Passes a packet to the stack for which there is no room, or drops it if it would overtake
    /// earlier ones of its flow.
    fn refuse(&self, flow: &Flow, packet: TakenSkb) {
        let direct = &flow.direct;
        if direct.in_flight_at(self.number) != Some(1) {
            return self.drop(packet);
        }
        direct.record_path(self.number, TxPath::Behind);
        direct.leave();
        direct.leave_charge(&packet);
        let is_gso = u64::from(packet.is_gso());
        self.counters.passed.fetch_add(is_gso, Relaxed);
        self.pass_on(packet);
    }

    /// Gives a packet whose charge was left to the stack, and counts what is lost if memory is short.
    /// Softirqs are off.
    fn pass_on(&self, packet: TakenSkb) {
        let rcu = rcu::read_lock();
        let flow = packet.flow::<Flow>(&rcu);
        let lost = u64::from(packet.pass_on());
        // Not before: the flow's next packet might overtake this one.
        if let Some(flow) = flow {
            flow.direct.end_flight();
        }
        self.counters.dropped.fetch_add(lost, Relaxed);
    }

    /// Completes a packet as dropped, and counts its datagrams that weren't sent.
    fn drop(&self, packet: TakenSkb) {
        packet.with_flow(|_, flow: &Flow| flow.direct.complete(&packet));
        let datagrams = u64::from(packet.datagrams_left());
        self.counters.dropped.fetch_add(datagrams, Relaxed);
    }

    /// Completes the packets that the driver has freed; returns whether there were any.
    fn complete(&self, lists: &mut Lists, done: &mut Done) -> bool {
        let mut any = false;
        let now = now();
        let is_sent =
            |packet: &mut TakenSkb| packet.has_returned() || packet.since_xmit(now) > DRIVER_MAX;
        for list in [&mut lists.with_driver, &mut lists.kept] {
            while list.first(is_sent) == Some(true) {
                let Some(packet) = list.pop() else {
                    break;
                };
                packet.with_flow(|_, flow: &Flow| flow.direct.complete(&packet));
                done.sent.push(packet);
                any = true;
            }
        }
        any
    }

    /// Sends the packets that wait, as far as possible now, one of each user in turn; returns
    /// whether any packet left the lists.
    fn send(&self, lists: &mut Lists, done: &mut Done, softirqs: &SoftirqsOff) -> bool {
        let mut any = false;
        // The users whose packets have to wait.
        let mut later = 0;
        while let Some(at) = lists.waiting.next(later) {
            let step = lists
                .waiting
                .first(at, |packet, patience| self.step(packet, patience, softirqs));
            let given = match step {
                Some(Step::Wait) => {
                    later |= bit(at);
                    continue;
                }
                None | Some(Step::Full) => {
                    // What the driver has begun goes on first.
                    lists.waiting.set_turn(at);
                    break;
                }
                Some(Step::Given) => true,
                Some(Step::ToStack | Step::Drop) => false,
            };
            let Some(mut packet) = lists.waiting.pop(at, given) else {
                break;
            };
            any = true;
            lists.waiting.set_turn(at.wrapping_add(1));
            match step {
                Some(Step::Given) => {
                    packet.set_xmit_time(now());
                    lists.hurry |= is_waited_for(&packet);
                    lists.given(packet);
                }
                Some(Step::ToStack) => {
                    packet.with_flow(|_, flow: &Flow| flow.direct.leave_charge(&packet));
                    done.to_stack.push(packet);
                }
                _ => done.dropped.push(packet),
            }
        }
        any
    }

    /// Sends a user's first packet, if its turn has come.
    fn step(&self, packet: &mut TakenSkb, patience: &mut Patience, softirqs: &SoftirqsOff) -> Step {
        if packet.is_to_stack() {
            return self.may_pass_on(packet);
        }
        let begun = packet.has_begun();
        let turn = match begun {
            true => Turn::Now,
            false => self.turn(packet, patience, softirqs),
        };
        match turn {
            Turn::Now => {}
            Turn::Later => return Step::Wait,
            Turn::Never => {
                packet.leave_to_stack();
                return self.may_pass_on(packet);
            }
        }
        let sent = packet.send(&self.device, softirqs);
        if !begun && packet.has_begun() {
            packet.with_flow(|_, flow: &Flow| flow.direct.with_driver.fetch_add(1, Relaxed));
        }
        match sent {
            XmitResult::All => {
                self.counters
                    .count_sent(packet.datagrams(), packet.is_gso());
                Step::Given
            }
            XmitResult::Some => {
                packet.refused(now(), true);
                Step::Full
            }
            // The failure may be temporary: the program was detached in the middle of the packet,
            // say, or memory is short.
            XmitResult::None | XmitResult::Failed
                if packet.has_begun() || sent == XmitResult::None =>
            {
                let now = now();
                if packet.refused(now, false) < DRIVER_MAX {
                    return match sent {
                        XmitResult::None => Step::Full,
                        _ => Step::Wait,
                    };
                }
                if sent == XmitResult::None {
                    let until = now.saturating_add(REFUSED_PAUSE);
                    self.counters.refused_until.store(until, Relaxed);
                }
                if packet.has_begun() {
                    return Step::Drop;
                }
                packet.leave_to_stack();
                self.may_pass_on(packet)
            }
            XmitResult::None | XmitResult::Failed => {
                packet.leave_to_stack();
                self.may_pass_on(packet)
            }
        }
    }

    /// Whether a packet can be given to the driver. It never can while the driver takes no frames, if a
    /// tap was added after the packet was taken, or if the stack has held an earlier packet of its flow
    /// for too long.
    fn turn(&self, packet: &TakenSkb, patience: &mut Patience, softirqs: &SoftirqsOff) -> Turn {
        if self.device.is_tapped(softirqs) || self.counters.is_refused() {
            return Turn::Never;
        }
        // A closed flow sends nothing that it could overtake.
        packet
            .with_flow(|sk, flow: &Flow| self.turn_of(sk, flow, patience))
            .unwrap_or(Turn::Now)
    }

    /// Whether an open flow's packet can be given to the driver.
    fn turn_of(&self, sk: &Sock, flow: &Flow, patience: &mut Patience) -> Turn {
        let direct = &flow.direct;
        if !direct.leaves_by(self.number) {
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
        if now.saturating_sub(*patience.get_or_insert(now)) < PATIENCE {
            return Turn::Later;
        }
        direct.pause();
        Turn::Never
    }

    /// Passes a packet to the stack, once no earlier packet of its flow is with the driver.
    fn may_pass_on(&self, packet: &TakenSkb) -> Step {
        match packet.with_flow(|_, flow: &Flow| flow.direct.with_driver.load(Relaxed)) {
            None | Some(0) => Step::ToStack,
            Some(_) => Step::Wait,
        }
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
            packet.with_flow(|_, flow: &Flow| flow.direct.complete(&packet));
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

/// Whether somebody waits until a packet is complete: its flow's send buffer is half full, or the
/// packet refers to frames of a program. A batch is a copy.
fn is_waited_for(packet: &TakenSkb) -> bool {
    let has_room = |sk: &Sock, _: &Flow| sk.is_writeable();
    !packet.is_batch() || packet.with_flow(has_room) == Some(false)
}

impl Lists {
    fn is_empty(&mut self) -> bool {
        self.waiting.is_empty() && self.has_none_with_driver()
    }

    fn has_none_with_driver(&mut self) -> bool {
        self.with_driver.first(|_| ()).is_none() && self.kept.first(|_| ()).is_none()
    }

    /// Appends a packet that the driver was given.
    fn given(&mut self, packet: TakenSkb) {
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

    /// In how many nanoseconds the timer has to expire, unless it will expire before, or the queue is
    /// empty.
    fn time_to_start(&mut self) -> Option<u64> {
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
