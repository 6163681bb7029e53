// SPDX-License-Identifier: GPL-2.0

//! Options of sockets that the crates don't know.

use socket2::Socket;
use std::{io, os::fd::AsRawFd, ptr};

/// Calls setsockopt(). The value is one that the option takes, without padding.
pub(crate) fn set<T: Copy>(
    socket: &Socket,
    level: libc::c_int,
    option: libc::c_int,
    value: T,
) -> io::Result<()> {
    // SAFETY: The value is of the length that is said.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            ptr::from_ref(&value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
