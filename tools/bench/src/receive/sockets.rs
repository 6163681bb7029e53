// SPDX-License-Identifier: GPL-2.0

//! Ordinary UDP sockets.

use super::{Receiver, Tally, BURST};
use crate::option;
use socket2::Socket;
use std::{io, os::fd::AsRawFd, ptr};

/// A packet by each system call.
pub(super) struct Plain {
    pub(super) socket: Socket,
    pub(super) buffer: Vec<u8>,
}

impl Receiver for Plain {
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        let fd = self.socket.as_raw_fd();
        // SAFETY: The buffer is as long as is said.
        let len = unsafe { libc::recv(fd, self.buffer.as_mut_ptr().cast(), self.buffer.len(), 0) };
        if len < 0 {
            return Err(io::Error::last_os_error());
        }
        tally.add(len as usize, &self.buffer);
        Ok(())
    }
}

/// What is there, by each system call.
pub(super) struct Many {
    pub(super) socket: Socket,
    buffers: Vec<u8>,
    each: usize,
    /// What the headers point to.
    _vectors: Vec<libc::iovec>,
    pub(super) headers: Vec<libc::mmsghdr>,
}

impl Many {
    pub(super) fn new(socket: Socket, each: usize) -> Self {
        let mut buffers = vec![0; BURST * each];
        let mut vectors: Vec<_> = buffers
            .chunks_exact_mut(each)
            .map(|buffer| libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            })
            .collect();
        let headers = vectors
            .iter_mut()
            .map(|vector| {
                // SAFETY: Zeroes are a valid header, of nothing.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_iov = vector;
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        Self {
            socket,
            buffers,
            each,
            _vectors: vectors,
            headers,
        }
    }
}

impl Many {
    /// Receives what there is; says how many packets that was.
    pub(super) fn read(&mut self, tally: &mut Tally) -> io::Result<usize> {
        // SAFETY: So many headers are there, and point to buffers that live as long as they do.
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as u32,
                libc::MSG_WAITFORONE,
                ptr::null_mut(),
            )
        };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        let count = count as usize;
        let buffers = self.buffers.chunks_exact(self.each);
        for (header, buffer) in self.headers.iter().zip(buffers).take(count) {
            tally.add(header.msg_len as usize, buffer);
        }
        Ok(count)
    }
}

impl Receiver for Many {
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        self.read(tally).map(drop)
    }
}

/// A GSO packet by each system call.
pub(super) struct Merged {
    socket: Socket,
    buffer: Vec<u8>,
}

/// Room for a control message with an int.
#[repr(C, align(8))]
struct Control([u8; 64]);

impl Merged {
    pub(super) fn new(socket: Socket) -> io::Result<Self> {
        let on: libc::c_int = 1;
        option::set(&socket, libc::SOL_UDP, libc::UDP_GRO, on)?;
        Ok(Self {
            socket,
            buffer: vec![0; 65536],
        })
    }
}

impl Receiver for Merged {
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        let mut control = Control([0; 64]);
        let mut vector = libc::iovec {
            iov_base: self.buffer.as_mut_ptr().cast(),
            iov_len: self.buffer.len(),
        };
        // SAFETY: Zeroes are a valid header, and what it is made to point to is as long as is said
        // and outlives it. The control message is in the buffer, by the macros of the C library.
        let (len, segment) = unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = &mut vector;
            header.msg_iovlen = 1;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = control.0.len() as _;
            let len = libc::recvmsg(self.socket.as_raw_fd(), &mut header, 0);
            if len < 0 {
                return Err(io::Error::last_os_error());
            }
            let message = libc::CMSG_FIRSTHDR(&header);
            let segment = if message.is_null() || (*message).cmsg_type != libc::UDP_GRO {
                len as usize
            } else {
                libc::CMSG_DATA(message)
                    .cast::<libc::c_int>()
                    .read_unaligned() as usize
            };
            (len as usize, segment)
        };
        for packet in self.buffer[..len].chunks(segment.max(1)) {
            tally.add(packet.len(), packet);
        }
        Ok(())
    }
}
