// SPDX-License-Identifier: GPL-2.0

//! The two ends of a sock, and binding.

use crate::pure::peer::{mapped, Peer};

/// The state that bind() may change in addition to the address.
pub(in crate::sys) struct BeforeBind {
    pub(super) device: i32,
    pub(super) ipv6only: bool,
}

/// The ends of a sock, as they are now.
pub(crate) struct Ends {
    pub(crate) is_ipv6: bool,
    /// 4 or 16 bytes, by the sock's family.
    pub(crate) local: [u8; 16],
    pub(crate) remote: [u8; 16],
    /// Big-endian; 0 when not bound, or connected.
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
    /// The device that it is bound to, or 0.
    pub(crate) ifindex: i32,
    /// IPPROTO_UDP or IPPROTO_TCP.
    pub(crate) protocol: u8,
    /// The state of a stream, as `net/tcp_states.h` numbers them.
    pub(crate) state: Option<u8>,
}

impl Ends {
    /// An end as a peer of rules, from its bytes and its big-endian port.
    pub(in crate::sys) fn as_peer(&self, bytes: [u8; 16], port: u16) -> Peer {
        let [a, b, c, d, ..] = bytes;
        Peer {
            address: if self.is_ipv6 {
                bytes
            } else {
                mapped([a, b, c, d])
            },
            port: u16::from_be(port),
        }
    }

    /// The bytes of a peer's address, in the form of these ends.
    fn bytes_of(&self, peer: &Peer) -> [u8; 16] {
        let mut bytes = peer.address;
        if !self.is_ipv6 {
            bytes.rotate_left(12);
        }
        bytes
    }

    /// With another local end.
    pub(crate) fn with_local(self, end: &Peer) -> Self {
        Self {
            local: self.bytes_of(end),
            local_port: end.port.to_be(),
            ..self
        }
    }

    /// With another remote end.
    pub(crate) fn with_remote(self, end: &Peer) -> Self {
        Self {
            remote: self.bytes_of(end),
            remote_port: end.port.to_be(),
            ..self
        }
    }
}
