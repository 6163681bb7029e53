// SPDX-License-Identifier: GPL-2.0

//! What an executor needs, which sleeps elsewhere.

use super::UdpSocket;
use std::{io, sync::atomic::Ordering};

impl UdpSocket {
    /// Whether a datagram is in the RX ring, or a part of one.
    pub(crate) fn has_received(&self) -> bool {
        self.lock().channel.has_received()
    }

    /// Whether something was left in the TX ring.
    pub(crate) fn has_unsent(&self) -> bool {
        self.lock().channel.has_unsent()
    }

    /// Whether the next call tells of an error.
    pub(crate) fn has_late_error(&self) -> bool {
        self.late_error.load(Ordering::Relaxed) != 0
    }

    /// Has the next call tell of no error of an earlier datagram.
    pub(crate) fn forget_late_error(&self) {
        self.late_error.store(0, Ordering::Relaxed);
    }

    /// Waits no more for what becomes of a datagram that was left.
    pub(crate) fn forget(&self, ticket: u64) {
        self.lock().sends.end(ticket);
    }

    /// Sends what was left, or gives [`WouldBlock`](io::ErrorKind::WouldBlock). Another error is kept for
    /// the next call, too.
    pub(crate) fn drain(&self) -> io::Result<()> {
        let taken = self.flush(&mut self.lock());
        match taken {
            Ok(true) => Ok(()),
            Ok(false) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => {
                if let Some(errno) = error.raw_os_error() {
                    self.keep_error(errno.unsigned_abs());
                }
                Err(error)
            }
        }
    }

    /// Does something with the fake kernel.
    #[cfg(test)]
    pub(crate) fn with_kernel<R>(&self, act: impl FnOnce(&mut crate::fake::Kernel) -> R) -> R {
        act(&mut self.lock().channel.fake().borrow_mut())
    }
}
