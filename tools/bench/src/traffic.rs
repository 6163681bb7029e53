// SPDX-License-Identifier: GPL-2.0

//! What is sent, and its destinations: the same for all modes.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Bytes before the payload: Ethernet, IPv4, UDP.
pub(crate) const HEADERS: usize = 14 + 20 + 8;
/// The most payload that travels in one packet, and what each fragment has of more.
pub(crate) const UNFRAGMENTED_MAX: usize = 1472;
const FRAGMENT: usize = 1480;
/// Where the packets come from, by their port.
pub(crate) const FROM_PORT: u16 = 7000;
/// Where they go to.
pub(crate) const TO_PORT: u16 = 7001;

/// A destination of packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) address: Ipv4Addr,
    pub(crate) mac: [u8; 6],
}

impl Peer {
    pub(crate) fn socket(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.address, TO_PORT)
    }
}

/// The same random numbers in each run: Marsaglia's xorshift.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Self {
        Self(1)
    }

    /// The next number below `count`.
    #[inline]
    pub(crate) fn below(&mut self, count: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % u64::from(count)) as u32
    }
}

/// A stream of packets, each with another payload.
pub(crate) struct Traffic {
    pub(crate) local: Ipv4Addr,
    pub(crate) mac: [u8; 6],
    pub(crate) peers: Vec<Peer>,
    /// Where packets come from, chosen at random, instead of the local address.
    sources: Vec<Ipv4Addr>,
    /// The port that they go to.
    port: u16,
    template: Vec<u8>,
    /// The number of the next packet, which its payload begins with; `None` if all are the same.
    number: Option<u64>,
    random: Random,
}

impl Traffic {
    /// Packets of `payload` bytes to these peers, chosen at random if they are several.
    pub(crate) fn new(local: Ipv4Addr, mac: [u8; 6], peers: Vec<Peer>, payload: usize) -> Self {
        assert!(payload >= 8 && !peers.is_empty());
        Self {
            local,
            mac,
            peers,
            sources: Vec::new(),
            port: TO_PORT,
            template: (0..payload).map(|at| at as u8).collect(),
            number: Some(0),
            random: Random::new(),
        }
    }

    /// The same from many senders.
    pub(crate) fn with_sources(self, sources: Vec<Ipv4Addr>) -> Self {
        Self { sources, ..self }
    }

    /// All of this payload, and to this port.
    pub(crate) fn with_payload(self, payload: Vec<u8>, port: u16) -> Self {
        Self {
            port,
            template: payload,
            number: None,
            ..self
        }
    }

    /// The address that the next packet comes from.
    #[inline]
    fn next_source(&mut self) -> Ipv4Addr {
        match self.sources.len() {
            0 => self.local,
            count => self.sources[self.random.below(count as u32) as usize],
        }
    }

    /// Bytes of payload of each.
    pub(crate) fn payload(&self) -> usize {
        self.template.len()
    }

    /// Whether all go to one.
    pub(crate) fn to_one(&self) -> bool {
        self.peers.len() == 1
    }

    /// Writes the next payload.
    #[inline]
    pub(crate) fn fill(&mut self, to: &mut [u8]) {
        to.copy_from_slice(&self.template);
        if let Some(number) = &mut self.number {
            to[..8].copy_from_slice(&number.to_be_bytes());
            *number += 1;
        }
    }

    /// Writes the payloads of a GSO packet. Not inlined, so that it costs all who send GSO packets the same.
    #[inline(never)]
    pub(crate) fn fill_gso(&mut self, gso: &mut [u8]) {
        for buffer in gso.chunks_exact_mut(self.payload()) {
            self.fill(buffer);
        }
    }

    /// The destination of the next packet.
    #[inline]
    pub(crate) fn next_peer(&mut self) -> usize {
        match self.peers.len() {
            1 => 0,
            count => self.random.below(count as u32) as usize,
        }
    }

