// SPDX-License-Identifier: GPL-2.0

//! Two sockets that are to be told the same: a flow with rings, and one of the kernel's UDP.

use crate::sys;
use kopi::{Channel, Flow, Packet};
use nix::{
    cmsg_space,
    errno::Errno,
    sys::socket::{
        getsockopt, recvmsg, sockopt, ControlMessageOwned, MsgFlags, RecvMsg, SockaddrStorage,
    },
};
use std::{
    fmt,
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

/// Both have room for a batch.
const BUFFER: i32 = 8 << 20;
const FRAMES: u32 = 512;
const LARGEST: usize = 1 << 16;

/// What one of them is told.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Told {
    Datagram {
        peer: SocketAddr,
        local: IpAddr,
        tos: u8,
        ttl: u8,
        data: Vec<u8>,
    },
    /// By the error queue: errno, origin, type, code, information, offender, what was quoted.
    Error([u32; 5], Option<IpAddr>, Vec<u8>),
}

impl fmt::Debug for Told {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Datagram {
                peer,
                local,
                tos,
                ttl,
                data,
            } => {
                let begin = &data[..data.len().min(9)];
                write!(
                    to,
                    "{peer} > {local}, tos {tos}, ttl {ttl}, {} bytes: {begin:x?}",
                    data.len()
                )
            }
            Self::Error(error, offender, quoted) => {
                write!(
                    to,
                    "error {error:?} of {offender:?}, quoting {} bytes",
                    quoted.len()
                )
            }
        }
    }
}

impl Told {
    /// A datagram's peer and the number with which it begins.
    pub(crate) fn number(&self) -> Option<(SocketAddr, u64)> {
        let Self::Datagram { peer, data, .. } = self else {
            return None;
        };
        let number = data.first_chunk()?;
        Some((*peer, u64::from_be_bytes(*number)))
    }
}

/// How both are made.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// Their address.
    pub(crate) at: IpAddr,
    /// The only peer, if they are connected.
    pub(crate) peer: Option<SocketAddr>,
    /// The flow gets GRO packets: merged, or as their datagrams.
    pub(crate) gro: Option<bool>,
}

/// One of the two.
pub(crate) enum End {
    Rings(Flow, Box<Channel>),
    Socket(UdpSocket),
}

impl End {
    /// The flow.
    pub(crate) fn rings(setting: &Setting, port: u16) -> io::Result<Self> {
        let flow = if setting.at.is_ipv4() {
            Flow::new_v4()?
        } else {
            Flow::new_v6()?
        };
        prepare(flow.as_raw_fd(), setting)?;
        flow.set_local((setting.at, port).into())?;
        if let Some(peer) = setting.peer {
            flow.connect(peer)?;
        }
        let channel = Channel::builder()
            .frames(2 * FRAMES)
            .rx_frames(FRAMES)
            .rx_entries(FRAMES)
            .gro(setting.gro.is_some())
            .gro_merged(setting.gro == Some(true))
            .open(&flow)?;
        Ok(Self::Rings(flow, Box::new(channel)))
    }

    /// The kernel's.
    pub(crate) fn socket(setting: &Setting, port: u16) -> io::Result<Self> {
        let socket = UdpSocket::bind((setting.at, port))?;
        prepare(socket.as_raw_fd(), setting)?;
        socket.set_nonblocking(true)?;
        if let Some(peer) = setting.peer {
            socket.connect(peer)?;
        }
        Ok(Self::Socket(socket))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Rings(flow, _) => flow.as_fd(),
            Self::Socket(socket) => socket.as_fd(),
        }
    }

    /// Adds what it has been told.
    pub(crate) fn take(&self, told: &mut Vec<Told>) -> io::Result<()> {
        let room = &mut vec![0; LARGEST];
        while let Some(error) = receive(self.fd(), MsgFlags::MSG_ERRQUEUE, room)? {
            told.push(error);
        }
        // The queue says more, and when the last one became pending doesn't matter.
        let _ = getsockopt(&self.fd(), sockopt::SocketError)?;
        match self {
            Self::Rings(_, channel) => {
                while let Some(packet) = channel.recv()? {
                    add_packet(&packet, told);
                }
                // Frames that were read are the kernel's again.
                channel.flush()?;
            }
            Self::Socket(_) => {
                while let Some(datagram) = receive(self.fd(), MsgFlags::empty(), room)? {
                    told.push(datagram);
                }
            }
        }
        Ok(())
    }
}

