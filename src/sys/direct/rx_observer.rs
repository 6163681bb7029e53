// SPDX-License-Identifier: GPL-2.0

//! What sees the packets that a device receives, before UDP does.

use crate::pure::ip::IpVersion;
use crate::sys::{bindings, netdev::Device};
use kernel::sync::rcu;

/// What looks at received packets before UDP does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RxObserver {
    /// A packet socket.
    Tap,
    /// A hook of tc's ingress.
    Tc,
    /// A hook of netfilter's ingress.
    Hook,
    /// A generic XDP program.
    Xdp,
    /// A raw socket for UDP.
    Raw,
    /// A device on top: a bridge, a bond, a VRF and the like.
    Upper,
    /// RPS or RFS, which choose another CPU.
    Rps,
    /// An IPsec policy.
    Ipsec,
}

impl Device {
    /// What looks at packets that are received before UDP does, besides netfilter.
    pub(crate) fn rx_observer(&self, _rcu: &rcu::Guard) -> Option<RxObserver> {
        // SAFETY: The reference keeps the device's memory, and with it the namespace's fields. RCU, which
        // the argument proves to be held, keeps the lists.
        match unsafe { bindings::kopi_dev_rx_observer(self.as_ptr()) } {
            bindings::kopi_rx_observer_KOPI_RX_NONE => None,
            bindings::kopi_rx_observer_KOPI_RX_TAP => Some(RxObserver::Tap),
            bindings::kopi_rx_observer_KOPI_RX_TC => Some(RxObserver::Tc),
            bindings::kopi_rx_observer_KOPI_RX_HOOK => Some(RxObserver::Hook),
            bindings::kopi_rx_observer_KOPI_RX_XDP => Some(RxObserver::Xdp),
            bindings::kopi_rx_observer_KOPI_RX_RAW => Some(RxObserver::Raw),
            bindings::kopi_rx_observer_KOPI_RX_UPPER => Some(RxObserver::Upper),
            bindings::kopi_rx_observer_KOPI_RX_RPS => Some(RxObserver::Rps),
            bindings::kopi_rx_observer_KOPI_RX_IPSEC => Some(RxObserver::Ipsec),
            // C gives no other value; if it did, something would look.
            _ => Some(RxObserver::Upper),
        }
    }

    /// Whether netfilter has hooks for what is received by a version of IP.
    pub(crate) fn has_input_hooks(&self, version: IpVersion, _rcu: &rcu::Guard) -> bool {
        // SAFETY: The reference keeps the device's memory, and with it the namespace's fields. RCU, which
        // the argument proves to be held, keeps the lists of hooks.
        unsafe {
            match version {
                IpVersion::V4 => bindings::kopi_has_input_hooks4(self.as_ptr()),
                IpVersion::V6 => bindings::kopi_has_input_hooks6(self.as_ptr()),
            }
        }
    }
}
