// SPDX-License-Identifier: GPL-2.0

//! Sending by one of many sockets or flows, another one for each packet.

use super::{all_of, rings::Port, BATCH, VIRTIO_HEADER};
use crate::traffic::Traffic;
use clap::ValueEnum;
use kopi::{Channel, Flow, FlowId, Message};
use socket2::{Domain, Protocol, Socket, Type};
use std::{io, net::SocketAddrV4};

/// A way to send by many sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum FleetMode {
    /// send(2)
    Send,
    /// KOPI's TX ring, 64 packets by a doorbell, all flows on one channel
    KopiDoorbell,
    /// As `kopi_doorbell`, by a device that is attached
    KopiDirectDatagrams,
}

impl FleetMode {
    /// Whether it is by a device that is attached.
    pub(crate) fn is_direct(self) -> bool {
        self == Self::KopiDirectDatagrams
    }

    /// Bytes of a packet on the wire that the NIC counts too many.
    pub(crate) fn miscounted(self) -> usize {
        if self.is_direct() {
            VIRTIO_HEADER
        } else {
            0
        }
    }

    /// Opens the first socket.
    pub(crate) fn open(
        self,
        local: SocketAddrV4,
        peer: SocketAddrV4,
        payload: usize,
    ) -> io::Result<Box<dyn Fleet>> {
        let mut fleet: Box<dyn Fleet> = match self {
            Self::Send => Box::new(Plain {
                sockets: Vec::new(),
                buffer: vec![0; payload],
            }),
            Self::KopiDoorbell | Self::KopiDirectDatagrams => {
                return Ok(Box::new(Rings::new(flow(local, peer)?)?))
            }
        };
        fleet.add(local, peer)?;
        Ok(fleet)
    }
}

/// Sockets of one mode.
pub(crate) trait Fleet {
    /// Opens another one.
    fn add(&mut self, local: SocketAddrV4, peer: SocketAddrV4) -> io::Result<()>;

    /// Sends a number of packets, each by the socket of which `choose` tells the number.
    fn send(
        &mut self,
        traffic: &mut Traffic,
        count: usize,
        choose: &mut dyn FnMut() -> u32,
    ) -> io::Result<()>;

    /// Packets that are handed over at once.
    fn batch(&self) -> usize;
}

fn socket(local: SocketAddrV4, peer: SocketAddrV4) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.bind(&local.into())?;
    socket.connect(&peer.into())?;
    Ok(socket)
}

fn flow(local: SocketAddrV4, peer: SocketAddrV4) -> io::Result<Flow> {
    let flow = Flow::bind(local.into())?;
    flow.connect(peer.into())?;
    Ok(flow)
}

/// A packet by each system call.
struct Plain {
    sockets: Vec<Socket>,
    buffer: Vec<u8>,
}

impl Fleet for Plain {
    fn add(&mut self, local: SocketAddrV4, peer: SocketAddrV4) -> io::Result<()> {
        self.sockets.push(socket(local, peer)?);
        Ok(())
    }

    fn send(
        &mut self,
        traffic: &mut Traffic,
        count: usize,
        choose: &mut dyn FnMut() -> u32,
    ) -> io::Result<()> {
        for _ in 0..count {
            traffic.fill(&mut self.buffer);
            let sent = self.sockets[choose() as usize].send(&self.buffer)?;
            all_of(sent, self.buffer.len())?;
        }
        Ok(())
    }

    fn batch(&self) -> usize {
        1
    }
}

/// A batch by each doorbell.
struct Rings {
    port: Port,
    /// Those behind the port's own.
    others: Vec<(Flow, FlowId)>,
}

impl Rings {
    fn new(flow: Flow) -> io::Result<Self> {
        let channel = Channel::builder().rx_frames(0).open(&flow)?;
        Ok(Self {
            port: Port { channel, flow },
            others: Vec::new(),
        })
    }
}

impl Fleet for Rings {
    fn add(&mut self, local: SocketAddrV4, peer: SocketAddrV4) -> io::Result<()> {
        let flow = flow(local, peer)?;
        let number = flow.join(&self.port.channel)?;
        self.others.push((flow, number));
        Ok(())
    }

    fn send(
        &mut self,
        traffic: &mut Traffic,
        mut count: usize,
        choose: &mut dyn FnMut() -> u32,
    ) -> io::Result<()> {
        while count > 0 {
            let batch = count.min(BATCH);
            for _ in 0..batch {
                let mut frame = self.port.frame()?;
                frame.set_len(traffic.payload());
                traffic.fill(&mut frame);
                let message = Message::connected();
                match choose() as usize {
                    0 => self.port.send(&message, frame)?,
                    number => self
                        .port
                        .send_by(self.others[number - 1].1, &message, frame)?,
                }
            }
            self.port.flush()?;
            count -= batch;
        }
        Ok(())
    }

    fn batch(&self) -> usize {
        BATCH
    }
}
