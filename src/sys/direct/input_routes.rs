// SPDX-License-Identifier: GPL-2.0

//! Sources from which a device gets packets for one address of this host, as the kernel has routed
//! them.
//!
//! `ip_route_input_noref()` decides by both addresses, TOS and the tables of routes, and by a few
//! options of the device. A change of the tables makes all routes expire, and so ends what is
//! remembered; the options are compared.

use super::incoming::DatagramEnds;
use crate::sys::{bindings, netdev::Device};
use core::ptr;
use kernel::{prelude::*, sync::rcu};

/// Number of sources that are remembered: a power of two.
const SOURCES: usize = 1024;

/// An accepted source; all zeroes for none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Source {
    address: u32,
    tos: u8,
    /// The round in which it was accepted, never 0.
    round: u16,
}

/// The sources of one device on one CPU.
///
/// # Invariants
///
/// `dst` is null, or this value owns a reference to it.
pub(crate) struct InputRoutes {
    dst: *mut bindings::dst_entry,
    /// The address of this host for which it is the route.
    local: u32,
    /// The device's options then.
    conf: u32,
    /// The current round: earlier sources aren't known any more.
    round: u16,
    sources: KVec<Source>,
}

// SAFETY: A route is not bound to a CPU or task, and this value owns a reference.
unsafe impl Send for InputRoutes {}

impl InputRoutes {
    /// Without sources: `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            dst: ptr::null_mut(),
            local: 0,
            conf: 0,
            round: 1,
            sources: KVec::from_elem(Source::default(), SOURCES, GFP_KERNEL_ACCOUNT)?,
        })
    }

    /// Forgets what isn't valid any more. To be called for each bulk of frames. In an RCU read-side
    /// section.
    pub(crate) fn check(&mut self, device: &Device, _rcu: &rcu::Guard) {
        // SAFETY: The device is referenced, and RCU held. This value owns a reference to the route.
        unsafe {
            let conf = bindings::kopi_route_conf(device.as_ptr());
            if conf != self.conf || !self.dst.is_null() && !bindings::kopi_dst_check(self.dst, 0) {
                self.forget();
                self.conf = conf;
            }
        }
    }

    fn forget(&mut self) {
        if !self.dst.is_null() {
            // SAFETY: This value owns the reference, and gives it up.
            unsafe { bindings::dst_release(self.dst) };
        }
        self.dst = ptr::null_mut();
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            self.round = 1;
            self.sources.fill(Source::default());
        }
    }

    /// Where a source is remembered.
    fn place(&mut self, ends: &DatagramEnds) -> Option<&mut Source> {
        // Addresses differ most in their last byte, which comes last in memory.
        let hash = u32::from_be(ends.source).wrapping_mul(0x9e37_79b1) >> 22;
        self.sources.get_mut(hash as usize % SOURCES)
    }

    /// The route of a packet, if it is known: it ends at this host. Valid as long as the RCU
    /// read-side section and this value's next change.
    #[inline]
    pub(super) fn find(&mut self, ends: &DatagramEnds) -> *mut bindings::dst_entry {
        let known = Source {
            address: ends.source,
            tos: ends.tos,
            round: self.round,
        };
        let is_known = self.local == ends.local
            && !self.dst.is_null()
            && self.place(ends).is_some_and(|source| *source == known);
        if is_known {
            self.dst
        } else {
            ptr::null_mut()
        }
    }

    /// Remembers the route of a packet that ends at this host.
    ///
    /// # Safety
    ///
    /// `skb` must be valid, with the route that the kernel has found for these ends, in an RCU
    /// read-side section.
    pub(super) unsafe fn learn(&mut self, ends: &DatagramEnds, skb: *const bindings::sk_buff) {
        // SAFETY: Required of the caller.
        let dst = unsafe { bindings::kopi_skb_dst(skb) };
        if self.conf == u32::MAX {
            return;
        }
        if self.local != ends.local || self.dst.is_null() {
            self.forget();
            // SAFETY: Required of the caller. The reference is this value's.
            self.dst = unsafe { bindings::kopi_hold_route(skb) };
            self.local = ends.local;
        }
        // A route of its own isn't valid for others.
        if dst != self.dst || dst.is_null() {
            return;
        }
        let round = self.round;
        if let Some(source) = self.place(ends) {
            *source = Source {
                address: ends.source,
                tos: ends.tos,
                round,
            };
        }
    }
}

impl Drop for InputRoutes {
    fn drop(&mut self) {
        self.forget();
    }
}
