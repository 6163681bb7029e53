// SPDX-License-Identifier: GPL-2.0

//! Plain IPv4 datagrams: skbs are made here as udp_sendmsg() makes them, by a remembered route.
//!
//! This code leaves out the steps that a batch shares, and those that plain datagrams don't need:
//! control messages, options, corking, fragments, time stamps, the lookup of the route. C sources:
//! `net/ipv4/udp.c`, `net/ipv4/ip_output.c`

mod options;
mod route;

use crate::{
    pure::ip::{self, HEADER_IP_V4, HEADER_UDP, HEADER_V4},
    sys::{
        bindings,
        datagram::{allocate, set_fields, LINEAR_MAX},
        region::Bytes, //
    },
};
use kernel::prelude::*;
pub(crate) use options::OptionsV4;
use route::RouteV4;
use route::MTU_MIN;

/// A datagram that is about to be sent. Destination and port are big-endian.
#[derive(Clone, Copy)]
pub(crate) struct DatagramV4<'a> {
    pub(crate) data: Bytes<'a>,
    pub(crate) options: &'a OptionsV4,
    pub(crate) route: &'a RouteV4,
    pub(crate) to: u32,
    pub(crate) port: u16,
}

impl DatagramV4<'_> {
    /// Bytes of the IP packet.
    pub(super) fn whole(&self) -> usize {
        self.data.len().saturating_add(HEADER_V4)
    }

    /// The dst, to which the route owns a reference.
    pub(super) fn dst(&self) -> *mut bindings::dst_entry {
        self.route.dst.as_ptr()
    }

    /// The address of the route's device, which is only compared.
    pub(super) fn device(&self) -> usize {
        self.route.device
    }

    /// Whether the stack would send it as one packet with linear memory.
    pub(super) fn fits_route(&self) -> bool {
        // SAFETY: The route owns a reference to the dst, an IPv4 one.
        let mtu = unsafe { bindings::kopi_dst4_mtu(self.dst(), self.options.discovery) };
        mtu >= MTU_MIN && self.whole() <= mtu.min(LINEAR_MAX) as usize
    }

    /// Whether it may be fragmented although the header forbids it: ip_sk_ignore_df().
    pub(super) fn ignores_df(&self) -> bool {
        let discovery = u32::from(self.options.discovery);
        discovery < bindings::IP_PMTUDISC_DO || discovery == bindings::IP_PMTUDISC_OMIT
    }

    /// Whether the header forbids fragments: __ip_make_skb(), ip_dont_fragment().
    fn has_df(&self) -> bool {
        match u32::from(self.options.discovery) {
            bindings::IP_PMTUDISC_DO | bindings::IP_PMTUDISC_PROBE => true,
            // An ICMP error may have locked the MTU since the look-up.
            // SAFETY: The route owns a reference to the dst, an IPv4 one.
            bindings::IP_PMTUDISC_WANT => !unsafe { bindings::kopi_ip_mtu_locked(self.dst()) },
            _ => false,
        }
    }

    /// Writes the IP packet, complete with checksums.
    ///
    /// # Safety
    ///
    /// `sk` must be the valid sock of the options. `at` must have room for [`Self::whole`] bytes.
    pub(super) unsafe fn write(&self, sk: *mut bindings::sock, at: *mut u8) {
        let (len, whole) = (self.data.len() as u16, self.whole() as u32);
        let ids = self.route.ids.as_ptr();
        // SAFETY: The caller passes a valid sock and enough room, whose first bytes become the
        // header that the last call completes. The IDs are of a `Cell`, so that no
        // other task uses them.
        unsafe {
            let to = at.add(HEADER_V4).cast();
            let from = self.data.as_ptr().cast();
            let sum = bindings::kopi_csum_partial_copy_nocheck(from, to, i32::from(len));
            let header = self.header(len, Some(sum));
            at.cast::<[u32; HEADER_V4 / 4]>().write_unaligned(header);
            bindings::kopi_ip_finish_header(at.cast(), sk, whole, self.ignores_df(), ids);
        }
    }

    /// Makes an skb of it, as ip_make_skb() and udp_send_skb() do: errors as of [`allocate`]. Process
    /// context; doesn't wait.
    ///
    /// # Safety
    ///
    /// `sk` must be the valid sock of the options, with its socket.
    #[inline(always)]
    pub(super) unsafe fn make(&self, sk: *mut bindings::sock) -> Result<*mut bindings::sk_buff> {
        let (options, route) = (self.options, self.route);
        let (len, whole) = (self.data.len() as u16, self.whole() as u32);
        // SAFETY: The caller passes a valid sock. The skb has room for the headroom, 15 bytes for
        // the device, and `whole` bytes, which skb_put() opens. The headers and `len` bytes of
        // payload are together `whole` bytes. The IDs are of a `Cell`, so that no
        // other task uses them.
        unsafe {
            let room = u64::from(whole) + u64::from(route.headroom) + 15;
            let skb = allocate(sk, room as usize)?;
            set_fields(sk, skb, route.has_checksums, self.ignores_df());
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
            let header = self.header(len, sum);
            start.cast::<[u32; HEADER_V4 / 4]>().write_unaligned(header);
            if route.has_checksums {
                bindings::udp4_hwcsum(skb, route.source, self.to);
            }
            let ids = route.ids.as_ptr();
            bindings::kopi_ip_select_ident(start.cast(), sk, self.ignores_df(), ids);
            // A connected sock remembers its transmit queue, and needs no hash.
            if route.has_queues && options.peer.is_none() {
                let hash = bindings::kopi_skb_flow_hash(skb, route.hash.get());
                route.hash.set(hash);
            }
            Ok(skb)
        }
    }

    /// The headers of IP and UDP before `len` bytes of payload, whose sum is `sum`; `None` leaves
    /// the checksum to the device.
    #[inline]
    fn header(&self, len: u16, sum: Option<u32>) -> [u32; HEADER_V4 / 4] {
        let (options, route) = (self.options, self.route);
        ip::header_v4(
            options.tos,
            options.ttl.unwrap_or(match route.ttl {
                0 => options.default_ttl,
                ttl => ttl,
            }),
            self.has_df(),
            [route.source, self.to],
            [options.source_port, self.port],
            len.wrapping_add(HEADER_UDP as u16),
            sum,
        )
    }
}
