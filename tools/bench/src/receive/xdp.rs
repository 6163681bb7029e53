// SPDX-License-Identifier: GPL-2.0

//! AF_XDP, whose packets the driver hands over before the stack sees them.

use super::{poll, Receiver, Tally};
use crate::{
    bpf::Redirect,
    traffic::HEADERS,
    xdp::{offsets, Ring, Xsk, FRAME},
};
use std::{io, sync::atomic::Ordering};

/// The rings for receiving: RX, and FILL.
pub(super) struct Incoming {
    rx: Ring,
    fill: Ring,
}

impl Incoming {
    /// Of a socket that isn't bound yet; all its frames are for receiving.
    pub(super) fn new(xsk: &Xsk) -> io::Result<Self> {
        let at = offsets(&xsk.socket)?;
        let entry = size_of::<libc::xdp_desc>();
        Ok(Self {
            fill: xsk.fill(Xsk::all_frames())?,
            rx: Ring::new(&xsk.socket, libc::XDP_PGOFF_RX_RING, at.rx, entry)?,
        })
    }

    /// What has come, which the caller has then.
    pub(super) fn take(&self) -> Taken<'_> {
        Taken {
            rx: &self.rx,
            at: self.rx.consumer().load(Ordering::Relaxed),
            end: self.rx.producer().load(Ordering::Acquire),
        }
    }

    /// Gives the frames back in which these addresses are.
    pub(super) fn give(&self, frames: impl Iterator<Item = u64>) {
        let mut free = self.fill.producer().load(Ordering::Relaxed);
        for addr in frames {
            // SAFETY: The ring has room for all frames.
            unsafe {
                self.fill
                    .entry::<u64>(free)
                    .write(addr & !(FRAME as u64 - 1))
            };
            free = free.wrapping_add(1);
        }
        self.fill.producer().store(free, Ordering::Release);
    }
}

/// Descriptors of frames that have come. When it is dropped, the kernel may use the entries anew that were read.
pub(super) struct Taken<'r> {
    rx: &'r Ring,
    at: u32,
    end: u32,
}

impl Iterator for Taken<'_> {
    type Item = libc::xdp_desc;

    #[inline]
    fn next(&mut self) -> Option<libc::xdp_desc> {
        if self.at == self.end {
            return None;
        }
        // SAFETY: The entry is this side's, as the kernel's index says.
        let desc = unsafe { self.rx.entry::<libc::xdp_desc>(self.at).read() };
        self.at = self.at.wrapping_add(1);
        Some(desc)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.end.wrapping_sub(self.at) as usize;
        (len, Some(len))
    }
}

impl ExactSizeIterator for Taken<'_> {}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.rx.consumer().store(self.at, Ordering::Release);
    }
}

/// What is in the RX ring.
pub(super) struct Xdp {
    _redirect: Redirect,
    incoming: Incoming,
    xsk: Xsk,
}

impl Xdp {
    pub(super) fn new(device: u32, zero_copy: bool) -> io::Result<Self> {
        let xsk = Xsk::new(&[libc::XDP_RX_RING])?;
        let incoming = Incoming::new(&xsk)?;
        xsk.bind(device, zero_copy)?;
        Ok(Self {
            _redirect: Redirect::new(device, &xsk.socket)?,
            incoming,
            xsk,
        })
    }
}

impl Receiver for Xdp {
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        let mut frames = self.incoming.take();
        if frames.len() == 0 {
            return poll(&self.xsk.socket);
        }
        self.incoming.give(frames.by_ref().map(|desc| {
            // SAFETY: The kernel has given the frame, and doesn't write to it.
            let frame =
                unsafe { std::slice::from_raw_parts(self.xsk.at(desc.addr), desc.len as usize) };
            tally.add_frame(frame, HEADERS);
            desc.addr
        }));
        Ok(())
    }
}
