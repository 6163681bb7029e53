// SPDX-License-Identifier: GPL-2.0

//! AF_XDP, whose packets the driver hands over before the stack sees them.

use super::{poll, Receiver, Tally};
use crate::{
    bpf::Redirect,
    traffic::HEADERS,
    xdp::{offsets, Ring, Taken, Xsk, FRAME},
};
use std::io;

/// The rings for receiving: RX, and FILL.
pub(super) struct Incoming {
    rx: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
}

impl Incoming {
    /// Of a socket that isn't bound yet; all its frames are for receiving.
    pub(super) fn new(xsk: &Xsk) -> io::Result<Self> {
        let at = offsets(&xsk.socket)?;
        Ok(Self {
            fill: xsk.fill(Xsk::all_frames())?,
            rx: Ring::new(&xsk.socket, libc::XDP_PGOFF_RX_RING, at.rx)?,
        })
    }

    /// What has come, which the caller has then.
    pub(super) fn take(&self) -> Taken<'_, libc::xdp_desc> {
        self.rx.take()
    }

    /// Gives the frames back in which these addresses are.
    pub(super) fn give(&self, frames: impl Iterator<Item = u64>) {
        self.fill.put(frames.map(|addr| addr & !(FRAME as u64 - 1)));
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
        let frames = self.incoming.take();
        if frames.len() == 0 {
            return poll(&self.xsk.socket);
        }
        self.incoming.give(frames.map(|desc| {
            // SAFETY: The kernel has given the frame, and doesn't write to it.
            let frame =
                unsafe { std::slice::from_raw_parts(self.xsk.at(desc.addr), desc.len as usize) };
            tally.add_frame(frame, HEADERS);
            desc.addr
        }));
        Ok(())
    }
}