/// Options that both have.
fn prepare(fd: RawFd, setting: &Setting) -> io::Result<()> {
    let one = 1i32.to_ne_bytes();
    sys::set(
        fd,
        libc::SOL_SOCKET,
        libc::SO_RCVBUFFORCE,
        &BUFFER.to_ne_bytes(),
    )?;
    for name in [
        libc::IP_RECVERR,
        libc::IP_PKTINFO,
        libc::IP_RECVTOS,
        libc::IP_RECVTTL,
    ] {
        sys::set(fd, libc::SOL_IP, name, &one)?;
    }
    if setting.at.is_ipv6() {
        for name in [
            libc::IPV6_RECVERR,
            libc::IPV6_RECVPKTINFO,
            libc::IPV6_RECVTCLASS,
            libc::IPV6_RECVHOPLIMIT,
        ] {
            sys::set(fd, libc::SOL_IPV6, name, &one)?;
        }
    }
    Ok(())
}

/// The datagrams of a packet from the ring.
fn add_packet(packet: &Packet<'_>, told: &mut Vec<Told>) {
    let (bytes, meta) = (packet.bytes(), packet.meta());
    let mut add = |data: &[u8]| {
        told.push(Told::Datagram {
            peer: plain(packet.peer()),
            local: packet.local_ip().to_canonical(),
            tos: meta.tos,
            ttl: meta.ttl,
            data: data.to_vec(),
        });
    };
    match packet.segment_size() {
        Some(size) => bytes.chunks(size).for_each(&mut add),
        None => add(&bytes),
    }
}

/// IPv4's addresses as such, and none of the rest of a sockaddr_in6.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// What recvmsg(2) gives, if anything; with room for its data.
fn receive(fd: BorrowedFd<'_>, flags: MsgFlags, room: &mut [u8]) -> io::Result<Option<Told>> {
    let mut parts = [IoSliceMut::new(room)];
    let mut space = cmsg_space!([u8; 512]);
    let flags = flags | MsgFlags::MSG_DONTWAIT;
    let message = loop {
        match recvmsg::<SockaddrStorage>(fd.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Err(Errno::EAGAIN) => return Ok(None),
            // Pending since a moment ago.
            Err(_) => {}
            Ok(message) => break message,
        }
    };
    let len = message.bytes;
    let mut told = told_by(&message)?;
    match &mut told {
        Told::Datagram { data: bytes, .. } | Told::Error(_, _, bytes) => {
            *bytes = room[..len].to_vec();
        }
    }
    Ok(Some(told))
}

/// The same without data.
fn told_by(message: &RecvMsg<'_, '_, SockaddrStorage>) -> io::Result<Told> {
    let mut local = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let (mut tos, mut ttl) = (0, 0);
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                local = Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into();
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                local = Ipv6Addr::from(info.ipi6_addr.s6_addr).into();
            }
            ControlMessageOwned::Ipv4Tos(value) => tos = value,
            ControlMessageOwned::Ipv6TClass(value) => tos = value as u8,
            ControlMessageOwned::Ipv4Ttl(value) | ControlMessageOwned::Ipv6HopLimit(value) => {
                ttl = value as u8;
            }
            ControlMessageOwned::Ipv4RecvErr(error, offender) => {
                let offender =
                    offender.map(|name| Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes()).into());
                return Ok(error_of(error, offender));
            }
            ControlMessageOwned::Ipv6RecvErr(error, offender) => {
                let offender = offender.map(|name| Ipv6Addr::from(name.sin6_addr.s6_addr).into());
                return Ok(error_of(error, offender));
            }
            _ => {}
        }
    }
    let name = message.address.as_ref();
    let peer = name
        .and_then(|name| {
            let v4 = name
                .as_sockaddr_in()
                .map(|name| SocketAddr::new(name.ip().into(), name.port()));
            v4.or_else(|| {
                name.as_sockaddr_in6()
                    .map(|name| SocketAddr::new(name.ip().into(), name.port()))
            })
        })
        .ok_or_else(|| io::Error::other("a datagram of nobody"))?;
    Ok(Told::Datagram {
        peer: plain(peer),
        local: local.to_canonical(),
        tos,
        ttl,
        data: Vec::new(),
    })
}

fn error_of(error: libc::sock_extended_err, offender: Option<IpAddr>) -> Told {
    let numbers = [
        error.ee_errno,
        error.ee_origin.into(),
        error.ee_type.into(),
        error.ee_code.into(),
        error.ee_info,
    ];
    Told::Error(numbers, offender, Vec::new())
}
