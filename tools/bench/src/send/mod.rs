// SPDX-License-Identifier: GPL-2.0

//! The ways to send.

mod fleet;
mod packet_ring;
mod rings;
mod sockets;
mod uring;
mod xdp;

pub(crate) use self::{
    fleet::{Fleet, FleetMode},
    packet_ring::PacketRing,
};
use crate::traffic::{Traffic, FROM_PORT, UNFRAGMENTED_MAX};
use clap::ValueEnum;
use serde::Serialize;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::{io, net::SocketAddrV4, os::fd::AsFd};

/// Packets by one system call, where there are no GSO packets.
const BATCH: usize = 64;
/// As above, of those that travel in fragments.
const BULK_BATCH: usize = 16;
/// The stack's UDP_MAX_SEGMENTS.
const SEGMENTS_MAX: usize = 128;
/// The most payload of an IPv4 packet.
const BYTES_MAX: usize = 65507;

/// A way to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// send(2), or sendto(2) to many
    Send,
    /// sendmmsg(2) of 64
    Sendmmsg,
    /// send(2) with UDP_SEGMENT, GSO packets as long as they may be
    UdpSegment,
    /// io_uring, 64 sends by a system call
    IoUring,
    /// As that, with zero-copy sends
    IoUringZeroCopy,
    /// AF_PACKET's TX ring, 64 packets by a system call
    AfPacket,
    /// AF_XDP, copied, 64 packets by one or two system calls
    AfXdpCopy,
    /// AF_XDP, out of its own frames, 64 packets by one system call; not by all NICs
    AfXdpZeroCopy,
    /// KOPI's TX ring, 64 packets by a doorbell
    KopiDoorbell,
    /// As that, with no doorbell while an engine looks at the ring; `kopictl engine` sets one
    KopiEngine,
    /// As `kopi_doorbell`, on a channel that has asked for GSO packets
    KopiGsoDescs,
    /// KOPI's TX ring, one packet with a gso_size by a doorbell, as long as it may be
    KopiGso,
    /// As `kopi_gso_descs`, by a device that is attached
    KopiDirect,
    /// As `kopi_gso`, by a device that is attached
    KopiDirectGso,
    /// As `kopi_doorbell`, by a device that is attached
    KopiDirectDatagrams,
}

/// Bytes that virtio-net counts with a frame of XDP, for its own header.
pub(crate) const VIRTIO_HEADER: usize = 12;

impl Mode {
    /// Whether any NIC can do it, as it is.
    fn is_everywhere(self) -> bool {
        !matches!(
            self,
            Self::AfXdpZeroCopy
                | Self::KopiDirect
                | Self::KopiDirectGso
                | Self::KopiDirectDatagrams
        )
    }

    /// Whether the NIC counts its packets, or sends only return when they have left.
    pub(crate) fn counted(self) -> bool {
        self != Self::AfXdpZeroCopy
    }

    /// Whether it can send to a peer that changes from packet to packet.
    pub(crate) fn can_do_many(self) -> bool {
        !matches!(self, Self::UdpSegment | Self::KopiGso | Self::KopiDirectGso)
    }

    /// Bytes of a packet on the wire that the NIC counts too many.
    pub(crate) fn miscounted(self) -> usize {
        if self.by_frames() {
            VIRTIO_HEADER
        } else {
            0
        }
    }

    /// Whether each datagram is a frame of the driver's, on any NIC.
    pub(crate) fn by_frames(self) -> bool {
        matches!(
            self,
            Self::KopiDirect | Self::KopiDirectGso | Self::KopiDirectDatagrams
        )
    }

