// SPDX-License-Identifier: GPL-2.0

//! Datagrams of IPv4 that need nothing of udp_sendmsg() but what all need: made here as it makes
//! them, by a route that is kept.
//!
//! What is left out is what a batch shares, or what the datagram has not: control messages, options,
//! corking, fragments, time stamps, the look-up of the route. C sources: `net/ipv4/udp.c`,
//! `net/ipv4/ip_output.c`

mod options;
mod route;

use crate::{
    pure::ip::{self, HEADER_IP_V4, HEADER_UDP, HEADER_V4},
    sys::{bindings, errno::enobufs, region::Bytes},
};
use core::ptr::{self};
use kernel::{error::Error, prelude::*, sync::rcu};
pub(crate) use options::Options;
use route::MTU_MIN;
pub(crate) use route::{Route, RouteKey, To};

/// Bytes of the longest datagram that is made in one piece of memory: udp_sendmsg() takes pages for
/// what is much longer, which can be had when memory is in pieces.
const LINEAR_MAX: u32 = 8192;

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

/// An skb of the sock's send buffer, with room for `room` bytes: an error of the sock's, or `EAGAIN` if
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
        // Which says what is wrong, and has waiting tasks woken when there is room.
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
