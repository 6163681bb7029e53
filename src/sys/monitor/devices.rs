// SPDX-License-Identifier: GPL-2.0

//! The monitor devices that are up in a namespace.

use super::packet::Packet;
use crate::{
    pure::abi::MonHdr,
    sys::{bindings, context::BottomHalvesOff},
};
use core::ptr::{self, NonNull};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Relaxed, Release},
            Atomic,
        },
        rcu,
    },
};

/// Maximum number of devices that are up in a namespace. Each packet of a flow is shown on all of
/// them, with softirqs off.
pub(super) const UP_MAX: usize = 16;

/// The devices of a network namespace that are up.
///
/// # Invariants
///
/// A device is added when it comes up, and removed when it goes down. It is freed, or leaves the
/// namespace, at the earliest an RCU grace period later.
pub(crate) struct Devices {
    pub(super) up: [Atomic<*mut bindings::net_device>; UP_MAX],
    pub(super) any: Atomic<bool>,
}

impl Devices {
    /// No devices.
    pub(crate) fn new() -> Self {
        Self {
            up: [const { Atomic::new(ptr::null_mut()) }; UP_MAX],
            any: Atomic::new(false),
        }
    }

    /// Whether any is up. Any context.
    pub(crate) fn is_any_up(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Number of devices that are up.
    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    /// The devices that are up, which are valid while RCU is held.
    fn iter(&self) -> impl Iterator<Item = NonNull<bindings::net_device>> + '_ {
        self.up
            .iter()
            .filter_map(|slot| NonNull::new(slot.load(Acquire)))
    }

    /// Adds a device: `EMFILE`. Under RTNL.
    pub(in crate::sys) fn add(&self, device: NonNull<bindings::net_device>) -> Result {
        let free = self
            .up
            .iter()
            .find(|slot| slot.load(Relaxed).is_null())
            .ok_or(EMFILE)?;
        free.store(device.as_ptr(), Release);
        self.any.store(true, Relaxed);
        Ok(())
    }

    /// Removes a device, and returns whether it was the last. Under RTNL.
    pub(in crate::sys) fn remove(&self, device: NonNull<bindings::net_device>) -> bool {
        for slot in &self.up {
            if ptr::eq(slot.load(Relaxed), device.as_ptr()) {
                slot.store(ptr::null_mut(), Relaxed);
            }
        }
        let is_any_left = self.iter().next().is_some();
        self.any.store(is_any_left, Relaxed);
        !is_any_left
    }

    /// Shows a packet on all devices that are up. Any context but hard interrupts, with interrupts
    /// on.
    ///
    /// If there is no memory for a copy, the devices count a drop.
    pub(crate) fn show(&self, header: MonHdr, packet: &Packet<'_>) {
        let copy = packet.with_header(header);
        let _softirqs = BottomHalvesOff::new();
        let _rcu = rcu::read_lock();
        for device in self.iter() {
            // SAFETY: The device was in the list while RCU was held, so by the invariants it is
            // valid until RCU is released. Softirqs are off.
            unsafe {
                match &copy {
                    Some(copy) => copy.show_on(device),
                    None => bindings::kopi_dev_rx_dropped_inc(device.as_ptr()),
                }
            }
        }
    }
}