    /// Whether it can send datagrams that travel in fragments.
    pub(crate) fn can_do_bulk(self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::Sendmmsg
                | Self::IoUring
                | Self::IoUringZeroCopy
                | Self::KopiDoorbell
                | Self::KopiEngine
        )
    }

    /// Whether policies that look at packets between socket and device see it.
    pub(crate) fn meets_hooks(self) -> bool {
        !matches!(self, Self::AfPacket | Self::AfXdpCopy | Self::AfXdpZeroCopy)
    }

    /// Whether those that look at packets at the device, as qdiscs and taps do, see it.
    pub(crate) fn meets_device(self) -> bool {
        !matches!(self, Self::AfXdpCopy | Self::AfXdpZeroCopy)
    }

    /// How its packets are handed to the kernel.
    pub(crate) fn batch(self, payload: usize) -> usize {
        match self {
            Self::Send => 1,
            Self::UdpSegment | Self::KopiGso | Self::KopiDirectGso => {
                SEGMENTS_MAX.min(BYTES_MAX / payload)
            }
            _ if payload > UNFRAGMENTED_MAX => BULK_BATCH,
            _ => BATCH,
        }
    }

    /// What the stack is handed for `count` packets, a GSO packet as one; `None` if that depends on whom
    /// they go to.
    pub(crate) fn handed(self, payload: usize, to_one: bool, count: usize) -> Option<u64> {
        let batch = self.batch(payload);
        let handed = match self {
            Self::UdpSegment | Self::KopiGso | Self::KopiDirectGso => count.div_ceil(batch),
            Self::KopiGsoDescs | Self::KopiDirect if !to_one => return None,
            Self::KopiGsoDescs | Self::KopiDirect => {
                let most = kopi::pure::gso_batch::SEGMENTS_MAX
                    .min(kopi::pure::gso_batch::BYTES_MAX / payload as u32);
                let gso = |count: usize| count.div_ceil(most as usize);
                count / batch * gso(batch) + gso(count % batch)
            }
            _ => count,
        };
        Some(handed as u64)
    }

    /// Makes ready to send.
    pub(crate) fn open(
        self,
        device: u32,
        mark: u32,
        traffic: &Traffic,
    ) -> io::Result<Box<dyn Sender>> {
        let batch = self.batch(traffic.payload());
        Ok(match self {
            Self::Send => Box::new(sockets::Plain::new(socket(mark, traffic)?, traffic)),
            Self::Sendmmsg => Box::new(sockets::Many::new(socket(mark, traffic)?, batch, traffic)),
            Self::UdpSegment => Box::new(sockets::Segments::new(
                socket(mark, traffic)?,
                batch,
                traffic,
            )?),
            Self::IoUring => Box::new(uring::Uring::new(socket(mark, traffic)?, batch, traffic)?),
            Self::IoUringZeroCopy => Box::new(uring::ZeroCopy::new(
                socket(mark, traffic)?,
                batch,
                traffic,
            )?),
            Self::AfPacket => Box::new(PacketRing::new(device, mark, batch)?),
            Self::AfXdpCopy | Self::AfXdpZeroCopy => {
                let zero_copy = self == Self::AfXdpZeroCopy;
                Box::new(xdp::Xdp::new(device, batch, zero_copy)?)
            }
            Self::KopiDoorbell
            | Self::KopiEngine
            | Self::KopiGsoDescs
            | Self::KopiDirect
            | Self::KopiDirectDatagrams => {
                let channel = kopi::Channel::builder()
                    .gso(matches!(self, Self::KopiGsoDescs | Self::KopiDirect))
                    .engine(self == Self::KopiEngine);
                let payload = traffic.payload();
                let flow = flow(mark, traffic)?;
                Box::new(rings::Rings::new(channel, flow, batch, payload)?)
            }
            Self::KopiGso | Self::KopiDirectGso => {
                Box::new(rings::Segments::new(flow(mark, traffic)?, batch)?)
            }
        })
    }
}

/// The modes that were named, or all that any NIC can do.
pub(crate) fn named_or_all(modes: &[Mode]) -> Vec<Mode> {
    match modes {
        [] => Mode::value_variants()
            .iter()
            .filter(|mode| mode.is_everywhere())
            .copied()
            .collect(),
        modes => modes.to_vec(),
    }
}

