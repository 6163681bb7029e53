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
    enobufs = 105,
    enotconn = 107,
}