    /// Writes the next packet as it is on the wire, with both checksums.
    pub(crate) fn frame(&mut self, to: &mut [u8]) {
        let number = self.next_peer();
        let peer = self.peers[number];
        let source = self.next_source();
        let (headers, payload) = to.split_at_mut(HEADERS);
        self.fill(payload);
        headers[..6].copy_from_slice(&peer.mac);
        headers[6..12].copy_from_slice(&self.mac);
        headers[12..14].copy_from_slice(&[8, 0]);
        let (ip, udp) = headers[14..].split_at_mut(20);
        let len = (28 + payload.len()) as u16;
        // Version, length, TOS; total length; number; don't fragment; TTL, UDP; checksum.
        ip[..4].copy_from_slice(&[0x45, 0, (len >> 8) as u8, len as u8]);
        ip[4..12].copy_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0]);
        ip[12..16].copy_from_slice(&source.octets());
        ip[16..].copy_from_slice(&peer.address.octets());
        let checksum = !folded(sum(ip));
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        udp[..2].copy_from_slice(&FROM_PORT.to_be_bytes());
        udp[2..4].copy_from_slice(&self.port.to_be_bytes());
        udp[4..6].copy_from_slice(&(len - 20).to_be_bytes());
        udp[6..].fill(0);
        // With the pseudo header: addresses, protocol, length.
        let all = sum(&ip[12..]) + 17 + u64::from(len - 20) + sum(udp) + sum(payload);
        let checksum = match !folded(all) {
            0 => 0xffff,
            checksum => checksum,
        };
        udp[6..].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// The one's complement sum of the 16-bit words, taken by 32 bits in the machine's own order, which
/// compilers make vectors of.
fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    let mut sum: u64 = words
        .by_ref()
        .map(|word| u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]])))
        .sum();
    let mut rest = [0; 4];
    let left = words.remainder();
    rest[..left.len()].copy_from_slice(left);
    sum += u64::from(u32::from_ne_bytes(rest));
    u64::from(u16::from_be(folded(sum)))
}

/// The one's complement sum in 16 bits.
fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The number of packets that carry a datagram of this size in bytes, and their bytes.
pub(crate) fn on_wire(payload: usize) -> (usize, usize) {
    if payload <= UNFRAGMENTED_MAX {
        return (1, HEADERS + payload);
    }
    let udp = payload + 8;
    let fragments = udp.div_ceil(FRAGMENT);
    (fragments, fragments * (HEADERS - 8) + udp)
}

/// A frame without what the kernel chooses: the number of the IPv4 packet, and whether it may be
/// fragmented, which GSO packets may. `None` if the header's checksum is wrong.
pub(crate) fn normal(frame: &[u8]) -> Option<Vec<u8>> {
    let mut frame = frame.to_vec();
    let ip = frame.get_mut(14..34)?;
    if folded(sum(ip)) != 0xffff {
        return None;
    }
    ip[4..8].fill(0);
    ip[10..12].fill(0);
    let checksum = !folded(sum(ip));
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(peers: usize, payload: usize) -> Traffic {
        let peers = (0..peers)
            .map(|number| Peer {
                address: Ipv4Addr::new(192, 0, 2, 2 + number as u8),
                mac: [2, 0, 0, 0, 1, number as u8],
            })
            .collect();
        Traffic::new(
            Ipv4Addr::new(192, 0, 2, 1),
            [2, 0, 0, 0, 0, 1],
            peers,
            payload,
        )
    }

    #[test]
    fn checksums_are_right() {
        for payload in [8, 9, 10, 11, 64, 1400] {
            let mut frame = vec![0; HEADERS + payload];
            traffic(1, payload).frame(&mut frame);
            assert_eq!(folded(sum(&frame[14..34])), 0xffff);
            let len = (payload + 8) as u64;
            let all = sum(&frame[26..34]) + 17 + len + sum(&frame[34..]);
            assert_eq!(folded(all), 0xffff, "{payload} bytes");
        }
    }

    #[test]
    fn only_what_the_kernel_chooses_may_differ() {
        let mut frame = vec![0; HEADERS + 64];
        traffic(1, 64).frame(&mut frame);
        let mut numbered = frame.clone();
        numbered[18..22].copy_from_slice(&[1, 2, 0, 0]);
        assert_eq!(normal(&numbered), None, "a wrong checksum");
        numbered[24..26].fill(0);
        let checksum = !folded(sum(&numbered[14..34]));
        numbered[24..26].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(normal(&numbered), normal(&frame));
        numbered[50] ^= 1;
        assert_ne!(normal(&numbered), normal(&frame));
    }

    #[test]
    fn long_datagrams_travel_in_fragments() {
        assert_eq!(on_wire(64), (1, 106));
        assert_eq!(on_wire(1472), (1, 1514));
        assert_eq!(on_wire(1473), (2, 1481 + 2 * 34));
        assert_eq!(on_wire(64000), (44, 64008 + 44 * 34));
    }

    #[test]
    fn all_peers_have_their_turn() {
        let mut traffic = traffic(16, 64);
        let mut seen = [0; 16];
        for _ in 0..1600 {
            seen[traffic.next_peer()] += 1;
        }
        assert!(
            seen.iter().all(|&count| (50..200).contains(&count)),
            "{seen:?}"
        );
    }
}
