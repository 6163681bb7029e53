// SPDX-License-Identifier: GPL-2.0

//! The remote end of a packet, and addresses of IPv4 as ones of IPv6.

use core::net::{Ipv4Addr, Ipv6Addr};

/// An IPv4 address as an IPv6 one (RFC 4291, 2.5.5.2).
pub fn mapped(address: [u8; 4]) -> [u8; 16] {
    Ipv4Addr::from(address).to_ipv6_mapped().octets()
}

/// The IPv4 address that [`mapped`] made an IPv6 one.
pub fn unmapped(address: &[u8; 16]) -> Option<[u8; 4]> {
    Some(Ipv6Addr::from(*address).to_ipv4_mapped()?.octets())
}

/// The remote end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address, as IPv6.
    pub address: [u8; 16],
    /// The port.
    pub port: u16,
}

impl Peer {
    /// Whether it is at the any-address of IPv4.
    pub fn is_anywhere_ipv4(&self) -> bool {
        unmapped(&self.address) == Some([0; 4])
    }

    /// With the address that a packet to the any-address has, if its socket sends from `source`: that one
    /// in IPv4, as ip_route_output_key_hash_rcu() chooses it, else the loopback address. An IPv6 socket that
    /// sends from an address of IPv4 means IPv4 by ::, as for udpv6_sendmsg().
    pub fn or_own(self, source: impl FnOnce() -> [u8; 16]) -> Self {
        const NOWHERE: [u8; 4] = [0; 4];
        let to_ipv4 = unmapped(&self.address);
        if to_ipv4.unwrap_or(NOWHERE) != NOWHERE || to_ipv4.is_none() && self.address != [0; 16] {
            return self;
        }
        let source = source();
        let loopback = Ipv4Addr::LOCALHOST.octets();
        let address = match (to_ipv4, unmapped(&source)) {
            (Some(_), Some(own)) if own != NOWHERE => source,
            (Some(_), _) | (None, Some(_)) => mapped(loopback),
            (None, None) => Ipv6Addr::LOCALHOST.octets(),
        };
        Self { address, ..self }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_any_address_is_ones_own() {
        let (any4, any6) = (mapped([0; 4]), [0; 16]);
        let (own, own6) = (mapped([192, 0, 2, 1]), [9; 16]);
        let (loopback, loopback6) = (mapped([127, 0, 0, 1]), Ipv6Addr::LOCALHOST.octets());
        for (to, source, reached) in [
            (any4, any4, loopback),
            (any4, own, own),
            (any4, any6, loopback),
            (any4, own6, loopback),
            (any6, any6, loopback6),
            (any6, own6, loopback6),
            (any6, own, loopback),
            (own, any4, own),
            (own6, own, own6),
        ] {
            let peer = Peer {
                address: to,
                port: 7,
            };
            let expected = Peer {
                address: reached,
                port: 7,
            };
            assert_eq!(peer.or_own(|| source), expected, "{to:?} from {source:?}");
        }
    }
}
