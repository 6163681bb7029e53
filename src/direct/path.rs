// SPDX-License-Identifier: GPL-2.0

//! Which path packets take by an attached device, and why.

use crate::sys::{direct::egress::EgressSkb, uapi};

/// Which way packets take, as `uapi/kopi_netlink.h` numbers them; those from `Datagram` on are of one flow's only.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum TxPath {
    /// Directly, to the driver.
    Direct = uapi::KOPI_PATH_DIRECT,
    /// By the stack, since no XDP program has the driver take frames,
    NoProgram = uapi::KOPI_PATH_NO_PROGRAM,
    /// since tc has an egress hook,
    Tc = uapi::KOPI_PATH_TC,
    /// since another hook of netfilter's egress comes later,
    Hook = uapi::KOPI_PATH_HOOK,
    /// since a packet socket looks at what leaves,
    Tap = uapi::KOPI_PATH_TAP,
    /// since a monitor device is up,
    Monitor = uapi::KOPI_PATH_MONITOR,
    /// since a qdisc holds packets, or doesn't let any pass it by,
    Qdisc = uapi::KOPI_PATH_QDISC,
    /// since the device can't send,
    Down = uapi::KOPI_PATH_DOWN,
    /// since its driver took nothing for too long,
    Refused = uapi::KOPI_PATH_REFUSED,
    /// since the packet is no GSO packet,
    Datagram = uapi::KOPI_PATH_DATAGRAM,
    /// since it isn't UDP any more,
    Transformed = uapi::KOPI_PATH_TRANSFORMED,
    /// since there is more to it than a driver is given,
    Extras = uapi::KOPI_PATH_EXTRAS,
    /// or since the stack has had earlier ones for too long.
    Behind = uapi::KOPI_PATH_BEHIND,
}

/// Which way what comes takes, as `uapi/kopi_netlink.h` numbers them.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum RxPath {
    /// Redirected by the device's XDP program.
    Direct = uapi::KOPI_RECEIVE_PATH_DIRECT,
    /// By the stack, since the program is not one that does,
    NoProgram = uapi::KOPI_RECEIVE_PATH_NO_PROGRAM,
    /// since the device that it would be redirected to is down,
    Down = uapi::KOPI_RECEIVE_PATH_DOWN,
    /// since the program can't see the tags of VLANs,
    Vlan = uapi::KOPI_RECEIVE_PATH_VLAN,
    /// or since the flow that it is for takes no GSO packets.
    NoGro = uapi::KOPI_RECEIVE_PATH_NO_GRO,
}

/// Why a packet doesn't leave directly, where others could.
pub(super) fn why_not(offer: &EgressSkb<'_>) -> TxPath {
    if !offer.is_udp() {
        TxPath::Transformed
    } else if offer.has_extras() || offer.is_gso() {
        TxPath::Extras
    } else {
        TxPath::Datagram
    }
}
