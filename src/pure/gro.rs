// SPDX-License-Identifier: GPL-2.0

//! UDP datagrams in Ethernet frames that can be parts of one GRO packet, as the kernel's generic receive offload
//! (`net/ipv4/udp_offload.c`) would have it.
//!
//! RFC 768, RFC 791, RFC 1071, RFC 8200.

use super::gso::{
    fold, put, sum, CHECKSUM_V4, FRAGMENT, HEADERS_MAX, HEADER_ETHERNET, ID_V4, IPV4, IPV6,
};
use super::ip::{FourTuple, HEADER_IP_V4, HEADER_IP_V6, HEADER_UDP, UDP};
use super::rule::{mapped, Peer};
use core::ops::Range;

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

/// IPv4's flag that nobody may fragment a datagram, in the word with its offset.
const DONT_FRAGMENT: u16 = 0x4000;

/// What a sum with a right checksum is a multiple of.
const ONES: u32 = 0xffff;
/// Where an IPv4 header's number is in eight bytes two before it.
const NUMBER: u64 = u64::from_ne_bytes([0, 0, 0xff, 0xff, 0, 0, 0, 0]);

/// A datagram whose headers and checksums are right.
#[derive(Clone, Copy)]
pub struct Datagram<'a> {
    headers: &'a [u8],
    payload: &'a [u8],
}

/// Bytes at an offset, where there are so many.
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

/// The sum of what UDP's checksum pretends there is as a header.
#[inline(always)]
fn pseudo_header(addresses: &[u8], udp_len: u16) -> u32 {
    let sum = sum(addresses)
        .wrapping_add(u64::from(u16::from(UDP).to_be()))
        .wrapping_add(u64::from(udp_len.to_be()));
    let sum = (sum & 0xffff_ffff).wrapping_add(sum >> 32);
    // Of a carry, what is left has room for it.
    (sum as u32).wrapping_add((sum >> 32) as u32)
}

impl<'a> Datagram<'a> {
    /// The one in a frame, which may be padded: `None` if it isn't whole, is a fragment, has no payload, no UDP
    /// checksum or a wrong one, or options, extension headers or a VLAN's tag. `add` gives the sum of
    /// the 16-bit words of bytes, as they lie in memory, and of what it is given.
    #[inline]
    pub fn parse(frame: &'a [u8], add: impl Fn(&[u8], u32) -> u32) -> Option<Self> {
        let (headers, udp, addresses) = match at(frame, 12) {
            IPV4 => {
                let headers = frame.first_chunk::<ALL_V4>()?;
                let ip = &headers[HEADER_ETHERNET..UDP_V4];
                let right = ip[0] == 0x45
                    && ip[9] == UDP
                    && number(ip, 6) & FRAGMENT == 0
                    && number(ip, 2).wrapping_sub(HEADER_IP_V4 as u16)
                        == number(headers, UDP_V4 + 4)
                    && fold(sum(ip)) == 0;
                right.then_some((headers.as_slice(), UDP_V4, &ip[12..]))?
            }
            IPV6 => {
                let headers = frame.first_chunk::<ALL_V6>()?;
                let ip = &headers[HEADER_ETHERNET..UDP_V6];
                let right =
                    ip[0] >> 4 == 6 && ip[6] == UDP && number(ip, 4) == number(headers, UDP_V6 + 4);
                right.then_some((headers.as_slice(), UDP_V6, &ip[8..]))?
            }
            _ => return None,
        };
        let udp_len = number(frame, udp + 4);
        let datagram = frame.get(udp..)?.get(..usize::from(udp_len))?;
        let payload = datagram.get(HEADER_UDP..)?;
        if payload.is_empty() || number(datagram, 6) == 0 {
            return None;
        }
        let total = add(datagram, pseudo_header(addresses, udp_len));
        (fold(u64::from(total)) == 0).then_some(Self { headers, payload })
    }

