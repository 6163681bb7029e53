// SPDX-License-Identifier: GPL-2.0

//! Calls that receive, and sleep as recv(2) would.

use super::{patience::Patience, UdpSocket};
use crate::{channel::Channel, sys};
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsRawFd,
    time::Duration,
};

impl UdpSocket {
    /// Receives a datagram; what doesn't fit into `buffer` is lost.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(|channel| {
            let packet = channel.recv()?;
            Ok(packet.map(|packet| (packet.copy_to(buffer), packet.peer())))
        })
        .map(|received| received.unwrap_or_else(|| (0, self.nobody())))
    }

    /// Receives a datagram; what doesn't fit into `buffer` is lost.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buffer).map(|(len, _)| len)
    }

    /// Receives a datagram, and leaves it where it is.
    pub fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(|channel| channel.peek(|packet| (packet.copy_to(buffer), packet.peer())))
            .map(|received| received.unwrap_or_else(|| (0, self.nobody())))
    }

    /// Receives a datagram, and leaves it where it is.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.peek_from(buffer).map(|(len, _)| len)
    }

    /// Sleeps, as the socket's mode has it, until `take` gives something; `None` after a shutdown.
    pub(super) fn receive<T>(
        &self,
        mut take: impl FnMut(&Channel) -> io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        self.take_late_error()?;
        let mut patience = Patience::new(self, Self::read_timeout);
        let mut has_slept = false;
        loop {
            if let Some(taken) = take(&self.lock().channel)? {
                return Ok(Some(taken));
            }
            // Another thread was faster, or nothing more will come.
            if has_slept && self.is_shut_down()? {
                return take(&self.lock().channel);
            }
            self.flush_rest()?;
            if has_slept {
                // This would begin with the timeout anew.
                if let Some(error) = patience.sleep(libc::POLLIN)? {
                    return Err(error);
                }
            } else {
                patience.begin();
                self.wait_rx()?;
                has_slept = true;
            }
        }
    }

    /// Shows the kernel what an earlier call had to leave in the ring.
    fn flush_rest(&self) -> io::Result<()> {
        let shared = &mut *self.lock();
        if shared.channel.has_unsent() {
            self.flush(shared)?;
        }
        Ok(())
    }

    fn wait_rx(&self) -> io::Result<()> {
        #[cfg(test)]
        if self.lock().channel.is_fake() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        sys::wait_rx(self.as_raw_fd())
    }

    /// Whether shutdown(2) was called for what comes.
    fn is_shut_down(&self) -> io::Result<bool> {
        let ready = sys::poll(self.as_raw_fd(), libc::POLLRDHUP, Some(Duration::ZERO))?;
        Ok(ready & libc::POLLRDHUP != 0)
    }

    /// The address that recvfrom(2) leaves when there was no datagram.
    fn nobody(&self) -> SocketAddr {
        match self.local_addr() {
            Ok(SocketAddr::V6(_)) => (Ipv6Addr::UNSPECIFIED, 0).into(),
            _ => (Ipv4Addr::UNSPECIFIED, 0).into(),
        }
    }
}
