// SPDX-License-Identifier: GPL-2.0

//! io_uring.

use super::{all_of, raw_addresses, Sender, ADDRESS_LEN};
use crate::traffic::Traffic;
use io_uring::{cqueue, opcode, types, IoUring};
use socket2::Socket;
use std::{io, os::fd::AsRawFd, ptr};

/// A batch of sends by each system call, from a ring that one thread uses, to a registered file.
pub(super) struct Uring {
    /// Before what its entries point to.
    ring: IoUring,
    _socket: Socket,
    addresses: Vec<libc::sockaddr_in>,
    buffers: Vec<u8>,
    batch: usize,
}

impl Uring {
    pub(super) fn new(socket: Socket, batch: usize, traffic: &Traffic) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(batch as u32)?;
        ring.submitter().register_files(&[socket.as_raw_fd()])?;
        Ok(Self {
            ring,
            _socket: socket,
            addresses: raw_addresses(traffic),
            buffers: vec![0; batch * traffic.payload()],
            batch,
        })
    }
}

impl Sender for Uring {
    fn send(&mut self, traffic: &mut Traffic, mut count: usize) -> io::Result<()> {
        let (one, payload) = (traffic.to_one(), traffic.payload());
        while count > 0 {
            let batch = count.min(self.batch);
            let mut queue = self.ring.submission();
            for buffer in self.buffers.chunks_exact_mut(payload).take(batch) {
                let peer = traffic.next_peer();
                traffic.fill(buffer);
                let mut send = opcode::Send::new(types::Fixed(0), buffer.as_ptr(), payload as u32);
                if !one {
                    send = send
                        .dest_addr(ptr::from_ref(&self.addresses[peer]).cast())
                        .dest_addr_len(ADDRESS_LEN);
                }
                // SAFETY: Buffer and address live longer than the ring, and stay as they are until
                // all of the batch has completed, below.
                unsafe { queue.push(&send.build()) }.map_err(io::Error::other)?;
            }
            drop(queue);
            let mut done = 0;
            while done < batch {
                self.ring.submit_and_wait(batch - done)?;
                for completion in self.ring.completion() {
                    match completion.result() {
                        error @ ..0 => return Err(io::Error::from_raw_os_error(-error)),
                        sent => all_of(sent as usize, payload)?,
                    }
                    done += 1;
                }
            }
            count -= batch;
        }
        Ok(())
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The ring goes some time later, and would keep the socket's port.
        let _ = self.ring.submitter().unregister_files();
    }
}

/// Buffers of zero-copy sends, which come back when the device has taken them.
const BUFFERS: usize = 1024;

/// As above, from where the payloads are.
pub(super) struct ZeroCopy {
    /// Before what its entries point to.
    ring: IoUring,
    _socket: Socket,
    addresses: Vec<libc::sockaddr_in>,
    buffers: Vec<u8>,
    free: Vec<usize>,
    batch: usize,
}

impl ZeroCopy {
    pub(super) fn new(socket: Socket, batch: usize, traffic: &Traffic) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            // Two for each send.
            .setup_cqsize(2 * BUFFERS as u32)
            .build(batch as u32)?;
        ring.submitter().register_files(&[socket.as_raw_fd()])?;
        Ok(Self {
            ring,
            _socket: socket,
            addresses: raw_addresses(traffic),
            buffers: vec![0; BUFFERS * traffic.payload()],
            free: (0..BUFFERS).collect(),
            batch,
        })
    }

    /// Takes back what the kernel is done with; gives how many sends have a result.
    fn reap(&mut self, payload: usize) -> io::Result<usize> {
        let mut results = 0;
        for completion in self.ring.completion() {
            if !cqueue::notif(completion.flags()) {
                results += 1;
                match completion.result() {
                    error @ ..0 => return Err(io::Error::from_raw_os_error(-error)),
                    sent => all_of(sent as usize, payload)?,
                }
            }
            // The last of this send.
            if !cqueue::more(completion.flags()) {
                self.free.push(completion.user_data() as usize);
            }
        }
        Ok(results)
    }
}

impl Sender for ZeroCopy {
    fn send(&mut self, traffic: &mut Traffic, mut count: usize) -> io::Result<()> {
        let (one, payload) = (traffic.to_one(), traffic.payload());
        while count > 0 {
            let batch = count.min(self.batch);
            while self.free.len() < batch {
                self.ring.submit_and_wait(1)?;
                self.reap(payload)?;
            }
            for number in self.free.drain(self.free.len() - batch..) {
                let peer = traffic.next_peer();
                let buffer = &mut self.buffers[number * payload..][..payload];
                traffic.fill(buffer);
                let mut send =
                    opcode::SendZc::new(types::Fixed(0), buffer.as_ptr(), payload as u32);
                if !one {
                    send = send
                        .dest_addr(ptr::from_ref(&self.addresses[peer]).cast())
                        .dest_addr_len(ADDRESS_LEN);
                }
                let send = send.build().user_data(number as u64);
                // SAFETY: Buffer and address live longer than the ring, and stay as they are until
                // the last completion of this send.
                unsafe { self.ring.submission().push(&send) }.map_err(io::Error::other)?;
            }
            let mut done = 0;
            while done < batch {
                self.ring.submit_and_wait(1)?;
                done += self.reap(payload)?;
            }
            count -= batch;
        }
        Ok(())
    }
}

impl Drop for ZeroCopy {
    fn drop(&mut self) {
        // The ring goes some time later, and would keep the socket's port.
        let _ = self.ring.submitter().unregister_files();
    }
}
