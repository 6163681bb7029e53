// SPDX-License-Identifier: GPL-2.0

//! Socket addresses that processes pass to system calls.

use crate::{
    pure::peer::{mapped, Peer},
    sys::{bindings, sock::Sock},
};

/// A socket address that a process passes to a system call.
pub(crate) struct Name {
    /// The address as an IPv6 address, IPv4-mapped if need be, and the port; `None` if the address
    /// is of neither family.
    pub(super) peer: Option<Peer>,
}

impl Name {
    /// # Safety
    ///
    /// `name` must be null, or have `len` bytes that don't change meanwhile.
    pub(super) unsafe fn from_raw(name: *const u8, len: i32, unspecified: Unspecified) -> Self {
        let bytes = match usize::try_from(len) {
            // SAFETY: `name` isn't null, so the caller passes `len` bytes, which don't change.
            Ok(len) if !name.is_null() => unsafe { core::slice::from_raw_parts(name, len) },
            _ => &[],
        };
        Self {
            peer: Self::parse(bytes, unspecified),
        }
    }

    /// The address that a system call on a sock names; none if connect() is to break the connection.
    ///
    /// # Safety
    ///
    /// As of [`Self::from_raw`].
    pub(in crate::sys) unsafe fn of_call(
        name: *const u8,
        len: i32,
        sk: &Sock,
        connects: bool,
    ) -> Self {
        let meaning = if connects {
            Unspecified::Nothing
        } else {
            unspecified(sk)
        };
        // SAFETY: Required of the caller.
        unsafe { Self::from_raw(name, len, meaning) }
    }

    /// The address and the port of a `sockaddr_in` or `sockaddr_in6`.
    pub(super) fn parse(bytes: &[u8], unspecified: Unspecified) -> Option<Peer> {
        let (&family, rest) = bytes.split_first_chunk::<2>()?;
        let (&port, rest) = rest.split_first_chunk::<2>()?;
        let address = match u32::from(u16::from_ne_bytes(family)) {
            bindings::AF_INET => mapped(*rest.first_chunk::<4>()?),
            bindings::KOPI_CONST_AF_UNSPEC if matches!(unspecified, Unspecified::Ipv4) => {
                mapped(*rest.first_chunk::<4>()?)
            }
            // The flow label is before the address.
            bindings::AF_INET6 => *rest.get(4..)?.first_chunk::<16>()?,
            _ => return None,
        };
        Some(Peer {
            address,
            port: u16::from_be_bytes(port),
        })
    }

    /// The address and the port, if the address is of IPv4 or IPv6.
    pub(crate) fn peer(&self) -> Option<Peer> {
        self.peer
    }
}

/// The kernel's interpretation of an address of family AF_UNSPEC.
#[derive(Clone, Copy)]
pub(super) enum Unspecified {
    /// It is an IPv4 address.
    Ipv4,
    /// It is no address.
    Nothing,
}

/// The interpretation by bind() and sendmsg() of a sock's IP version. (connect() takes such an
/// address as a request to break the connection.)
pub(super) fn unspecified(sk: &Sock) -> Unspecified {
    if sk.is_ipv6() {
        Unspecified::Nothing
    } else {
        Unspecified::Ipv4
    }
}
