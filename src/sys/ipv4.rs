// SPDX-License-Identifier: GPL-2.0

//! Datagrams of IPv4 that need nothing of udp_sendmsg() but what all need: made here as it makes
//! them, by a route that is kept.
//!
//! What is left out is what a batch shares, or what the datagram has not: control messages, options,
//! corking, fragments, time stamps, the look-up of the route. C sources: `net/ipv4/udp.c`,
//! `net/ipv4/ip_output.c`

use super::bindings;
use super::{
    errno::enobufs,
    region::Bytes,
    sock::Sock, //
};
use crate::pure::ip::{self, HEADER_IP_V4, HEADER_UDP, HEADER_V4};
use core::{
    cell::Cell,
    ptr::{self, NonNull}, //
};
use kernel::{
    error::{from_err_ptr, Error},
    prelude::*,
    sync::rcu, //
};

/// The least MTU of a device that IPv4 takes (RFC 791).
const MTU_MIN: u32 = 68;

/// Bytes of the longest datagram that is made in one piece of memory: udp_sendmsg() takes pages for
/// what is much longer, which can be had when memory is in pieces.
const LINEAR_MAX: u32 = 8192;

/// A route, which lives on when the kernel forgets it.
///
/// # Invariants
///
/// `dst` is of an IPv4 route that this owns a reference to.
pub(crate) struct Route {
    dst: NonNull<bindings::dst_entry>,
    /// The source address that goes with it, big-endian.
    source: u32,
    /// Bytes to leave in front of the IP header.
    headroom: u32,
    /// The device computes checksums, or is likely to: if it doesn't any more, the stack does.
    has_checksums: bool,
    /// Its MTU isn't locked: it can be found out what gets through.
    may_grow: bool,
    /// The TTL that it asks for, or 0.
    ttl: u8,
    /// Its device has several queues, of which hashes choose.
    has_queues: bool,
    /// What the kernel hashes the ends of its datagrams to, which takes it longer than all else; or 0.
    hash: Cell<u32>,
}

// SAFETY: Routes are not bound to a task.
unsafe impl Send for Route {}

impl Route {
    /// # Safety
    ///
    /// `dst` must be an IPv4 route, or null, with a reference that is the caller's to give away.
    unsafe fn new(dst: *mut bindings::dst_entry, source: u32) -> Option<Self> {
        let dst = NonNull::new(dst)?;
        // INVARIANT: As the caller sees to.
        let mut route = Self {
            dst,
            source,
            headroom: 0,
            has_checksums: false,
            may_grow: false,
            ttl: 0,
            has_queues: false,
            hash: Cell::new(0),
        };
        let cast = bindings::RTCF_BROADCAST | bindings::RTCF_MULTICAST;
        let _rcu = rcu::read_lock();
        // SAFETY: By the invariants; its device lives through the RCU read-side section.
        unsafe {
            if bindings::kopi_dst_is_transformed(dst.as_ptr())
                || bindings::kopi_rt_flags(dst.as_ptr()) & cast != 0
            {
                return None;
            }
            route.headroom = bindings::kopi_ll_reserved_space(dst.as_ptr());
            route.has_checksums = bindings::kopi_dst_has_checksums(dst.as_ptr());
            route.may_grow = !bindings::kopi_dst_mtu_locked(dst.as_ptr());
            route.ttl = bindings::kopi_dst_hoplimit(dst.as_ptr()) as u8;
            route.has_queues = bindings::kopi_dst_has_queues(dst.as_ptr());
        }
        Some(route)
    }

