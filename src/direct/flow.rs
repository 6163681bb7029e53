// SPDX-License-Identifier: GPL-2.0

//! What the direct path keeps of a flow.

use super::path::TxPath;
use crate::sys::{
    context::now,
    direct::egress::TakenSkb,
    netdev::Device,
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

/// So many single datagrams in turn, each sent when none was held, and the flow leaves until its next GSO packet:
/// the stack takes less for one.
const DATAGRAMS_MAX: u8 = 16;

/// What the direct path knows of a flow.
#[derive(Default)]
pub(crate) struct Direct {
    /// Number of the port that its packets go directly by, where they can; 0 for none.
    port: AtomicU32,
    /// The stack may still have some that came before.
    pub(super) entering: AtomicBool,
    /// The CPU whose queue has those that were taken.
    pub(super) cpu: AtomicU16,
    /// Packets that were taken, and not let go of yet.
    pub(super) in_flight: AtomicU32,
    /// Of these, those that the driver was given.
    pub(super) with_driver: AtomicU32,
    /// Bytes that its sock is charged for them.
    pub(super) charge: AtomicU32,
    /// Not to be tried before this time.
    pub(super) pause: AtomicU64,
    /// Datagrams since the last GSO packet, as [`DATAGRAMS_MAX`] counts them.
    singles: AtomicU8,
    /// By which port's device the last packet left that left by one, and which way; 0 if none has.
    last_device: AtomicU32,
    last_path: AtomicU8,
}

impl Direct {
    /// Notes which way a packet goes.
    pub(super) fn note_path(&self, device: &Device, way: TxPath) {
        if self.last_path.load(Relaxed) != way as u8 {
            self.last_path.store(way as u8, Relaxed);
        }
        if self.last_device.load(Relaxed) != device.ifindex() {
            self.last_device.store(device.ifindex(), Relaxed);
        }
    }

    /// Which way the flow's last packet took that left by a port, as `TxPath` numbers them, and the device: `None`
    /// if none has.
    pub(crate) fn last(&self) -> Option<(u32, u32)> {
        let device = self.last_device.load(Relaxed);
        (device != 0).then_some((self.last_path.load(Relaxed).into(), device))
    }

    pub(super) fn goes_by(&self, port: u32) -> bool {
        self.port.load(Relaxed) == port
    }

    /// Whether packets may go by a port now, for the first time perhaps.
    pub(super) fn may_go_by(&self, port: u32) -> bool {
        if !self.goes_by(port) {
            if self.pause.load(Relaxed) > now() {
                return false;
            }
            self.entering.store(true, Relaxed);
            self.port.store(port, Relaxed);
        }
        true
    }

    /// Whether a single datagram goes by a port, too, when none is held.
    pub(super) fn takes_single(&self, port: u32) -> bool {
        if !self.goes_by(port) {
            return false;
        }
        let singles = self.singles.load(Relaxed);
        if singles >= DATAGRAMS_MAX {
            self.leave();
            return false;
        }
        self.singles.store(singles.saturating_add(1), Relaxed);
        true
    }

    /// A GSO packet goes by a port.
    pub(super) fn note_gso(&self) {
        if self.singles.load(Relaxed) != 0 {
            self.singles.store(0, Relaxed);
        }
    }

    pub(super) fn leave(&self) {
        self.port.store(0, Relaxed);
    }

    pub(super) fn take(&self, packet: &TakenSkb) {
        self.in_flight.fetch_add(1, Relaxed);
        self.charge.fetch_add(packet.charge(), Relaxed);
    }

    pub(super) fn complete(&self, packet: &TakenSkb) {
        self.with_driver
            .fetch_sub(u32::from(packet.has_begun()), Relaxed);
        self.in_flight.fetch_sub(1, Relaxed);
        self.charge.fetch_sub(packet.charge(), Relaxed);
    }

    /// Whether the stack, or a driver that it gave them to, has none of the flow's packets.
    pub(super) fn is_alone(&self, sk: &Sock) -> bool {
        sk.sending() <= self.charge.load(Relaxed)
    }
}
