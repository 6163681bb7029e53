// SPDX-License-Identifier: GPL-2.0

//! The route to one address of IPv6 of this host.
//!
//! `ip6_route_input()` asks the local table first, which has this host's addresses, and that table asks for
//! the destination alone. So it does not matter who sends, unless routing rules or routes by source
//! are there: then nothing is remembered.

use super::HeldRoute;
use crate::sys::{bindings, direct::datagram_ends::AddressesV6, netdev::Device};
use core::{mem::replace, ptr};
use kernel::sync::rcu;

/// The route of one device's packets to one address, on one CPU.
pub(super) struct LocalRoute {
    dst: HeldRoute,
    /// What the route is valid by.
    cookie: u32,
    /// Of the namespace's routes: the local table, which is asked first, may have got one, although the route is
    /// another table's.
    generation: i32,
    /// The address of this host for which it is the route.
    local: u128,
    /// No rule of routing, and no source, decides besides.
    by_destination: bool,
}

impl LocalRoute {
    /// None.
    pub(super) const NONE: Self = Self {
        dst: HeldRoute::NONE,
        cookie: 0,
        generation: 0,
        local: 0,
        by_destination: false,
    };

    /// Forgets it if it isn't valid any more. In an RCU read-side section.
    pub(super) fn check(&mut self, device: &Device, _rcu: &rcu::Guard) {
        // SAFETY: The device is referenced, and RCU held.
        let (by_destination, generation) = unsafe {
            let device = device.as_ptr();
            (
                bindings::kopi_routes_by_destination6(device),
                bindings::kopi_routes_generation6(device),
            )
        };
        self.by_destination = by_destination;
        let other = replace(&mut self.generation, generation) != generation;
        if other || !by_destination || self.dst.has_ended(self.cookie) {
            self.dst = HeldRoute::NONE;
        }
    }

    /// The route of a packet, or null.
    #[inline]
    pub(super) fn find(&self, addresses: &AddressesV6) -> *mut bindings::dst_entry {
        if self.local == addresses.local {
            self.dst.dst
        } else {
            ptr::null_mut()
        }
    }

    /// Remembers the route of a packet that ends at this host.
    ///
    /// # Safety
    ///
    /// `skb` must be valid, with the IPv6 route that the kernel has found for these addresses, in an
    /// RCU read-side section.
    pub(super) unsafe fn learn(&mut self, addresses: &AddressesV6, skb: *const bindings::sk_buff) {
        if !self.by_destination {
            return;
        }
        // SAFETY: Required of the caller. The cookie is read of an IPv6 route.
        unsafe {
            self.cookie = bindings::kopi_route_cookie6(bindings::kopi_skb_dst(skb));
            self.dst = HeldRoute::of(skb);
        }
        self.local = addresses.local;
    }
}
