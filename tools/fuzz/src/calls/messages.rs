// SPDX-License-Identifier: GPL-2.0

//! What sockets send, receive and wait for, and datagrams that none of them sent.

use super::round::Round;
use crate::{options, pick, sys};
use rand::{rngs::SmallRng, Rng};

pub(super) fn send(round: &Round, random: &mut SmallRng) {
    let mut name = round.name(random);
    let size = match random.random_range(0..8) {
        0 => random.random_range(0..65536),
        _ => random.random_range(0..3000),
    };
    let mut data = vec![0u8; size];
    let mut control = if random.random() {
        options::messages(random)
    } else {
        let mut bytes = vec![0u8; random.random_range(0..64)];
        random.fill(&mut bytes[..]);
        bytes
    };
    let mut part = libc::iovec {
        iov_base: round.or_slow(data.as_mut_ptr(), random),
        iov_len: data.len(),
    };
    let mut message = message_of(&mut part);
    if random.random() {
        message.msg_name = round.or_slow(name.as_mut_ptr(), random);
        message.msg_namelen = name.len() as u32;
    }
    if random.random() {
        message.msg_control = round.or_slow(control.as_mut_ptr(), random);
        message.msg_controllen = control.len();
    }
    let usual = [
        libc::MSG_MORE,
        libc::MSG_OOB,
        libc::MSG_ZEROCOPY,
        libc::MSG_FASTOPEN,
    ];
    let flags = flags(random, &usual);
    // SAFETY: All pointers are to as many bytes as said, of this function's or of the slow file's mapping.
    unsafe { libc::sendmsg(round.fd(random), &message, flags | libc::MSG_NOSIGNAL) };
}

pub(super) fn receive(round: &Round, random: &mut SmallRng) {
    let mut data = vec![0u8; random.random_range(0..3000)];
    let mut name = [0u8; 28];
    let mut control = [0u64; 32];
    let usual = [libc::MSG_ERRQUEUE, libc::MSG_PEEK, libc::MSG_TRUNC];
    let flags = flags(random, &usual);
    let mut part = libc::iovec {
        iov_base: round.or_slow(data.as_mut_ptr(), random),
        iov_len: data.len(),
    };
    let mut message = message_of(&mut part);
    if random.random() {
        message.msg_name = name.as_mut_ptr().cast();
        message.msg_namelen = random.random_range(0..=28);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = random.random_range(0..=256);
    }
    // SAFETY: All pointers are to as many bytes as said, of this function's or of the slow file's mapping.
    unsafe { libc::recvmsg(round.fd(random), &mut message, flags) };
    if random.random_ratio(1, 16) {
        // SAFETY: Takes no pointers.
        unsafe { libc::shutdown(round.fd(random), random.random_range(0..4)) };
    }
}

/// Flags of a call: any, one bit, one of those that the call has, or none; seldom without MSG_DONTWAIT.
fn flags(random: &mut SmallRng, usual: &[i32]) -> i32 {
    let flags = match random.random_range(0..4) {
        0 => random.random(),
        1 => 1 << random.random_range(0..31),
        2 => pick(random, usual),
        _ => 0,
    };
    if random.random_ratio(31, 32) {
        flags | libc::MSG_DONTWAIT
    } else {
        flags
    }
}

/// A message of one part, and nothing else.
pub(super) fn message_of(part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: Zeroes are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message
}

/// A datagram that no socket sends, to one of them.
pub(super) fn fake(round: &Round, random: &mut SmallRng) {
    for _ in 0..random.random_range(1..10) {
        let (from, to) = (round.address(random), round.address(random));
        round.raw.send(from, to, random);
    }
}

pub(super) fn poll(round: &Round, random: &mut SmallRng) {
    sys::poll(round.fd(random), random.random());
}
