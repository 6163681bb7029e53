// SPDX-License-Identifier: GPL-2.0

//! Both ends of a received datagram, and which other datagrams its receiver gets.

use crate::sys::bindings;

/// The addresses of an IPv4 datagram, in network byte order, and its TOS.
#[derive(Clone, Copy)]
pub(super) struct AddressesV4 {
    pub(super) source: u32,
    pub(super) local: u32,
    pub(super) tos: u8,
}

/// The addresses of an IPv6 datagram, as they lie in memory.
#[derive(Clone, Copy)]
pub(super) struct AddressesV6 {
    pub(super) source: u128,
    pub(super) local: u128,
}

/// The addresses of a datagram.
#[derive(Clone, Copy)]
pub(super) enum Addresses {
    V4(AddressesV4),
    V6(AddressesV6),
}

/// The addresses and ports of a datagram, in network byte order.
#[derive(Clone, Copy)]
pub(crate) struct DatagramEnds {
    pub(super) addresses: Addresses,
    pub(super) source_port: u16,
    pub(super) local_port: u16,
}

/// The datagrams that a sock receives after one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receives {
    /// UDP has to be asked about each.
    This,
    /// Those with the same ends.
    SameEnds,
    /// Those of all senders to the same local end, by the same version of IP.
    All,
}

impl Receives {
    pub(super) fn of(receives: bindings::kopi_receives) -> Self {
        match receives {
            bindings::kopi_receives_KOPI_RECEIVES_ALL => Self::All,
            bindings::kopi_receives_KOPI_RECEIVES_SAME_ENDS => Self::SameEnds,
            _ => Self::This,
        }
    }
}

impl DatagramEnds {
    /// Whether a sock that has received a datagram with these ends receives another one.
    #[inline]
    pub(crate) fn include(&self, other: &Self, receives: Receives) -> bool {
        let (same_local, same_source) = match (&self.addresses, &other.addresses) {
            (Addresses::V4(a), Addresses::V4(b)) => (a.local == b.local, a.source == b.source),
            (Addresses::V6(a), Addresses::V6(b)) => (a.local == b.local, a.source == b.source),
            _ => return false,
        };
        same_local
            && self.local_port == other.local_port
            && match receives {
                Receives::This => false,
                Receives::SameEnds => same_source && self.source_port == other.source_port,
                Receives::All => true,
            }
    }
}
