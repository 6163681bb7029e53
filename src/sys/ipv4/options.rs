// SPDX-License-Identifier: GPL-2.0

//! What of a socket's options is in its packets.

use super::route::{Route, RouteKey, To};
use crate::sys::{bindings, sock::Sock};
use core::ptr::{self};

/// The effect of a sock's options on each datagram, as long as none needs udp_sendmsg(). To be read anew
/// for each batch.
pub(crate) struct Options {
    /// Addresses and ports, big-endian.
    pub(super) source: u32,
    pub(super) source_port: u16,
    pub(super) peer: Option<(u32, u16)>,
    /// The route to the peer.
    pub(super) route: Option<Route>,
    /// The device that it is bound to, or IP_UNICAST_IF's.
    pub(super) device: i32,
    pub(super) mark: u32,
    pub(super) tos: u8,
    /// Of each [`RouteKey`]: mark and user; flow, TOS and flags of the look-up. The flow's number in its
    /// namespace goes for what a socket can't change.
    pub(super) common: [u64; 2],
    /// IP_TTL, if it is set.
    pub(super) ttl: Option<u8>,
    /// The namespace's, where neither the socket nor the route asks for one.
    pub(super) default_ttl: u8,
    /// IP_MTU_DISCOVER.
    pub(super) discovery: u32,
}

/// Whether an option says something that only udp_sendmsg() does.
fn is_special(sk: &Sock) -> bool {
    let raw = sk.as_ptr();
    // SAFETY: A valid UDP sock of IPv4; a field that system calls change meanwhile is read once.
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
    /// Those of a sock now, which is that of the flow with this number. Process context.
    pub(crate) fn of(sk: &Sock, flow: u32) -> Option<Self> {
        if sk.is_ipv6() {
            return None;
        }
        let raw = sk.as_ptr();
        let inet = raw.cast::<bindings::inet_sock>();
        // SAFETY: A valid UDP sock of IPv4, which begins with an inet_sock; fields that system calls
        // change meanwhile are read once.
        unsafe {
            let source_port = sk.local_port();
            // Without a port it is to be bound first.
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

    /// The mark that was read with them: a rule may have set another one since.
    pub(crate) fn mark(&self) -> u32 {
        self.mark
    }

    /// The route key of a datagram to there, or to the peer; `None` if it is for udp_sendmsg(). Any context.
    pub(crate) fn key(&self, to: &To) -> Option<RouteKey> {
        // A program of a cgroup may want another destination.
        // SAFETY: Reads a static key.
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
        // No address; multicast, with sources and devices of its own, and broadcast.
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

    /// The peer, and the route to it if that is still good. Any context.
    pub(crate) fn connected(&self) -> Option<(u32, u16, &Route)> {
        let (address, port) = self.peer?;
        let route = self.route.as_ref().filter(|route| route.is_valid())?;
        Some((address, port, route))
    }
}
