// SPDX-License-Identifier: GPL-2.0

//! The layers of a frame: IP of both versions, fragments, ICMP errors, Ethernet.

use super::frame::{datagram, header, Odd, Target, Way};
use crate::{
    pick,
    raw::{self, octets},
};
use rand::{rngs::SmallRng, seq::SliceRandom, Rng};
use std::net::IpAddr;

const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Types and codes of errors, some of which there are not.
const ICMP_ERRORS: [(u8, u8); 13] = [
    (3, 0),
    (3, 1),
    (3, 2),
    (3, 3),
    (3, 4),
    (3, 5),
    (3, 9),
    (3, 13),
    (3, 200),
    (4, 0),
    (11, 0),
    (11, 1),
    (12, 0),
];
const ICMPV6_ERRORS: [(u8, u8); 11] = [
    (1, 0),
    (1, 1),
    (1, 3),
    (1, 4),
    (1, 200),
    (2, 0),
    (3, 0),
    (3, 1),
    (4, 0),
    (4, 1),
    (100, 0),
];
/// IPv6's extension header.
const FRAGMENT: u8 = 44;
const MORE_FRAGMENTS: u16 = 0x2000;
const DONT_FRAGMENT: u16 = 0x4000;

/// Whether a frame has a VLAN's tag.
pub(crate) fn is_tagged(frame: &[u8]) -> bool {
    matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8])
}

/// A packet of IP.
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    /// Where the payload begins.
    pub(crate) payload: usize,
}

/// UDP's checksum, which is left out of the sum.
pub(crate) fn udp_sum(way: Way, udp: &[u8]) -> u16 {
    let mut unsummed = udp.to_vec();
    unsummed[6..8].fill(0);
    raw::checksum(way.from, way.to, UDP, &unsummed)
}

/// A packet with this datagram.
pub(crate) fn packet(
    random: &mut SmallRng,
    identification: u32,
    way: Way,
    udp: &[u8],
    odd: &[Odd],
) -> Packet {
    let protocol = if odd.contains(&Odd::Protocol) {
        pick(random, &[0, 1, 2, 4, 6, 41, 47, 50, 58, 59, 89, 136, 255])
    } else {
        UDP
    };
    let has = |what| odd.contains(&what);
    if way.from.is_ipv4() {
        let options = if has(Odd::Options) {
            options(random)
        } else {
            Vec::new()
        };
        let fragment = if has(Odd::FragmentBits) {
            pick(random, &[0, 0x8000, MORE_FRAGMENTS, 1, 0x1fff, 0xffff])
        } else {
            pick(random, &[0, DONT_FRAGMENT])
        };
        // Else it is the same for both, and so is the checksum.
        let identification = if has(Odd::FragmentBits) {
            identification as u16
        } else {
            0
        };
        return ipv4(
            random,
            way,
            protocol,
            &options,
            fragment,
            identification,
            udp,
            odd,
        );
    }
    let extensions = if has(Odd::Options) || has(Odd::FragmentBits) {
        extensions(random, identification)
    } else {
        Vec::new()
    };
    ipv6(random, way, protocol, &extensions, udp, odd)
}

/// A length that may be wrong.
fn length(random: &mut SmallRng, right: u16, odd: &[Odd]) -> u16 {
    if odd.contains(&Odd::TotalLength) {
        let wrong = [
            0,
            20,
            27,
            28,
            right.saturating_sub(1),
            right.saturating_sub(8),
            right + 1,
            right + 64,
            65535,
        ];
        pick(random, &wrong)
    } else {
        right
    }
}

#[allow(clippy::too_many_arguments, reason = "the fields of the header")]
fn ipv4(
    random: &mut SmallRng,
    way: Way,
    protocol: u8,
    options: &[u8],
    fragment: u16,
    identification: u16,
    payload: &[u8],
    odd: &[Odd],
) -> Packet {
    let words = 5 + options.len() as u8 / 4;
    let (mut version, mut said) = (4, words);
    if odd.contains(&Odd::Version) {
        version = random.random_range(0..16);
    }
    if odd.contains(&Odd::HeaderLength) {
        said = random.random_range(0..16);
    }
    let size = usize::from(words) * 4;
    let total = length(random, (size + payload.len()) as u16, odd);
    let ttl = if odd.contains(&Odd::Ttl) {
        pick(random, &[0, 1, 255])
    } else {
        64
    };
    let mut bytes = vec![(version << 4) | said, pick(random, &[0, 0, 1, 2, 3, 0xb8])];
    bytes.extend(total.to_be_bytes());
    bytes.extend(identification.to_be_bytes());
    bytes.extend(fragment.to_be_bytes());
    bytes.extend([ttl, protocol, 0, 0]);
    bytes.extend(octets(way.from));
    bytes.extend(octets(way.to));
    bytes.extend(options);
    let mut sum = raw::folded(&bytes);
    if odd.contains(&Odd::HeaderSum) {
        sum = raw::wrong(sum, random);
    }
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(payload);
    Packet {
        bytes,
        payload: size,
    }
}