    /// The route of a datagram of `sk`; `None` if it is for udp_sendmsg() to say what is wrong, or to
    /// send it. Any context.
    pub(crate) fn look_up(sk: &Sock, way: &Way) -> Option<Self> {
        // SAFETY: Zeroes are a flowi4 of nothing. The sock is valid, and so is its namespace.
        unsafe {
            let mut flow: bindings::flowi4 = core::mem::zeroed();
            let [ends, source, owner, rest] = way.words;
            bindings::kopi_flowi4_init_output(
                &mut flow,
                (source >> 32) as i32,
                owner as u32,
                (rest >> 32) as u8,
                (rest >> 40) as u8,
                way.to(),
                source as u32,
                way.port(),
                (ends >> 48) as u16,
                sk.as_ptr(),
            );
            bindings::security_sk_classify_flow(sk.as_ptr(), &mut flow.__fl_common);
            let net = bindings::kopi_sock_net(sk.as_ptr());
            let route =
                from_err_ptr(bindings::ip_route_output_flow(net, &mut flow, sk.as_ptr())).ok()?;
            if flow.daddr != way.to() {
                // Of no address; or translated.
                bindings::dst_release(&raw mut (*route).dst);
                return None;
            }
            Self::new(&raw mut (*route).dst, flow.saddr)
        }
    }

    /// The route that a connected sock remembers, if it is still good.
    fn of(sk: &Sock, source: u32) -> Option<Self> {
        // SAFETY: A valid sock; gives a reference.
        unsafe { Self::new(bindings::sk_dst_check(sk.as_ptr(), 0), source) }
    }

    /// Whether it is still good: rules, addresses, devices and other routes may have changed. Any
    /// context.
    pub(crate) fn is_valid(&self) -> bool {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_dst_check(self.dst.as_ptr()) }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        // SAFETY: The reference is this value's.
        unsafe { bindings::dst_release(self.dst.as_ptr()) };
    }
}

/// All that decides about the route of a datagram, and whose it is. Addresses and ports are
/// big-endian.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    /// Destination, its port, and the source's; source, or 0 if the route is to say, and device; and
    /// what [`Options::common`] has. Each begins with the lowest bits.
    words: [u64; 4],
}

impl PartialEq for Way {
    /// Without a branch for each word.
    fn eq(&self, other: &Self) -> bool {
        let ([a, b, c, d], [e, f, g, h]) = (self.words, other.words);
        (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h) == 0
    }
}

impl Way {
    /// The destination, big-endian.
    pub(crate) fn to(&self) -> u32 {
        self.words[0] as u32
    }

    /// Its port, big-endian.
    pub(crate) fn port(&self) -> u16 {
        (self.words[0] >> 32) as u16
    }

