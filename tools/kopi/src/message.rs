// SPDX-License-Identifier: GPL-2.0

//! Where a packet goes, and how.

use crate::{
    packet::Packet,
    pure::abi::{Meta, AF_INET, AF_INET6, META_LOCAL, META_MARK, META_TOS, META_TTL, META_TXTIME},
};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    ops::BitOr,
};

/// Where a packet is to go, and how: what `sendmsg` takes as address and control messages.
///
/// ```
/// use kopi::Message;
///
/// let to = "192.0.2.2:53".parse().unwrap();
/// let message = Message::to(to).tos(0xb8).ttl(3);
/// assert_ne!(message, Message::connected());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    meta: Meta,
}

impl Message {
    /// To the peer that the flow is connected to.
    #[inline]
    pub fn connected() -> Self {
        Self::default()
    }

    /// To `peer`, whose port must not be 0: the packet comes back with `EINVAL` then.
    #[inline]
    pub fn to(peer: SocketAddr) -> Self {
        let mut meta = Meta {
            peer: octets(peer.ip()),
            peer_port: peer.port().to_be(),
            family: family(peer.ip()),
            ..Meta::default()
        };
        if let SocketAddr::V6(peer) = peer {
            meta.ifindex = peer.scope_id();
        }
        Self { meta }
    }

    /// Back to where a packet came from.
    pub fn reply_to(packet: &Packet<'_>) -> Self {
        let meta = packet.meta();
        let link_local = meta.family == AF_INET6 && has_scope(Ipv6Addr::from(meta.peer));
        Self {
            meta: Meta {
                peer: meta.peer,
                peer_port: meta.peer_port,
                family: meta.family,
                ifindex: if link_local { meta.ifindex } else { 0 },
                ..Meta::default()
            },
        }
    }

    /// Sends from this address, which must be one of the machine's.
    #[must_use]
    pub fn source(mut self, address: IpAddr) -> Self {
        self.meta.local = octets(address);
        self.meta.family = family(address);
        self.meta.flags |= META_LOCAL;
        self
    }

    /// Leaves by this device; with [`Message::source`], or for the scope of a link-local peer.
    #[must_use]
    pub fn device(mut self, ifindex: u32) -> Self {
        self.meta.ifindex = ifindex;
        self
    }

    /// With this TOS or traffic class.
    #[must_use]
    pub fn tos(mut self, tos: u8) -> Self {
        self.meta.tos = tos;
        self.meta.flags |= META_TOS;
        self
    }

    /// With this TTL or hop limit.
    #[must_use]
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.meta.ttl = ttl;
        self.meta.flags |= META_TTL;
        self
    }

    /// With this mark, as SO_MARK; takes CAP_NET_ADMIN or CAP_NET_RAW.
    #[must_use]
    pub fn mark(mut self, mark: u32) -> Self {
        self.meta.mark = mark;
        self.meta.flags |= META_MARK;
        self
    }

    /// To be sent at this time, in nanoseconds of the clock that the flow's SO_TXTIME names; needs a
    /// qdisc that heeds it, as fq or etf.
    #[must_use]
    pub fn send_at(mut self, time: u64) -> Self {
        self.meta.timestamp = time;
        self.meta.flags |= META_TXTIME;
        self
    }

    /// Cuts the payload into datagrams of `size` bytes; on a channel with
    /// [`gso`](crate::Builder::gso).
    #[must_use]
    pub fn segment_size(mut self, size: u16) -> Self {
        self.meta.gso_size = size;
        self
    }

    /// The peer, `None` for the connected one, if that is all that there is to say.
    pub(crate) fn only_peer(&self) -> Option<Option<SocketAddr>> {
        let Meta {
            flags: 0,
            gso_size: 0,
            peer,
            peer_port,
            family,
            ifindex,
            ..
        } = self.meta
        else {
            return None;
        };
        match (peer_port, family) {
            (0, 0) => Some(None),
            (0, _) => None,
            // The device of an address that needs none.
            (_, AF_INET6) if ifindex != 0 && !has_scope(Ipv6Addr::from(peer)) => None,
            _ => Some(Some(address(&self.meta, &peer, peer_port))),
        }
    }

    /// The metadata to write, if there is anything to say.
    #[inline]
    pub(crate) fn meta(&self) -> Option<Meta> {
        // By words, in a third of the steps.
        let all = self.meta.to_words().into_iter().fold(0, BitOr::bitor);
        (all != 0).then_some(self.meta)
    }
}

fn family(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(_) => AF_INET,
        IpAddr::V6(_) => AF_INET6,
    }
}

/// An address as metadata has it.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            octets
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// Whether the address means something only together with a device.
pub fn has_scope(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.octets();
    // fe80::/10, and multicast of interface or link scope.
    (first == 0xfe && second & 0xc0 == 0x80) || (first == 0xff && matches!(second & 0xf, 1 | 2))
}

/// An address of metadata.
pub(crate) fn address(meta: &Meta, octets: &[u8; 16], port: u16) -> SocketAddr {
    let port = u16::from_be(port);
    if meta.family == AF_INET6 {
        let address = Ipv6Addr::from(*octets);
        let scope = if has_scope(address) { meta.ifindex } else { 0 };
        SocketAddr::V6(SocketAddrV6::new(address, port, 0, scope))
    } else {
        let [a, b, c, d, ..] = *octets;
        SocketAddr::from((Ipv4Addr::new(a, b, c, d), port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connected_needs_no_metadata() {
        assert_eq!(Message::connected().meta(), None);
        assert!(Message::connected().ttl(1).meta().is_some());
    }

    #[test]
    fn only_peers_are_for_sendmsg() {
        assert_eq!(Message::connected().only_peer(), Some(None));
        for text in ["192.0.2.1:7", "[2001:db8::1]:53", "[fe80::1%4]:9"] {
            let peer: SocketAddr = text.parse().unwrap();
            let to = Message::to(peer);
            assert_eq!(to.only_peer(), Some(Some(peer)));
            assert_eq!(to.ttl(1).only_peer(), None);
            assert_eq!(to.segment_size(9).only_peer(), None);
        }
        let global = Message::to("[2001:db8::1]:53".parse().unwrap());
        assert_eq!(global.device(3).only_peer(), None);
        // Port 0 is an error that the ring reports.
        assert_eq!(
            Message::to("192.0.2.1:0".parse().unwrap()).only_peer(),
            None
        );
    }

    #[test]
    fn addresses_come_back() {
        for text in ["192.0.2.1:7", "[2001:db8::1]:53", "[fe80::1%4]:9", "[::]:0"] {
            let peer: SocketAddr = text.parse().unwrap();
            let meta = Message::to(peer).meta().unwrap();
            assert_eq!(address(&meta, &meta.peer, meta.peer_port), peer);
        }
    }

    #[test]
    fn device_of_global_address_is_no_scope() {
        let meta = Meta {
            peer: "2001:db8::1".parse::<Ipv6Addr>().unwrap().octets(),
            family: AF_INET6,
            ifindex: 3,
            ..Meta::default()
        };
        let expected = "[2001:db8::1]:0".parse().unwrap();
        assert_eq!(address(&meta, &meta.peer, 0), expected);
    }
}
