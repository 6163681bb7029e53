// SPDX-License-Identifier: GPL-2.0

//! Plain IPv6 datagrams: skbs are made here as udpv6_sendmsg() makes them, by a remembered route,
//! without extension headers.
//!
//! What the module of IPv4 leaves out is left out here, too. C sources: `net/ipv6/udp.c`,
//! `net/ipv6/ip6_output.c`

mod options;
mod route;

use crate::{
    pure::ip::{self, Label, HEADER_IP_V6, HEADER_UDP, HEADER_V6},
    sys::{
        bindings,
        datagram::{allocate, set_fields, LINEAR_MAX},
        region::Bytes, //
    },
};
use kernel::prelude::*;
pub(crate) use options::OptionsV6;
use route::RouteV6;
use route::MTU_MIN;

/// A datagram that is about to be sent. The destination is as it lies in memory, the port big-endian.
#[derive(Clone, Copy)]
pub(crate) struct DatagramV6<'a> {
    pub(crate) data: Bytes<'a>,
    pub(in crate::sys) options: &'a OptionsV6,
    pub(in crate::sys) route: &'a RouteV6,
    to: [u8; 16],
    port: u16,
}

impl DatagramV6<'_> {
    /// Bytes of the IP packet.
    pub(super) fn whole(&self) -> usize {
        self.data.len().saturating_add(HEADER_V6)
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
        // SAFETY: The route owns a reference to the dst, an IPv6 one.
        let mtu = unsafe { bindings::kopi_dst6_mtu(self.dst(), &self.options.of_sock) };
        mtu >= MTU_MIN && self.whole() <= mtu.min(LINEAR_MAX) as usize
    }

    /// Whether it may be fragmented: ip6_sk_ignore_df().
    pub(super) fn ignores_df(&self) -> bool {
        let discovery = u32::from(self.options.of_sock.discovery);
        discovery < bindings::IPV6_PMTUDISC_DO || discovery == bindings::IPV6_PMTUDISC_OMIT
    }

    /// The flow hash that the label is made of, if it is the datagram's, or 0. That of a sock is set
    /// with an skb's owner.
    pub(super) fn hash(&self) -> u32 {
        match self.label() {
            Label::Hash(hash) | Label::Stateless(hash) if self.options.of_sock.hash == 0 => hash,
            _ => 0,
        }
    }

    /// The flow label: ip6_make_flowlabel().
    fn label(&self) -> Label {
        let of_sock = &self.options.of_sock;
        let hash = match of_sock.hash {
            0 => self.route.hash,
            hash => hash,
        };
        match of_sock.flow_label {
            0 if !of_sock.has_labels => Label::Fixed(0),
            0 if of_sock.has_stateless_labels => Label::Stateless(hash),
            0 => Label::Hash(hash),
            label => Label::Fixed(label),
        }
    }

    /// The hop limit: ip6_sk_dst_hoplimit().
    fn hop_limit(&self) -> u8 {
        match u8::try_from(self.options.of_sock.hop_limit) {
            Ok(limit) => limit,
            // SAFETY: The route owns a reference to the dst, an IPv6 one.
            Err(_) => unsafe { bindings::ip6_dst_hoplimit(self.dst()) as u8 },
        }
    }

    /// Writes the IP packet, complete with checksum.
    ///
    /// # Safety
    ///
    /// `at` must have room for [`Self::whole`] bytes.
    pub(super) unsafe fn write(&self, at: *mut u8) {
        let len = self.data.len() as u16;
        // SAFETY: The caller passes enough room: for the headers, and the payload behind them.
        unsafe {
            let to = at.add(HEADER_V6).cast();
            let from = self.data.as_ptr().cast();
            let sum = bindings::kopi_csum_partial_copy_nocheck(from, to, i32::from(len));
            let header = self.header(len, Some(sum));
            at.cast::<[u32; HEADER_V6 / 4]>().write_unaligned(header);
        }
    }

    /// Makes an skb of it, as ip6_make_skb() and udp_v6_send_skb() do: errors as of [`allocate`].
    /// Process context; doesn't wait.
    ///
    /// # Safety
    ///
    /// `sk` must be the valid sock of the options, with its socket.
    // Apart from IPv4's, which would need more registers.
    #[inline(never)]
    pub(super) unsafe fn make(&self, sk: *mut bindings::sock) -> Result<*mut bindings::sk_buff> {
        let (len, whole, route) = (self.data.len() as u16, self.whole() as u32, self.route);
        // SAFETY: The caller passes a valid sock. The skb has room for the headroom and `whole` bytes,
        // which skb_put() opens. The headers and `len` bytes of payload are together `whole` bytes.
        unsafe {
            let room = u64::from(whole) + u64::from(route.headroom);
            let skb = allocate(sk, room as usize)?;
            set_fields(sk, skb, route.has_checksums, self.ignores_df());
            let (headroom, mark) = (route.headroom, self.options.of_sock.mark);
            let start = bindings::kopi_skb_begin(skb, headroom, whole, HEADER_IP_V6 as i32, mark)
                .cast::<u8>();
            bindings::kopi_skb_set_flow_hash(skb, self.hash());
            if route.has_checksums {
                let from = self.data.as_ptr().cast();
                bindings::kopi_memcpy(start.add(HEADER_V6).cast(), from, self.data.len());
                let header = self.header(len, None);
                start.cast::<[u32; HEADER_V6 / 4]>().write_unaligned(header);
                bindings::kopi_udp6_hwcsum(skb);
            } else {
                self.write(start);
            }
            let requests = bindings::IPSTATS_MIB_OUTREQUESTS as i32;
            bindings::kopi_output_inc_stats(sk, self.dst(), requests);
            Ok(skb)
        }
    }

    /// The headers of IP and UDP before `len` bytes of payload, whose sum is `sum`; `None` leaves
    /// the checksum to the device.
    #[inline]
    fn header(&self, len: u16, sum: Option<u32>) -> [u32; HEADER_V6 / 4] {
        let of_sock = &self.options.of_sock;
        ip::header_v6(
            of_sock.tclass,
            self.label(),
            self.hop_limit(),
            [&self.route.source, &self.to],
            [of_sock.source_port, self.port],
            len.wrapping_add(HEADER_UDP as u16),
            sum,
        )
    }
}
