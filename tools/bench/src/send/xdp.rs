// SPDX-License-Identifier: GPL-2.0

//! AF_XDP, whose packets the kernel copies into skbs and hands to the driver, or which the driver
//! sends out of the program's own frames.

use super::Sender;
use crate::{
    traffic::{Traffic, HEADERS},
    xdp::{Outgoing, Ring, Xsk, FRAMES, FULL},
};
use std::{io, thread};

/// Frames that are for sending; the others are for the FILL ring.
const TO_SEND: usize = FRAMES as usize / 2;

/// A batch of packets by each system call, at the device's first queue.
pub(super) struct Xdp {
    outgoing: Outgoing,
    xsk: Xsk,
    /// Of which the driver makes its receive buffers, if it copies nothing; it never stops asking
    /// for them while there are none.
    _fill: Ring<u64>,
    free: Vec<u64>,
    batch: usize,
    zero_copy: bool,
}

impl Xdp {
    pub(super) fn new(device: u32, batch: usize, zero_copy: bool) -> io::Result<Self> {
        let xsk = Xsk::new(&[libc::XDP_TX_RING])?;
        let outgoing = Outgoing::new(&xsk)?;
        let fill = xsk.fill(Xsk::all_frames().skip(TO_SEND))?;
        xsk.bind(device, zero_copy)?;
        Ok(Self {
            outgoing,
            xsk,
            _fill: fill,
            free: Xsk::all_frames().take(TO_SEND).collect(),
            batch,
            zero_copy,
        })
    }

    /// Waits until that number of frames are the program's.
    fn wait_for(&mut self, frames: usize) {
        self.free.extend(self.outgoing.reap());
        while self.free.len() < frames {
            thread::sleep(FULL);
            self.free.extend(self.outgoing.reap());
        }
    }
}

impl Sender for Xdp {
    fn send(&mut self, traffic: &mut Traffic, mut count: usize) -> io::Result<()> {
        let len = HEADERS + traffic.payload();
        while count > 0 {
            let batch = count.min(self.batch);
            self.wait_for(batch);
            let free = self.free.drain(self.free.len() - batch..);
            let frames = free.map(|addr| {
                // SAFETY: The frame is the program's and in the region.
                let frame = unsafe { std::slice::from_raw_parts_mut(self.xsk.at(addr), len) };
                traffic.frame(frame);
                libc::xdp_desc {
                    addr,
                    len: len as u32,
                    options: 0,
                }
            });
            self.outgoing.send(&self.xsk, frames)?;
            count -= batch;
        }
        if self.zero_copy {
            self.wait_for(TO_SEND);
        }
        Ok(())
    }
}
