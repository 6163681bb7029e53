// SPDX-License-Identifier: GPL-2.0

//! The ends of round trips, of each kind.

use super::{Mode, PATIENCE};
use crate::option;
use kopi::{Channel, Flow, Interest, Message};
use socket2::{Domain, Protocol, Socket, Type};
use std::{io, net::SocketAddrV4, os::fd::AsRawFd};

/// How long the stack may poll for an answer.
const BUSY_POLL_US: libc::c_int = 100_000;

/// An end of the trips.
pub(super) trait End {
    fn send(&mut self, payload: &[u8]) -> io::Result<()>;

    /// Whether something has come, which must be `payload`.
    fn receive(&mut self, payload: &[u8]) -> io::Result<bool>;
}

fn check(sent: &[u8], received: &[u8]) -> io::Result<bool> {
    if sent == received {
        return Ok(true);
    }
    Err(io::Error::other(format!(
        "an answer of {} bytes isn't what was sent",
        received.len()
    )))
}

/// An ordinary socket.
pub(super) struct Udp {
    socket: Socket,
    buffer: Vec<u8>,
    flags: libc::c_int,
}

impl Udp {
    pub(super) fn open(
        own: SocketAddrV4,
        other: SocketAddrV4,
        mode: Mode,
        payload: usize,
    ) -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind(&own.into())?;
        socket.connect(&other.into())?;
        socket.set_read_timeout(Some(PATIENCE))?;
        if matches!(mode, Mode::UdpBusyPoll | Mode::UdpBusyPollBoth) {
            option::set(&socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, BUSY_POLL_US)?;
        }
        Ok(Self {
            socket,
            buffer: vec![0; payload],
            flags: match mode {
                Mode::Udp | Mode::UdpBusyPoll => 0,
                _ => libc::MSG_DONTWAIT,
            },
        })
    }
}

impl End for Udp {
    fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        self.socket.send(payload).map(drop)
    }

    fn receive(&mut self, payload: &[u8]) -> io::Result<bool> {
        let (buffer, room) = (self.buffer.as_mut_ptr(), self.buffer.len());
        // SAFETY: The buffer is as long as is said.
        let len = unsafe { libc::recv(self.socket.as_raw_fd(), buffer.cast(), room, self.flags) };
        if len >= 0 {
            return check(payload, &self.buffer[..len as usize]);
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            error => Err(error),
        }
    }
}

/// A flow and its channel.
pub(super) struct Rings {
    channel: Channel,
    flow: Flow,
    spins: bool,
}

impl Rings {
    pub(super) fn open(own: SocketAddrV4, other: SocketAddrV4, mode: Mode) -> io::Result<Self> {
        let flow = Flow::bind(own.into())?;
        flow.connect(other.into())?;
        Ok(Self {
            channel: Channel::builder().open(&flow)?,
            flow,
            spins: mode != Mode::Kopi,
        })
    }

    fn queue(&self, payload: &[u8]) -> io::Result<()> {
        let flow = self.flow.id().expect("a flow on its channel");
        let frame = self.channel.payload(payload);
        let frame = frame.ok_or_else(|| io::Error::other("no free frame"))?;
        Ok(self.channel.send(flow, &Message::connected(), frame)?)
    }
}

impl End for Rings {
    fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        self.queue(payload)?;
        match self.channel.flush()? {
            true => Ok(()),
            false => Err(io::Error::other("no room for a single datagram")),
        }
    }

    fn receive(&mut self, payload: &[u8]) -> io::Result<bool> {
        if let Some(packet) = self.channel.recv()? {
            return check(payload, packet.chunks().next().unwrap_or_default());
        }
        if !self.spins {
            self.channel.wait(Interest::READABLE, Some(PATIENCE))?;
        }
        Ok(false)
    }
}

/// A socket of the kopi crate's.
pub(super) struct Library {
    socket: kopi::UdpSocket,
    buffer: Vec<u8>,
}

impl Library {
    pub(super) fn open(own: SocketAddrV4, other: SocketAddrV4, payload: usize) -> io::Result<Self> {
        let socket = kopi::UdpSocket::bind(own)?;
        socket.connect(other)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            socket,
            buffer: vec![0; payload],
        })
    }
}

impl End for Library {
    fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        self.socket.send(payload).map(drop)
    }

    fn receive(&mut self, payload: &[u8]) -> io::Result<bool> {
        let len = self.socket.recv(&mut self.buffer)?;
        check(payload, &self.buffer[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_what_was_sent() {
        assert!(check(b"one", b"one").is_ok());
        assert!(check(b"one", b"two").is_err());
    }
}
