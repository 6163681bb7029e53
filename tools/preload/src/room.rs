// SPDX-License-Identifier: GPL-2.0

//! Waiting for room in a socket's send buffer, as sendmmsg(2) does within a list.

use crate::{real, sockets};
use libc::c_int;
use std::time::{Duration, Instant};

/// After this, somebody may have ended sending by shutdown(2), of which poll(2) tells nobody.
const SLICE: Duration = Duration::from_secs(1);
/// Time between two looks, where poll(2) doesn't wait since there is an error to be read.
const NAP: Duration = Duration::from_millis(1);

/// What became of a wait.
pub(crate) enum Room {
    /// There is room.
    There,
    /// There may be room, or an error that a call would give.
    Perhaps,
    /// There is none, and the wait is over: its time, or by a signal.
    Over,
}

/// A wait of one message.
pub(crate) struct Wait {
    fd: c_int,
    /// It waits at all.
    is_blocking: bool,
    /// `None`: as long as it takes.
    until: Option<Instant>,
    /// There was an error to be read.
    has_error: bool,
}

impl Wait {
    /// That of a call with these flags.
    pub(crate) fn new(fd: c_int, flags: c_int) -> Self {
        let is_blocking = flags & libc::MSG_DONTWAIT == 0 && sockets::waits_for_room(fd);
        let timeout = is_blocking.then(|| sockets::send_timeout(fd)).flatten();
        Self {
            fd,
            is_blocking,
            // No time that a program can say is too long for this, but a sum that is would be no end.
            until: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            has_error: false,
        }
    }

    /// Whether it waits at all.
    pub(crate) fn is_blocking(&self) -> bool {
        self.is_blocking
    }

    /// Waits; says what to do. A signal ends it, also one whose handler has SA_RESTART. The thread may be cancelled
    /// here.
    pub(crate) fn room(&mut self) -> Room {
        let end = Instant::now() + SLICE;
        loop {
            let left = self.left();
            match real::poll_writable(self.fd, left.min(SLICE)) {
                Some(events) if events & libc::POLLOUT != 0 => return Room::There,
                // A signal.
                None => return Room::Over,
                // What poll() calls writable takes half of the buffer; a call takes less.
                Some(_) if left.is_zero() && sockets::has_room(self.fd) => return Room::There,
                Some(_) if left.is_zero() => return Room::Over,
                Some(0) => return Room::Perhaps,
                // An error of the socket, which a call gives; or one in the queue, which stays.
                Some(_) if !self.has_error => {
                    self.has_error = true;
                    return Room::Perhaps;
                }
                Some(_) => {}
            }
            if !real::sleep(left.min(NAP)) {
                return Room::Over;
            }
            if sockets::has_room(self.fd) {
                return Room::There;
            }
            if Instant::now() >= end {
                return Room::Perhaps;
            }
        }
    }

    /// For how long it may go on.
    fn left(&self) -> Duration {
        match self.until {
            _ if !self.is_blocking => Duration::ZERO,
            None => Duration::MAX,
            Some(until) => until.saturating_duration_since(Instant::now()),
        }
    }
}
