// SPDX-License-Identifier: GPL-2.0

//! UDP datagrams in Ethernet frames that can be parts of one GRO packet, as the kernel's generic
//! receive offload (`net/ipv4/udp_offload.c`) would have it.
//!
//! RFC 768, RFC 791, RFC 1071, RFC 8200.

mod first;

use super::gso::{fold, put, sum, CHECKSUM_V4, FRAGMENT, HEADER_ETHERNET, IPV4, IPV6};
use super::ip::{FourTuple, IpVersion, HEADER_IP_V4, HEADER_IP_V6, HEADER_UDP, UDP};
use super::peer::{mapped, Peer};
use core::ops::Range;

pub use first::FirstFrame;

/// The most datagrams of a GRO packet: UDP_GRO_CNT_MAX.
pub const GRO_MAX: usize = 64;
/// The most bytes of a GRO packet's payload.
pub const GRO_BYTES_MAX: usize = 0xffff - HEADER_IP_V6 - HEADER_UDP;

/// Where UDP's header begins.
const UDP_V4: usize = HEADER_ETHERNET + HEADER_IP_V4;
const UDP_V6: usize = HEADER_ETHERNET + HEADER_IP_V6;
/// Bytes of all headers.
const ALL_V4: usize = UDP_V4 + HEADER_UDP;
const ALL_V6: usize = UDP_V6 + HEADER_UDP;

/// A datagram whose headers and checksums are right.
#[derive(Clone, Copy)]
pub struct UdpFrame<'a> {
    headers: &'a [u8],
    payload: &'a [u8],
}

/// Bytes at an offset; zeros where there are fewer.
#[inline(always)]
fn at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    match bytes.get(at..).and_then(|bytes| bytes.first_chunk::<N>()) {
        Some(bytes) => *bytes,
        None => [0; N],
    }
}

/// A number at an offset.
#[inline(always)]
fn number(bytes: &[u8], offset: usize) -> u16 {
    u16::from_be_bytes(at(bytes, offset))
}

/// Whether bytes at an offset are the same; 16 at most are compared without a call.
#[inline(always)]
fn agree<const N: usize>(a: &[u8], b: &[u8], offset: usize) -> bool {
    at::<N>(a, offset) == at::<N>(b, offset)
}

/// Headers of the same length.
#[inline(always)]
fn pair<'a, const N: usize>(a: &'a [u8], b: &'a [u8]) -> Option<(&'a [u8; N], &'a [u8; N])> {
    Some((a.try_into().ok()?, b.try_into().ok()?))
}

/// The sum of UDP's pseudo-header.
#[inline(always)]
fn pseudo_header(addresses: &[u8], udp_len: u16) -> u32 {
    let sum = sum(addresses)
        .wrapping_add(u64::from(u16::from(UDP).to_be()))
        .wrapping_add(u64::from(udp_len.to_be()));
    let sum = (sum & 0xffff_ffff).wrapping_add(sum >> 32);
    // Of a carry, what is left has room for it.
    (sum as u32).wrapping_add((sum >> 32) as u32)
}

impl<'a> UdpFrame<'a> {
    /// The one in a frame, which may be padded: `None` if it isn't whole, is a fragment, has no
    /// payload, no UDP checksum or a wrong one, or options, extension headers or a VLAN's tag.
    /// `add` gives the sum of the 16-bit words of bytes, as they lie in memory, and of what it is
    /// given.
    #[inline]
    pub fn parse(frame: &'a [u8], add: impl Fn(&[u8], u32) -> u32) -> Option<Self> {
        // The sums have constant lengths in each branch.
        let (headers, udp, pseudo) = match at(frame, 12) {
            IPV4 => {
                let headers = frame.first_chunk::<ALL_V4>()?;
                let ip = &headers[HEADER_ETHERNET..UDP_V4];
                let udp_len = number(headers, UDP_V4 + 4);
                let right = ip[0] == 0x45
                    && ip[9] == UDP
                    && number(ip, 6) & FRAGMENT == 0
                    && number(ip, 2).wrapping_sub(HEADER_IP_V4 as u16) == udp_len
                    && fold(sum(ip)) == 0;
                let pseudo = pseudo_header(&ip[12..], udp_len);
                right.then_some((headers.as_slice(), UDP_V4, pseudo))?
            }
            IPV6 => {
                let headers = frame.first_chunk::<ALL_V6>()?;
                let ip = &headers[HEADER_ETHERNET..UDP_V6];
                let udp_len = number(headers, UDP_V6 + 4);
                let right = ip[0] >> 4 == 6 && ip[6] == UDP && number(ip, 4) == udp_len;
                let pseudo = pseudo_header(&ip[8..], udp_len);
                right.then_some((headers.as_slice(), UDP_V6, pseudo))?
            }
            _ => return None,
        };
        let udp_len = number(headers, udp.saturating_add(4));
        let datagram = frame.get(udp..)?.get(..usize::from(udp_len))?;
        let payload = datagram.get(HEADER_UDP..)?;
        if payload.is_empty() || number(datagram, 6) == 0 {
            return None;
        }
        (fold(u64::from(add(datagram, pseudo))) == 0).then_some(Self { headers, payload })
    }

