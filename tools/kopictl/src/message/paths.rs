// SPDX-License-Identifier: GPL-2.0

//! The ways of packets between flows and devices: directly, or through the stack, and why.

use crate::attributes::numbered;
use clap::ValueEnum;
use serde::Serialize;
use std::fmt;

/// The TX path of flows' packets through a device, with the reason. The values from datagram on
/// only apply to flows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub(crate) enum TxPath {
    /// Directly: passed to the driver, and segmented before if it was a GSO packet.
    Direct,
    /// Through the stack, because no XDP program is attached that makes the driver accept frames.
    NoProgram,
    /// Through the stack, because tc has filters or programs at the device's egress.
    Tc,
    /// Through the stack, because another netfilter egress hook runs later.
    Hook,
    /// Through the stack, because a packet socket captures the packets.
    Tap,
    /// Through the stack, because a device of type kopimon is up.
    Monitor,
    /// Through the stack, because a qdisc holds packets, or can't be bypassed.
    Qdisc,
    /// Through the stack, because the device is down, has no carrier, or is not present, for
    /// instance while the machine is suspended.
    Down,
    /// Through the stack, because the driver accepted no frames for a second, and is tried again
    /// after a minute; or because it has fewer queues for frames than it needs (virtio_net).
    Refused,
    /// Through the stack, because the last packet was a datagram with special needs, one that
    /// something looks at, or one of fewer than three that were sent at once.
    Datagram,
    /// Through the stack, because IPsec or a tunnel had transformed the packet.
    Transformed,
    /// Through the stack, because the packet had IP options, a VLAN tag, a time stamp request, or a
    /// transmission time.
    Extras,
    /// Through the stack, because another attached device had earlier packets of the flow, the
    /// queue had no room for the packet, or the stack held earlier ones for too long; the direct
    /// path is then tried again after a second.
    Behind,
}

impl fmt::Display for TxPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Direct => "direct",
            Self::NoProgram => "through the stack: no XDP program",
            Self::Tc => "through the stack: tc at its egress",
            Self::Hook => "through the stack: a later egress hook of netfilter",
            Self::Tap => "through the stack: a packet socket captures packets",
            Self::Monitor => "through the stack: a monitor is up",
            Self::Qdisc => "through the stack: a qdisc holds packets, or can't be bypassed",
            Self::Down => "through the stack: the device is down",
            Self::Refused => "through the stack: the driver takes no frames, or has too few queues",
            Self::Datagram => "through the stack: a single datagram",
            Self::Transformed => "through the stack: IPsec, or a tunnel",
            Self::Extras => "through the stack: options, a VLAN, or time stamps",
            Self::Behind => "through the stack: earlier packets are on their way",
        })
    }
}

numbered!(TxPath, "TX path");

/// The RX path of flows' packets from a device, with the reason. The value not-redirected only
/// applies to flows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub(crate) enum RxPath {
    /// Directly: the XDP program redirects them. Datagrams go to their flows without the stack.
    /// Those of a flow that asked for GRO packets are coalesced, and GRO packets go to the stack.
    Direct,
    /// Through the stack, because the device has no XDP program that redirects them.
    NoProgram,
    /// Through the stack, because the redirect device is down.
    Down,
    /// Through the stack, because the device strips VLAN tags, so that its XDP program can't see
    /// them.
    Vlan,
    /// Through the stack, because the flow has no port, or is on no channel that receives.
    NotRedirected,
    /// Through the stack, because a packet socket sees incoming packets.
    Tap,
    /// Through the stack, because tc has an ingress hook.
    Tc,
    /// Through the stack, because netfilter has an ingress hook.
    Hook,
    /// Through the stack, because the device has a generic XDP program.
    Xdp,
    /// Through the stack, because a raw socket sees incoming UDP.
    Raw,
    /// Through the stack, because the device is below a bridge, a bond, a VRF or the like.
    Upper,
    /// Through the stack, because RPS or RFS choose the CPU.
    Rps,
    /// Through the stack, because the network namespace has IPsec policies.
    Ipsec,
}

impl fmt::Display for RxPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Direct => "direct",
            Self::NoProgram => "through the stack: no XDP program that redirects",
            Self::Down => "through the stack: the redirect device is down",
            Self::Vlan => {
                "through the stack: the device strips VLAN tags (ethtool -K … rxvlan off)"
            }
            Self::NotRedirected => "through the stack: no port, or on no channel that receives",
            Self::Tap => "through the stack: a packet socket captures packets",
            Self::Tc => "through the stack: tc has an ingress hook",
            Self::Hook => "through the stack: netfilter has an ingress hook",
            Self::Xdp => "through the stack: the device has a generic XDP program",
            Self::Raw => "through the stack: a raw socket sees UDP",
            Self::Upper => "through the stack: the device is below a bridge, a bond or a VRF",
            Self::Rps => "through the stack: RPS or RFS is on",
            Self::Ipsec => "through the stack: there are IPsec policies",
        })
    }
}

numbered!(RxPath, "RX path");
