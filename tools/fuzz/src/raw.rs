// SPDX-License-Identifier: GPL-2.0

//! Packets that no socket sends: wrong checksums, lengths, fragments.

use crate::{pick, sys};
use rand::{rngs::SmallRng, Rng};
use std::net::{IpAddr, SocketAddr};

/// Raw sockets; -1 for those that this process may not have.
pub(crate) struct Raw {
    ipv4: i32,
    ipv6: i32,
}

impl Raw {
    pub(crate) fn open() -> Self {
        let open = |family, protocol| {
            let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            // SAFETY: Takes no pointers.
            unsafe { libc::socket(family, kind, protocol) }
        };
        Self {
            ipv4: open(libc::AF_INET, libc::IPPROTO_RAW),
            ipv6: open(libc::AF_INET6, libc::IPPROTO_RAW),
        }
    }

    /// A UDP datagram that may have anything wrong with it.
    pub(crate) fn send(&self, from: SocketAddr, to: SocketAddr, random: &mut SmallRng) {
        let size = match random.random_range(0..8) {
            0 => random.random_range(0..3000),
            1 => 0,
            _ => random.random_range(0..1300),
        };
        let mut length = 8 + size as u16;
        if random.random_ratio(1, 16) {
            length = pick(random, &[0, 7, 8, 9, length - 1, length + 1, 65535]);
        }
        let mut udp = Vec::with_capacity(8 + size);
        udp.extend(from.port().to_be_bytes());
        udp.extend(to.port().to_be_bytes());
        udp.extend(length.to_be_bytes());
        udp.extend([0; 2]);
        udp.resize(8 + size, random.random());
        let sum = match random.random_range(0..4) {
            0 => checksum(from.ip(), to.ip(), 17, &udp),
            1 => 0,
            _ => random.random(),
        };
        udp[6..8].copy_from_slice(&sum.to_be_bytes());
        let mut name = sys::name(SocketAddr::new(to.ip(), 0));
        let (fd, mut packet) = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                // Fragments, or whole.
                let fragment: u16 = pick(random, &[0, 0, 0, 0x4000, 0x2000, 0x2001, 1, 0x8000]);
                let mut header = vec![0x45, random.random(), 0, 0];
                header.extend(random.random_range(0..4u16).to_be_bytes());
                header.extend(fragment.to_be_bytes());
                header.extend([pick(random, &[64, 1, 0, 255]), 17, 0, 0]);
                header.extend(from.octets());
                header.extend(to.octets());
                (self.ipv4, header)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let mut header = vec![0x60, random.random(), 0, 0];
                header.extend((udp.len() as u16).to_be_bytes());
                header.extend([17, pick(random, &[64, 1, 0, 255])]);
                header.extend(from.octets());
                header.extend(to.octets());
                (self.ipv6, header)
            }
            _ => return,
        };
        packet.extend(udp);
        // SAFETY: The pointers are to as many bytes as the lengths say.
        unsafe {
            libc::sendto(
                fd,
                packet.as_ptr().cast(),
                packet.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                name.as_mut_ptr().cast(),
                name.len() as u32,
            );
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        for fd in [self.ipv4, self.ipv6] {
            if fd >= 0 {
                sys::close(fd);
            }
        }
    }
}

/// An address's bytes.
pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// A checksum of UDP or ICMPv6, with the pseudo-header's.
pub(crate) fn checksum(from: IpAddr, to: IpAddr, protocol: u8, message: &[u8]) -> u16 {
    let mut bytes = Vec::new();
    for address in [from, to] {
        bytes.extend(octets(address));
    }
    bytes.extend((message.len() as u32).to_be_bytes());
    bytes.extend([0, 0, 0, protocol]);
    bytes.extend(message);
    match folded(&bytes) {
        0 => 0xffff,
        sum => sum,
    }
}

/// The internet checksum of bytes (RFC 1071).
pub(crate) fn folded(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| (u32::from(pair[0]) << 8) | pair.get(1).copied().map_or(0, u32::from))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Another checksum than this one, and not that of none.
pub(crate) fn wrong(sum: u16, random: &mut SmallRng) -> u16 {
    match (u32::from(sum) + random.random_range(1..0xffff)) % 0xffff {
        0 => 0xffff,
        sum => sum as u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_checksum_is_never_right_or_none() {
        let random = &mut rand::SeedableRng::seed_from_u64(1);
        for sum in [0, 1, 2, 0x7fff, 0xfffe, 0xffff] {
            for _ in 0..100_000 {
                let other = wrong(sum, random);
                assert_ne!(other, 0);
                assert_ne!(other % 0xffff, sum % 0xffff);
            }
        }
    }

    #[test]
    fn checksum_is_udps() {
        // From RFC 768's rules, reckoned by hand: 127.0.0.1 to itself, ports 1 and 2, nothing in it.
        let local: IpAddr = "127.0.0.1".parse().unwrap();
        let sum = 2 * (0x7f00 + 0x0001) + 8 + 17 + 1 + 2 + 8u32;
        let expected = !(((sum & 0xffff) + (sum >> 16)) as u16);
        assert_eq!(
            checksum(local, local, 17, &[0, 1, 0, 2, 0, 8, 0, 0]),
            expected
        );
    }
}
