// SPDX-License-Identifier: GPL-2.0

//! The socket options that affect the packets of a flow.

use super::{
    route::{RouteKeyV4, RouteV4, To},
    DatagramV4,
};
use crate::{
    pure::abi::{Meta, AF_INET, META_LOCAL},
    sys::{
        bindings,
        datagram::{self, is_special},
        region::Bytes,
        sock::Sock, //
    },
};
use core::ptr::{self};

/// The options of a sock that affect each datagram, if they need nothing from udp_sendmsg(). They
/// are read once for each batch.
pub(crate) struct OptionsV4 {
    /// Addresses and ports, big-endian.
    pub(super) source: u32,
    pub(super) source_port: u16,
    pub(super) peer: Option<(u32, u16)>,
    /// The route to the peer.
    pub(super) route: Option<RouteV4>,
    /// The index of the device to which the sock is bound, or that of IP_UNICAST_IF.
    pub(super) device: i32,
    pub(in crate::sys) mark: u32,
    /// The sock's ports, to be compared.
    ports: u32,
    pub(super) tos: u8,
    /// The last two words of each [`RouteKeyV4`]: mark and user; flow, TOS and flags of the lookup. The
    /// flow's number in its namespace stands for the properties that a socket can't change.
    pub(super) common: [u64; 2],
    /// IP_TTL, if it is set.
    pub(super) ttl: Option<u8>,
    /// The namespace's TTL, for when neither the socket nor the route has one.
    pub(super) default_ttl: u8,
    /// IP_MTU_DISCOVER.
    pub(super) discovery: u8,
}

/// An IPv4 address out of metadata.
fn address(bytes: &[u8; 16]) -> u32 {
    let [a, b, c, d, ..] = *bytes;
    u32::from_ne_bytes([a, b, c, d])
}

impl OptionsV4 {
    /// The key for a datagram to a destination, or to the peer.
    fn key_to(&self, to: &To) -> Option<RouteKeyV4> {
        // A cgroup's BPF program may change the destination.
        // SAFETY: The call only reads a static key.
        if unsafe { bindings::kopi_cgroup_bpf_enabled_udp4_sendmsg() } {
            return None;
        }
        let (address, port) = match to.port {
            0 => self.peer?,
            port => (to.address, port),
        };
        let (from, device) = match to.from {
            Some((from, 0)) => (from, self.device),
            Some(from) => from,
            None => (self.source, self.device),
        };
        let [first, ..] = address.to_ne_bytes();
        // udp_sendmsg() handles the any-address, broadcast, and multicast, which has sources and
        // devices of its own.
        if address == 0 || first >= 224 {
            return None;
        }
        let [owner, rest] = self.common;
        Some(RouteKeyV4 {
            words: [
                u64::from(address) | u64::from(port) << 32 | u64::from(self.source_port) << 48,
                u64::from(from) | u64::from(device as u32) << 32,
                owner,
                rest,
            ],
        })
    }
}

impl datagram::Options for OptionsV4 {
    const FAMILY: u16 = AF_INET;
    type Key = RouteKeyV4;
    type Route = RouteV4;

    fn of(sk: &Sock, flow: u32) -> Option<Self> {
        let is_ipv6 = sk.is_ipv6();
        if is_ipv6 && sk.is_ipv6_only() {
            return None;
        }
        let raw = sk.as_ptr();
        let inet = raw.cast::<bindings::inet_sock>();
        // SAFETY: The sock is borrowed. A UDP sock of either IP version begins with an inet_sock.
        // Fields that system calls change meanwhile are read once.
        unsafe {
            let ports = sk.ports();
            let source_port = sk.local_port();
            // udp_sendmsg() binds a sock without a port.
            if is_special(sk) || source_port == 0 {
                return None;
            }
            bindings::kopi_sock_rps_record_flow(raw);
            let state = ptr::read_volatile(&raw const (*raw).__sk_common.skc_state);
            // udpv6_sendmsg() gives udp_sendmsg() an address, if it is connected to one of IPv4.
            let connected = !is_ipv6 && u32::from(state) == bindings::TCP_ESTABLISHED;
            let source = ptr::read_volatile(&raw const (*inet).inet_saddr);
            let device = match sk.bound_device() {
                0 => ptr::read_volatile(&raw const (*inet).uc_index),
                bound => bound,
            };
            let mark = sk.mark();
            let tos = ptr::read_volatile(&raw const (*inet).tos);
            let user = bindings::kopi_sk_uid(raw);
            let flags = bindings::kopi_inet_sk_flowi_flags(raw);
            Some(Self {
                source,
                source_port,
                peer: connected
                    .then(|| (bindings::kopi_sk_daddr(raw), bindings::kopi_sk_dport(raw))),
                route: if connected {
                    RouteV4::of(sk, source)
                } else {
                    None
                },
                device,
                mark,
                ports,
                tos,
                common: [
                    u64::from(mark) | u64::from(user) << 32,
                    u64::from(flow) | u64::from(tos) << 32 | u64::from(flags) << 40,
                ],
                ttl: u8::try_from(ptr::read_volatile(&raw const (*inet).uc_ttl)).ok(),
                default_ttl: bindings::kopi_sk_default_ttl(raw),
                discovery: ptr::read_volatile(&raw const (*inet).pmtudisc),
            })
        }
    }

    #[inline]
    fn are_current(&self, sk: &Sock) -> bool {
        self.mark == sk.mark() && self.ports == sk.ports()
    }

    fn key(&self, meta: &Meta) -> Option<RouteKeyV4> {
        let from = || (address(&meta.local), meta.ifindex as i32);
        self.key_to(&To {
            address: address(&meta.peer),
            port: meta.peer_port,
            from: (meta.flags & META_LOCAL != 0).then(from),
        })
    }

    fn hash(key: &RouteKeyV4) -> u32 {
        key.hash()
    }

    fn look_up(sk: &Sock, key: &RouteKeyV4) -> Option<RouteV4> {
        RouteV4::look_up(sk, key)
    }

    fn generation(sk: &Sock) -> i32 {
        // SAFETY: The sock is borrowed, and keeps its namespace.
        unsafe { bindings::kopi_rt_genid(sk.as_ptr()) }
    }

    fn is_valid(sk: &Sock, route: &RouteV4) -> bool {
        route.is_current(sk)
    }

    fn to_peer<'a>(&'a self, _: &Sock, data: Bytes<'a>) -> Option<datagram::Datagram<'a>> {
        let (to, port) = self.peer?;
        let route = self.route.as_ref().filter(|route| route.is_valid())?;
        Some(datagram::Datagram::V4(DatagramV4 {
            options: self,
            route,
            to,
            port,
            data,
        }))
    }

    fn by<'a>(
        &'a self,
        key: &RouteKeyV4,
        route: &'a RouteV4,
        data: Bytes<'a>,
    ) -> datagram::Datagram<'a> {
        datagram::Datagram::V4(DatagramV4 {
            options: self,
            route,
            to: key.to(),
            port: key.port(),
            data,
        })
    }
}
