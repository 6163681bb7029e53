// SPDX-License-Identifier: GPL-2.0

//! The direct path's state of a flow.

use super::path::TxPath;
use crate::sys::{
    context::{now, smp_mb},
    sock::Sock, //
};
use core::sync::atomic::{
    AtomicBool,
    AtomicU16,
    AtomicU32,
    AtomicU64,
    AtomicU8,
    Ordering::Relaxed, //
};

/// After this many consecutive non-GSO datagrams with an skb each, sent while nothing of the flow was
/// in flight, the flow leaves the direct path until its next GSO packet or batch of frames: the stack
/// is cheaper for those.
const DATAGRAMS_MAX: u8 = 16;

/// The direct path's state of a flow.
#[derive(Default)]
pub(crate) struct Direct {
    /// Number of the attached device by which the flow's packets leave directly, if possible; 0 for
    /// none.
    attached_device: AtomicU32,
    /// The stack may still hold earlier packets of the flow.
    pub(super) entering: AtomicBool,
    /// The CPU whose queue holds the flow's packets in flight.
    pub(super) cpu: AtomicU16,
    /// Packets that were taken and aren't complete yet, and in the upper half the number of the
    /// attached device that has taken them: all are one device's.
    in_flight: AtomicU64,
    /// Of these, the packets with the driver.
    pub(super) with_driver: AtomicU32,
    /// Bytes that the sock is charged for packets in flight.
    pub(super) charge: AtomicU32,
    /// The time before which the flow doesn't try to enter the direct path again, as
    /// [`pause_clock`] has it; 0 for none.
    pause: AtomicU32,
    /// Non-GSO datagrams since the last GSO packet or batch, as [`DATAGRAMS_MAX`] counts them.
    datagrams: AtomicU8,
    /// Number of the attached device that saw the flow's last packet, above the [`PATH_BITS`] of that
    /// packet's path; 0 if none has seen one.
    last: AtomicU32,
}

/// Bits of a path's number.
const PATH_BITS: u32 = 4;
const _: () = assert!((TxPath::Behind as u32) < 1 << PATH_BITS);

/// Back-off after a flow failed to enter the direct path, in units of [`pause_clock`].
const PAUSE: u32 = 1_000_000_000 >> PAUSE_SHIFT;
/// The unit is 2 to the power of this, in nanoseconds: about a millisecond.
const PAUSE_SHIFT: u32 = 20;

/// The time in units that are short enough for a flow, and long enough for 52 days.
fn pause_clock() -> u32 {
    (now() >> PAUSE_SHIFT) as u32
}

impl Direct {
    /// Records the path of a packet.
    pub(super) fn record_path(&self, number: u32, path: TxPath) {
        let last = number << PATH_BITS | path as u32;
        if self.last.load(Relaxed) != last {
            self.last.store(last, Relaxed);
        }
    }

    /// The path of the last packet that an attached device of this number saw, numbered as [`TxPath`];
    /// `None` if the last one was another's.
    pub(super) fn last_at(&self, number: u32) -> Option<u32> {
        let last = self.last.load(Relaxed);
        (last >> PATH_BITS == number << PATH_BITS >> PATH_BITS)
            .then_some(last & ((1 << PATH_BITS) - 1))
    }

    /// Makes the flow leave the direct path for a while.
    pub(super) fn pause(&self) {
        self.leave();
        // 0 has another meaning.
        self.pause
            .store(pause_clock().wrapping_add(PAUSE).max(1), Relaxed);
    }

    /// Whether the flow still has to pause. A pause that nobody asked about for 52 days may seem to begin again.
    fn is_pausing(&self) -> bool {
        let end = self.pause.load(Relaxed);
        end != 0 && end.wrapping_sub(pause_clock()) <= PAUSE
    }

    /// Whether the flow's packets leave directly by the attached device of this number.
    pub(super) fn leaves_by(&self, number: u32) -> bool {
        self.attached_device.load(Relaxed) == number
    }

    /// Has the flow enter the direct path by this attached device, unless it leaves by it already, or has to
    /// pause. Returns whether its packets may leave by the device now.
    pub(super) fn enter_by(&self, number: u32) -> bool {
        if !self.leaves_by(number) {
            if self.is_pausing() {
                return false;
            }
            self.entering.store(true, Relaxed);
            self.attached_device.store(number, Relaxed);
        }
        true
    }

