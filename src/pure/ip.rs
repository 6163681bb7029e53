// SPDX-License-Identifier: GPL-2.0

//! Headers of IP and UDP: made for packets that never became any, and read.
//!
//! RFC 791, RFC 8200, RFC 768.

use super::peer::{mapped, unmapped, Peer};

/// UDP's number among the protocols of IP.
pub const UDP: u8 = 17;
/// TCP's number among the protocols of IP.
pub const TCP: u8 = 6;
const UDP_LEN: u16 = HEADER_UDP as u16;
/// Bytes of IPv4's header without options.
pub const HEADER_IP_V4: usize = 20;
/// Bytes of IPv6's header without extensions.
pub const HEADER_IP_V6: usize = 40;
/// Bytes of UDP's header.
pub const HEADER_UDP: usize = 8;
/// Bytes of both.
pub const HEADER_V4: usize = HEADER_IP_V4 + HEADER_UDP;
/// Bytes of IPv6's header and UDP's.
pub const HEADER_V6: usize = HEADER_IP_V6 + HEADER_UDP;
/// Bytes of the longest header: IPv6's and UDP's.
pub const HEADER_MAX: usize = HEADER_V6;

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Both ends of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FourTuple {
    /// The sender.
    pub source: Peer,
    /// The receiver.
    pub destination: Peer,
}

/// A header of up to [`HEADER_MAX`] bytes.
pub struct Header {
    bytes: [u8; HEADER_MAX],
    len: usize,
}

impl Header {
    fn new() -> Self {
        Self {
            bytes: [0; HEADER_MAX],
            len: 0,
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if let Some(to) = self.bytes.get_mut(self.len) {
                *to = byte;
                self.len = self.len.saturating_add(1);
            }
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// Whether it is one of IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.bytes.first().is_some_and(|byte| byte >> 4 == 6)
    }
}

/// The header of a datagram with `len` bytes of payload, without checksums; lengths that are too
/// great for it are 0.
pub fn header(ends: &FourTuple, len: u32) -> Header {
    let mut header = Header::new();
    let udp_len = len
        .checked_add(u32::from(UDP_LEN))
        .and_then(|len| u16::try_from(len).ok())
        .unwrap_or(0);
    match unmapped(&ends.destination.address) {
        Some(destination) => {
            let source = unmapped(&ends.source.address).unwrap_or([0; 4]);
            let total = udp_len.checked_add(20).unwrap_or(0);
            header.put(&[0x45, 0]);
            header.put(&total.to_be_bytes());
            header.put(&[0, 0, 0, 0, 64, UDP, 0, 0]);
            header.put(&source);
            header.put(&destination);
        }
        None => {
            header.put(&[0x60, 0, 0, 0]);
            header.put(&udp_len.to_be_bytes());
            header.put(&[UDP, 64]);
            header.put(&ends.source.address);
            header.put(&ends.destination.address);
        }
    }
    for port in [ends.source.port, ends.destination.port, udp_len, 0] {
        header.put(&port.to_be_bytes());
    }
    header
}

/// The headers of an IPv4 datagram for the stack to go on with, which fills in total length,
/// identification and IP's checksum; as they lie in memory. `udp_len` counts the header of UDP.
/// Addresses and ports, the source first, are big-endian. UDP's checksum is there if `payload` is
/// the payload's sum as of RFC 1071, else 0.
pub fn header_v4(
    tos: u8,
    ttl: u8,
    dont_fragment: bool,
    addresses: [u32; 2],
    ports: [u16; 2],
    udp_len: u16,
    payload: Option<u32>,
) -> [u32; HEADER_V4 / 4] {
    let [source, destination] = addresses;
    let [from, to] = ports.map(u16::to_ne_bytes);
    let [high, low] = udp_len.to_be_bytes();
    let flags = if dont_fragment { 0x40 } else { 0 };
    let ports = u32::from_ne_bytes([from[0], from[1], to[0], to[1]]);
    let [first, second] = match payload {
        // The pseudo-header has UDP's protocol number and length, too.
        Some(payload) => checksum([
            source,
            destination,
            u32::from_ne_bytes([0, UDP, high, low]),
            ports,
            u32::from_ne_bytes([high, low, 0, 0]),
            payload,
        ]),
        None => [0, 0],
    };
    [
        u32::from_ne_bytes([0x45, tos, 0, 0]),
        u32::from_ne_bytes([0, 0, flags, 0]),
        u32::from_ne_bytes([ttl, UDP, 0, 0]),
        source,
        destination,
        ports,
        u32::from_ne_bytes([high, low, first, second]),
    ]
}

/// What the flow label of an IPv6 header is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// The label, as it lies in memory.
    Fixed(u32),
    /// The flow hash.
    Hash(u32),
    /// The same, with the flag of labels that the sender keeps no state of.
    Stateless(u32),
}

