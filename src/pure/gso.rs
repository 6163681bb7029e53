// SPDX-License-Identifier: GPL-2.0

//! The headers of each datagram of a GSO packet, when that is segmented: Ethernet's, IP's and
//! UDP's, with their checksums, as the kernel's `net/ipv4/udp_offload.c` makes them.
//!
//! RFC 768, RFC 791, RFC 1071, RFC 8200.

use super::ip::{HEADER_IP_V4, HEADER_IP_V6, HEADER_UDP, UDP};

/// Bytes of Ethernet's header.
pub(super) const HEADER_ETHERNET: usize = 14;
/// Bytes of the longest headers that are taken: those of IPv6 without extensions.
pub const HEADERS_MAX: usize = HEADER_ETHERNET + HEADER_IP_V6 + HEADER_UDP;

/// The offsets of IPv4's identification and checksum.
pub(super) const ID_V4: usize = HEADER_ETHERNET + 4;
pub(super) const CHECKSUM_V4: usize = HEADER_ETHERNET + 10;

/// Ethernet's types.
pub(super) const IPV4: [u8; 2] = [0x08, 0x00];
pub(super) const IPV6: [u8; 2] = [0x86, 0xdd];
/// The bits of IPv4's fragment offset, and of its flag for more fragments.
pub(super) const FRAGMENT: u16 = 0x3fff;

/// The headers of a packet, of which others are made.
pub struct Headers {
    bytes: [u8; HEADERS_MAX],
    len: usize,
    /// The offset of UDP's header.
    udp: usize,
    /// The IPv4 identification of the first datagram.
    id: u16,
    /// The sum of the words under IPv4's checksum that don't change.
    ip_sum: u64,
    /// The sum of the words under UDP's checksum besides payload and lengths.
    udp_sum: u64,
    /// UDP's checksum is 0: there is none.
    unsummed: bool,
}

/// A sum of the same checksum as that of the 16-bit words of bytes, as they lie in memory. Their
/// number is even.
#[inline(always)]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(4);
    let rest = match words.remainder().first_chunk() {
        Some(word) => u64::from(u16::from_ne_bytes(*word)),
        None => 0,
    };
    words
        .filter_map(|word| word.first_chunk())
        .fold(rest, |sum, word| {
            sum.wrapping_add(u64::from(u32::from_ne_bytes(*word)))
        })
}

/// The checksum of a sum.
pub(super) fn fold(sum: u64) -> u16 {
    // At most 33 bits, 18, 17, and 16.
    let sum = (sum & 0xffff_ffff).wrapping_add(sum >> 32);
    let sum = (sum & 0xffff).wrapping_add(sum >> 16);
    let sum = (sum & 0xffff).wrapping_add(sum >> 16);
    !((sum & 0xffff).wrapping_add(sum >> 16) as u16)
}

/// A number of a header, as a word of a sum.
fn word(number: u16) -> u64 {
    u64::from(u16::from_ne_bytes(number.to_be_bytes()))
}

/// Writes bytes at an offset, where there is room.
pub(super) fn put<const N: usize>(to: &mut [u8], at: usize, bytes: [u8; N]) {
    if let Some(place) = to.get_mut(at..).and_then(|to| to.first_chunk_mut::<N>()) {
        *place = bytes;
    }
}

/// Number of datagrams of a packet with so many bytes of payload, and so many of each datagram if it is a GSO or
/// GRO packet; else 0. One at least: a datagram may be empty.
#[inline(always)]
pub fn datagrams(bytes: u32, gso_size: u32) -> u32 {
    match gso_size {
        0 => 1,
        size => bytes.div_ceil(size).max(1),
    }
}

/// Bytes of a packet that `is_udp` reads.
pub const PROTOCOL_BYTES: usize = HEADER_ETHERNET + 10;

