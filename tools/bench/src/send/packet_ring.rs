// SPDX-License-Identifier: GPL-2.0

//! AF_PACKET's TX ring.

use super::{set_mark, Sender};
use crate::tpacket::Ring;
use crate::traffic::{Traffic, HEADERS};
use std::{io, os::fd::AsRawFd, ptr, sync::atomic::Ordering};

const FRAMES: usize = 512;
/// Nothing takes so long, but for an error.
const PATIENCE_MS: libc::c_int = 1000;

/// A batch of packets by each system call, through the device's qdisc.
pub(crate) struct PacketRing {
    ring: Ring,
    batch: usize,
}

impl PacketRing {
    pub(crate) fn new(device: u32, mark: u32, batch: usize) -> io::Result<Self> {
        let socket = Ring::socket()?;
        set_mark(&socket, mark)?;
        Ok(Self {
            // Protocol 0: receives nothing.
            ring: Ring::new(socket, libc::PACKET_TX_RING, FRAMES, device, 0)?,
            batch,
        })
    }

    /// Has the kernel look at the ring.
    fn ring(&self) -> io::Result<()> {
        // SAFETY: Nothing to read.
        let sent = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::send(self.ring.as_socket().as_raw_fd(), ptr::null(), 0, flags)
        };
        match sent {
            0.. => Ok(()),
            // Its send buffer is full; poll() tells when it isn't.
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                error => Err(error),
            },
        }
    }

    /// Sleeps until the socket has room.
    fn sleep(&self) -> io::Result<()> {
        let mut poll = libc::pollfd {
            fd: self.ring.as_socket().as_raw_fd(),
            events: libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: One entry.
        match unsafe { libc::poll(&mut poll, 1, PATIENCE_MS) } {
            1.. => Ok(()),
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until the kernel is done with the next frame.
    fn wait(&self) -> io::Result<()> {
        loop {
            match self.ring.status().load(Ordering::Acquire) {
                libc::TP_STATUS_AVAILABLE => return Ok(()),
                libc::TP_STATUS_WRONG_FORMAT => {
                    return Err(io::Error::other("the kernel refused a packet of the ring"))
                }
                _ => {
                    self.sleep()?;
                    self.ring()?;
                }
            }
        }
    }
}

impl Sender for PacketRing {
    fn send(&mut self, traffic: &mut Traffic, mut count: usize) -> io::Result<()> {
        let len = HEADERS + traffic.payload();
        let wanted = libc::TP_STATUS_SEND_REQUEST;
        while count > 0 {
            let batch = count.min(self.batch);
            for _ in 0..batch {
                self.wait()?;
                traffic.frame(self.ring.room(len));
                self.ring.status().store(wanted, Ordering::Release);
                self.ring.advance();
            }
            self.ring()?;
            count -= batch;
        }
        // What was left because there was no room.
        while self.ring.last_status().load(Ordering::Acquire) == wanted {
            self.sleep()?;
            self.ring()?;
        }
        Ok(())
    }
}