/// Options of IPv4, right and wrong, in whole words.
fn options(random: &mut SmallRng) -> Vec<u8> {
    let known: [&[u8]; 12] = [
        &[1, 1, 1, 1],
        &[0],
        // Record route, with room and without; time stamp; router alert; both kinds of source route.
        &[7, 7, 4, 0, 0, 0, 0],
        &[7, 7, 8, 1, 2, 3, 4],
        &[68, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[148, 4, 0, 0],
        &[131, 7, 4, 192, 0, 2, 1],
        &[137, 7, 8, 192, 0, 2, 1],
        // CIPSO, an unknown one, and lengths that are none.
        &[134, 6, 0, 0, 0, 1],
        &[222, 4, 9, 9],
        &[7, 0],
        &[68, 255, 5],
    ];
    let mut options = Vec::new();
    for _ in 0..random.random_range(1..3) {
        options.extend(pick(random, &known));
    }
    options.resize(options.len().next_multiple_of(4), 0);
    options
}

fn ipv6(
    random: &mut SmallRng,
    way: Way,
    protocol: u8,
    extensions: &[(u8, Vec<u8>)],
    payload: &[u8],
    odd: &[Odd],
) -> Packet {
    let kinds: Vec<u8> = extensions
        .iter()
        .map(|(kind, _)| *kind)
        .chain([protocol])
        .collect();
    let mut chain = Vec::new();
    for ((_, bytes), next) in extensions.iter().zip(&kinds[1..]) {
        chain.push(*next);
        chain.extend(&bytes[1..]);
    }
    let version: u32 = if odd.contains(&Odd::Version) {
        random.random_range(0..16)
    } else {
        6
    };
    let class: u32 = pick(random, &[0, 0, 1, 2, 3, 0xb8]);
    let label: u32 = random.random_range(0..1 << 20);
    let said = length(random, (chain.len() + payload.len()) as u16, odd);
    let hops = if odd.contains(&Odd::Ttl) {
        pick(random, &[0, 1, 255])
    } else {
        64
    };
    let mut bytes = ((version << 28) | (class << 20) | label)
        .to_be_bytes()
        .to_vec();
    bytes.extend(said.to_be_bytes());
    bytes.extend([kinds[0], hops]);
    bytes.extend(octets(way.from));
    bytes.extend(octets(way.to));
    bytes.extend(&chain);
    let at = bytes.len();
    bytes.extend(payload);
    Packet { bytes, payload: at }
}

/// Extension headers: their kind, and their bytes, of which the first is set later.
fn extensions(random: &mut SmallRng, identification: u32) -> Vec<(u8, Vec<u8>)> {
    let known: [(u8, &[u8]); 14] = [
        // Hop by hop: padding, router alert, a jumbogram's length, an unknown option, a length that is none.
        (0, &[0, 0, 1, 4, 0, 0, 0, 0]),
        (0, &[0, 0, 5, 2, 0, 0, 1, 0]),
        (0, &[0, 0, 194, 4, 0, 1, 0, 0]),
        (0, &[0, 0, 62, 4, 0, 0, 0, 0]),
        (0, &[0, 255, 1, 4, 0, 0, 0, 0]),
        // Options for the destination.
        (60, &[0, 0, 1, 4, 0, 0, 0, 0]),
        (60, &[0, 0, 254, 4, 0, 0, 0, 0]),
        // Routing: type 0, type 2, segments, with and without some left.
        (43, &[0, 0, 0, 0, 0, 0, 0, 0]),
        (43, &[0, 0, 2, 1, 0, 0, 0, 0]),
        (43, &[0, 0, 4, 0, 0, 0, 0, 0]),
        // A packet that is its only fragment, and one that isn't.
        (FRAGMENT, &[0, 0, 0, 0, 0, 0, 0, 0]),
        (FRAGMENT, &[0, 0, 0, 1, 0, 0, 0, 0]),
        // Authentication, and nothing more.
        (51, &[0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]),
        (59, &[0, 0, 0, 0, 0, 0, 0, 0]),
    ];
    (0..random.random_range(1..4))
        .map(|_| pick(random, &known))
        .map(|(kind, bytes)| {
            let mut bytes = bytes.to_vec();
            if kind == FRAGMENT {
                bytes[4..].copy_from_slice(&identification.to_be_bytes());
            }
            (kind, bytes)
        })
        .collect()
}

/// A datagram in fragments: in any order, overlapping, twice, or with one that is missing.
pub(crate) fn fragments(
    random: &mut SmallRng,
    target: &Target,
    way: Way,
    number: u64,
) -> Vec<Vec<u8>> {
    let size = random.random_range(16..4000);
    let udp = datagram(random, target, way, number, &[], size);
    // Not more of them than a NIC's ring holds, nor larger than its frames.
    let piece = random.random_range(udp.len() / 128 + 1..180) * 8;
    let mut pieces: Vec<(usize, usize)> = (0..udp.len())
        .step_by(piece)
        .map(|at| (at, (at + piece).min(udp.len())))
        .collect();
    let one = random.random_range(0..pieces.len());
    match random.random_range(0..8) {
        0 => pieces.push(pieces[one]),
        1 => drop(pieces.remove(one)),
        // Overlaps the one before, or ends where it should not.
        2 => pieces[one].0 = pieces[one].0.saturating_sub(8),
        3 => pieces[one].1 = pieces[one].1.saturating_sub(3).max(pieces[one].0 + 1),
        4 => pieces.shuffle(random),
        5 => pieces.reverse(),
        _ => {}
    }
    let twist = random.random_ratio(1, 12);
    let mut frames = Vec::new();
    for (at, end) in pieces {
        let more = (end < udp.len()) ^ (twist && at == 0);
        let bits = (at / 8) as u16 | if more { MORE_FRAGMENTS } else { 0 };
        let part = &udp[at..end];
        let packet = if way.from.is_ipv4() {
            let identification = target.identification as u16;
            ipv4(random, way, UDP, &[], bits, identification, part, &[])
        } else {
            let mut extension = vec![0, 0];
            extension.extend(((at as u16) & !7 | u16::from(more)).to_be_bytes());
            extension.extend(target.identification.to_be_bytes());
            ipv6(random, way, UDP, &[(FRAGMENT, extension)], part, &[])
        };
        frames.push(ethernet(random, target.mac, way.to, packet.bytes, &[]));
    }
    frames
}

/// An ICMP error that quotes a packet of the target's, or nearly one.
pub(crate) fn icmp_error(random: &mut SmallRng, target: &Target, way: Way) -> Vec<u8> {
    let back = Way {
        from: way.to,
        to: way.from,
    };
    let size = random.random_range(0..64);
    let mut udp = header(target.port, super::FROM.start, 8 + size);
    udp.resize(8 + usize::from(size), random.random());
    let sum = udp_sum(back, &udp);
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    let odd = [
        Odd::Version,
        Odd::HeaderLength,
        Odd::TotalLength,
        Odd::Protocol,
        Odd::Options,
    ];
    let odd = if random.random_ratio(1, 3) {
        vec![pick(random, &odd)]
    } else {
        Vec::new()
    };
    let mut quoted = packet(random, target.identification, back, &udp, &odd).bytes;
    if random.random_ratio(1, 4) {
        quoted.truncate(random.random_range(0..quoted.len()));
    }
    let kinds = if way.from.is_ipv4() {
        &ICMP_ERRORS[..]
    } else {
        &ICMPV6_ERRORS[..]
    };
    let (kind, code) = pick(random, kinds);
    let word: u32 = pick(random, &[0, 68, 1280, 1400, 9000, u32::MAX, 20 << 24]);
    let mut message = vec![kind, code, 0, 0];
    message.extend(word.to_be_bytes());
    message.extend(quoted);
    let (protocol, mut sum) = if way.from.is_ipv4() {
        (ICMP, raw::folded(&message))
    } else {
        (ICMPV6, raw::checksum(way.from, way.to, ICMPV6, &message))
    };
    if random.random_ratio(1, 16) {
        sum ^= 0x55;
    }
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let packet = if way.from.is_ipv4() {
        ipv4(random, way, protocol, &[], 0, 0, &message, &[])
    } else {
        ipv6(random, way, protocol, &[], &message, &[])
    };
    ethernet(random, target.mac, way.to, packet.bytes, &[])
}

/// The packet in a frame.
pub(crate) fn ethernet(
    random: &mut SmallRng,
    mac: [u8; 6],
    to: IpAddr,
    packet: Vec<u8>,
    odd: &[Odd],
) -> Vec<u8> {
    const OTHERS: [[u8; 6]; 4] = [
        [0xff; 6],
        [1, 0, 0x5e, 0, 0, 1],
        [0x33, 0x33, 0, 0, 0, 1],
        [2, 0, 0, 0, 0, 0x77],
    ];
    let mac = if odd.contains(&Odd::Mac) {
        pick(random, &OTHERS)
    } else {
        mac
    };
    let mut frame = mac.to_vec();
    frame.extend([2, 0, 0, 0, 0, 9]);
    if odd.contains(&Odd::Tag) {
        let tags: [&[u8]; 5] = [
            &[0x81, 0, 0, 0],
            &[0x81, 0, 0xe0, 0],
            &[0x81, 0, 0, 5],
            &[0x88, 0xa8, 0, 0],
            &[0x81, 0, 0, 0, 0x81, 0, 0, 0],
        ];
        frame.extend(pick(random, &tags));
    }
    frame.extend(if to.is_ipv4() { [8, 0] } else { [0x86, 0xdd] });
    let begin = frame.len();
    frame.extend(packet);
    if odd.contains(&Odd::Cut) {
        frame.truncate(random.random_range(begin..=frame.len()));
    }
    if odd.contains(&Odd::Padding) {
        frame.resize(frame.len() + pick(random, &[1, 2, 18, 46]), random.random());
    }
    frame
}
