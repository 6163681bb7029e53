// SPDX-License-Identifier: GPL-2.0

//! Flows: KOPI's sockets.

use crate::{
    channel::Channel,
    pure::abi::{Info, Join, Stats, OPT_INFO, OPT_JOIN, OPT_STATS},
    sys,
};
use socket2::Socket;
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::{
        atomic::{AtomicU32, Ordering},
        Arc,
    },
};

/// The number of a flow on its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub u32);

/// A KOPI socket: bound or connected, and once on a channel with its packets in that one's rings.
///
/// It is a UDP socket in every respect, so what isn't here (multicast, say) is had by way of its
/// file descriptor, with `socket2::SockRef::from(&flow)` for one. It is closed when the value and,
/// if it is the one with which its channel was opened, the channel are dropped.
#[derive(Debug)]
pub struct Flow {
    socket: Arc<Socket>,
    /// The number on the channel, or `NONE`.
    number: AtomicU32,
}

/// No channel has as many flows.
const NONE: u32 = u32::MAX;

impl Flow {
    fn new(ipv6: bool) -> io::Result<Self> {
        Ok(Self {
            socket: Arc::new(sys::socket(ipv6)?),
            number: AtomicU32::new(NONE),
        })
    }

    /// An IPv4 flow with no address yet.
    pub fn new_v4() -> io::Result<Self> {
        Self::new(false)
    }

    /// An IPv6 flow with no address yet.
    pub fn new_v6() -> io::Result<Self> {
        Self::new(true)
    }

    /// A flow at this local address.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let flow = Self::new(address.is_ipv6())?;
        flow.set_local(address)?;
        Ok(flow)
    }

    /// A flow with a free local port that is connected to this peer.
    pub fn connect_to(peer: SocketAddr) -> io::Result<Self> {
        let any = match peer {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let flow = Self::bind(any)?;
        flow.connect(peer)?;
        Ok(flow)
    }

    /// Binds to a local address, as bind(2).
    pub fn set_local(&self, address: SocketAddr) -> io::Result<()> {
        self.socket.bind(&address.into())
    }

    /// Connects to a peer, as connect(2): only its packets arrive from now on.
    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        self.socket.connect(&peer.into())
    }

    /// The local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        internet(self.socket.local_addr()?)
    }

    /// The connected peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        internet(self.socket.peer_addr()?)
    }

    /// Takes the pending error, an ICMP message's for example.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }

    /// Puts the flow on a channel that another one opened; gives its number there.
    pub fn join(&self, channel: &Channel) -> io::Result<FlowId> {
        let request = Join {
            fd: channel.as_raw_fd(),
            ..Join::default()
        };
        sys::set_option(self.as_raw_fd(), OPT_JOIN, &request)?;
        self.learn_number()
    }

    /// The number on its channel, if the flow is on one.
    pub fn id(&self) -> Option<FlowId> {
        let number = self.number.load(Ordering::Relaxed);
        (number != NONE).then_some(FlowId(number))
    }

    /// What the kernel says of itself and of this flow.
    pub fn info(&self) -> io::Result<Info> {
        sys::get_option(self.as_raw_fd(), OPT_INFO)
    }

    /// The counters of the flow and of its channel.
    pub fn stats(&self) -> io::Result<Stats> {
        sys::get_option(self.as_raw_fd(), OPT_STATS)
    }

    pub(crate) fn learn_number(&self) -> io::Result<FlowId> {
        let number = self.info()?.flow;
        self.number.store(number, Ordering::Relaxed);
        Ok(FlowId(number))
    }

    /// A flow without a kernel module, for tests: a socket of another family.
    #[cfg(test)]
    pub(crate) fn fake(plain: impl Into<Socket>) -> Self {
        Self {
            socket: Arc::new(plain.into()),
            number: AtomicU32::new(0),
        }
    }

    pub(crate) fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }
}

impl AsRawFd for Flow {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for Flow {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn internet(address: socket2::SockAddr) -> io::Result<SocketAddr> {
    address
        .as_socket()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an Internet address"))
}
