// SPDX-License-Identifier: GPL-2.0

//! A program that restricts its own system calls by seccomp knows which ones it makes. From then on
//! this library makes none of its own.

use crate::{real, settings};
use libc::{c_int, c_long, c_ulong};

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
    if option == libc::PR_SET_SECCOMP {
        settings::stop("the program restricts its system calls");
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
    let by_seccomp = number == libc::SYS_seccomp && (a == 0 || a == 1);
    if by_seccomp || number == libc::SYS_prctl && a == libc::PR_SET_SECCOMP.into() {
        settings::stop("the program restricts its system calls");
    }
    // SAFETY: The caller's arguments.
    unsafe { real::syscall(number, a, b, c, d, e, f) }
}
