// SPDX-License-Identifier: GPL-2.0

//! Frames of all kinds that a host can put on a wire, most of them nearly right.
//!
//! A frame follows from its random numbers, so that the same one can be made for two sockets: only the port
//! differs, with the checksum, and the number by which fragments find each other.

use super::{
    layers::{self, udp_sum},
    FROM,
};
use crate::{pick, raw};
use rand::{rngs::SmallRng, Rng};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Range,
};

/// Whose datagrams they are to be.
pub(crate) struct Target {
    /// Of the NIC.
    pub(crate) mac: [u8; 6],
    /// Its addresses, of each version of IP.
    pub(crate) near: (Ipv4Addr, Ipv6Addr),
    pub(crate) port: u16,
    /// Of the next packet in fragments.
    pub(crate) identification: u32,
}

/// What is unusual in a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Odd {
    Mac,
    Tag,
    Cut,
    Padding,
    Version,
    HeaderLength,
    Options,
    TotalLength,
    FragmentBits,
    Ttl,
    Protocol,
    Source,
    Destination,
    HeaderSum,
    Port,
    UdpLength,
    NoSum,
    WrongSum,
    Damage,
}

const ODD: [Odd; 19] = [
    Odd::Mac,
    Odd::Tag,
    Odd::Cut,
    Odd::Padding,
    Odd::Version,
    Odd::HeaderLength,
    Odd::Options,
    Odd::TotalLength,
    Odd::FragmentBits,
    Odd::Ttl,
    Odd::Protocol,
    Odd::Source,
    Odd::Destination,
    Odd::HeaderSum,
    Odd::Port,
    Odd::UdpLength,
    Odd::NoSum,
    Odd::WrongSum,
    Odd::Damage,
];

const SIZES: [usize; 12] = [0, 1, 8, 9, 63, 64, 64, 64, 100, 512, 1200, 1452];
/// Hosts of the NIC's network.
const OTHERS: Range<u8> = 100..116;

/// A packet's two addresses.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
}

/// A host of the NIC's network.
pub(crate) fn other(near: IpAddr, number: u8) -> IpAddr {
    match near {
        IpAddr::V4(near) => {
            let [a, b, c, _] = near.octets();
            Ipv4Addr::new(a, b, c, number).into()
        }
        IpAddr::V6(near) => {
            let mut segments = near.segments();
            segments[7] = number.into();
            Ipv6Addr::from(segments).into()
        }
    }
}

/// A frame, or those of a packet in fragments.
pub(crate) struct Frames {
    pub(crate) frames: Vec<Vec<u8>>,
    /// Something is unusual with them.
    pub(crate) odd: bool,
}

/// Numbers that follow each other are often datagrams of one sender, of one size.
const RUN: u64 = 8;

impl Frames {
    /// Those of that number; `random` gives the random numbers of one, or of a run.
    pub(crate) fn new(random: impl Fn(u64) -> SmallRng, target: &Target, number: u64) -> Self {
        let own = &mut random(1 + 2 * number);
        let mut run = random(2 * (number / RUN));
        let is_run = run.random();
        let way = Way::new(if is_run { &mut run } else { own }, target);
        let frames = match own.random_range(0..24) {
            0 => layers::fragments(own, target, way, number),
            1 => vec![layers::icmp_error(own, target, way)],
            _ => {
                let odd: Vec<Odd> = match own.random_range(0..4) {
                    0 => vec![pick(own, &ODD)],
                    1 if own.random_ratio(1, 3) => vec![pick(own, &ODD), pick(own, &ODD)],
                    _ => Vec::new(),
                };
                let alike = is_run && odd.is_empty();
                let random = if alike { &mut run } else { own };
                return Self {
                    frames: vec![frame(random, target, way, number, &odd)],
                    odd: !odd.is_empty(),
                };
            }
        };
        Self { frames, odd: true }
    }
}

impl Way {
    /// From a host of the NIC's network to the NIC.
    fn new(random: &mut SmallRng, target: &Target) -> Self {
        let to: IpAddr = if random.random() {
            target.near.0.into()
        } else {
            target.near.1.into()
        };
        Self {
            from: other(to, random.random_range(OTHERS)),
            to,
        }
    }
}

/// A frame with a datagram that is odd in these ways.
fn frame(
    random: &mut SmallRng,
    target: &Target,
    mut way: Way,
    number: u64,
    odd: &[Odd],
) -> Vec<u8> {
    if odd.contains(&Odd::Source) {
        way.from = odd_source(random, way.to);
    }
    if odd.contains(&Odd::Destination) {
        way.to = odd_destination(random, way.to);
    }
    let size = pick(random, &SIZES);
    let udp = datagram(random, target, way, number, odd, size);
    let mut packet = layers::packet(random, target.identification, way, &udp, odd);
    if odd.contains(&Odd::Damage) && !odd.contains(&Odd::FragmentBits) {
        damage(random, &mut packet.bytes, packet.payload);
    }
    layers::ethernet(random, target.mac, way.to, packet.bytes, odd)
}

/// The right frame after which nothing comes.
pub(crate) fn last(target: &Target, to: IpAddr, data: &[u8]) -> Vec<u8> {
    let way = Way {
        from: other(to, OTHERS.start),
        to,
    };
    let mut udp = header(FROM.start, target.port, 8 + data.len() as u16);
    udp.extend(data);
    let sum = udp_sum(way, &udp);
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    let random = &mut rand::SeedableRng::seed_from_u64(0);
    let packet = layers::packet(random, 0, way, &udp, &[]).bytes;
    layers::ethernet(random, target.mac, to, packet, &[])
}