    /// All headers.
    pub fn headers(&self) -> &'a [u8] {
        self.headers
    }

    /// The payload: a byte at least.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Where two differ in eight bytes at an offset: there the result isn't 0.
#[inline(always)]
fn differ(a: &[u8], b: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(at(a, offset)) ^ u64::from_ne_bytes(at(b, offset))
}

/// What an IPv4 header's number and checksum add to its sum, as a remainder: the sum of the whole is right if
/// it is a multiple of this.
#[inline(always)]
fn sum_of_numbers(headers: &[u8; ALL_V4]) -> u32 {
    let number = |offset| u32::from(u16::from_ne_bytes(at(headers, offset)));
    number(ID_V4).wrapping_add(number(CHECKSUM_V4)) % ONES
}

/// IPv4's numbers of a GRO packet's datagrams, as those who forward it cut it up: each is one more than the one before.
/// Where nobody may fragment them they don't matter (RFC 6864), and may all be the same as well, as `inet_gro_flush`
/// has it.
#[derive(Clone, Copy)]
struct Numbers {
    /// That of the first datagram.
    first: u16,
    /// What each is more than the one before; none if there is one only.
    step: Option<u16>,
    /// May be the same.
    may_stay: bool,
}

impl Numbers {
    /// Of IPv6, which has none.
    const NONE: Self = Self {
        first: 0,
        step: None,
        may_stay: true,
    };

    /// Those that begin with that in an IPv4 header.
    fn new(headers: &[u8]) -> Self {
        Self {
            first: number(headers, ID_V4),
            step: None,
            may_stay: number(headers, ID_V4 + 2) & DONT_FRAGMENT != 0,
        }
    }

    /// Whether one may come next, after so many.
    #[inline(always)]
    fn fits(&self, next: u16, count: usize) -> bool {
        let more = next.wrapping_sub(self.first);
        match self.step {
            Some(step) => more == step.wrapping_mul(count as u16),
            None => more == 1 || (more == 0 && self.may_stay),
        }
    }
}

/// The headers of a GRO packet's first datagram, and the numbers of all.
pub struct First {
    bytes: [u8; HEADERS_MAX],
    len: usize,
    /// Bytes of headers and payload.
    whole: usize,
    /// Of an IPv4 header.
    sum: u32,
    numbers: Numbers,
    /// Of what UDP's checksum pretends there is.
    udp_sum: u32,
}

impl First {
    /// None, which nothing follows.
    pub const NONE: Self = Self {
        bytes: [0; HEADERS_MAX],
        len: 0,
        whole: 0,
        sum: 0,
        numbers: Numbers::NONE,
        udp_sum: 0,
    };

    /// That of a GRO packet which begins with this one.
    pub fn new(datagram: &Datagram<'_>) -> Self {
        let headers = datagram.headers;
        let mut first = Self::NONE;
        if let Some(place) = first.bytes.get_mut(..headers.len()) {
            place.copy_from_slice(headers);
            first.len = headers.len();
            first.whole = headers.len().saturating_add(datagram.payload.len());
        }
        let udp = udp_header(headers);
        let addresses = headers.get(addresses(udp)).unwrap_or(&[]);
        first.udp_sum = pseudo_header(addresses, number(headers, udp + 4));
        if let Ok(headers) = headers.try_into() {
            first.sum = sum_of_numbers(headers);
            first.numbers = Numbers::new(headers);
        }
        first
    }

    /// IPv4's number of a frame; 0 of IPv6.
    fn number_of(&self, frame: &[u8]) -> u16 {
        match self.len {
            ALL_V4 => number(frame, ID_V4),
            _ => 0,
        }
    }

    /// Whether IPv4's number of a frame of the same flow is what comes next, after `count` datagrams.
    pub fn is_next(&self, frame: &[u8], count: usize) -> bool {
        self.numbers.fits(self.number_of(frame), count)
    }

    /// Takes it for the second one: the numbers of all that follow go on as they began.
    pub fn begin_numbers(&mut self, frame: &[u8]) {
        let more = self.number_of(frame).wrapping_sub(self.numbers.first);
        self.numbers.step = Some(more);
    }

