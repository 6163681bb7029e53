// SPDX-License-Identifier: GPL-2.0

//! The turn to read a socket's queue.
//!
//! A reader can hold it forever, if a page fault in the destination buffer never ends. So others wait only as
//! long as their read may, and a signal ends the wait.

use crate::sys::{
    context::{fatal_signal_pending, jiffies, signal_pending},
    sock::{Sock, FOREVER}, //
};
use kernel::{
    prelude::*,
    sync::{Mutex, MutexGuard},
    time::{delay::fsleep, msecs_to_jiffies, Delta}, //
};

/// The turn to read, and what its holder knows.
pub(crate) type ReadTurn = Mutex<FirstDatagram>;

/// What is known of the first datagram in a socket's queue.
#[derive(Default)]
pub(crate) struct FirstDatagram {
    /// It was judged, and counted, by a read that left it in the queue.
    pub(super) counted_before: bool,
}

/// Microseconds after which the turn is tried again, at first and at last: a copy is short, unless its memory is
/// slow.
const NAP_US: i64 = 20;
const LONGEST_NAP_US: i64 = 10_000;

/// How long a read that mustn't sleep waits, in milliseconds. Then it says EAGAIN, though there may be datagrams.
const BRIEFLY_MS: u32 = 100;

/// The turn to read: `ERESTARTSYS` for a signal. Process context.
pub(crate) fn turn_to_read(reading: &ReadTurn) -> Result<MutexGuard<'_, FirstDatagram>> {
    turn_while(reading, || !signal_pending()).ok_or(ERESTARTSYS)
}

/// The turn of a read that may sleep for `timeout` jiffies, of which it leaves the rest there: `EAGAIN` if it
/// didn't come meanwhile, and the errors of recvmsg for a signal. Process context.
pub(super) fn turn_within<'a>(
    reading: &'a ReadTurn,
    sk: &Sock,
    timeout: &mut isize,
) -> Result<MutexGuard<'a, FirstDatagram>> {
    let begin = jiffies();
    let waited = || jiffies().wrapping_sub(begin);
    // A signal that doesn't kill it doesn't matter to a call that doesn't sleep.
    let (longest, is_ended): (_, fn() -> bool) = match *timeout {
        0 => (msecs_to_jiffies(BRIEFLY_MS), fatal_signal_pending),
        longest => (longest.unsigned_abs(), signal_pending),
    };
    let turn = turn_while(reading, || waited() < longest && !is_ended());
    if let Some(turn) = turn {
        spend(timeout, waited());
        return Ok(turn);
    }
    if *timeout == 0 {
        return Err(EAGAIN);
    }
    // A datagram wakes one reader, which was this one, maybe.
    if !sk.is_queue_empty() {
        sk.wake_readers();
    }
    Err(match signal_pending() {
        true => sk.interrupted(*timeout),
        false => EAGAIN,
    })
}

/// Takes the jiffies that have passed from a time-out, unless it has no end.
fn spend(timeout: &mut isize, passed: usize) {
    if *timeout != FOREVER {
        *timeout = timeout.saturating_sub_unsigned(passed).max(0);
    }
}

fn turn_while(
    reading: &ReadTurn,
    may_wait: impl Fn() -> bool,
) -> Option<MutexGuard<'_, FirstDatagram>> {
    let mut nap = NAP_US;
    loop {
        if let Some(turn) = reading.try_lock() {
            return Some(turn);
        }
        if !may_wait() {
            return None;
        }
        fsleep(Delta::from_micros(nap));
        nap = nap.saturating_mul(2).min(LONGEST_NAP_US);
    }
}