impl Label {
    /// The bits of a header's first word that are the label, as they lie in memory.
    const MASK: u32 = 0x000f_ffffu32.to_be();
    /// The flag among them that Linux sets in labels that are made of a hash.
    const STATELESS: u32 = 0x0008_0000u32.to_be();

    /// The label, as it lies in memory: `ip6_make_flowlabel` of Linux.
    fn bits(self) -> u32 {
        match self {
            Self::Fixed(label) => label & Self::MASK,
            Self::Hash(hash) => hash.rotate_left(16) & Self::MASK,
            Self::Stateless(hash) => Self::Hash(hash).bits() | Self::STATELESS,
        }
    }
}

/// The headers of an IPv6 datagram, complete, as they lie in memory. `udp_len` counts the header of
/// UDP. Addresses and ports, the source first, are big-endian. `payload` is the payload's sum as of
/// RFC 1071; without it the checksum stays 0.
pub fn header_v6(
    traffic_class: u8,
    label: Label,
    hop_limit: u8,
    addresses: [&[u8; 16]; 2],
    ports: [u16; 2],
    udp_len: u16,
    payload: Option<u32>,
) -> [u32; HEADER_V6 / 4] {
    let [[a, b, c, d], [e, f, g, h]] = addresses.map(words_of);
    let [from, to] = ports.map(u16::to_ne_bytes);
    let [high, low] = udp_len.to_be_bytes();
    let ports = u32::from_ne_bytes([from[0], from[1], to[0], to[1]]);
    let length = u32::from_ne_bytes([high, low, 0, 0]);
    // The pseudo-header has UDP's length and protocol number, too.
    let protocol = u32::from_ne_bytes([0, UDP, 0, 0]);
    let [first, second] = match payload {
        Some(payload) => checksum([
            a, b, c, d, e, f, g, h, length, protocol, ports, length, payload,
        ]),
        None => [0, 0],
    };
    let class = u32::from(traffic_class) << 20;
    [
        (0x6000_0000 | class).to_be() | label.bits(),
        u32::from_ne_bytes([high, low, UDP, hop_limit]),
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        ports,
        u32::from_ne_bytes([high, low, first, second]),
    ]
}

/// The words of an address, as they lie in memory.
fn words_of(address: &[u8; 16]) -> [u32; 4] {
    let all = u128::from_le_bytes(*address);
    [0, 32, 64, 96].map(|shift| ((all >> shift) as u32).to_le())
}

/// UDP's checksum over words as they lie in memory: not 0, which says that there is none (RFC 768).
fn checksum<const N: usize>(words: [u32; N]) -> [u8; 2] {
    const { assert!(N <= 16) };
    let sum = words
        .iter()
        .fold(0u64, |sum, &word| sum.wrapping_add(word.into()));
    // Less than 2^33 by the first line, 2^17 by the next, 2^16 + 1, 2^16.
    let sum = (sum >> 32).wrapping_add(sum & 0xffff_ffff);
    let sum = (sum >> 16).wrapping_add(sum & 0xffff);
    let sum = (sum >> 16).wrapping_add(sum & 0xffff);
    let sum = (sum >> 16).wrapping_add(sum & 0xffff);
    match !(sum as u16) {
        0 => [0xff; 2],
        sum => sum.to_ne_bytes(),
    }
}

/// The ends that a datagram's first bytes name: `None` for what isn't UDP, for a fragment that
/// isn't the first, and behind extension headers of IPv6.
pub fn ends(bytes: &[u8]) -> Option<FourTuple> {
    ends_of(UDP, bytes)
}

