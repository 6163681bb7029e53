// SPDX-License-Identifier: GPL-2.0

//! Options, and ioctls with the doorbell among them.

use super::round::Round;
use crate::{options, pick, sys};
use kopi::pure::abi::{IOC_DOORBELL, OPT_CHANNEL, OPT_INFO, OPT_JOIN, OPT_STATS, SOL_KOPI};
use rand::{rngs::SmallRng, Rng};

pub(super) fn doorbell(round: &Round, random: &mut SmallRng) {
    let request = pick(
        random,
        &[
            u64::from(IOC_DOORBELL),
            u64::from(IOC_DOORBELL),
            0x541b,
            0x8906,
            0xcb02,
        ],
    );
    let argument = if request == u64::from(IOC_DOORBELL) {
        random.random_range(0..18)
    } else {
        8
    };
    let _ = sys::ioctl(round.fd(random), request, argument);
}

pub(super) fn option(round: &Round, random: &mut SmallRng) {
    let fd = round.fd(random);
    let level = pick(
        random,
        &[
            SOL_KOPI,
            SOL_KOPI,
            libc::SOL_SOCKET,
            libc::SOL_IP,
            libc::SOL_IPV6,
            libc::SOL_UDP,
        ],
    );
    let name = match level {
        SOL_KOPI => pick(random, &[OPT_INFO, OPT_CHANNEL, OPT_JOIN, OPT_STATS, 0, 5]),
        _ => random.random_range(0..110),
    };
    // Options that would have calls wait.
    if level == libc::SOL_SOCKET && name == libc::SO_LINGER || round.would_hold_rtnl(level, name) {
        return;
    }
    let mut value = vec![0u8; random.random_range(0..80)];
    match random.random_range(0..3) {
        0 => {
            let _ = sys::get(fd, level, name, &mut value);
        }
        1 => {
            let number: i32 = pick(random, &[0, 1, 2, 4096, -1, 1 << 30]);
            let _ = sys::set(fd, level, name, &number.to_ne_bytes());
        }
        _ => {
            random.fill(&mut value[..]);
            let _ = sys::set(fd, level, name, &value);
        }
    }
}

/// An option with a value that it takes, or nearly; given in memory whose pages come late, now and then.
pub(super) fn known_option(round: &Round, random: &mut SmallRng) {
    let (level, name, mut value) = options::option(random);
    if round.would_hold_rtnl(level, name) {
        return;
    }
    let fd = round.fd(random);
    let mut len = value.len() as u32;
    let at = round.or_slow(value.as_mut_ptr(), random);
    // SAFETY: The pointers are to as many bytes as said, of this function's or of the slow file's mapping, and
    // to their number.
    unsafe {
        if random.random_ratio(1, 4) {
            libc::getsockopt(fd, level, name, at, &mut len);
        } else {
            libc::setsockopt(fd, level, name, at, len);
        }
    }
}
