// SPDX-License-Identifier: GPL-2.0

//! A server by io_uring: one request receives again and again, with the senders' addresses, and all answers of
//! a burst are requested by one system call.

use super::{
    uring::{received, ring, wait, Buffers, BUFFERS, GROUP},
    Receiver, Tally,
};
use io_uring::{cqueue, opcode, squeue, types, IoUring};
use socket2::Socket;
use std::{io, mem};

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
        // SAFETY: Zeroes are a valid header, of nothing.
        let mut header: Box<libc::msghdr> = Box::new(unsafe { mem::zeroed() });
        header.msg_namelen = NAME as u32;
        let mut this = Self {
            ring: ring(&socket, BUFFERS.into())?,
            _socket: socket,
            buffers: Buffers::new(BEFORE + each)?,
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
}

/// The request that what is in a buffer, behind what the header asks for, goes back to its sender. The kernel has
/// the buffer until that has completed.
fn answer(
    buffer: &[u8],
    header: &libc::msghdr,
    number: u16,
    tally: &mut Tally,
) -> io::Result<squeue::Entry> {
    let message = types::RecvMsgOut::parse(buffer, header)
        .map_err(|()| io::Error::other("a message is too short"))?;
    let payload = message.payload_data();
    tally.add(payload.len(), payload);
    Ok(
        opcode::Send::new(types::Fixed(0), payload.as_ptr(), payload.len() as u32)
            .dest_addr(message.name_data().as_ptr().cast())
            .dest_addr_len(NAME as libc::socklen_t)
            .build()
            .user_data(number.into()),
    )
}

impl Receiver for Server {
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        wait(&self.ring)?;
        let mut ended = false;
        let (_, mut requests, completions) = self.ring.split();
        for completion in completions {
            if completion.user_data() != RECEIVING {
                if completion.result() < 0 {
                    return Err(io::Error::from_raw_os_error(-completion.result()));
                }
                self.buffers.give(completion.user_data() as u16);
                continue;
            }
            ended |= !cqueue::more(completion.flags());
            if let Some((number, _)) = received(&completion)? {
                let answer = answer(self.buffers.get(number), &self.header, number, tally)?;
                // SAFETY: The buffer isn't given to the kernel before the answer has left.
                unsafe { requests.push(&answer) }.map_err(io::Error::other)?;
            }
        }
        drop(requests);
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
