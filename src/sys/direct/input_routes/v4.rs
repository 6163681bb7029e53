// SPDX-License-Identifier: GPL-2.0

//! Sources from which a device gets packets for one address of IPv4 of this host, as the kernel has routed
//! them.
//!
//! `ip_route_input_noref()` decides by both addresses, TOS and the tables of routes, and by a few
//! options of the device. A change of the tables makes all routes expire, and so ends what is
//! remembered; the options are compared. Nothing is remembered for more than a tenth of a second.

use super::HeldRoute;
use crate::sys::{bindings, direct::datagram_ends::AddressesV4, netdev::Device};
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
pub(super) struct Sources {
    dst: HeldRoute,
    /// The address of this host for which it is the route.
    local: u32,
    /// The device's options, and the tenth of a second.
    conf: u32,
    /// The current round: earlier sources aren't known any more.
    round: u16,
    sources: KVec<Source>,
}

impl Sources {
    /// Without sources: `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            dst: HeldRoute::NONE,
            local: 0,
            conf: 0,
            round: 1,
            sources: KVec::from_elem(Source::default(), SOURCES, GFP_KERNEL_ACCOUNT)?,
        })
    }

    /// Forgets what isn't valid any more. To be called for each bulk of frames. In an RCU read-side
    /// section.
    pub(super) fn check(&mut self, device: &Device, _rcu: &rcu::Guard) {
        // SAFETY: The device is referenced, and RCU held.
        let conf = unsafe { bindings::kopi_route_conf4(device.as_ptr()) };
        if conf != self.conf || self.dst.has_ended(0) {
            self.forget();
            self.conf = conf;
        }
    }

    fn forget(&mut self) {
        self.dst = HeldRoute::NONE;
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            self.round = 1;
            self.sources.fill(Source::default());
        }
    }

    /// Where a source is remembered.
    fn place(&mut self, addresses: &AddressesV4) -> Option<&mut Source> {
        // Addresses differ most in their last byte, which comes last in memory.
        let hash = u32::from_be(addresses.source).wrapping_mul(0x9e37_79b1) >> 22;
        self.sources.get_mut(hash as usize % SOURCES)
    }

    /// The route of a packet, if it is known: it ends at this host. Valid as long as the RCU
    /// read-side section and this value's next change.
    #[inline]
    pub(super) fn find(&mut self, addresses: &AddressesV4) -> *mut bindings::dst_entry {
        let known = Source {
            address: addresses.source,
            tos: addresses.tos,
            round: self.round,
        };
        let is_known = self.local == addresses.local
            && self.place(addresses).is_some_and(|source| *source == known);
        if is_known {
            self.dst.dst
        } else {
            ptr::null_mut()
        }
    }

    /// Remembers the route of a packet that ends at this host.
    ///
    /// # Safety
    ///
    /// `skb` must be valid, with the route that the kernel has found for these addresses, in an RCU
    /// read-side section.
    pub(super) unsafe fn learn(&mut self, addresses: &AddressesV4, skb: *const bindings::sk_buff) {
        // SAFETY: Required of the caller.
        let dst = unsafe { bindings::kopi_skb_dst(skb) };
        if self.conf == u32::MAX {
            return;
        }
        if self.local != addresses.local || self.dst.dst.is_null() {
            self.forget();
            // SAFETY: Required of the caller.
            self.dst = unsafe { HeldRoute::of(skb) };
            self.local = addresses.local;
        }
        // A route of its own isn't valid for others.
        if dst != self.dst.dst || dst.is_null() {
            return;
        }
        let round = self.round;
        if let Some(source) = self.place(addresses) {
            *source = Source {
                address: addresses.source,
                tos: addresses.tos,
                round,
            };
        }
    }
}