/// Whether a packet that begins so is UDP, with options, extension headers or none.
pub fn is_udp(packet: &[u8; PROTOCOL_BYTES]) -> bool {
    match [packet[12], packet[13]] {
        IPV4 => packet[HEADER_ETHERNET + 9] == UDP,
        // Hop-by-hop and destination options, routing, a fragment.
        IPV6 => matches!(packet[HEADER_ETHERNET + 6], UDP | 0 | 60 | 43 | 44),
        _ => false,
    }
}

impl Headers {
    /// The headers at the start of a packet, whose first byte is Ethernet's: `None` if it is no
    /// whole UDP datagram or GSO packet, or has options, extension headers or a VLAN's tag.
    /// `unsummed` says that UDP's checksum is not to be made where it is 0.
    pub fn parse(packet: &[u8], unsummed: bool) -> Option<Self> {
        let (ethernet, ip) = packet.split_at_checked(HEADER_ETHERNET)?;
        let (ip_len, addresses, id, ip_sum) = match *ethernet.last_chunk::<2>()? {
            IPV4 => {
                let header = ip.first_chunk::<HEADER_IP_V4>()?;
                let fragment = u16::from_be_bytes([header[6], header[7]]) & FRAGMENT;
                if header[0] != 0x45 || header[9] != UDP || fragment != 0 {
                    return None;
                }
                let fixed = sum(&header[..2])
                    .wrapping_add(sum(&header[6..10]))
                    .wrapping_add(sum(&header[12..]));
                let id = u16::from_be_bytes([header[4], header[5]]);
                (header.len(), &header[12..], id, fixed)
            }
            IPV6 => {
                let header = ip.first_chunk::<HEADER_IP_V6>()?;
                if header[0] >> 4 != 6 || header[6] != UDP {
                    return None;
                }
                (header.len(), &header[8..], 0, 0)
            }
            _ => return None,
        };
        let udp = HEADER_ETHERNET.checked_add(ip_len)?;
        let len = udp.checked_add(HEADER_UDP)?;
        let all = packet.get(..len)?;
        let ports = all.get(udp..)?.first_chunk::<4>()?;
        let checksum = all.last_chunk::<2>()?;
        let mut bytes = [0; HEADERS_MAX];
        bytes.get_mut(..len)?.copy_from_slice(all);
        Some(Self {
            bytes,
            len,
            udp,
            id,
            ip_sum,
            udp_sum: sum(addresses)
                .wrapping_add(sum(ports))
                .wrapping_add(word(u16::from(UDP))),
            unsummed: unsummed && *checksum == [0; 2],
        })
    }

    /// Bytes of all headers.
    pub fn size(&self) -> usize {
        self.len
    }