    /// All headers.
    pub fn headers(&self) -> &'a [u8] {
        self.headers
    }

    /// Bytes of headers and payload.
    pub fn whole(&self) -> usize {
        self.headers.len().saturating_add(self.payload.len())
    }

    /// The payload: a byte at least.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Whether headers of datagrams are of the same sender and receiver.
#[inline]
pub fn are_of_one_flow(a: &[u8], b: &[u8]) -> bool {
    // Addresses and ports lie side by side.
    if let Some((a, b)) = pair::<ALL_V4>(a, b) {
        agree::<8>(a, b, UDP_V4 - 8) && agree::<4>(a, b, UDP_V4)
    } else if let Some((a, b)) = pair::<ALL_V6>(a, b) {
        agree::<36>(a, b, UDP_V6 - 32)
    } else {
        false
    }
}

/// Whether headers of datagrams of one flow differ in nothing but lengths, identifications and
/// checksums.
#[inline]
pub fn are_alike(a: &[u8], b: &[u8]) -> bool {
    if let Some((a, b)) = pair::<ALL_V4>(a, b) {
        // Ethernet's with IP's type of service; IP's flags with its time to live.
        agree::<16>(a, b, 0) && agree::<4>(a, b, HEADER_ETHERNET + 6)
    } else if let Some((a, b)) = pair::<ALL_V6>(a, b) {
        // Ethernet's with IP's class and flow label; its hop limit.
        agree::<18>(a, b, 0) && agree::<2>(a, b, HEADER_ETHERNET + 6)
    } else {
        false
    }
}

/// UDP's destination port in a frame of IPv4 without options, or IPv6 without extension headers; 0
/// if it is too short.
#[inline]
pub fn destination_port(frame: &[u8]) -> u16 {
    let udp = match at(frame, 12) {
        IPV6 => UDP_V6,
        _ => UDP_V4,
    };
    number(frame, udp.saturating_add(2))
}

/// The version of IP of a datagram's headers; `None` if there are none.
pub fn ip_version(headers: &[u8]) -> Option<IpVersion> {
    match headers.len() {
        ALL_V4 => Some(IpVersion::V4),
        ALL_V6 => Some(IpVersion::V6),
        _ => None,
    }
}

/// Where in the headers of a datagram, or a GRO packet, UDP's begins.
pub fn udp_header(headers: &[u8]) -> usize {
    if headers.len() == ALL_V4 {
        UDP_V4
    } else {
        UDP_V6
    }
}

/// Where the addresses are in front of UDP's header.
fn addresses(udp: usize) -> Range<usize> {
    let len = if udp == UDP_V4 { 8 } else { 32 };
    udp.saturating_sub(len)..udp
}

/// The source and the destination of a datagram, by its headers.
pub fn ends(headers: &[u8]) -> FourTuple {
    let udp = udp_header(headers);
    let end = |address, port| Peer { address, port };
    let (from, to) = if udp == UDP_V4 {
        (mapped(at(headers, udp - 8)), mapped(at(headers, udp - 4)))
    } else {
        (at(headers, udp - 32), at(headers, udp - 16))
    };
    FourTuple {
        source: end(from, number(headers, udp)),
        destination: end(to, number(headers, udp + 2)),
    }
}

/// Makes the headers of a datagram those of a GRO packet with `payload` bytes in all. Its UDP
/// checksum is partial, for whatever segments it; as `udp_gro_complete` has it.
pub fn make_gro(headers: &mut [u8], payload: u16) {
    let udp_len = payload.wrapping_add(HEADER_UDP as u16);
    let udp = udp_header(headers);
    if udp == UDP_V4 {
        let total = udp_len.wrapping_add(HEADER_IP_V4 as u16);
        put(headers, HEADER_ETHERNET + 2, total.to_be_bytes());
        put(headers, CHECKSUM_V4, [0; 2]);
        let checksum = fold(sum(headers.get(HEADER_ETHERNET..UDP_V4).unwrap_or(&[])));
        put(headers, CHECKSUM_V4, checksum.to_ne_bytes());
    } else {
        put(headers, HEADER_ETHERNET + 4, udp_len.to_be_bytes());
    }
    let addresses = headers.get(addresses(udp)).unwrap_or(&[]);
    let checksum = !fold(u64::from(pseudo_header(addresses, udp_len)));
    put(headers, udp + 4, udp_len.to_be_bytes());
    put(headers, udp + 6, checksum.to_ne_bytes());
}

#[cfg(test)]
mod tests;
