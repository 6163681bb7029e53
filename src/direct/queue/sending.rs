// SPDX-License-Identifier: GPL-2.0

//! Which of the packets that wait on a queue are given to the driver, and which the stack sends.

use super::{
    super::waiting::{bit, Patience},
    Done, Lists, Queue, DRIVER_MAX,
};
use crate::flow::Flow;
use crate::sys::{
    context::{now, SoftirqsOff},
    direct::taken::{TakenSkb, XmitResult},
    sock::Sock, //
};
use core::sync::atomic::Ordering::Relaxed;
use kernel::sync::rcu;

/// How long a user's packets wait for flows that enter, until the stack has sent their earlier
/// packets, in nanoseconds. All flows of the user that reach the head of the list one after
/// another share this time. It begins anew when the driver has taken a packet of the user.
const PATIENCE: u64 = 1_000_000;
/// How long all packets take the stack after the driver has taken no frame for [`DRIVER_MAX`], in
/// nanoseconds.
const STUCK_PAUSE: u64 = 60_000_000_000;

/// What happens to the first packet of a user.
enum Step {
    /// It leaves the list.
    Leaves(Recipient),
    /// It has to wait, with the user's packets behind it.
    Wait,
    /// The driver has no room: all have to wait.
    Full,
}

/// Who gets a packet that leaves its list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recipient {
    /// The driver was given all of it.
    Driver,
    /// The stack sends it.
    Stack,
    /// It is dropped.
    Nobody,
}

/// Whether a packet can be given to the driver; that of several flows can if it can for each.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// It can.
    Now,
    /// It has to wait.
    Later,
    /// It can't: the stack sends it.
    Never,
}

impl Queue {
    /// Sends the packets that wait, as far as possible now, one of each user in turn; returns
    /// whether any packet left the lists.
    pub(super) fn send(&self, lists: &mut Lists, done: &mut Done, softirqs: &SoftirqsOff) -> bool {
        let mut any = false;
        // The users whose packets have to wait.
        let mut later = 0;
        while let Some(at) = lists.waiting.next(later) {
            let step = lists
                .waiting
                .first(at, |packet, patience| self.step(packet, patience, softirqs));
            let to = match step {
                Some(Step::Leaves(to)) => to,
                Some(Step::Wait) => {
                    later |= bit(at);
                    continue;
                }
                None | Some(Step::Full) => {
                    // What the driver has begun goes on first.
                    lists.waiting.set_turn(at);
                    break;
                }
            };
            let Some(packet) = lists.waiting.pop(at, to == Recipient::Driver) else {
                break;
            };
            any = true;
            lists.waiting.set_turn(at.wrapping_add(1));
            move_packet(packet, to, lists, done);
        }
        any
    }

    /// Sends a user's first packet, if its turn has come.
    fn step(&self, packet: &mut TakenSkb, patience: &mut Patience, softirqs: &SoftirqsOff) -> Step {
        if packet.is_to_stack() {
            return self.step_to_stack(packet);
        }
        let had_begun = packet.has_begun();
        if !had_begun {
            match self.decide_turn(packet, patience, softirqs) {
                Turn::Now => {}
                Turn::Later => return Step::Wait,
                Turn::Never => return self.leave_to_stack(packet),
            }
        }
        let sent = packet.send(&self.device, softirqs);
        if !had_begun && packet.has_begun() {
            begin_with_driver(packet);
        }
        match sent {
            XmitResult::All => {
                self.counters
                    .count_sent(packet.datagrams(), packet.is_gso());
                Step::Leaves(Recipient::Driver)
            }
            XmitResult::Some => {
                packet.record_progress(now());
                Step::Full
            }
            XmitResult::None => self.step_when_stuck(packet, Step::Full),
            // The failure may be temporary: the program was detached in the middle of the packet,
            // say, or memory is short.
            XmitResult::Failed if packet.has_begun() => self.step_when_stuck(packet, Step::Wait),
            XmitResult::Failed => self.leave_to_stack(packet),
        }
    }

    /// What happens to a packet of which the driver has just taken no frame: `again`, for [`DRIVER_MAX`]. If all
    /// have to wait for the driver, that counts as stuck then.
    fn step_when_stuck(&self, packet: &mut TakenSkb, again: Step) -> Step {
        let now = now();
        if packet.record_stuck(now) < DRIVER_MAX {
            return again;
        }
        if matches!(again, Step::Full) {
            let until = now.saturating_add(STUCK_PAUSE);
            self.counters.stuck_until.store(until, Relaxed);
        }
        if packet.has_begun() {
            return Step::Leaves(Recipient::Nobody);
        }
        self.leave_to_stack(packet)
    }

    /// Decides whether a packet can be given to the driver. It never can while the driver takes no frames, if a
    /// tap was added after the packet was taken, or if the stack has held an earlier packet of its flow
    /// for too long.
    fn decide_turn(
        &self,
        packet: &TakenSkb,
        patience: &mut Patience,
        softirqs: &SoftirqsOff,
    ) -> Turn {
        if self.device.is_tapped(softirqs) || self.counters.is_stuck() {
            return Turn::Never;
        }
        let rcu = rcu::read_lock();
        // A closed flow sends nothing that it could overtake.
        let turns = packet
            .parts(&rcu)
            .map(|part| self.decide_turn_of(part.sk, part.flow, patience));
        turns.max().unwrap_or(Turn::Now)
    }

    /// Decides whether an open flow's packet can be given to the driver, and notes if the flow has entered the direct
    /// path, or has to pause.
    fn decide_turn_of(&self, sk: &Sock, flow: &Flow, patience: &mut Patience) -> Turn {
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

    /// Has the stack send a packet, of which the driver has taken nothing.
    fn leave_to_stack(&self, packet: &mut TakenSkb) -> Step {
        packet.leave_to_stack();
        self.step_to_stack(packet)
    }

    /// What happens to a packet that the stack is to send: it waits while an earlier packet of one of its flows
    /// is with the driver.
    fn step_to_stack(&self, packet: &TakenSkb) -> Step {
        let rcu = rcu::read_lock();
        let mut parts = packet.parts::<Flow>(&rcu);
        match parts.any(|part| part.flow.direct.with_driver.load(Relaxed) != 0) {
            false => Step::Leaves(Recipient::Stack),
            true => Step::Wait,
        }
    }
}

/// Puts a packet that has left its list among those with the driver, or those that the stack gets or that are
/// dropped without the lock.
fn move_packet(mut packet: TakenSkb, to: Recipient, lists: &mut Lists, done: &mut Done) {
    match to {
        Recipient::Driver => {
            packet.set_xmit_time(now());
            lists.hurry |= is_waited_for(&packet);
            lists.push_given(packet);
        }
        Recipient::Stack => {
            let rcu = rcu::read_lock();
            for part in packet.parts::<Flow>(&rcu) {
                part.flow.direct.end_charge(part.charge);
            }
            done.to_stack.push(packet);
        }
        Recipient::Nobody => done.dropped.push(packet),
    }
}

/// The driver has begun a packet.
fn begin_with_driver(packet: &TakenSkb) {
    let rcu = rcu::read_lock();
    for part in packet.parts::<Flow>(&rcu) {
        part.flow.direct.with_driver.fetch_add(1, Relaxed);
    }
}

/// Whether somebody waits until a packet is complete: a flow's send buffer is half full, or the
/// packet refers to frames of a program. A batch is a copy.
fn is_waited_for(packet: &TakenSkb) -> bool {
    !packet.is_batch() || packet.fills_a_buffer()
}
