// SPDX-License-Identifier: GPL-2.0

//! A server by io_uring: one request receives again and again, with the senders' addresses, and all answers of
//! a burst are requested by one system call.

use super::{
    uring::{Buffers, BUFFERS, GROUP},
    Receiver, Tally, PATIENCE,
};
use io_uring::{cqueue, opcode, types, IoUring};
use socket2::Socket;
use std::{io, mem, os::fd::AsRawFd};

/// Bytes before the payload in a buffer: what the kernel says, and the sender's address.
const NAME: usize = size_of::<libc::sockaddr_in>();
const BEFORE: usize = 16 + NAME;
/// What the receiving request is called; answers are called as their buffers.
const RECEIVING: u64 = u64::MAX;

/// Answers leave from the buffers of the requests.
pub(super) struct Server {
    /// Before what it points to. Goes some time after it was dropped, and keeps the port as long.
    ring: IoUring,
    _socket: Socket,
    buffers: Buffers,
    header: Box<libc::msghdr>,
}

impl Server {
    /// Requests have `each` bytes.
    pub(super) fn new(socket: Socket, each: usize) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(4 * u32::from(BUFFERS))
            .build(u32::from(BUFFERS))?;
        ring.submitter().register_files(&[socket.as_raw_fd()])?;
        // SAFETY: Zeroes are a valid header, of nothing.
        let mut header: Box<libc::msghdr> = Box::new(unsafe { mem::zeroed() });
        header.msg_namelen = NAME as u32;
        let mut this = Self {
            buffers: Buffers::new(BEFORE + each)?,
            ring,
            _socket: socket,
            header,
        };
        this.buffers.register(&this.ring)?;
        this.request()?;
        Ok(this)
    }

    fn request(&mut self) -> io::Result<()> {
        let request = opcode::RecvMsgMulti::new(types::Fixed(0), &*self.header, GROUP).build();
        // SAFETY: The header and the buffers live longer than the ring.
        unsafe { self.ring.submission().push(&request.user_data(RECEIVING)) }
            .map_err(io::Error::other)
    }

    /// What the ring has completed.
    fn completed(&mut self) -> Vec<cqueue::Entry> {
        self.ring.completion().collect()
    }

    /// Requests that a buffer's payload goes back to its sender.
    fn answer(&mut self, number: u16, tally: &mut Tally) -> io::Result<()> {
        let buffer = self.buffers.get(number);
        let message = types::RecvMsgOut::parse(buffer, &self.header)
            .map_err(|()| io::Error::other("a message is too short"))?;
        let payload = message.payload_data();
        tally.add(payload.len(), payload);
        let answer = opcode::Send::new(types::Fixed(0), payload.as_ptr(), payload.len() as u32)
            .dest_addr(message.name_data().as_ptr().cast())
            .dest_addr_len(NAME as libc::socklen_t)
            .build()
            .user_data(number.into());
        // SAFETY: The buffer isn't given to the kernel before the answer has left.
        unsafe { self.ring.submission().push(&answer) }.map_err(io::Error::other)
    }
}

impl Receiver for Server {
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        let patience = types::Timespec::from(PATIENCE);
        let patience = types::SubmitArgs::new().timespec(&patience);
        self.ring.submitter().submit_with_args(1, &patience)?;
        let mut ended = false;
        for completion in self.completed() {
            let result = completion.result();
            if completion.user_data() != RECEIVING {
                if result < 0 {
                    return Err(io::Error::from_raw_os_error(-result));
                }
                self.buffers.give(completion.user_data() as u16);
                continue;
            }
            ended |= !cqueue::more(completion.flags());
            match cqueue::buffer_select(completion.flags()) {
                Some(number) if result >= 0 => self.answer(number, tally)?,
                // Buffers were short.
                _ if result == -libc::ENOBUFS => {}
                _ => return Err(io::Error::from_raw_os_error(-result)),
            }
        }
        self.buffers.publish();
        if ended {
            self.request()?;
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.ring.submitter().submit().map(drop)
    }
}
