// SPDX-License-Identifier: GPL-2.0

//! AF_XDP, whose packets the driver hands over before the stack sees them.

use super::{poll, Receiver, Tally};
use crate::{
    bpf::Redirect,
    traffic::HEADERS,
    xdp::{offsets, Ring, Xsk, FRAME},
};
use std::{io, sync::atomic::Ordering};

/// What is in the RX ring.
pub(super) struct Xdp {
    _redirect: Redirect,
    rx: Ring,
    fill: Ring,
    xsk: Xsk,
}

impl Xdp {
    pub(super) fn new(device: u32, zero_copy: bool) -> io::Result<Self> {
        let xsk = Xsk::new(libc::XDP_RX_RING)?;
        let at = offsets(&xsk.socket)?;
        let fill = xsk.fill(Xsk::all_frames())?;
        let entry = size_of::<libc::xdp_desc>();
        let rx = Ring::new(&xsk.socket, libc::XDP_PGOFF_RX_RING, at.rx, entry)?;
        xsk.bind(device, zero_copy)?;
        Ok(Self {
            _redirect: Redirect::new(device, &xsk.socket)?,
            rx,
            fill,
            xsk,
        })
    }
}

impl Receiver for Xdp {
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        let end = self.rx.producer().load(Ordering::Acquire);
        let mut at = self.rx.consumer().load(Ordering::Relaxed);
        if at == end {
            return poll(&self.xsk.socket);
        }
        let mut free = self.fill.producer().load(Ordering::Relaxed);
        while at != end {
            // SAFETY: The entry is this side's, as the kernel's index says; the frame that it names
            // is, too, and the ring has room for all frames.
            unsafe {
                let desc = self.rx.entry::<libc::xdp_desc>(at).read();
                let data = self.xsk.at(desc.addr);
                let frame = std::slice::from_raw_parts(data, desc.len as usize);
                tally.add_frame(frame, HEADERS);
                let start = desc.addr & !(FRAME as u64 - 1);
                self.fill.entry::<u64>(free).write(start);
            }
            at = at.wrapping_add(1);
            free = free.wrapping_add(1);
        }
        self.rx.consumer().store(at, Ordering::Release);
        self.fill.producer().store(free, Ordering::Release);
        Ok(())
    }
}
