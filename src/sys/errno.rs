// SPDX-License-Identifier: GPL-2.0

//! Error codes that `kernel::error::code` lacks.
//!
//! C header: `include/uapi/asm-generic/errno.h`

use super::bindings;
use kernel::{error::Error, ffi::c_int};

macro_rules! errno {
    ($($name:ident = $number:ident,)*) => {
        $(
            #[doc = concat!("`", stringify!($number), "`, as in errno(3).")]
            pub(crate) fn $name() -> Error {
                Error::from_errno((bindings::$number as c_int).wrapping_neg())
            }
        )*
    };
}

errno! {
    eproto = EPROTO,
    enotsock = ENOTSOCK,
    enoprotoopt = ENOPROTOOPT,
    eafnosupport = EAFNOSUPPORT,
    eprotonosupport = EPROTONOSUPPORT,
    esocktnosupport = ESOCKTNOSUPPORT,
    eopnotsupp = EOPNOTSUPP,
    econnaborted = ECONNABORTED,
    enobufs = ENOBUFS,
    enotconn = ENOTCONN,
    edquot = EDQUOT,
    ecanceled = ECANCELED,
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
        match error.to_errno().unsigned_abs() {
            bindings::EPERM | bindings::EACCES => Self::Denied,
            bindings::ENETDOWN
            | bindings::ENETUNREACH
            | bindings::ECONNREFUSED
            | bindings::EHOSTDOWN
            | bindings::EHOSTUNREACH => Self::Unreachable,
            bindings::EMSGSIZE => Self::TooLong,
            bindings::EAGAIN | bindings::ENOMEM | bindings::ENOBUFS => Self::NoBuffer,
            _ => Self::Other,
        }
    }
}
