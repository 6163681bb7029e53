// SPDX-License-Identifier: GPL-2.0

//! A channel: the rings and frames that a process and the kernel share.

use crate::{
    frame::{Frame, Payload},
    pure::{
        abi::{Desc, Layout, FRAME_HEADROOM},
        ring::{Broken, Consumer, Producer},
    },
    region::Region,
};
use socket2::Socket;
use std::{
    cell::RefCell,
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::Arc,
};

mod builder;
mod entries;
mod flush;
mod receive;
mod send;
mod wait;

pub use self::{
    builder::Builder,
    flush::Completion,
    send::SendError,
    wait::{Interest, Ready},
};

/// How the kernel is asked to look at the channel.
pub(crate) enum Bell {
    /// By a socket that is on it.
    Socket(Arc<Socket>),
    /// There is no kernel, but a test.
    #[cfg(test)]
    Fake(Box<RefCell<crate::fake::Kernel>>),
}

/// The sending half: what the program writes of it, and what comes back.
struct Tx {
    ring: Producer<Desc>,
    completion: Consumer<Desc>,
}

/// The receiving half.
struct Rx {
    ring: Consumer<Desc>,
    fill: Producer<u64>,
    /// Frames in the FILL ring, with the kernel or in the RX ring.
    posted: u32,
    /// The number of them that there should be.
    target: u32,
}

/// A channel: mapped frames and the four rings that carry them.
///
/// Packets of all flows on it come from [`Channel::recv`] and go by [`Channel::send`]. Both work on
/// memory alone; [`Channel::flush`] shows the kernel what was sent, with one system call for all of
/// it, and [`Channel::wait`] sleeps.
///
/// A channel can be moved to another thread, while no frame of it is out, but not be shared: each
/// ring has one writer and one reader. Threads that send and receive at once take a channel each, or
/// use [`UdpSocket`](crate::UdpSocket).
///
/// # Forks
///
/// A forked child has the same memory mapped. It must not use the channel, nor frames of it, as long
/// as the parent does. It may drop them, which its parent doesn't notice.
pub struct Channel {
    tx: RefCell<Tx>,
    rx: RefCell<Rx>,
    /// First bytes of the frames that neither the kernel has nor a [`Frame`].
    free: RefCell<Vec<u32>>,
    bell: Bell,
    /// Holds what the rings point to, so stays behind them.
    region: Region,
}

impl From<Broken> for io::Error {
    fn from(_: Broken) -> Self {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "a ring of the channel is broken: something else wrote to it",
        )
    }
}

impl Channel {
    /// Describes a channel to be made.
    pub fn builder() -> Builder {
        Builder::default()
    }

    #[inline]
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Where rings and frames lie in the mapping.
    pub fn layout(&self) -> &Layout {
        self.region.layout()
    }

    /// Bytes of payload that one frame holds.
    pub fn frame_capacity(&self) -> usize {
        self.region.capacity() as usize
    }

    /// Takes a free frame; `None` while there is none.
    ///
    /// Frames become free when packets are dropped, and by [`Channel::flush`] when the kernel has
    /// let go of what was sent.
    #[inline]
    pub fn frame(&self) -> Option<Frame<'_>> {
        let start = self.free.borrow_mut().pop()?;
        let offset = start + FRAME_HEADROOM;
        // SAFETY: It was on the free list, and so is nobody's.
        Some(unsafe { Frame::new(self, start, offset, 0) })
    }

    /// Takes as many frames as `data` needs, and copies it there; `None` while there are too few.
    pub fn payload(&self, data: &[u8]) -> Option<Payload<'_>> {
        let mut first = self.frame()?;
        let mut at = first.extend_from_slice(data);
        let mut payload = Payload::from(first);
        while at < data.len() {
            let mut frame = self.frame()?;
            at += frame.extend_from_slice(&data[at..]);
            payload.push(frame);
        }
        Some(payload)
    }

    /// Number of free frames that aren't due to the kernel for packets to come.
    pub(crate) fn spare_frames(&self) -> usize {
        let rx = self.rx.borrow();
        let due = rx.target.saturating_sub(rx.posted);
        self.free.borrow().len().saturating_sub(due as usize)
    }

    #[inline]
    pub(crate) fn put_free(&self, start: u32) {
        self.free.borrow_mut().push(start);
    }

    /// The fake kernel.
    #[cfg(test)]
    pub(crate) fn fake(&self) -> &RefCell<crate::fake::Kernel> {
        match &self.bell {
            Bell::Socket(_) => unreachable!("a channel of a real kernel"),
            Bell::Fake(kernel) => kernel,
        }
    }

    #[cfg(test)]
    pub(crate) fn is_fake(&self) -> bool {
        matches!(self.bell, Bell::Fake(_))
    }

    /// Number of free frames.
    #[cfg(test)]
    pub(crate) fn free_frames(&self) -> usize {
        self.free.borrow().len()
    }
}

impl AsRawFd for Channel {
    /// A socket on the channel, for poll(2) and the like.
    fn as_raw_fd(&self) -> RawFd {
        match &self.bell {
            Bell::Socket(socket) => socket.as_raw_fd(),
            #[cfg(test)]
            Bell::Fake(_) => -1,
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.bell {
            Bell::Socket(socket) => socket.as_fd(),
            #[cfg(test)]
            Bell::Fake(_) => unreachable!("a channel without a kernel has no descriptor"),
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("layout", self.layout())
            .finish_non_exhaustive()
    }
}
