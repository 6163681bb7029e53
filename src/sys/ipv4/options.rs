// SPDX-License-Identifier: GPL-2.0

//! The socket options that affect the packets of a flow.

use super::route::{Route, RouteKey, To};
use crate::sys::{bindings, sock::Sock};
use core::ptr::{self};

/// The options of a sock that affect each datagram, if they need nothing from udp_sendmsg(). They
/// are read once for each batch.
pub(crate) struct Options {
    /// Addresses and ports, big-endian.
    pub(super) source: u32,
    pub(super) source_port: u16,
    pub(super) peer: Option<(u32, u16)>,
    /// The route to the peer.
    pub(super) route: Option<Route>,
    /// The index of the device to which the sock is bound, or that of IP_UNICAST_IF.
    pub(super) device: i32,
    pub(super) mark: u32,
    pub(super) tos: u8,
    /// The last two words of each [`Way`]: mark and user; flow, TOS and flags of the lookup. The
    /// flow's number in its namespace stands for the properties that a socket can't change.
    pub(super) common: [u64; 2],
    /// IP_TTL, if it is set.
    pub(super) ttl: Option<u8>,
    /// The namespace's TTL, for when neither the socket nor the route has one.
    pub(super) default_ttl: u8,
    /// IP_MTU_DISCOVER.
    pub(super) discovery: u32,
}

/// Whether an option is set that only udp_sendmsg() implements.
fn is_special(sk: &Sock) -> bool {
    let raw = sk.as_ptr();
    // SAFETY: The sock is borrowed, and the caller has checked that it is of IPv4. A field that
    // system calls change meanwhile is read once.
    unsafe {
        bindings::kopi_inet_has_options(raw)
            || sk.is_corked()
            || bindings::kopi_udp_gso_size(raw) != 0
            || bindings::kopi_sk_no_check_tx(raw)
            || bindings::kopi_sock_flag_txtime(raw)
            || bindings::kopi_sock_flag_localroute(raw)
            || bindings::kopi_sk_has_policy_out(raw)
            || ptr::read_volatile(&raw const (*raw).sk_tsflags) != 0
    }
}

impl Options {
    /// The current options of the sock of the flow with this number; `None` if udp_sendmsg() has to
    /// send its datagrams. Process context.
    pub(crate) fn of(sk: &Sock, flow: u32) -> Option<Self> {
        if sk.is_ipv6() {
            return None;
        }
        let raw = sk.as_ptr();
        let inet = raw.cast::<bindings::inet_sock>();
        // SAFETY: The sock is borrowed, and of IPv4, as checked. A UDP sock begins with an
        // inet_sock. Fields that system calls change meanwhile are read once.
        unsafe {
            let source_port = sk.local_port();
            // udp_sendmsg() binds a sock without a port.
            if is_special(sk) || source_port == 0 {
                return None;
            }
            bindings::kopi_sock_rps_record_flow(raw);
            let discovery = u32::from(ptr::read_volatile(&raw const (*inet).pmtudisc));
            if ![
                bindings::IP_PMTUDISC_DONT,
                bindings::IP_PMTUDISC_WANT,
                bindings::IP_PMTUDISC_DO,
            ]
            .contains(&discovery)
            {
                return None;
            }
            let state = ptr::read_volatile(&raw const (*raw).__sk_common.skc_state);
            let connected = u32::from(state) == bindings::TCP_ESTABLISHED;
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
                    Route::of(sk, source)
                } else {
                    None
                },
                device,
                mark,
                tos,
                common: [
                    u64::from(mark) | u64::from(user) << 32,
                    u64::from(flow) | u64::from(tos) << 32 | u64::from(flags) << 40,
                ],
                ttl: u8::try_from(ptr::read_volatile(&raw const (*inet).uc_ttl)).ok(),
                default_ttl: bindings::kopi_sk_default_ttl(raw),
                discovery,
            })
        }
    }

    /// The mark at the time when the options were read. A rule may have set another one since.
    pub(crate) fn mark(&self) -> u32 {
        self.mark
    }

    /// The route cache's key for a datagram to a destination, or to the peer. `None` if
    /// udp_sendmsg() has to send the datagram. Any context.
    pub(crate) fn key(&self, to: &To) -> Option<RouteKey> {
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
        Some(RouteKey {
            words: [
                u64::from(address) | u64::from(port) << 32 | u64::from(self.source_port) << 48,
                u64::from(from) | u64::from(device as u32) << 32,
                owner,
                rest,
            ],
        })
    }

    /// The peer and the route to it, if the route is still valid. Any context.
    pub(crate) fn connected(&self) -> Option<(u32, u16, &Route)> {
        let (address, port) = self.peer?;
        let route = self.route.as_ref().filter(|route| route.is_valid())?;
        Some((address, port, route))
    }
}