/// Sends by some mode.
pub(crate) trait Sender {
    /// Sends a number of packets; they may not have left yet, if the mode is counted. Sleeps when there
    /// is no room.
    fn send(&mut self, traffic: &mut Traffic, count: usize) -> io::Result<()>;
}

/// What sends `count` datagrams at a time as GSO packets, of as many as UDP_SEGMENT can have, to the one peer.
pub(crate) fn gso(count: usize, traffic: &Traffic) -> io::Result<Box<dyn Sender>> {
    let batch = Mode::UdpSegment.batch(traffic.payload()).min(count);
    let sender = sockets::Segments::new(socket(0, traffic)?, batch, traffic)?;
    Ok(Box::new(sender))
}

/// How many GSO packets these are.
pub(crate) fn gso_packets_of(count: usize, payload: usize) -> usize {
    count.div_ceil(Mode::UdpSegment.batch(payload).min(count))
}

/// The address that all are sent from.
fn local(traffic: &Traffic) -> SocketAddrV4 {
    SocketAddrV4::new(traffic.local, FROM_PORT)
}

fn set_mark(socket: &impl AsFd, mark: u32) -> io::Result<()> {
    if mark == 0 {
        return Ok(());
    }
    SockRef::from(socket).set_mark(mark)
}

/// A UDP socket, connected if there is one peer.
fn socket(mark: u32, traffic: &Traffic) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    set_mark(&socket, mark)?;
    socket.bind(&local(traffic).into())?;
    if traffic.to_one() {
        socket.connect(&traffic.peers[0].socket().into())?;
    }
    Ok(socket)
}

/// A flow, connected if there is one peer.
fn flow(mark: u32, traffic: &Traffic) -> io::Result<kopi::Flow> {
    let flow = kopi::Flow::new_v4()?;
    set_mark(&flow, mark)?;
    flow.set_local(local(traffic).into())?;
    if traffic.to_one() {
        flow.connect(traffic.peers[0].socket().into())?;
    }
    Ok(flow)
}

/// The peers' addresses as the kernel takes them.
fn raw_addresses(traffic: &Traffic) -> Vec<libc::sockaddr_in> {
    let raw = |peer: &crate::traffic::Peer| libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: crate::traffic::TO_PORT.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(peer.address.octets()),
        },
        sin_zero: [0; 8],
    };
    traffic.peers.iter().map(raw).collect()
}

/// Bytes of such an address.
const ADDRESS_LEN: libc::socklen_t = size_of::<libc::sockaddr_in>() as libc::socklen_t;

/// An error if fewer bytes went than were given.
fn all_of(sent: usize, total: usize) -> io::Result<()> {
    if sent == total {
        return Ok(());
    }
    Err(io::Error::other(format!("{sent} of {total} were sent")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gso_packets_fit_an_ip_packet() {
        assert_eq!(Mode::UdpSegment.batch(64), 128);
        assert_eq!(Mode::UdpSegment.batch(512), 127);
        assert_eq!(Mode::KopiGso.batch(1400), 46);
        assert_eq!(Mode::Send.batch(64), 1);
        assert_eq!(Mode::KopiDoorbell.batch(1400), 64);
    }

    #[test]
    fn gso_packets_count_as_one() {
        assert_eq!(Mode::Sendmmsg.handed(64, true, 1000), Some(1000));
        assert_eq!(Mode::UdpSegment.handed(64, true, 129), Some(2));
        assert_eq!(Mode::KopiGsoDescs.handed(64, true, 130), Some(3));
        // 46 and 18, and then one more.
        assert_eq!(Mode::KopiGsoDescs.handed(1400, true, 65), Some(3));
        assert_eq!(Mode::KopiGsoDescs.handed(64, false, 130), None);
    }

    #[test]
    fn short_writes_are_errors() {
        assert!(all_of(64, 64).is_ok());
        assert!(all_of(63, 64).is_err());
    }
}
