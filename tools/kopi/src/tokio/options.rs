// SPDX-License-Identifier: GPL-2.0

//! What is set on the socket, and asked of it.

use super::UdpSocket;
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

impl UdpSocket {
    /// The local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().local_addr()
    }

    /// The connected peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_addr()
    }

    /// Takes the pending error.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket().take_error()
    }

    /// Whether datagrams to broadcast addresses may be sent.
    pub fn set_broadcast(&self, broadcast: bool) -> io::Result<()> {
        self.socket().set_broadcast(broadcast)
    }

    /// What [`UdpSocket::set_broadcast`] set.
    pub fn broadcast(&self) -> io::Result<bool> {
        self.socket().broadcast()
    }

    /// The TTL of what is sent by IPv4.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket().set_ttl(ttl)
    }

    /// What [`UdpSocket::set_ttl`] set.
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket().ttl()
    }

    /// Joins an IPv4 multicast group on the device with this address, or the default's.
    pub fn join_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket().join_multicast_v4(&group, &interface)
    }

    /// Leaves an IPv4 multicast group.
    pub fn leave_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket().leave_multicast_v4(&group, &interface)
    }

    /// Joins an IPv6 multicast group on the device with this index, or any if 0.
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.socket().join_multicast_v6(group, interface)
    }

    /// Leaves an IPv6 multicast group.
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.socket().leave_multicast_v6(group, interface)
    }

    /// Whether own IPv4 multicast datagrams come back.
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.socket().set_multicast_loop_v4(on)
    }

    /// Whether own IPv6 multicast datagrams come back.
    pub fn set_multicast_loop_v6(&self, on: bool) -> io::Result<()> {
        self.socket().set_multicast_loop_v6(on)
    }

    /// The TTL of IPv4 multicast datagrams.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        self.socket().set_multicast_ttl_v4(ttl)
    }
}
