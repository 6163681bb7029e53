// SPDX-License-Identifier: GPL-2.0

//! The paths that packets take at an attached device, with the reasons.

use crate::sys::{
    direct::{egress::EgressSkb, rx_observer::RxObserver},
    uapi, //
};

/// The path of outgoing packets, numbered as in `uapi/kopi_netlink.h`. The values from `Datagram`
/// on apply to one flow; the others apply to the device.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum TxPath {
    /// Directly to the driver.
    Direct = uapi::KOPI_TX_PATH_DIRECT,
    /// Through the stack: without an XDP program, the driver takes no frames.
    NoProgram = uapi::KOPI_TX_PATH_NO_PROGRAM,
    /// Through the stack: tc has an egress hook.
    Tc = uapi::KOPI_TX_PATH_TC,
    /// Through the stack: another hook of netfilter's egress comes later.
    Hook = uapi::KOPI_TX_PATH_HOOK,
    /// Through the stack: a packet socket sees outgoing packets.
    Tap = uapi::KOPI_TX_PATH_TAP,
    /// Through the stack: a monitor device is up.
    Monitor = uapi::KOPI_TX_PATH_MONITOR,
    /// Through the stack: a qdisc holds packets, or can't be bypassed.
    Qdisc = uapi::KOPI_TX_PATH_QDISC,
    /// Through the stack: the device can't send.
    Down = uapi::KOPI_TX_PATH_DOWN,
    /// Through the stack: the driver took no frames for too long, or has too few queues for them.
    Refused = uapi::KOPI_TX_PATH_REFUSED,
    /// Through the stack: a datagram that isn't a frame, because it has special needs, something looks at
    /// it, or fewer than three were sent at once.
    Datagram = uapi::KOPI_TX_PATH_DATAGRAM,
    /// Through the stack: the packet isn't UDP any more.
    Transformed = uapi::KOPI_TX_PATH_TRANSFORMED,
    /// Through the stack: the packet needs more than an XDP frame can express.
    Extras = uapi::KOPI_TX_PATH_EXTRAS,
    /// Through the stack: the stack has held earlier packets of the flow for too long, another attached
    /// device has some, or there was no room on the queue.
    Behind = uapi::KOPI_TX_PATH_BEHIND,
}

/// The path of incoming packets, numbered as in `uapi/kopi_netlink.h`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum RxPath {
    /// Redirected by the device's XDP program. Datagrams go to their flows without the stack, GRO
    /// packets by the stack.
    Direct = uapi::KOPI_RX_PATH_DIRECT,
    /// Through the stack: the device's XDP program isn't KOPI's.
    NoProgram = uapi::KOPI_RX_PATH_NO_PROGRAM,
    /// Through the stack: the redirect device is down.
    Down = uapi::KOPI_RX_PATH_DOWN,
    /// Through the stack: the program can't see VLAN tags.
    Vlan = uapi::KOPI_RX_PATH_VLAN,
    /// Through the stack: the flow has no port yet, or is on no channel that receives.
    NotRedirected = uapi::KOPI_RX_PATH_NOT_REDIRECTED,
    /// Through the stack: a packet socket sees incoming packets.
    Tap = uapi::KOPI_RX_PATH_TAP,
    /// Through the stack: tc has an ingress hook.
    Tc = uapi::KOPI_RX_PATH_TC,
    /// Through the stack: netfilter has an ingress hook.
    Hook = uapi::KOPI_RX_PATH_HOOK,
    /// Through the stack: the device has a generic XDP program.
    Xdp = uapi::KOPI_RX_PATH_XDP,
    /// Through the stack: a raw socket sees incoming UDP.
    Raw = uapi::KOPI_RX_PATH_RAW,
    /// Through the stack: the device is below a bridge, a bond, a VRF or the like.
    Upper = uapi::KOPI_RX_PATH_UPPER,
    /// Through the stack: RPS or RFS choose the CPU.
    Rps = uapi::KOPI_RX_PATH_RPS,
    /// Through the stack: the namespace has IPsec policies.
    Ipsec = uapi::KOPI_RX_PATH_IPSEC,
}

impl From<RxObserver> for RxPath {
    fn from(observer: RxObserver) -> Self {
        match observer {
            RxObserver::Tap => Self::Tap,
            RxObserver::Tc => Self::Tc,
            RxObserver::Hook => Self::Hook,
            RxObserver::Xdp => Self::Xdp,
            RxObserver::Raw => Self::Raw,
            RxObserver::Upper => Self::Upper,
            RxObserver::Rps => Self::Rps,
            RxObserver::Ipsec => Self::Ipsec,
        }
    }
}

/// The reason why a packet can't take the direct path of a device that others could take.
pub(super) fn why_not(packet: &EgressSkb<'_>) -> TxPath {
    if !packet.is_udp() {
        TxPath::Transformed
    } else if packet.has_extras() || packet.is_gso() {
        TxPath::Extras
    } else {
        TxPath::Datagram
    }
}