/// The same for packets of a protocol whose header begins with two ports.
pub fn ends_of(protocol: u8, bytes: &[u8]) -> Option<FourTuple> {
    let first = *bytes.first()?;
    let (source, destination, at) = match first >> 4 {
        4 => {
            let header = bytes.first_chunk::<20>()?;
            let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
            if header[9] != protocol || fragment != 0 {
                return None;
            }
            let (_, addresses) = header.split_last_chunk::<8>()?;
            let [a, b, c, d, e, f, g, h] = *addresses;
            (
                mapped([a, b, c, d]),
                mapped([e, f, g, h]),
                usize::from(first & 15).checked_mul(4)?,
            )
        }
        6 => {
            let header = bytes.first_chunk::<HEADER_IP_V6>()?;
            if header[6] != protocol {
                return None;
            }
            let (_, addresses) = header.split_last_chunk::<32>()?;
            let (source, destination) = addresses.split_first_chunk::<16>()?;
            (*source, *destination.first_chunk::<16>()?, HEADER_IP_V6)
        }
        _ => return None,
    };
    let &[a, b, c, d] = bytes.get(at..)?.first_chunk::<4>()?;
    Some(FourTuple {
        source: Peer {
            address: source,
            port: u16::from_be_bytes([a, b]),
        },
        destination: Peer {
            address: destination,
            port: u16::from_be_bytes([c, d]),
        },
    })
}

