// SPDX-License-Identifier: GPL-2.0

//! Errors: an errno, and words for it.

use std::{
    cell::UnsafeCell,
    ffi::{c_char, c_int, CStr},
    io,
    path::Path,
};

/// An errno, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);
pub(crate) const TOO_LONG: Errno = Errno(libc::EMSGSIZE);

impl From<io::Error> for Errno {
    /// The errno, or that of an error which the crate made itself.
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or_else(|| match error.kind() {
            io::ErrorKind::WouldBlock => libc::EAGAIN,
            io::ErrorKind::Unsupported => libc::EAFNOSUPPORT,
            io::ErrorKind::OutOfMemory => libc::ENOBUFS,
            io::ErrorKind::InvalidInput => libc::EINVAL,
            // A ring is broken, for one.
            _ => libc::EIO,
        }))
    }
}

/// What a function gives: a number, or a negative errno.
pub(crate) fn give<T: From<i16>>(result: Result<T, Errno>) -> T {
    result.unwrap_or_else(|Errno(errno)| {
        // All are below 4096.
        let errno = i16::try_from(errno).unwrap_or(libc::EIO as i16);
        T::from(-errno)
    })
}

/// A number of elements, as functions give it.
pub(crate) fn number(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

thread_local! {
    /// What [`kopi_strerror`] gave last.
    static TEXT: UnsafeCell<[c_char; 160]> = const { UnsafeCell::new([0; 160]) };
}

/// What the C library says of an errno isn't all that there is to say. EAFNOSUPPORT is also that of
/// an address, which needs no module.
fn explained(errno: c_int, is_loaded: fn() -> bool) -> Option<&'static CStr> {
    Some(match errno {
        libc::EAFNOSUPPORT if is_loaded() => {
            c"Address family not supported: neither IPv4 nor IPv6; or this process may not open KOPI sockets (RestrictAddressFamilies=, seccomp: see kopictl doctor); or the kopi module is of another version"
        }
        libc::EAFNOSUPPORT => {
            c"Address family not supported: the kopi module is not loaded (modprobe kopi); or neither IPv4 nor IPv6"
        }
        libc::ENOBUFS => {
            c"No buffer space available: over RLIMIT_MEMLOCK (ulimit -l), a limit of net.kopi, or a rule's rate"
        }
        _ => return None,
    })
}

/// Words for an errno.
#[no_mangle]
pub extern "C" fn kopi_strerror(error: c_int) -> *const c_char {
    let errno = error.saturating_abs();
    let is_loaded = || Path::new("/sys/module/kopi").exists();
    if let Some(text) = explained(errno, is_loaded) {
        return text.as_ptr();
    }
    TEXT.with(|text| {
        let text = text.get();
        // SAFETY: The thread's own, of that size; the call ends it with a zero, as far as it writes.
        unsafe { libc::strerror_r(errno, text.cast(), (*text).len()) };
        text.cast_const().cast()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(error: c_int) -> String {
        // SAFETY: It ends with a zero, and nobody asks again meanwhile.
        let text = unsafe { CStr::from_ptr(kopi_strerror(error)) };
        text.to_str().unwrap().into()
    }

    #[test]
    fn errors_have_words() {
        assert_eq!(words(-libc::EINVAL), "Invalid argument");
        assert_eq!(words(libc::EINVAL), "Invalid argument");
        assert!(words(-libc::EAFNOSUPPORT).contains("neither IPv4 nor IPv6"));
        assert!(words(-libc::ENOBUFS).contains("RLIMIT_MEMLOCK"));
        for error in [0, 4711, c_int::MIN, c_int::MAX] {
            assert!(!words(error).is_empty(), "{error}");
        }
    }

    #[test]
    fn a_module_that_is_loaded_is_not_said_to_be_missing() {
        let words = |is_loaded| explained(libc::EAFNOSUPPORT, is_loaded).unwrap().to_str();
        assert!(words(|| false).unwrap().contains("module is not loaded"));
        let loaded = words(|| true).unwrap();
        assert!(!loaded.contains("not loaded") && loaded.contains("may not open KOPI sockets"));
    }

    #[test]
    fn errors_of_the_crate_have_an_errno() {
        let given = |error: io::Error| Errno::from(error).0;
        assert_eq!(
            given(io::Error::from_raw_os_error(libc::EXDEV)),
            libc::EXDEV
        );
        assert_eq!(given(io::ErrorKind::WouldBlock.into()), libc::EAGAIN);
        assert_eq!(given(io::ErrorKind::Unsupported.into()), libc::EAFNOSUPPORT);
        assert_eq!(given(io::ErrorKind::OutOfMemory.into()), libc::ENOBUFS);
        assert_eq!(given(io::ErrorKind::InvalidData.into()), libc::EIO);
        assert_eq!(give::<c_int>(Err(INVALID)), -libc::EINVAL);
        assert_eq!(give::<isize>(Err(AGAIN)), -(libc::EAGAIN as isize));
        assert_eq!(give::<c_int>(Ok(7)), 7);
    }
}