    /// The headers as they were, before any were made of them.
    pub fn as_they_are(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// The headers of the packet, which is one datagram, with the checksum that was left to the device: of what is
    /// in UDP's header, with the seed of the checksum there, and in the payload, of whose words `payload_sum` is the
    /// sum. As skb_checksum_help() (net/core/dev.c) has it.
    pub fn complete(&mut self, payload_sum: u32) -> &[u8] {
        let header = self.bytes.get(self.udp..self.len).unwrap_or(&[]);
        let checksum = match fold(sum(header).wrapping_add(u64::from(payload_sum))) {
            // That would say that there is none.
            0 => 0xffff,
            checksum => checksum,
        };
        put(
            &mut self.bytes,
            self.udp.wrapping_add(6),
            checksum.to_ne_bytes(),
        );
        self.as_they_are()
    }

    /// Makes the headers of datagram `number` of the packet, with `payload` bytes, of which `sum`
    /// is the sum of the 16-bit words as they lie in memory.
    pub fn make(&mut self, number: u16, payload: u16, sum: u32) -> &[u8] {
        let to = &mut self.bytes;
        let udp_len = payload.wrapping_add(HEADER_UDP as u16);
        if self.udp == HEADER_ETHERNET + HEADER_IP_V4 {
            let total = udp_len.wrapping_add(HEADER_IP_V4 as u16);
            let id = self.id.wrapping_add(number);
            let checksum = fold(self.ip_sum.wrapping_add(word(total)).wrapping_add(word(id)));
            put(to, HEADER_ETHERNET + 2, total.to_be_bytes());
            put(to, ID_V4, id.to_be_bytes());
            put(to, CHECKSUM_V4, checksum.to_ne_bytes());
        } else {
            put(to, HEADER_ETHERNET + 4, udp_len.to_be_bytes());
        }
        let checksum = if self.unsummed {
            0
        } else {
            // Once for the pseudo-header.
            let lengths = word(udp_len).wrapping_mul(2);
            match fold(
                self.udp_sum
                    .wrapping_add(lengths)
                    .wrapping_add(u64::from(sum)),
            ) {
                // That would say that there is none.
                0 => 0xffff,
                checksum => checksum,
            }
        };
        put(to, self.udp.wrapping_add(4), udp_len.to_be_bytes());
        put(to, self.udp.wrapping_add(6), checksum.to_ne_bytes());
        self.as_they_are()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_is_told_from_what_else_a_flow_s_packet_becomes() {
        let packet = |kind: [u8; 2], at: usize, protocol| {
            let mut packet = [0xff; PROTOCOL_BYTES];
            packet[12..14].copy_from_slice(&kind);
            packet[at] = protocol;
            is_udp(&packet)
        };
        for protocol in 0..=255 {
            assert_eq!(packet(IPV4, 23, protocol), protocol == 17);
            let with_extensions = [0, 17, 43, 44, 60].contains(&protocol);
            assert_eq!(packet(IPV6, 20, protocol), with_extensions);
            assert!(!packet([0x88, 0x47], 23, protocol));
        }
    }

    #[test]
    fn datagrams_are_counted() {
        assert_eq!(datagrams(0, 0), 1);
        assert_eq!(datagrams(1400, 0), 1);
        assert_eq!(datagrams(0, 100), 1);
        assert_eq!(datagrams(100, 100), 1);
        assert_eq!(datagrams(101, 100), 2);
        assert_eq!(datagrams(u32::MAX, 1), u32::MAX);
    }

    fn ipv4() -> Vec<u8> {
        let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        packet.extend([0x45, 0xb8, 0, 0, 0xff, 0xff, 0x40, 0, 63, 17, 0, 0]);
        packet.extend([192, 0, 2, 1, 198, 51, 100, 7]);
        packet.extend([0x1b, 0x59, 0x1b, 0x5a, 0, 0, 0, 0]);
        packet
    }

    fn ipv6() -> Vec<u8> {
        let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
        packet.extend([0x60, 0, 0, 0, 0, 0, 17, 64]);
        packet.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        packet.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        packet.extend([0x1b, 0x59, 0x1b, 0x5a, 0, 0, 0, 0]);
        packet
    }

    /// The 16-bit sum of words as they lie in memory.
    fn words(bytes: &[u8]) -> u32 {
        u32::from(!fold(sum(bytes)))
    }

    /// The 16-bit sum of big-endian words, which is 0xffff for what has a right checksum.
    fn check(parts: &[&[u8]]) -> u16 {
        let mut total = 0u64;
        for part in parts {
            for word in part.chunks(2) {
                total += (u64::from(word[0]) << 8) | u64::from(word.get(1).copied().unwrap_or(0));
            }
        }
        while total > 0xffff {
            total = (total & 0xffff) + (total >> 16);
        }
        total as u16
    }

    fn made(headers: &mut Headers, number: u16, payload: &[u8]) -> Vec<u8> {
        let mut padded = payload.to_vec();
        if padded.len() % 2 == 1 {
            padded.push(0);
        }
        let made = headers.make(number, payload.len() as u16, words(&padded));
        let mut packet = made.to_vec();
        packet.extend(payload);
        packet
    }

    #[test]
    fn checksums_are_right() {
        for payload in [&b""[..], b"x", b"\xff\xff\xff", &[0xab; 1472]] {
            let mut headers = Headers::parse(&ipv4(), false).unwrap();
            let packet = made(&mut headers, 3, payload);
            let (ip, udp) = packet[14..].split_at(20);
            assert_eq!(check(&[ip]), 0xffff);
            let len = (udp.len() as u16).to_be_bytes();
            assert_eq!(check(&[&ip[12..], &[0, 17], &len, udp]), 0xffff);
            assert_eq!(ip[2..4], ((20 + udp.len()) as u16).to_be_bytes());
            assert_eq!(udp[4..6], len);
            // The identification goes on, and wraps.
            assert_eq!(ip[4..6], [0, 2]);
            assert_eq!((ip[1], ip[8]), (0xb8, 63));

            let mut headers = Headers::parse(&ipv6(), false).unwrap();
            let packet = made(&mut headers, 3, payload);
            let (ip, udp) = packet[14..].split_at(40);
            let len = (udp.len() as u16).to_be_bytes();
            assert_eq!(check(&[&ip[8..], &[0, 17], &len, udp]), 0xffff);
            assert_eq!(ip[4..6], len);
        }
    }

    #[test]
    fn what_is_left_to_the_device_is_completed() {
        for payload in [&b""[..], b"x", b"\xff\xff\xff", &[0xab; 1472]] {
            let len = (8 + payload.len() as u16).to_be_bytes();
            let mut packet = ipv4();
            packet[38..40].copy_from_slice(&len);
            let pseudo_header = [&packet[26..34], &[0, 17], &len].concat();
            let seed = words(&pseudo_header) as u16;
            packet[40..42].copy_from_slice(&seed.to_ne_bytes());
            let mut headers = Headers::parse(&packet, false).unwrap();
            let mut padded = payload.to_vec();
            padded.resize(payload.len().next_multiple_of(2), 0);
            let made = headers.complete(words(&padded)).to_vec();
            assert_eq!(check(&[&pseudo_header, &made[34..], payload]), 0xffff);
            // Nothing else is changed: not what a hook has written, either.
            assert_eq!(made[..40], packet[..40]);
        }
    }

    #[test]
    fn a_checksum_of_0_is_written_as_ffff() {
        let mut headers = Headers::parse(&ipv4(), false).unwrap();
        // What makes the sum 0xffff.
        let empty = made(&mut headers, 0, &[0, 0]);
        let rest = [empty[40], empty[41]];
        let packet = made(&mut headers, 0, &rest);
        assert_eq!(packet[40..42], [0xff, 0xff]);
    }

    #[test]
    fn none_is_made_where_there_is_none() {
        let mut headers = Headers::parse(&ipv4(), true).unwrap();
        assert_eq!(made(&mut headers, 0, b"abc")[40..42], [0, 0]);
        let mut summed = ipv4();
        summed[41] = 1;
        let mut headers = Headers::parse(&summed, true).unwrap();
        assert_ne!(made(&mut headers, 0, b"abc")[40..42], [0, 0]);
    }

    #[test]
    fn only_plain_datagrams_are_taken() {
        for (at, value) in [
            (14, 0x46),
            (14, 0x65),
            (23, 6),
            (20, 0x20),
            (21, 1),
            (12, 0x81),
        ] {
            let mut packet = ipv4();
            packet[at] = value;
            assert!(Headers::parse(&packet, false).is_none(), "{at}: {value}");
        }
        for (at, value) in [(14, 0x40), (20, 44), (13, 0)] {
            let mut packet = ipv6();
            packet[at] = value;
            assert!(Headers::parse(&packet, false).is_none(), "{at}: {value}");
        }
        for len in 0..42 {
            assert!(Headers::parse(&ipv4()[..len], false).is_none());
        }
        for len in 0..62 {
            assert!(Headers::parse(&ipv6()[..len], false).is_none());
        }
    }
}
