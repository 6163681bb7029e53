// SPDX-License-Identifier: GPL-2.0

//! Ordinary UDP sockets.

use super::{all_of, raw_addresses, Sender, ADDRESS_LEN};
use crate::option;
use crate::traffic::Traffic;
use socket2::Socket;
use std::{io, os::fd::AsRawFd, ptr};

/// A packet by each system call.
pub(super) struct Plain {
    socket: Socket,
    addresses: Vec<libc::sockaddr_in>,
    buffer: Vec<u8>,
}

impl Plain {
    pub(super) fn new(socket: Socket, traffic: &Traffic) -> Self {
        Self {
            socket,
            addresses: raw_addresses(traffic),
            buffer: vec![0; traffic.payload()],
        }
    }
}

impl Sender for Plain {
    fn send(&mut self, traffic: &mut Traffic, count: usize) -> io::Result<()> {
        let one = traffic.to_one();
        for _ in 0..count {
            let peer = traffic.next_peer();
            traffic.fill(&mut self.buffer);
            let (address, len) = match one {
                true => (ptr::null(), 0),
                false => (ptr::from_ref(&self.addresses[peer]).cast(), ADDRESS_LEN),
            };
            // SAFETY: Buffer and address are valid for as many bytes as their lengths say.
            let sent = unsafe {
                libc::sendto(
                    self.socket.as_raw_fd(),
                    self.buffer.as_ptr().cast(),
                    self.buffer.len(),
                    0,
                    address,
                    len,
                )
            };
            if sent < 0 {
                return Err(io::Error::last_os_error());
            }
            all_of(sent as usize, self.buffer.len())?;
        }
        Ok(())
    }
}

/// Many packets by each system call.
pub(super) struct Many {
    socket: Socket,
    addresses: Vec<libc::sockaddr_in>,
    buffers: Vec<u8>,
    /// What the headers point to.
    _vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

impl Many {
    pub(super) fn new(socket: Socket, batch: usize, traffic: &Traffic) -> Self {
        let mut buffers = vec![0; batch * traffic.payload()];
        let mut vectors: Vec<_> = buffers
            .chunks_exact_mut(traffic.payload())
            .map(|buffer| libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            })
            .collect();
        let headers = vectors
            .iter_mut()
            .map(|vector| {
                // SAFETY: Zeroes are a valid header, of nothing to nobody.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_iov = vector;
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        Self {
            socket,
            addresses: raw_addresses(traffic),
            buffers,
            _vectors: vectors,
            headers,
        }
    }
}

impl Sender for Many {
    fn send(&mut self, traffic: &mut Traffic, mut count: usize) -> io::Result<()> {
        let (one, payload) = (traffic.to_one(), traffic.payload());
        while count > 0 {
            let batch = count.min(self.headers.len());
            let buffers = self.buffers.chunks_exact_mut(payload);
            for (header, buffer) in self.headers.iter_mut().zip(buffers).take(batch) {
                let peer = traffic.next_peer();
                traffic.fill(buffer);
                if !one {
                    header.msg_hdr.msg_name = ptr::from_mut(&mut self.addresses[peer]).cast();
                    header.msg_hdr.msg_namelen = ADDRESS_LEN;
                }
            }
            let mut done = 0;
            while done < batch {
                // SAFETY: So many headers are there, and point to buffers and addresses that live as
                // long as they do and are only read.
                let sent = unsafe {
                    libc::sendmmsg(
                        self.socket.as_raw_fd(),
                        self.headers[done..].as_mut_ptr(),
                        (batch - done) as u32,
                        0,
                    )
                };
                if sent < 0 {
                    return Err(io::Error::last_os_error());
                }
                done += sent as usize;
            }
            count -= batch;
        }
        Ok(())
    }
}

/// A GSO packet by each system call.
pub(super) struct Segments {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Segments {
    pub(super) fn new(socket: Socket, batch: usize, traffic: &Traffic) -> io::Result<Self> {
        let size = traffic.payload() as libc::c_int;
        option::set(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, size)?;
        Ok(Self {
            socket,
            buffer: vec![0; batch * traffic.payload()],
        })
    }
}

impl Sender for Segments {
    fn send(&mut self, traffic: &mut Traffic, mut count: usize) -> io::Result<()> {
        let payload = traffic.payload();
        while count > 0 {
            let batch = count.min(self.buffer.len() / payload);
            let gso = &mut self.buffer[..batch * payload];
            traffic.fill_gso(gso);
            all_of(self.socket.send(gso)?, batch * payload)?;
            count -= batch;
        }
        Ok(())
    }
}
