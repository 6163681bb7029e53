// SPDX-License-Identifier: GPL-2.0

//! What was sent, shown to the kernel, and its frames, taken back.

use super::{Bell, Channel};
use crate::{flow::FlowId, pure::abi::DESC_MORE, sys};
use std::{io, os::fd::AsRawFd};

/// A packet's frame that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The flow that sent it.
    pub flow: FlowId,
    /// The [`Frame::id`](crate::Frame::id) of the frame.
    pub frame: u32,
    /// Bytes that the frame held.
    pub len: u32,
    /// The errno with which the packet was refused, or 0.
    pub error: u16,
    /// Whether more frames of the same packet follow.
    pub more: bool,
}

impl Completion {
    /// The error with which the packet was refused, if it was.
    pub fn result(&self) -> io::Result<()> {
        match self.error {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno.into())),
        }
    }
}

/// What the kernel took of the TX ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    All,
    Some,
    None,
}

impl Channel {
    /// Shows the kernel what was sent, and takes back the frames that it is done with.
    ///
    /// Gives `true` if the kernel has taken everything; `false` if it stopped, since a flow's send
    /// buffer is full: [wait](Channel::wait) for [`Interest::WRITABLE`](crate::Interest::WRITABLE)
    /// and flush again. What became of packets is told by [`Channel::flush_with`], and by
    /// [`Flow::stats`](crate::Flow::stats).
    pub fn flush(&self) -> io::Result<bool> {
        self.flush_with(|_| {})
    }

    /// As [`Channel::flush`], and tells of each frame that came back.
    pub fn flush_with(&self, mut completed: impl FnMut(Completion)) -> io::Result<bool> {
        loop {
            self.reap(&mut completed)?;
            let shown = self.show()?;
            self.reap(&mut completed)?;
            match shown {
                Shown::All => return Ok(true),
                Shown::None => return Ok(false),
                // There may be room for more completions now.
                Shown::Some => {}
            }
        }
    }

    /// Submits what was written, and rings the doorbell if it must be.
    pub(super) fn show(&self) -> io::Result<Shown> {
        {
            let mut tx = self.tx.borrow_mut();
            tx.ring.submit();
            // Without need of a doorbell the kernel takes it soon, and that is as good.
            if !tx.ring.is_unread() || !tx.ring.needs_wakeup() {
                return Ok(Shown::All);
            }
        }
        let taken = self.ring_tx()?;
        if !self.tx.borrow().ring.is_unread() {
            Ok(Shown::All)
        } else if taken > 0 {
            Ok(Shown::Some)
        } else {
            Ok(Shown::None)
        }
    }

    fn ring_tx(&self) -> io::Result<u32> {
        match &self.bell {
            Bell::Socket(socket) => sys::ring_tx(socket.as_raw_fd()),
            #[cfg(test)]
            Bell::Fake(kernel) => {
                let kernel = &mut *kernel.borrow_mut();
                match kernel.refusal {
                    0 => Ok(kernel.transmit()),
                    errno => Err(io::Error::from_raw_os_error(errno)),
                }
            }
        }
    }

    /// Whether the kernel has yet to take something of the TX ring.
    pub(crate) fn has_unsent(&self) -> bool {
        self.tx.borrow().ring.is_unread()
    }

    /// Takes back the frames that the kernel is done with, and tells of each.
    pub fn reap(&self, completed: impl FnMut(Completion)) -> io::Result<()> {
        self.reap_up_to(u32::MAX, completed).map(drop)
    }

    /// As [`Channel::reap`], but of a maximum number of frames; returns their number.
    pub fn reap_up_to(&self, max: u32, completed: impl FnMut(Completion)) -> io::Result<u32> {
        let count = self.take_completions(max, completed)?;
        if count > 0 {
            self.refill_if_short()?;
        }
        Ok(count)
    }

    fn take_completions(&self, max: u32, mut completed: impl FnMut(Completion)) -> io::Result<u32> {
        let mut count = 0;
        loop {
            let desc = {
                let completion = &mut self.tx.borrow_mut().completion;
                if count == max || completion.available(1)? == 0 {
                    // All that were read.
                    completion.release(0);
                    return Ok(count);
                }
                completion.read()
            };
            let Some(start) = self.region.frame_of_payload(desc.offset, desc.len) else {
                // A descriptor that was refused for its place; none of this crate's.
                continue;
            };
            count += 1;
            self.put_free(start);
            completed(Completion {
                flow: FlowId(desc.flow),
                frame: start,
                len: desc.len,
                error: desc.error,
                more: desc.flags & DESC_MORE != 0,
            });
        }
    }
}
