// SPDX-License-Identifier: GPL-2.0

//! Descriptors that are copied, passed on, inherited and closed.

use super::{messages::message_of, round::Round};
use kopi::pure::abi::IOC_DOORBELL;
use rand::{rngs::SmallRng, Rng};
use std::{io, ptr};

/// Sends a socket to this very process, where it may stay in flight until the end.
pub(super) fn pass(round: &Round, random: &mut SmallRng) {
    let mut byte = [0u8; 1];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control = [0u64; 3];
    let mut message = message_of(&mut part);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = 24;
    // SAFETY: A control buffer with room for one header and one descriptor.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = 20;
        libc::CMSG_DATA(header)
            .cast::<i32>()
            .write_unaligned(round.fd(random));
        message.msg_controllen = 24;
        libc::sendmsg(round.pair.0, &message, libc::MSG_DONTWAIT);
        if random.random() {
            return;
        }
        message.msg_controllen = 24;
        if libc::recvmsg(round.pair.1, &mut message, libc::MSG_DONTWAIT) == 1
            && message.msg_controllen >= 20
        {
            round.keep(
                libc::CMSG_DATA(libc::CMSG_FIRSTHDR(&message))
                    .cast::<i32>()
                    .read_unaligned(),
                random,
            );
        }
    }
}

pub(super) fn duplicate(round: &Round, random: &mut SmallRng) {
    // SAFETY: Takes no pointers.
    let fd = unsafe { libc::dup(round.fd(random)) };
    if fd >= 0 {
        round.keep(fd, random);
    }
}

/// A child with all descriptors and mappings, which ends, is killed, or becomes another program.
pub(super) fn fork(round: &Round, random: &mut SmallRng) {
    if !random.random_ratio(1, 8) {
        return;
    }
    let (fd, end) = (round.fd(random), random.random_range(0..3));
    let program = c"/bin/true";
    let arguments = [program.as_ptr(), ptr::null()];
    // SAFETY: The child makes system calls only, as it must after the fork of a process with threads.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::ioctl(fd, IOC_DOORBELL as libc::Ioctl, 1);
            match end {
                0 => libc::_exit(0),
                1 => libc::kill(libc::getpid(), libc::SIGKILL),
                _ => libc::execv(program.as_ptr(), arguments.as_ptr()),
            };
            libc::_exit(1);
        }
        if child > 0 {
            while libc::waitpid(child, ptr::null_mut(), 0) < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
    }
}

pub(super) fn close(round: &Round, random: &mut SmallRng) {
    round.keep(-1, random);
}
