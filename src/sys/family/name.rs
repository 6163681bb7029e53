// SPDX-License-Identifier: GPL-2.0

//! An address that a program gives.

use crate::{
    pure::rule::{mapped, Peer},
    sys::{bindings, sock::Sock},
};

/// An address that a program gives.
pub(crate) struct Name {
    /// Of IPv4 or IPv6, as IPv6; `None` for what is neither.
    pub(super) peer: Option<Peer>,
}

impl Name {
    /// # Safety
    ///
    /// `name` must have `len` bytes.
    pub(super) unsafe fn from_raw(name: *const u8, len: i32, unspecified: Unspecified) -> Self {
        let bytes = match usize::try_from(len) {
            // SAFETY: As required of the caller.
            Ok(len) if !name.is_null() => unsafe { core::slice::from_raw_parts(name, len) },
            _ => &[],
        };
        Self {
            peer: Self::parse(bytes, unspecified),
        }
    }

    pub(super) fn parse(bytes: &[u8], unspecified: Unspecified) -> Option<Peer> {
        let (&family, rest) = bytes.split_first_chunk::<2>()?;
        let (&port, rest) = rest.split_first_chunk::<2>()?;
        let address = match u32::from(u16::from_ne_bytes(family)) {
            bindings::AF_INET => mapped(*rest.first_chunk::<4>()?),
            bindings::KOPI_CONST_AF_UNSPEC if matches!(unspecified, Unspecified::Ipv4) => {
                mapped(*rest.first_chunk::<4>()?)
            }
            // The flow label comes first.
            bindings::AF_INET6 => *rest.get(4..)?.first_chunk::<16>()?,
            _ => return None,
        };
        Some(Peer {
            address,
            port: u16::from_be_bytes(port),
        })
    }

    /// The address and the port, if it is one of IP.
    pub(crate) fn peer(&self) -> Option<Peer> {
        self.peer
    }
}

/// What the kernel takes an address of AF_UNSPEC for.
#[derive(Clone, Copy)]
pub(super) enum Unspecified {
    /// One of IPv4.
    Ipv4,
    /// None.
    Nothing,
}

/// What bind() and sendmsg() of IPv4 and IPv6 take an address of AF_UNSPEC for. (connect() breaks a
/// connection.)
pub(super) fn unspecified(sk: &Sock) -> Unspecified {
    if sk.is_ipv6() {
        Unspecified::Nothing
    } else {
        Unspecified::Ipv4
    }
}
