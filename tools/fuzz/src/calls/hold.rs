// SPDX-License-Identifier: GPL-2.0

//! A socket that is locked for long.

use super::{regions::map_as, round::Round, SLOW};
use crate::{pick, sys};
use kopi::pure::abi::{ChannelReq, CHANNEL_ENGINE, CHANNEL_TX_ONLY};
use rand::{rngs::SmallRng, Rng};
use std::{io, net::SocketAddr};

/// Has a socket locked for as long as the thread has patience: its buffer is full of what a slow
/// device keeps, or its payload is where pages come late.
pub(super) fn hold(round: &Round, random: &mut SmallRng) {
    if !random.random_ratio(1, 16) {
        return;
    }
    let Ok(fd) = sys::socket(round.family, 0) else {
        return;
    };
    let _ = sys::set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &[0; 4]);
    let data = [0u8; 500];
    let first = random.random_range(0..round.at.len());
    for &ip in round.at[first..].iter().chain(&round.at[..first]) {
        let _ = sys::connect(fd, &sys::name(SocketAddr::new(ip, 9)));
        // Not for ever: most devices aren't slow.
        let full = (0..20).any(|_| {
            // SAFETY: The pointer is to as many bytes as the length says.
            let sent = unsafe { libc::send(fd, data.as_ptr().cast(), 500, libc::MSG_DONTWAIT) };
            sent < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
        });
        if full {
            break;
        }
    }
    // On a channel, of which others have flows.
    let _ = sys::join(fd, round.fd(random)).or_else(|_| {
        let request = ChannelReq {
            frame_size: 2048,
            frame_count: 16,
            tx_entries: 16,
            completion_entries: 16,
            fill_entries: 16,
            rx_entries: 16,
            flags: pick(random, &[0, CHANNEL_ENGINE, CHANNEL_TX_ONLY]),
            ..ChannelReq::default()
        };
        sys::make_channel(fd, &request)
    });
    map_as(round, fd, 3, libc::MAP_SHARED, 0, |size| size);
    // SAFETY: Takes no pointers.
    unsafe { libc::fcntl(fd, libc::F_SETFL, 0) };
    round.keep(fd, random);
    let from = match round.slow {
        Some(slow) if random.random() => {
            (slow + random.random_range(0..SLOW / 4096 - 1) * 4096) as *const _
        }
        _ => data.as_ptr().cast(),
    };
    // SAFETY: The pointer is to as many bytes as said, of this function's or of the slow file's mapping.
    unsafe { libc::send(fd, from, 500, libc::MSG_MORE | libc::MSG_NOSIGNAL) };
}