/// UDP's header, without a checksum.
pub(crate) fn header(from: u16, to: u16, length: u16) -> Vec<u8> {
    [from, to, length, 0]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect()
}

/// A UDP datagram with its header, which begins with its number.
pub(crate) fn datagram(
    random: &mut SmallRng,
    target: &Target,
    way: Way,
    number: u64,
    odd: &[Odd],
    size: usize,
) -> Vec<u8> {
    let length = 8 + size as u16;
    let said = if odd.contains(&Odd::UdpLength) {
        pick(
            random,
            &[
                0,
                7,
                8,
                length - 1,
                length + 1,
                length / 2,
                length + 8,
                65535,
            ],
        )
    } else {
        length
    };
    let port = if odd.contains(&Odd::Port) {
        pick(random, &[0, 1, 9, 65535])
    } else {
        target.port
    };
    let mut udp = header(random.random_range(FROM), port, said);
    let mut data = number.to_be_bytes().to_vec();
    data.resize(size.max(8), random.random());
    udp.extend(&data[..size]);
    // Of what the length says, where there is as much: such a datagram is a right one.
    let summed = usize::from(said).clamp(8, udp.len());
    let mut sum = udp_sum(way, &udp[..summed]);
    if odd.contains(&Odd::NoSum) {
        sum = 0;
    } else if odd.contains(&Odd::WrongSum) {
        sum = raw::wrong(sum, random);
    }
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    udp
}

/// Turns a few bits. Not those of the ports, which say whose it is; nor those that make it a fragment, which
/// would find those of the other socket; nor UDP's length, since generic receive offload takes a checksum that is
/// right for IP's; nor UDP's checksum, which differs, so that it may become none.
fn damage(random: &mut SmallRng, packet: &mut [u8], payload: usize) {
    let kept = if packet[0] >> 4 == 4 { 4..8 } else { 6..7 };
    for _ in 0..random.random_range(1..4) {
        // More of the headers than of the data.
        let end = pick(random, &[payload, payload + 8, packet.len()]).min(packet.len());
        let at = random.random_range(0..end);
        let bit = 1 << random.random_range(0..8);
        let ends = [payload..payload + 8, kept.clone()];
        if !ends.iter().any(|range| range.contains(&at)) {
            packet[at] ^= bit;
        }
    }
}

fn odd_source(random: &mut SmallRng, near: IpAddr) -> IpAddr {
    let from = match near {
        IpAddr::V4(_) => [
            "127.0.0.1",
            "224.0.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "192.0.2.255",
            "203.0.113.5",
            "10.0.0.1",
        ],
        IpAddr::V6(_) => [
            "::1",
            "ff02::1",
            "::",
            "::ffff:192.0.2.100",
            "fe80::9",
            "2001:db8:ffff::1",
            "::192.0.2.100",
        ],
    };
    if random.random_ratio(1, 8) {
        return near;
    }
    pick(random, &from).parse().unwrap_or(near)
}

fn odd_destination(random: &mut SmallRng, near: IpAddr) -> IpAddr {
    let to = match near {
        IpAddr::V4(_) => [
            "192.0.2.255",
            "255.255.255.255",
            "224.0.0.1",
            "224.0.0.251",
            "192.0.2.77",
            "127.0.0.1",
            "0.0.0.0",
        ],
        IpAddr::V6(_) => [
            "ff02::1",
            "ff02::fb",
            "ff01::1",
            "2001:db8::77",
            "::1",
            "::",
            "::ffff:192.0.2.1",
        ],
    };
    pick(random, &to).parse().unwrap_or(near)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn target(port: u16, identification: u32) -> Target {
        Target {
            mac: [2, 0, 0, 0, 0, 1],
            near: (Ipv4Addr::new(192, 0, 2, 1), "2001:db8::1".parse().unwrap()),
            port,
            identification,
        }
    }

    #[test]
    fn those_of_both_sockets_differ_in_ports_checksums_and_identifications() {
        let mut odd = 0;
        for number in 0..5000 {
            let [one, other] = [target(9300, 5), target(9302, 6)]
                .map(|to| Frames::new(SmallRng::seed_from_u64, &to, number));
            assert_eq!(one.odd, other.odd);
            odd += usize::from(one.odd);
            assert_eq!(one.frames.len(), other.frames.len());
            for (one, other) in one.frames.iter().zip(&other.frames) {
                assert_eq!(one.len(), other.len());
                let differ = one.iter().zip(other).filter(|(one, other)| one != other);
                assert!(differ.count() <= 8, "{one:x?}\n{other:x?}");
            }
        }
        assert!((1000..4000).contains(&odd), "{odd}");
    }

    #[test]
    fn the_last_frame_is_a_right_datagram() {
        let frame = last(&target(9300, 0), "192.0.2.1".parse().unwrap(), b"end");
        assert_eq!(frame.len(), 14 + 20 + 8 + 3);
        assert_eq!(crate::raw::folded(&frame[14..34]), 0);
        assert_eq!(&frame[36..38], 9300u16.to_be_bytes());
        assert_eq!(&frame[42..], b"end");
    }
}
