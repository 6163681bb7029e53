// SPDX-License-Identifier: GPL-2.0

//! The lock of a socket's readers, who read one after another where each datagram is judged first.
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

/// Held by the reader of a socket's queue, with what that knows.
pub(crate) type ReaderLock = Mutex<FirstDatagram>;

/// What is known of the first datagram in a socket's queue.
#[derive(Default)]
pub(crate) struct FirstDatagram {
    /// It was judged, and counted, by a read that left it in the queue.
    pub(super) counted_before: bool,
}

/// Microseconds after which the lock is tried again, at first and at last: a copy is short, unless its memory is
/// slow.
const NAP_US: i64 = 20;
const LONGEST_NAP_US: i64 = 10_000;

/// How long a read that mustn't sleep waits, in milliseconds. Then it says EAGAIN, though there may be datagrams.
const BRIEFLY_MS: u32 = 100;

/// Locks out other readers: `ERESTARTSYS` for a signal. Process context.
pub(crate) fn lock_reader(lock: &ReaderLock) -> Result<MutexGuard<'_, FirstDatagram>> {
    lock_reader_while(lock, || !signal_pending()).ok_or(ERESTARTSYS)
}

/// Locks out other readers for a read that may sleep for `timeout` jiffies, of which it leaves the rest there: `EAGAIN`
/// if they didn't end meanwhile, and the errors of recvmsg for a signal. Process context.
pub(super) fn lock_reader_within<'a>(
    lock: &'a ReaderLock,
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
    let locked = lock_reader_while(lock, || waited() < longest && !is_ended());
    if let Some(locked) = locked {
        spend(timeout, waited());
        return Ok(locked);
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

fn lock_reader_while(
    lock: &ReaderLock,
    may_wait: impl Fn() -> bool,
) -> Option<MutexGuard<'_, FirstDatagram>> {
    let mut nap = NAP_US;
    loop {
        if let Some(locked) = lock.try_lock() {
            return Some(locked);
        }
        if !may_wait() {
            return None;
        }
        fsleep(Delta::from_micros(nap));
        nap = nap.saturating_mul(2).min(LONGEST_NAP_US);
    }
}
