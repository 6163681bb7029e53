// SPDX-License-Identifier: GPL-2.0

//! Routes of packets to this host, as the kernel has found them.

mod v4;
mod v6;

use self::{v4::Sources, v6::LocalRoute};
use super::datagram_ends::{Addresses, DatagramEnds};
use crate::pure::ip::IpVersion;
use crate::sys::{bindings, netdev::Device};
use core::ptr;
use kernel::{prelude::*, sync::rcu};

/// What one CPU remembers of a device's packets.
pub(crate) struct InputRoutes {
    v4: Sources,
    v6: LocalRoute,
}

impl InputRoutes {
    /// Without routes: `ENOMEM`. Process context.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            v4: Sources::new()?,
            v6: LocalRoute::NONE,
        })
    }

    /// Forgets what isn't valid any more. To be called for each bulk of frames before it is asked about
    /// packets of this version. In an RCU read-side section.
    pub(crate) fn check(&mut self, version: IpVersion, device: &Device, rcu: &rcu::Guard) {
        match version {
            IpVersion::V4 => self.v4.check(device, rcu),
            IpVersion::V6 => self.v6.check(device, rcu),
        }
    }

    /// The route of a packet, if it is known: it ends at this host. Otherwise null. Valid as long as the
    /// RCU read-side section and this value's next change.
    #[inline]
    pub(super) fn find(&mut self, ends: &DatagramEnds) -> *mut bindings::dst_entry {
        match &ends.addresses {
            Addresses::V4(addresses) => self.v4.find(addresses),
            Addresses::V6(addresses) => self.v6.find(addresses),
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
        unsafe {
            match &ends.addresses {
                Addresses::V4(addresses) => self.v4.learn(addresses, skb),
                Addresses::V6(addresses) => self.v6.learn(addresses, skb),
            }
        }
    }
}

/// A reference to a route, or none.
///
/// # Invariants
///
/// `dst` is null, or this value owns a reference to it.
struct HeldRoute {
    dst: *mut bindings::dst_entry,
}

// SAFETY: A route is not bound to a CPU or task, and this value owns a reference.
unsafe impl Send for HeldRoute {}

impl HeldRoute {
    const NONE: Self = Self {
        dst: ptr::null_mut(),
    };

    /// That of an skb; none if it is about to end.
    ///
    /// # Safety
    ///
    /// `skb` must be valid, in an RCU read-side section.
    unsafe fn of(skb: *const bindings::sk_buff) -> Self {
        // INVARIANT: The call gives null, or a reference.
        // SAFETY: Required of the caller.
        let dst = unsafe { bindings::kopi_hold_route(skb) };
        Self { dst }
    }

    /// Whether there is one, which has become invalid. `cookie` is what it is valid by.
    fn has_ended(&self, cookie: u32) -> bool {
        // SAFETY: This value owns a reference.
        !self.dst.is_null() && unsafe { !bindings::kopi_dst_check(self.dst, cookie) }
    }
}

impl Drop for HeldRoute {
    fn drop(&mut self) {
        if !self.dst.is_null() {
            // SAFETY: This value owns the reference, and isn't used any more.
            unsafe { bindings::dst_release(self.dst) };
        }
    }
}
