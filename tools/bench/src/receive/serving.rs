// SPDX-License-Identifier: GPL-2.0

//! Servers: each request is answered with its own payload, to its sender.

use super::{sockets::Many, Receiver, Tally, BURST};
use kopi::{Channel, Flow, Interest, Message};
use socket2::Socket;
use std::{io, mem, os::fd::AsRawFd, ptr, time::Duration};

/// Nothing takes so long, but for an error.
const PATIENCE: Duration = Duration::from_secs(1);

/// A socket that answers what it has got by one system call with another one.
pub(super) struct Messages {
    requests: Many,
    /// What the headers point to.
    _names: Vec<libc::sockaddr_in>,
}

impl Messages {
    /// Requests have `each` bytes.
    pub(super) fn new(socket: Socket, each: usize) -> Self {
        let mut requests = Many::new(socket, each);
        // SAFETY: Zeroes are a valid address.
        let mut names: Vec<libc::sockaddr_in> = vec![unsafe { mem::zeroed() }; BURST];
        for (header, name) in requests.headers.iter_mut().zip(&mut names) {
            header.msg_hdr.msg_name = ptr::from_mut(name).cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as u32;
        }
        Self {
            requests,
            _names: names,
        }
    }
}

impl Receiver for Messages {
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        let count = self.requests.read(tally)?;
        let mut sent = 0;
        while sent < count {
            let left = &mut self.requests.headers[sent..count];
            let fd = self.requests.socket.as_raw_fd();
            // SAFETY: So many headers are there, and point to buffers and names that live as long as
            // they do.
            let more = unsafe { libc::sendmmsg(fd, left.as_mut_ptr(), left.len() as u32, 0) };
            if more < 0 {
                return Err(io::Error::last_os_error());
            }
            sent += more as usize;
        }
        Ok(())
    }
}

/// KOPI's rings; answers leave in the frames of the requests.
pub(super) struct Answers {
    channel: Channel,
    _flow: Flow,
}

impl Answers {
    pub(super) fn new(flow: Flow) -> io::Result<Self> {
        let channel = Channel::builder()
            .frames(512)
            .rx_frames(256)
            .tx_entries(256)
            .open(&flow)?;
        Ok(Self {
            channel,
            _flow: flow,
        })
    }

    /// Has all answers leave, also those for which the send buffer has no room at first.
    fn flush(&self) -> io::Result<()> {
        while !self.channel.flush()? {
            let ready = self.channel.wait(Interest::WRITABLE, Some(PATIENCE))?;
            if !ready.writable {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }
}

impl Receiver for Answers {
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        let mut any = false;
        while let Some(packet) = self.channel.recv()? {
            any = true;
            tally.add(packet.len(), packet.chunks().next().unwrap_or_default());
            let answer = Message::reply_to(&packet);
            let flow = packet.flow();
            if self.channel.send(flow, &answer, packet).is_err() {
                return Err(io::Error::other("the TX ring is full"));
            }
        }
        if any {
            return self.flush();
        }
        match self.channel.wait(Interest::READABLE, Some(PATIENCE))? {
            ready if ready.readable => Ok(()),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}
