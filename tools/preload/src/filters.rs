// SPDX-License-Identifier: GPL-2.0

//! A program that restricts its own system calls by seccomp knows which ones it makes. From then on
//! this library makes none of its own. A child of vfork() restricts itself only: until its exec() the library
//! asks there for the process's id, and does nothing else.

use crate::{process, real, settings};
use libc::{c_int, c_long, c_ulong};

/// Whether seccomp(2) or prctl(2) can restrict anything with these arguments. A filter at no address is how
/// programs ask whether the kernel knows filters.
fn restricts(by_filter: bool, filter: usize) -> bool {
    !by_filter || filter != 0
}

/// The process's system calls are to be restricted.
fn stop() {
    if process::is_own() {
        settings::stop("the program restricts its system calls");
    }
}

/// prctl(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    let by_filter = a == libc::SECCOMP_MODE_FILTER.into();
    if option == libc::PR_SET_SECCOMP && restricts(by_filter, b as usize) {
        stop();
    }
    // SAFETY: The caller's arguments.
    unsafe { real::prctl(option, a, b, c, d) }
}

/// syscall(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let is_restriction = match number {
        libc::SYS_seccomp => (a == 0 || a == 1) && restricts(a == 1, c as usize),
        libc::SYS_prctl => {
            let by_filter = b == libc::SECCOMP_MODE_FILTER.into();
            a == libc::PR_SET_SECCOMP.into() && restricts(by_filter, c as usize)
        }
        _ => false,
    };
    if is_restriction {
        stop();
    }
    // SAFETY: The caller's arguments.
    unsafe { real::syscall(number, a, b, c, d, e, f) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::tests::{in_borrowed_memory, in_child_process};
    use libc::c_void;

    /// Whether the call that `ask` makes, which fails, is taken for a restriction.
    fn stops(ask: impl FnOnce()) -> bool {
        // What stops stays so.
        in_child_process(|| {
            ask();
            settings::is_stopped()
        })
    }

    fn by_prctl(filter: usize) {
        let mode = libc::SECCOMP_MODE_FILTER.into();
        // SAFETY: A filter that the kernel refuses.
        unsafe { prctl(libc::PR_SET_SECCOMP, mode, filter as c_ulong, 0, 0) };
    }

    fn by_syscall(number: c_long, first: c_int, second: c_int, filter: usize) {
        let (a, b, c) = (first.into(), second.into(), filter as c_long);
        // SAFETY: A filter that the kernel refuses.
        unsafe { syscall(number, a, b, c, 0, 0, 0) };
    }

    #[test]
    fn asking_for_filters_stops_nothing() {
        // At no address, and where nothing is.
        for (filter, expected) in [(0, false), (1, true)] {
            assert_eq!(stops(|| by_prctl(filter)), expected);
            let mode = libc::SECCOMP_MODE_FILTER as c_int;
            let prctl = || by_syscall(libc::SYS_prctl, libc::PR_SET_SECCOMP, mode, filter);
            assert_eq!(stops(prctl), expected);
            let seccomp = || by_syscall(libc::SYS_seccomp, 1, 0, filter);
            assert_eq!(stops(seccomp), expected);
        }
    }

    extern "C" fn restricts_itself(_: *mut c_void) -> c_int {
        by_prctl(1);
        0
    }

    #[test]
    fn a_child_of_vfork_restricts_itself_only() {
        let is_as_before = || {
            process::start();
            in_borrowed_memory(restricts_itself) && !settings::is_stopped()
        };
        assert!(in_child_process(is_as_before));
    }
}
