// SPDX-License-Identifier: GPL-2.0

//! Error codes that `kernel::error::code` lacks.
//!
//! C header: `include/uapi/asm-generic/errno.h`

use kernel::error::Error;

macro_rules! errno {
    ($($name:ident = $number:literal,)*) => {
        $(
            #[doc = concat!("Error ", stringify!($number), ", named as in errno(3).")]
            pub(crate) fn $name() -> Error {
                Error::from_errno(-$number)
            }
        )*
    };
}

errno! {
    eproto = 71,
    enotsock = 88,
    enoprotoopt = 92,
    eprotonosupport = 93,
    esocktnosupport = 94,
    eopnotsupp = 95,
    econnaborted = 103,
    enobufs = 105,
    enotconn = 107,
    edquot = 122,
    ecanceled = 125,
}

/// The class of the stack's reason to refuse a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendErrorKind {
    /// A filter, a cgroup's program or a security module forbids it.
    Denied,
    /// There is no route to the peer, or its host reported that the port is closed.
    Unreachable,
    /// Longer than may be.
    TooLong,
    /// No memory, or a queue is full.
    NoBuffer,
    /// Anything else.
    Other,
}

impl SendErrorKind {
    /// The class of an error of sendmsg.
    pub(crate) fn of(error: Error) -> Self {
        match error.to_errno().wrapping_neg() {
            // EPERM, EACCES
            1 | 13 => Self::Denied,
            // ENETDOWN, ENETUNREACH, ECONNREFUSED, EHOSTDOWN, EHOSTUNREACH
            100 | 101 | 111 | 112 | 113 => Self::Unreachable,
            // EMSGSIZE
            90 => Self::TooLong,
            // EAGAIN, ENOMEM, ENOBUFS
            11 | 12 | 105 => Self::NoBuffer,
            _ => Self::Other,
        }
    }
}