    /// Returns whether packets may leave by this attached device: behind those that are in flight there, or
    /// after [`Self::enter_by`] if none are in flight.
    pub(super) fn enter_or_follow(&self, number: u32) -> bool {
        match self.in_flight_at(number) {
            None => false,
            Some(0) => self.enter_by(number),
            Some(_) => self.leaves_by(number),
        }
    }

    /// Counts a non-GSO datagram that comes while nothing of the flow is in flight. Returns whether it takes the
    /// direct path, which the flow leaves after [`DATAGRAMS_MAX`] of them.
    pub(super) fn admit_datagram(&self, number: u32) -> bool {
        if !self.leaves_by(number) {
            return false;
        }
        let datagrams = self.datagrams.load(Relaxed);
        if datagrams >= DATAGRAMS_MAX {
            self.leave();
            return false;
        }
        self.datagrams.store(datagrams.saturating_add(1), Relaxed);
        true
    }

    /// Records a GSO packet or a batch of frames, which ends a sequence of non-GSO datagrams.
    pub(super) fn end_datagram_run(&self) {
        if self.datagrams.load(Relaxed) != 0 {
            self.datagrams.store(0, Relaxed);
        }
    }

    /// Makes the flow leave the direct path. Packets in flight aren't affected.
    pub(super) fn leave(&self) {
        self.attached_device.store(0, Relaxed);
    }

    /// Whether packets are in flight at any attached device.
    pub(super) fn has_in_flight(&self) -> bool {
        self.in_flight.load(Relaxed) as u32 != 0
    }

    /// Packets in flight at this attached device; `None` if there are some at another one.
    pub(super) fn in_flight_at(&self, number: u32) -> Option<u32> {
        at_device(self.in_flight.load(Relaxed), number)
    }

    /// Counts a packet as in flight at this attached device. Refuses it if there are packets in
    /// flight at another one: a queue must not wait for another device's driver.
    pub(super) fn begin_flight(&self, number: u32, charge: u32) -> bool {
        let taken = self
            .in_flight
            .fetch_update(Relaxed, Relaxed, |in_flight| {
                let count = at_device(in_flight, number)?.wrapping_add(1);
                Some(u64::from(number) << 32 | u64::from(count))
            })
            .is_ok();
        if taken {
            self.charge.fetch_add(charge, Relaxed);
        }
        taken
    }

    /// Ends a packet's time in flight, which [`Self::begin_flight`] began with this charge. `had_begun`: the driver has
    /// some of it.
    pub(super) fn complete(&self, charge: u32, had_begun: bool) {
        self.with_driver.fetch_sub(u32::from(had_begun), Relaxed);
        self.end_flight();
        self.charge.fetch_sub(charge, Relaxed);
    }

    /// A packet that no driver has begun goes to the stack: the flow's packets that can leave directly
    /// wait from now on until the stack has sent it. [`Self::end_flight`] follows when the stack has
    /// it: those that go by the stack wait until then.
    pub(super) fn end_charge(&self, charge: u32) {
        self.entering.store(true, Relaxed);
        self.charge.fetch_sub(charge, Relaxed);
    }

    /// Ends the time in flight of a packet whose charge was left.
    pub(super) fn end_flight(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// Whether neither the stack, nor a driver to which the stack gave them, holds packets of the
    /// flow: the sock is charged for nothing but packets in flight here.
    pub(super) fn is_alone(&self, sk: &Sock) -> bool {
        // The sock is charged first and last, so that what begins or ends meanwhile is in one of both.
        let before = self.charge.load(Relaxed);
        smp_mb();
        let sending = sk.sending();
        smp_mb();
        sending <= before.min(self.charge.load(Relaxed))
    }
}

/// Packets in flight at an attached device, of a flow that has these in flight; `None` if they are
/// at another device.
fn at_device(in_flight: u64, number: u32) -> Option<u32> {
    match in_flight as u32 {
        0 => Some(0),
        count => (in_flight >> 32 == u64::from(number)).then_some(count),
    }
}
