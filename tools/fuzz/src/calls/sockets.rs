// SPDX-License-Identifier: GPL-2.0

//! What makes sockets, and connects them.

use super::round::Round;
use crate::{pick, sys};
use kopi::pure::abi::{PROTO_TCP, PROTO_TCP6, PROTO_UDP, PROTO_UDP6};
use rand::{rngs::SmallRng, Rng};
use std::sync::atomic::Ordering::Relaxed;

pub(super) fn open(round: &Round, random: &mut SmallRng) {
    let is_stream = random.random_ratio(1, 3);
    let protocol = if is_stream {
        pick(random, &[0, PROTO_TCP, PROTO_TCP6, PROTO_TCP6, 132])
    } else {
        pick(random, &[0, PROTO_UDP, PROTO_UDP6, PROTO_UDP6, 1, 132])
    };
    let (family, protocol) = if random.random_ratio(round.ordinary, 16) {
        let protocol = match is_stream && random.random_ratio(1, 8) {
            true => libc::IPPROTO_MPTCP,
            false => 0,
        };
        (pick(random, &[libc::AF_INET, libc::AF_INET6]), protocol)
    } else {
        (round.family, protocol)
    };
    let made = if is_stream {
        sys::stream(family, protocol)
    } else {
        sys::socket(family, protocol)
    };
    if let Ok(fd) = made {
        if random.random_ratio(1, 4) {
            // SAFETY: Takes no pointers.
            unsafe { libc::fcntl(fd, libc::F_SETFL, 0) };
        }
        round.keep(fd, random);
    }
}

pub(super) fn bind(round: &Round, random: &mut SmallRng) {
    let fd = round.fd(random);
    let _ = sys::bind(fd, &round.name(random));
    if let Ok(port) = sys::port(fd) {
        round.port.store(port.into(), Relaxed);
    }
}

pub(super) fn connect(round: &Round, random: &mut SmallRng) {
    let mut name = round.name(random);
    if random.random_ratio(1, 4) {
        // AF_UNSPEC: no more.
        name = vec![0; 16];
    }
    let _ = sys::connect(round.fd(random), &name);
}

pub(super) fn listen(round: &Round, random: &mut SmallRng) {
    // SAFETY: Takes no pointers.
    unsafe { libc::listen(round.fd(random), pick(random, &[0, 1, 16, -1])) };
}

pub(super) fn accept(round: &Round, random: &mut SmallRng) {
    let fd = round.fd(random);
    let flags = pick(random, &[libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC, 0]);
    let (mut name, mut len) = ([0u8; 28], 28);
    let address = round.or_slow(name.as_mut_ptr(), random);
    // SAFETY: The pointers are to as many bytes as said, of this function's or of the slow file's mapping.
    let made = unsafe { libc::accept4(fd, address.cast(), &mut len, flags) };
    if made >= 0 {
        round.keep(made, random);
    }
}
