// SPDX-License-Identifier: GPL-2.0

//! What is set on the socket, and asked of it.

use super::UdpSocket;
use socket2::SockRef;
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

impl UdpSocket {
    /// The local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.flow.local_addr()
    }

    /// The connected peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.flow.peer_addr()
    }

    /// Whether calls give [`WouldBlock`](io::ErrorKind::WouldBlock) where they would sleep.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.options().set_nonblocking(nonblocking)
    }

    /// How long a receiving call sleeps before it gives [`WouldBlock`](io::ErrorKind::WouldBlock).
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        refuse_zero(timeout)?;
        self.options().set_read_timeout(timeout)
    }

    /// What [`UdpSocket::set_read_timeout`] set.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        self.options().read_timeout()
    }

    /// How long a sending call sleeps before it gives [`WouldBlock`](io::ErrorKind::WouldBlock).
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        refuse_zero(timeout)?;
        self.options().set_write_timeout(timeout)
    }

    /// What [`UdpSocket::set_write_timeout`] set.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        self.options().write_timeout()
    }

    /// Whether datagrams to broadcast addresses may be sent.
    pub fn set_broadcast(&self, broadcast: bool) -> io::Result<()> {
        self.options().set_broadcast(broadcast)
    }

    /// What [`UdpSocket::set_broadcast`] set.
    pub fn broadcast(&self) -> io::Result<bool> {
        self.options().broadcast()
    }

    /// The TTL of what is sent by IPv4.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.options().set_ttl_v4(ttl)
    }

    /// What [`UdpSocket::set_ttl`] set.
    pub fn ttl(&self) -> io::Result<u32> {
        self.options().ttl_v4()
    }

    /// Joins an IPv4 multicast group on the device with this address, or the default's.
    pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.options().join_multicast_v4(group, interface)
    }

    /// Leaves an IPv4 multicast group.
    pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.options().leave_multicast_v4(group, interface)
    }

    /// Joins an IPv6 multicast group on the device with this index, or any if 0.
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.options().join_multicast_v6(group, interface)
    }

    /// Leaves an IPv6 multicast group.
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.options().leave_multicast_v6(group, interface)
    }

    /// Whether own IPv4 multicast datagrams come back.
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.options().set_multicast_loop_v4(on)
    }

    /// Whether own IPv6 multicast datagrams come back.
    pub fn set_multicast_loop_v6(&self, on: bool) -> io::Result<()> {
        self.options().set_multicast_loop_v6(on)
    }

    /// The TTL of IPv4 multicast datagrams.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        self.options().set_multicast_ttl_v4(ttl)
    }

    /// Takes the pending error.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self.take_late_error() {
            Ok(()) => self.flow.take_error(),
            Err(error) => Ok(Some(error)),
        }
    }

    fn options(&self) -> SockRef<'_> {
        SockRef::from(self.flow.socket().as_ref())
    }
}

fn refuse_zero(timeout: Option<Duration>) -> io::Result<()> {
    if timeout == Some(Duration::ZERO) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "cannot set a 0 duration timeout",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_of_zero_are_refused() {
        assert!(refuse_zero(Some(Duration::ZERO)).is_err());
        assert!(refuse_zero(None).is_ok());
    }
}
