// SPDX-License-Identifier: GPL-2.0

//! The turn to read a socket's queue. Who has it may be kept for ever, by memory that doesn't come, so others
//! wait no longer than a read may last, and never past a signal.

use crate::sys::{
    context::{jiffies, signal_pending},
    sock::{Sock, FOREVER}, //
};
use kernel::{
    prelude::*,
    sync::{Mutex, MutexGuard},
    time::{delay::fsleep, msecs_to_jiffies, Delta}, //
};

/// Microseconds after which the turn is tried again.
const AGAIN_US: i64 = 200;

/// How long a read that mustn't sleep waits, in milliseconds. A copy to memory takes less, unless that memory
/// is slow: then the read says EAGAIN, though there may be datagrams.
const BRIEFLY_MS: u32 = 100;

/// The turn to read: `ERESTARTSYS` for a signal. Process context.
pub(crate) fn turn_to_read(reading: &Mutex<bool>) -> Result<MutexGuard<'_, bool>> {
    turn_while(reading, || true).ok_or(ERESTARTSYS)
}

/// The turn of a read that may sleep for `timeout` jiffies, of which it leaves the rest there: `EAGAIN` if it
/// didn't come meanwhile, and the errors of recvmsg for a signal. Process context.
pub(super) fn turn_within<'a>(
    reading: &'a Mutex<bool>,
    sk: &Sock,
    timeout: &mut isize,
) -> Result<MutexGuard<'a, bool>> {
    let begin = jiffies();
    let waited = || jiffies().wrapping_sub(begin);
    let longest = match *timeout {
        0 => msecs_to_jiffies(BRIEFLY_MS),
        jiffies => jiffies.unsigned_abs(),
    };
    let turn = turn_while(reading, || waited() < longest);
    if turn.is_none() && *timeout != 0 && signal_pending() {
        return Err(sk.interrupted(*timeout));
    }
    if *timeout != FOREVER {
        *timeout = timeout.saturating_sub_unsigned(waited()).max(0);
    }
    turn.ok_or(EAGAIN)
}

fn turn_while(reading: &Mutex<bool>, may_wait: impl Fn() -> bool) -> Option<MutexGuard<'_, bool>> {
    loop {
        if let Some(turn) = reading.try_lock() {
            return Some(turn);
        }
        if signal_pending() || !may_wait() {
            return None;
        }
        fsleep(Delta::from_micros(AGAIN_US));
    }
}