    /// A number by which to find it: the upper half of a product, on which all bits have a say.
    pub(crate) fn hash(&self) -> u32 {
        let all = self.words[0] ^ self.words[3].rotate_right(24);
        (all.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }
}

/// A destination that metadata name, big-endian; and a source address and device, if they do.
#[derive(Clone, Copy)]
pub(crate) struct To {
    pub(crate) address: u32,
    pub(crate) port: u16,
    pub(crate) from: Option<(u32, i32)>,
}

/// What the options of a sock come to for each datagram, as long as they ask for nothing that is
/// udp_sendmsg()'s to do. To be looked at anew for each batch.
pub(crate) struct Options {
    /// Addresses and ports, big-endian.
    source: u32,
    source_port: u16,
    peer: Option<(u32, u16)>,
    /// The route to the peer.
    route: Option<Route>,
    /// The device that it is bound to, or IP_UNICAST_IF's.
    device: i32,
    mark: u32,
    tos: u8,
    /// Of each [`Way`]: mark and user; flow, TOS and flags of the look-up. The flow's number in its
    /// namespace goes for what a socket can't change.
    common: [u64; 2],
    /// IP_TTL, if it is set.
    ttl: Option<u8>,
    /// The namespace's, where neither the socket nor the route asks for one.
    default_ttl: u8,
    /// IP_MTU_DISCOVER.
    discovery: u32,
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
            let special = bindings::kopi_inet_has_options(raw)
                || sk.is_corked()
                || bindings::kopi_udp_gso_size(raw) != 0
                || bindings::kopi_sk_no_check_tx(raw)
                || bindings::kopi_sock_flag_txtime(raw)
                || bindings::kopi_sock_flag_localroute(raw)
                || bindings::kopi_sk_has_policy_out(raw)
                || ptr::read_volatile(&raw const (*raw).sk_tsflags) != 0;
            let source_port = sk.local_port();
            // Without a port it is to be bound first.
            if special || source_port == 0 {
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

    /// The mark that they were looked at with: a rule may have set another one since.
    pub(crate) fn mark(&self) -> u32 {
        self.mark
    }

    /// The way of a datagram to there, or to the peer; `None` if it is for udp_sendmsg(). Any context.
    pub(crate) fn way(&self, to: &To) -> Option<Way> {
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
        Some(Way {
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

/// A datagram that is about to be sent. Destination and port are big-endian.
pub(crate) struct Datagram<'a> {
    pub(crate) data: Bytes<'a>,
    pub(crate) options: &'a Options,
    pub(crate) route: &'a Route,
    pub(crate) to: u32,
    pub(crate) port: u16,
}

impl Datagram<'_> {
    /// Sends it, as udp_sendmsg() would: gives its answer. `None` if it has to be asked, since the
    /// datagram is too long, say.
    ///
    /// # Safety
    ///
    /// `sk` is the sock of the options. Process context.
    pub(super) unsafe fn send(&self, sk: *mut bindings::sock) -> Option<c_int> {
        let len = self.data.len();
        let dst = self.route.dst.as_ptr();
        let whole = u32::try_from(len).ok()?.checked_add(HEADER_V4 as u32)?;
        // SAFETY: By the invariants of the route.
        let mtu = unsafe { bindings::kopi_dst4_mtu(dst) };
        if mtu < MTU_MIN || whole > mtu.min(LINEAR_MAX) {
            return None;
        }
        // SAFETY: As required of the caller. The skb is this function's until ip_local_out() has it.
        let error = unsafe {
            match self.make(sk, len as u16, whole) {
                Ok(skb) => {
                    // So that the skb need not hold the route: what keeps it longer takes a reference.
                    let _rcu = rcu::read_lock();
                    bindings::kopi_skb_dst_set_noref(skb, dst);
                    send_skb(sk, skb)
                }
                Err(error) => error.to_errno(),
            }
        };
        if error == 0 {
            return i32::try_from(len).ok();
        }
        // SAFETY: A valid sock with its socket.
        unsafe {
            if error == enobufs().to_errno() || bindings::kopi_sock_is_nospace(sk) {
                bindings::kopi_udp_inc_stats(sk, bindings::UDP_MIB_SNDBUFERRORS as i32);
            }
        }
        Some(error)
    }

    /// Makes it, of `whole` bytes, headers included: as ip_make_skb() and udp_send_skb().
    ///
    /// # Safety
    ///
    /// As [`Datagram::send`].
    unsafe fn make(
        &self,
        sk: *mut bindings::sock,
        len: u16,
        whole: u32,
    ) -> Result<*mut bindings::sk_buff> {
        let (options, route) = (self.options, self.route);
        // SAFETY: As required of the caller. The skb has room for what is put into it: the headroom and
        // 15 bytes for the device, then the datagram; each piece is within what skb_put() has opened.
        unsafe {
            let room = u64::from(whole) + u64::from(route.headroom) + 15;
            let skb = allocate(sk, room as usize)?;
            let fields = (*skb).__bindgen_anon_4.headers.as_mut();
            if route.has_checksums {
                fields.set_ip_summed(bindings::CHECKSUM_PARTIAL as u8);
            }
            let ignores_df = options.discovery < bindings::IP_PMTUDISC_DO;
            fields.set_ignore_df(u8::from(ignores_df));
            fields.priority = ptr::read_volatile(&raw const (*sk).sk_priority);
            let start = bindings::kopi_skb_begin(
                skb,
                route.headroom,
                whole,
                HEADER_IP_V4 as i32,
                options.mark,
            )
            .cast::<u8>();
            let payload = start.add(HEADER_V4);
            let from = self.data.as_ptr().cast();
            let sum = if route.has_checksums {
                bindings::kopi_memcpy(payload.cast(), from, self.data.len());
                None
            } else {
                let to = payload.cast();
                Some(bindings::kopi_csum_partial_copy_nocheck(
                    from,
                    to,
                    i32::from(len),
                ))
            };
            let header = ip::header_v4(
                options.tos,
                options.ttl.unwrap_or(match route.ttl {
                    0 => options.default_ttl,
                    ttl => ttl,
                }),
                options.discovery == bindings::IP_PMTUDISC_DO
                    || options.discovery == bindings::IP_PMTUDISC_WANT && route.may_grow,
                [route.source, self.to],
                [options.source_port, self.port],
                len.wrapping_add(HEADER_UDP as u16),
                sum,
            );
            start.cast::<[u32; HEADER_V4 / 4]>().write_unaligned(header);
            if route.has_checksums {
                bindings::udp4_hwcsum(skb, route.source, self.to);
            }
            bindings::kopi_ip_select_ident(skb, sk);
            // Connected socks remember their queue.
            if route.has_queues && options.peer.is_none() {
                let hash = bindings::kopi_skb_flow_hash(skb, route.hash.get());
                route.hash.set(hash);
            }
            Ok(skb)
        }
    }
}

/// An skb of the sock's send buffer, with room for so many bytes: an error of the sock's, or `EAGAIN` if
/// its buffer is full. Process context; doesn't wait.
///
/// # Safety
///
/// `sk` is valid, and has its socket.
unsafe fn allocate(sk: *mut bindings::sock, room: usize) -> Result<*mut bindings::sk_buff> {
    // SAFETY: As required of the caller; what others write meanwhile is read once.
    unsafe {
        let is_well = ptr::read_volatile(&raw const (*sk).sk_err) == 0
            && u32::from(ptr::read_volatile(&raw const (*sk).sk_shutdown))
                & bindings::SEND_SHUTDOWN
                == 0;
        if is_well {
            let skb = bindings::sock_wmalloc(sk, room, 0, (*sk).sk_allocation);
            if !skb.is_null() {
                return Ok(skb);
            }
        }
        // Which says what is wrong, and has who waits told of room.
        let dont_wait = 1;
        let mut error = 0;
        let skb = bindings::sock_alloc_send_pskb(sk, room, 0, dont_wait, &mut error, 0);
        if skb.is_null() {
            bindings::kopi_ip_inc_stats(sk, bindings::IPSTATS_MIB_OUTDISCARDS as i32);
            return Err(Error::from_errno(error));
        }
        Ok(skb)
    }
}

/// Gives a datagram to IP, and counts: the end of udp_send_skb(). Gives 0 or an errno.
///
/// # Safety
///
/// `sk` is valid, and `skb` a datagram of it, which the stack takes. In an RCU read-side section.
unsafe fn send_skb(sk: *mut bindings::sock, skb: *mut bindings::sk_buff) -> c_int {
    // SAFETY: As required of the caller.
    unsafe {
        let mut error = bindings::ip_local_out(bindings::kopi_sock_net(sk), sk, skb);
        if error > 0 {
            error = bindings::kopi_net_xmit_errno(error);
        }
        if error == 0 {
            bindings::kopi_udp_inc_stats(sk, bindings::UDP_MIB_OUTDATAGRAMS as i32);
            return 0;
        }
        bindings::kopi_ip_inc_stats(sk, bindings::IPSTATS_MIB_OUTDISCARDS as i32);
        if error == enobufs().to_errno() && !bindings::kopi_inet_recverr(sk) {
            bindings::kopi_udp_inc_stats(sk, bindings::UDP_MIB_SNDBUFERRORS as i32);
            return 0;
        }
        error
    }
}
