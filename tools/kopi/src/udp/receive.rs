// SPDX-License-Identifier: GPL-2.0

//! Calls that receive, and sleep as recv(2) would.

use super::{patience::Patience, send::WRITABLE, UdpSocket};
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
            let events = if self.flush_rest()? {
                libc::POLLIN
            } else {
                // What is left counts as sent, so it goes as soon as it can.
                libc::POLLIN | WRITABLE
            };
            // What was left may have been refused, of which no event tells.
            self.take_late_error()?;
            // The doorbell, which a signal may restart, wakes nobody for room, and begins with a timeout anew.
            if events == libc::POLLIN && (!has_slept || self.read_timeout()?.is_none()) {
                patience.begin();
                self.wait_rx()?;
            } else if let Some(error) = patience.sleep(events)? {
                return Err(error);
            }
            has_slept = true;
        }
    }

    /// Shows the kernel what an earlier call had to leave in the ring; says whether nothing of it is left.
    fn flush_rest(&self) -> io::Result<bool> {
        let shared = &mut *self.lock();
        Ok(!shared.channel.has_unsent() || self.flush(shared)?)
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

#[cfg(test)]
mod tests {
    use crate::fake::{fake_listener, fake_socket};
    use std::{net::TcpStream, thread, time::Duration};

    /// No event tells of it.
    #[test]
    fn what_was_left_is_refused_while_a_call_receives() {
        let socket = fake_socket();
        socket.lock().channel.fake().borrow_mut().appetite = 0;
        socket.send_to(b"left", "192.0.2.9:99").unwrap();
        {
            let shared = socket.lock();
            let kernel = &mut *shared.channel.fake().borrow_mut();
            kernel.appetite = u32::MAX;
            kernel.errors.push_back(13);
        }
        let error = socket.recv(&mut [0; 10]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EACCES));
        let nothing = socket.recv(&mut [0; 10]).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    }

    /// Else it could stay there as long as nothing comes.
    #[test]
    fn what_was_left_leaves_while_a_call_receives() {
        let (socket, address) = fake_listener();
        socket.lock().channel.fake().borrow_mut().appetite = 0;
        socket
            .set_write_timeout(Some(Duration::from_millis(10)))
            .unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        assert_eq!(socket.send_to(b"left", "192.0.2.9:99").unwrap(), 4);
        assert!(socket.lock().channel.has_unsent());
        let mut buffer = [0; 10];
        thread::scope(|scope| {
            let receiver = scope.spawn(|| socket.recv(&mut buffer));
            thread::sleep(Duration::from_millis(50));
            // There is room now, and an event says so.
            socket.lock().channel.fake().borrow_mut().appetite = u32::MAX;
            let _event = TcpStream::connect(address).unwrap();
            assert_eq!(receiver.join().unwrap().unwrap(), 4);
        });
        assert_eq!(&buffer[..4], b"left");
    }
}