/// Whether a packet of `len` bytes that begins with these is a UDP datagram of that length, without
/// extension headers of IPv6.
pub fn is_datagram(bytes: &[u8], len: u32) -> bool {
    let length_at = |at: usize| {
        let length = bytes.get(at..)?.first_chunk::<2>()?;
        Some(u32::from(u16::from_be_bytes(*length)))
    };
    let (protocol, length) = match bytes.first().map(|first| first >> 4) {
        Some(4) => (bytes.get(9), length_at(2)),
        Some(6) => {
            let header = HEADER_IP_V6 as u32;
            let length = length_at(4).and_then(|length| length.checked_add(header));
            (bytes.get(6), length)
        }
        _ => return false,
    };
    protocol == Some(&UDP) && length == Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_ends() -> impl Strategy<Value = FourTuple> {
        let address = prop_oneof![
            any::<[u8; 4]>().prop_map(mapped),
            any::<[u8; 16]>().prop_filter("not IPv4's", |address| unmapped(address).is_none()),
        ];
        (address, any::<[u8; 16]>(), any::<(u16, u16)>()).prop_map(|(to, from, ports)| FourTuple {
            source: Peer {
                address: match unmapped(&to) {
                    Some(_) => mapped([from[0], from[1], from[2], from[3]]),
                    None => from,
                },
                port: ports.0,
            },
            destination: Peer {
                address: to,
                port: ports.1,
            },
        })
    }

    #[test]
    fn lengths() {
        let peer = |address| Peer { address, port: 1 };
        let v4 = FourTuple {
            source: peer(mapped([192, 0, 2, 1])),
            destination: peer(mapped([192, 0, 2, 2])),
        };
        let made = header(&v4, 100);
        assert_eq!(made.bytes().len(), 28);
        assert_eq!(&made.bytes()[..4], [0x45, 0, 0, 128]);
        assert_eq!(&made.bytes()[20..], [0, 1, 0, 1, 0, 108, 0, 0]);
        assert!(!made.is_ipv6());
        let v6 = FourTuple {
            destination: peer([1; 16]),
            ..v4
        };
        let made = header(&v6, 100);
        assert_eq!(made.bytes().len(), HEADER_MAX);
        assert_eq!(&made.bytes()[..8], [0x60, 0, 0, 0, 0, 108, UDP, 64]);
        assert!(made.is_ipv6());
        assert_eq!(&header(&v4, u32::MAX).bytes()[2..4], [0, 20]);
    }

    #[test]
    fn header_for_the_stack() {
        let addresses = [[192, 0, 2, 1], [198, 51, 100, 2]].map(u32::from_ne_bytes);
        let ports = [7001u16, 53].map(u16::to_be);
        let bytes = |words: [u32; HEADER_V4 / 4]| words.map(u32::to_ne_bytes).concat();
        let made = bytes(header_v4(0xb8, 3, true, addresses, ports, 108, None));
        assert_eq!(&made[..4], [0x45, 0xb8, 0, 0]);
        assert_eq!(&made[4..12], [0, 0, 0x40, 0, 3, UDP, 0, 0]);
        assert_eq!(&made[24..], [0, 108, 0, 0]);
        let end = |address, port| Peer {
            address: mapped(address),
            port,
        };
        let ends_of = FourTuple {
            source: end([192, 0, 2, 1], 7001),
            destination: end([198, 51, 100, 2], 53),
        };
        assert_eq!(ends(&made), Some(ends_of));
        let without = bytes(header_v4(0, 64, false, addresses, ports, 8, None));
        assert_eq!(without[6], 0);
    }

    #[test]
    fn what_names_no_ends() {
        let peer = Peer {
            address: mapped([127, 0, 0, 1]),
            port: 5,
        };
        let ends_of = FourTuple {
            source: peer,
            destination: peer,
        };
        let mut bytes = header(&ends_of, 0).bytes().to_vec();
        bytes[6] = 0x20;
        assert_eq!(ends(&bytes), Some(ends_of));
        bytes[7] = 1;
        assert_eq!(ends(&bytes), None);
        bytes[7] = 0;
        bytes[9] = 6;
        assert_eq!(ends(&bytes), None);
        assert_eq!(ends(&[]), None);
    }

    /// The sum of RFC 1071 over an even number of bytes.
    fn sum_of(bytes: &[u8]) -> u32 {
        bytes.chunks(2).fold(0, |sum, pair| {
            let sum = sum + u32::from(u16::from_be_bytes([pair[0], pair[1]]));
            (sum >> 16) + (sum & 0xffff)
        })
    }

    proptest! {
        /// With the checksum, the sum of all that it covers has all bits set, and it isn't 0.
        #[test]
        fn checksums_are_right(addresses: [u32; 2], ports: [u16; 2], udp_len: u16, payload: u32) {
            let made = header_v4(0, 64, true, addresses, ports, udp_len, Some(payload));
            let bytes = made.map(u32::to_ne_bytes).concat();
            prop_assert_ne!(&bytes[26..], [0, 0]);
            let [a, b] = udp_len.to_be_bytes();
            let covered = [&bytes[12..], &[0, UDP, a, b], &payload.to_ne_bytes()].concat();
            prop_assert_eq!(sum_of(&covered), 0xffff);
        }

        /// The same of IPv6, and the other fields are where they belong.
        #[test]
        fn headers_of_ipv6_are_right(
            class: u8, hash: u32, hop_limit: u8, source: [u8; 16], destination: [u8; 16],
            ports: [u16; 2], udp_len: u16, payload: u32
        ) {
            let of = |label, sum| {
                let addresses = [&source, &destination];
                let made = header_v6(class, label, hop_limit, addresses, ports, udp_len, sum);
                made.map(u32::to_ne_bytes).concat()
            };
            let with = |label| of(label, Some(payload));
            let bytes = with(Label::Hash(hash));
            // The checksum is left to the device.
            let open = of(Label::Hash(hash), None);
            prop_assert_eq!((&open[..46], &open[46..]), (&bytes[..46], &[0, 0][..]));
            prop_assert_ne!(&bytes[46..], [0, 0]);
            let [a, b] = udp_len.to_be_bytes();
            let covered = [&bytes[8..], &[0, UDP, a, b], &payload.to_ne_bytes()].concat();
            prop_assert_eq!(sum_of(&covered), 0xffff);
            let first = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            prop_assert_eq!(first >> 20, 0x600 | u32::from(class));
            prop_assert_eq!(first & 0xf_ffff, u32::from_be(hash.rotate_left(16)) & 0xf_ffff);
            prop_assert_eq!(&bytes[4..8], [a, b, UDP, hop_limit]);
            prop_assert_eq!(&bytes[8..24], source);
            prop_assert_eq!(&bytes[24..40], destination);
            let stateless = with(Label::Stateless(hash));
            prop_assert_eq!(stateless[1], bytes[1] | 8);
            prop_assert_eq!(&stateless[2..], &bytes[2..]);
            let label = with(Label::Fixed(u32::from_ne_bytes([0xff, 0xf1, 2, 3])));
            prop_assert_eq!(&label[1..4], [(class << 4) | 1, 2, 3]);
        }

        #[test]
        fn what_is_made_can_be_read(at in any_ends(), len: u32) {
            prop_assert_eq!(ends(header(&at, len).bytes()), Some(at));
        }

        #[test]
        fn what_is_made_is_a_datagram(at in any_ends(), len in 0u32..65_500, more in 1u32..100) {
            let mut bytes = header(&at, len).bytes().to_vec();
            let whole = bytes.len() as u32 + len;
            prop_assert!(is_datagram(&bytes, whole));
            prop_assert!(!is_datagram(&bytes, whole + more));
            let protocol = if bytes[0] >> 4 == 4 { 9 } else { 6 };
            bytes[protocol] = 50;
            prop_assert!(!is_datagram(&bytes, whole));
        }

        #[test]
        fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = ends(&bytes);
            let _ = is_datagram(&bytes, 20);
        }
    }
}