    /// The headers; none if there is no datagram.
    pub fn headers(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// As above.
    pub fn headers_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.len).unwrap_or(&mut [])
    }

    /// Bytes of the first datagram's payload.
    pub fn payload(&self) -> usize {
        self.whole.saturating_sub(self.len)
    }

    /// The headers, if they are so long, and as many bytes of a frame.
    #[inline(always)]
    fn beside<'a, const N: usize>(&'a self, frame: &'a [u8]) -> Option<(&'a [u8; N], &'a [u8; N])> {
        (self.len == N).then(|| Some((self.bytes.first_chunk()?, frame.first_chunk()?)))?
    }

    /// Whether a frame has a datagram that `Datagram::parse` would take, and which is of the same flow, as long,
    /// alike, and next after `count`. In fewer steps, since all but numbers and checksums is as it was.
    #[inline(always)]
    pub fn is_followed_by(
        &self,
        frame: &[u8],
        count: usize,
        add: impl Fn(&[u8], u32) -> u32,
    ) -> bool {
        let (is_alike, udp) = if let Some((a, b)) = self.beside::<ALL_V4>(frame) {
            let before = differ(a, b, 0) | differ(a, b, 8) | differ(a, b, ID_V4 - 2) & !NUMBER;
            let behind = differ(a, b, CHECKSUM_V4 + 2) | differ(a, b, ALL_V4 - 2 - 8);
            (
                before | behind == 0
                    && sum_of_numbers(b) == self.sum
                    && self.numbers.fits(number(b, ID_V4), count),
                UDP_V4,
            )
        } else if let Some((a, b)) = self.beside::<ALL_V6>(frame) {
            let differs = differ(a, b, 0) | differ(a, b, 8) | differ(a, b, 16) | differ(a, b, 24);
            let differs = differs | differ(a, b, 32) | differ(a, b, 40) | differ(a, b, 48);
            let differs = differs | differ(a, b, ALL_V6 - 2 - 8);
            (differs == 0, UDP_V6)
        } else {
            return false;
        };
        let Some(datagram) = frame.get(udp..self.whole).filter(|_| is_alike) else {
            return false;
        };
        number(frame, udp + 6) != 0 && add(datagram, self.udp_sum) % ONES == 0
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

/// Whether headers of datagrams of one flow differ in nothing but lengths, numbers and checksums.
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

/// Where a datagram comes from, and where it goes, by its headers.
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

/// Makes the headers of a datagram those of a GRO packet with `payload` bytes in all, whose UDP checksum is left
/// to who cuts it up, if somebody does; as `udp_gro_complete` does.
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
mod tests {
    use super::*;
    use crate::pure::gso::Headers;

    fn add(bytes: &[u8], to: u32) -> u32 {
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(2), 0);
        u32::from(!fold(u64::from(to) + sum(&padded)))
    }

    fn template(is_ipv6: bool) -> Vec<u8> {
        let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if is_ipv6 {
            packet.extend([0x86, 0xdd, 0x60, 1, 2, 3, 0, 0, 17, 64]);
            packet.extend((0..32).map(|byte| byte | 0x20));
        } else {
            packet.extend([8, 0, 0x45, 0xb8, 0, 0, 0xff, 0xff, 0x40, 0, 63, 17, 0, 0]);
            packet.extend([192, 0, 2, 1, 198, 51, 100, 7]);
        }
        packet.extend([0x1b, 0x59, 0x1b, 0x5a, 0, 0, 0, 1]);
        packet
    }

    fn frame(is_ipv6: bool, number: u16, payload: &[u8]) -> Vec<u8> {
        let mut headers = Headers::parse(&template(is_ipv6), false).unwrap();
        let made = headers.make(number, payload.len() as u16, add(payload, 0));
        let mut frame = made.to_vec();
        frame.extend(payload);
        frame
    }

    #[test]
    fn what_is_right_is_taken_and_padding_left_out() {
        for is_ipv6 in [false, true] {
            for len in [1, 2, 17, 18, 1400] {
                let payload: Vec<u8> = (0..len).map(|byte| byte as u8 ^ 0x5a).collect();
                let mut frame = frame(is_ipv6, 3, &payload);
                frame.extend([0xff; 9]);
                let datagram = Datagram::parse(&frame, add).unwrap();
                assert_eq!(datagram.payload(), payload);
                assert_eq!(
                    datagram.headers(),
                    &frame[..udp_header(datagram.headers()) + 8]
                );
                let ends = ends(datagram.headers());
                assert_eq!((ends.source.port, ends.destination.port), (7001, 7002));
                if !is_ipv6 {
                    assert_eq!(ends.source.address, mapped([192, 0, 2, 1]));
                    assert_eq!(ends.destination.address, mapped([198, 51, 100, 7]));
                } else {
                    assert_eq!(ends.source.address[..2], [0x20, 0x21]);
                    assert_eq!(ends.destination.address[..2], [0x30, 0x31]);
                }
            }
        }
    }

    #[test]
    fn any_changed_bit_of_ip_and_udp_is_seen() {
        for is_ipv6 in [false, true] {
            let right = frame(is_ipv6, 0, b"some payload");
            for byte in 12..right.len() {
                for bit in 0..8 {
                    let mut wrong = right.clone();
                    wrong[byte] ^= 1 << bit;
                    let taken = Datagram::parse(&wrong, add).is_some();
                    // IPv6 sums neither class and flow label, nor the hop limit.
                    let unsummed =
                        is_ipv6 && (matches!(byte, 15..=17 | 21) || byte == 14 && bit < 4);
                    assert_eq!(taken, unsummed, "byte {byte}, bit {bit}");
                }
            }
        }
    }

    #[test]
    fn what_is_short_or_has_no_payload_or_checksum_is_not_taken() {
        for is_ipv6 in [false, true] {
            let whole = frame(is_ipv6, 0, b"ab");
            for len in 0..whole.len() {
                assert!(Datagram::parse(&whole[..len], add).is_none());
            }
            assert!(Datagram::parse(&frame(is_ipv6, 0, b""), add).is_none());
            let mut unsummed = whole.clone();
            let udp = whole.len() - 10;
            unsummed[udp + 6..udp + 8].fill(0);
            assert!(Datagram::parse(&unsummed, add).is_none());
        }
    }

    #[test]
    fn gro_packets_are_of_one_flow_with_headers_alike() {
        for is_ipv6 in [false, true] {
            let headers = |frame: &[u8]| Datagram::parse(frame, add).unwrap().headers().to_vec();
            let first = headers(&frame(is_ipv6, 0, b"abcd"));
            let second = headers(&frame(is_ipv6, 7, b"xyz"));
            assert!(are_of_one_flow(&first, &second) && are_alike(&first, &second));
            let udp = udp_header(&first);
            for byte in 0..udp + 4 {
                let mut other = first.clone();
                other[byte] ^= 1;
                let end = if is_ipv6 { udp - 32 } else { udp - 8 };
                assert_eq!(are_of_one_flow(&first, &other), byte < end, "{byte}");
                let free = match is_ipv6 {
                    true => matches!(byte, 18..=19),
                    false => matches!(byte, 16..=19 | 24..=25),
                };
                assert_eq!(are_alike(&first, &other), free || byte >= end, "{byte}");
            }
        }
        let (a, b) = (frame(false, 0, b"a"), frame(true, 0, b"a"));
        assert!(!are_of_one_flow(&a[..ALL_V4], &b[..ALL_V6]));
    }

    #[test]
    fn what_follows_is_what_is_taken_alike_and_as_long() {
        for is_ipv6 in [false, true] {
            let begin = frame(is_ipv6, 0, b"some payload");
            let begin = Datagram::parse(&begin, add).unwrap();
            let first = First::new(&begin);
            assert_eq!(first.headers(), begin.headers());
            let check = |frame: &[u8]| {
                let follows = Datagram::parse(frame, add).is_some_and(|next| {
                    are_of_one_flow(begin.headers(), next.headers())
                        && are_alike(begin.headers(), next.headers())
                        && next.payload().len() == begin.payload().len()
                        && first.is_next(next.headers(), 1)
                });
                assert_eq!(first.is_followed_by(frame, 1, add), follows, "{frame:?}");
                assert!(!First::NONE.is_followed_by(frame, 1, add));
                follows
            };
            for number in [0, 1, 77, 0xfffe, 0xffff] {
                let mut next = frame(is_ipv6, number, b"what follows");
                let is_next = is_ipv6 || number < 2;
                assert_eq!(check(&next), is_next);
                for byte in 0..next.len() {
                    for bit in 0..8 {
                        let mut wrong = next.clone();
                        wrong[byte] ^= 1 << bit;
                        check(&wrong);
                    }
                    check(&next[..byte]);
                }
                let udp = next.len() - 20;
                next.extend([0xff; 6]);
                assert_eq!(check(&next), is_next);
                next[udp + 6..udp + 8].fill(0);
                assert!(!check(&next));
            }
            assert!(!check(&frame(is_ipv6, 0, b"less")));
            assert!(!check(&frame(is_ipv6, 0, b"more than there was")));
            assert!(!check(&frame(!is_ipv6, 0, b"what follows")));
        }
    }

    #[test]
    fn ids_are_those_that_a_gro_packet_is_segmented_to() {
        let gro = |dont_fragment: bool, ids: &[u16]| {
            let with = |id: &u16| {
                let mut headers = template(false);
                headers[ID_V4..ID_V4 + 2].copy_from_slice(&id.to_be_bytes());
                headers[ID_V4 + 2] = if dont_fragment { 0x40 } else { 0 };
                headers
            };
            let begin = with(&ids[0]);
            let mut first = First::new(&Datagram {
                headers: &begin,
                payload: b"x",
            });
            ids[1..].iter().enumerate().all(|(before, id)| {
                let next = with(id);
                let fits = first.is_next(&next, before + 1);
                if before == 0 {
                    first.begin_numbers(&next);
                }
                fits
            })
        };
        for dont_fragment in [false, true] {
            assert!(gro(dont_fragment, &[7, 8, 9, 10]));
            assert!(gro(dont_fragment, &[0xfffe, 0xffff, 0, 1]));
            assert_eq!(gro(dont_fragment, &[7, 7, 7]), dont_fragment);
            assert_eq!(gro(dont_fragment, &[0, 0]), dont_fragment);
            for ids in [[7, 7, 8], [7, 8, 8], [7, 8, 10], [7, 9, 10], [7, 6, 5]] {
                assert!(!gro(dont_fragment, &ids), "{ids:?}");
            }
        }
    }

    #[test]
    fn gro_headers_are_as_the_kernel_makes_them() {
        for is_ipv6 in [false, true] {
            let first = frame(is_ipv6, 5, b"0123456789");
            let mut headers = Datagram::parse(&first, add).unwrap().headers().to_vec();
            make_gro(&mut headers, 25);
            let udp = udp_header(&headers);
            assert_eq!(number(&headers, udp + 4), 33);
            if is_ipv6 {
                assert_eq!(number(&headers, HEADER_ETHERNET + 4), 33);
            } else {
                assert_eq!(number(&headers, HEADER_ETHERNET + 2), 53);
                assert_eq!(fold(sum(&headers[HEADER_ETHERNET..UDP_V4])), 0);
            }
            // Summed up with ports, length and payload it comes to a right checksum.
            let payload = [7; 25];
            let partial = add(&payload, add(&headers[udp..], 0));
            headers[udp + 6..udp + 8].copy_from_slice(&fold(u64::from(partial)).to_ne_bytes());
            headers.extend(payload);
            assert!(Datagram::parse(&headers, add).is_some());
        }
    }
}
