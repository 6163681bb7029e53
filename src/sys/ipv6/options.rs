// SPDX-License-Identifier: GPL-2.0

//! The socket options that affect the IPv6 datagrams of a flow.

use super::{
    route::{RouteKeyV6, RouteV6},
    DatagramV6,
};
use crate::{
    pure::abi::{Meta, AF_INET6, META_LOCAL},
    sys::{
        bindings,
        datagram::{self, is_special},
        region::Bytes,
        sock::Sock, //
    },
};

/// The options of a sock that affect each datagram, if they need nothing from udpv6_sendmsg(). They
/// are read once for each batch.
pub(crate) struct OptionsV6 {
    pub(in crate::sys) of_sock: bindings::kopi_options6,
    /// The route to the peer.
    route: Option<RouteV6>,
    /// The ports of the sock, to be compared.
    ports: u32,
    /// Whether the sock is bound to a device, which then isn't only preferred: ip6_route_output_flags_noref().
    is_bound: bool,
    /// The flow's number in its namespace, which stands for the properties that a socket can't
    /// change.
    flow: u32,
}

/// Whether an address is one of the link.
fn is_link_local(address: &[u8; 16]) -> bool {
    core::net::Ipv6Addr::from(*address).is_unicast_link_local()
}

impl OptionsV6 {
    /// The device of a destination: its scope, or that of the sock; 0 for any.
    fn device_to(&self, meta: &Meta) -> i32 {
        match meta.ifindex as i32 {
            scope if scope != 0 && is_link_local(&meta.peer) => scope,
            _ => self.of_sock.device,
        }
    }

    /// The device and the source of a datagram, as control messages change them.
    fn source(&self, meta: &Meta) -> Option<(i32, [u8; 16], bool)> {
        let device = self.device_to(meta);
        // SAFETY: Any bytes are an address.
        let own = unsafe { self.of_sock.source.in6_u.u6_addr8 };
        if meta.flags & META_LOCAL == 0 {
            let device = match device {
                0 => self.of_sock.unicast_device,
                device => device,
            };
            return Some((device, own, false));
        }
        // ip6_datagram_send_ctl() compares these devices, or looks at none of IPV6_UNICAST_IF.
        let asked = meta.ifindex as i32;
        if self.of_sock.unicast_device != 0 || ![0, asked].contains(&device) && asked != 0 {
            return None;
        }
        let device = if asked != 0 { asked } else { device };
        match meta.local == [0; 16] {
            false => Some((device, meta.local, true)),
            // Nothing below would find that there is no such device.
            true => (device == 0).then_some((device, own, false)),
        }
    }
}

impl datagram::Options for OptionsV6 {
    const FAMILY: u16 = AF_INET6;
    type Key = RouteKeyV6;
    type Route = RouteV6;

    fn of(sk: &Sock, flow: u32) -> Option<Self> {
        let raw = sk.as_ptr();
        if !sk.is_ipv6() || is_special(sk) {
            return None;
        }
        let ports = sk.ports();
        let mut of_sock = pin_init::zeroed::<bindings::kopi_options6>();
        // SAFETY: The sock is borrowed, and a UDP one of IPv6, as checked.
        unsafe {
            // udpv6_sendmsg() binds a sock without a port.
            if !bindings::kopi_options6(raw, &mut of_sock) || of_sock.source_port == 0 {
                return None;
            }
            bindings::kopi_sock_rps_record_flow(raw);
        }
        let route = match of_sock.connected {
            true => RouteV6::of(sk, &of_sock),
            false => None,
        };
        Some(Self {
            of_sock,
            route,
            ports,
            is_bound: sk.bound_device() != 0,
            flow,
        })
    }

    #[inline]
    fn are_current(&self, sk: &Sock) -> bool {
        self.of_sock.mark == sk.mark() && self.ports == sk.ports()
    }

    fn key(&self, meta: &Meta) -> Option<RouteKeyV6> {
        // A cgroup's BPF program may change the destination. For a connected sock, udpv6_sendmsg()
        // looks at the peer's route first.
        // SAFETY: The call only reads a static key.
        let may_change = unsafe { bindings::kopi_cgroup_bpf_enabled_udp6_sendmsg() };
        if may_change || self.of_sock.connected || meta.family != AF_INET6 || meta.peer_port == 0 {
            return None;
        }
        // udpv6_sendmsg() handles the any-address, and multicast, which has sources and devices of its own.
        if meta.peer == [0; 16] || meta.peer[0] == 0xff {
            return None;
        }
        let (device, from, is_from_message) = self.source(meta)?;
        let of_sock = &self.of_sock;
        Some(RouteKeyV6 {
            to: u128::from_ne_bytes(meta.peer),
            from: u128::from_ne_bytes(from),
            device,
            ports: u32::from(meta.peer_port) | u32::from(of_sock.source_port) << 16,
            owner: u64::from(of_sock.mark) | u64::from(of_sock.user) << 32,
            rest: u64::from(self.flow)
                | u64::from(of_sock.tclass) << 32
                | u64::from(of_sock.preferences) << 40
                | u64::from(is_from_message) << 48
                | u64::from(self.is_bound) << 49,
        })
    }

    fn hash(key: &RouteKeyV6) -> u32 {
        key.hash()
    }

    fn look_up(sk: &Sock, key: &RouteKeyV6) -> Option<RouteV6> {
        RouteV6::look_up(sk, key)
    }

    /// IPv6 has no generation for the whole namespace: each route tree has its own. What is looked up is charged
    /// to the process.
    fn generation(_: &Sock) -> i32 {
        0
    }

    fn is_valid(sk: &Sock, route: &RouteV6) -> bool {
        route.is_valid(sk)
    }

    fn to_peer<'a>(&'a self, sk: &Sock, data: Bytes<'a>) -> Option<datagram::Datagram<'a>> {
        let route = self.route.as_ref().filter(|route| route.is_valid(sk))?;
        Some(datagram::Datagram::V6(DatagramV6 {
            options: self,
            route,
            // SAFETY: Any bytes are an address.
            to: unsafe { self.of_sock.peer.in6_u.u6_addr8 },
            port: self.of_sock.peer_port,
            data,
        }))
    }

    fn by<'a>(
        &'a self,
        key: &RouteKeyV6,
        route: &'a RouteV6,
        data: Bytes<'a>,
    ) -> datagram::Datagram<'a> {
        datagram::Datagram::V6(DatagramV6 {
            options: self,
            route,
            to: key.to.to_ne_bytes(),
            port: key.ports as u16,
            data,
        })
    }
}
