// SPDX-License-Identifier: GPL-2.0

//! AF_XDP, whose packets the kernel copies into skbs and hands to the driver, or which the driver
//! sends out of the program's own frames.

use super::Sender;
use crate::{
    traffic::{Traffic, HEADERS},
    xdp::{offsets, Ring, Xsk, FRAMES},
};
use std::{io, os::fd::AsRawFd, ptr, sync::atomic::Ordering, thread, time::Duration};

const COMPLETION_PAGE: libc::off_t = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;
/// Frames that are for sending; the others are for the FILL ring.
const TO_SEND: usize = FRAMES as usize / 2;
/// There is nothing to wait for but time while the device is full.
const NAP: Duration = Duration::from_micros(50);

/// A batch of packets by each system call, at the device's first queue.
pub(super) struct Xdp {
    tx: Ring,
    completion: Ring,
    xsk: Xsk,
    /// Of which the driver makes its receive buffers, if it copies nothing; it never stops asking
    /// for them while there are none.
    _fill: Ring,
    free: Vec<u64>,
    batch: usize,
    zero_copy: bool,
}

impl Xdp {
    pub(super) fn new(device: u32, batch: usize, zero_copy: bool) -> io::Result<Self> {
        let xsk = Xsk::new(libc::XDP_TX_RING)?;
        let at = offsets(&xsk.socket)?;
        let completion = Ring::new(&xsk.socket, COMPLETION_PAGE, at.cr, 8)?;
        let fill = xsk.fill(Xsk::all_frames().skip(TO_SEND))?;
        let entry = size_of::<libc::xdp_desc>();
        let tx = Ring::new(&xsk.socket, libc::XDP_PGOFF_TX_RING, at.tx, entry)?;
        xsk.bind(device, zero_copy)?;
        Ok(Self {
            tx,
            completion,
            xsk,
            _fill: fill,
            free: Xsk::all_frames().take(TO_SEND).collect(),
            batch,
            zero_copy,
        })
    }

    /// Takes back the frames that have been sent.
    fn reap(&mut self) {
        let end = self.completion.producer().load(Ordering::Acquire);
        let mut at = self.completion.consumer().load(Ordering::Relaxed);
        while at != end {
            // SAFETY: The entry is this side's, as the kernel's index says.
            let frame = unsafe { self.completion.entry::<u64>(at).read() };
            self.free.push(frame);
            at = at.wrapping_add(1);
        }
        self.completion.consumer().store(at, Ordering::Release);
    }

    /// Waits until that number of frames are the program's.
    fn wait_for(&mut self, frames: usize) {
        self.reap();
        while self.free.len() < frames {
            thread::sleep(NAP);
            self.reap();
        }
    }

    /// Has the kernel look at the TX ring.
    fn call(&self) -> io::Result<()> {
        // SAFETY: Nothing to read.
        let sent = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::sendto(
                self.xsk.socket.as_raw_fd(),
                ptr::null(),
                0,
                flags,
                ptr::null(),
                0,
            )
        };
        if sent < 0 {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // Also when it took as many as one call may.
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS) => {}
                _ => return Err(error),
            }
        }
        Ok(())
    }

    /// Has the kernel take all of the TX ring; a call takes some.
    fn ring(&self) -> io::Result<()> {
        let end = self.tx.producer().load(Ordering::Relaxed);
        let mut taken = self.tx.consumer().load(Ordering::Acquire);
        while taken != end {
            self.call()?;
            let before = std::mem::replace(&mut taken, self.tx.consumer().load(Ordering::Acquire));
            if taken == before {
                thread::sleep(NAP);
            }
        }
        Ok(())
    }
}

impl Sender for Xdp {
    fn send(&mut self, traffic: &mut Traffic, mut count: usize) -> io::Result<()> {
        let len = HEADERS + traffic.payload();
        while count > 0 {
            let batch = count.min(self.batch);
            self.wait_for(batch);
            let mut at = self.tx.producer().load(Ordering::Relaxed);
            for addr in self.free.drain(self.free.len() - batch..) {
                // SAFETY: The frame is the program's and in the region; so is the entry of the
                // ring, which has room for as many as there are frames.
                unsafe {
                    let data = self.xsk.at(addr);
                    traffic.frame(std::slice::from_raw_parts_mut(data, len));
                    self.tx.entry::<libc::xdp_desc>(at).write(libc::xdp_desc {
                        addr,
                        len: len as u32,
                        options: 0,
                    });
                }
                at = at.wrapping_add(1);
            }
            self.tx.producer().store(at, Ordering::Release);
            self.ring()?;
            count -= batch;
        }
        if self.zero_copy {
            self.wait_for(TO_SEND);
        }
        Ok(())
    }
}
