// SPDX-License-Identifier: GPL-2.0

//! Flows of a channel, or plain sockets, behind one face.

use crate::SocketOptions;
use kopi::{Channel, Completion, Flow, FlowId, Interest, Message};
use kopi_programs::{next_port, raise_file_limit, send_patiently, Context};
use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    time::Duration,
};

/// A datagram as it came.
pub(crate) struct Arrival<'d> {
    /// The number of the flow to which it came.
    pub(crate) flow: usize,
    pub(crate) from: SocketAddr,
    pub(crate) data: &'d [u8],
}

/// Errors by errno.
pub(crate) type Errors = BTreeMap<i32, u64>;

/// Something that sends and receives datagrams.
pub(crate) trait Endpoint {
    /// The local address of a flow.
    fn local(&self, flow: usize) -> io::Result<SocketAddr>;

    /// Sends a datagram; to the connected peer if there is no `to`.
    ///
    /// What the stack says to it is counted in [`Endpoint::errors`].
    fn send(&mut self, flow: usize, to: Option<SocketAddr>, data: &[u8]) -> io::Result<()>;

    /// Has everything sent.
    fn flush(&mut self) -> io::Result<()>;

    /// Waits, and takes what there is; gives the number of datagrams.
    fn receive(
        &mut self,
        timeout: Duration,
        take: &mut dyn FnMut(Arrival<'_>),
    ) -> io::Result<usize>;

    /// What failed to be sent so far.
    fn errors(&self) -> &Errors;
}

/// Where flows are at first.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// At consecutive ports from this one.
    Bound(SocketAddr),
    /// Connected to this address, or in turn to this number of ports from there.
    Connected(SocketAddr, u32),
}

impl Place {
    fn of(self, number: usize) -> io::Result<(SocketAddr, Option<SocketAddr>)> {
        match self {
            Self::Bound(address) => Ok((next_port(address, number)?, None)),
            Self::Connected(peer, ports) => {
                let any = match peer {
                    SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                    SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
                };
                Ok((any, Some(next_port(peer, number % ports as usize)?)))
            }
        }
    }
}

/// Opens what the options ask for.
pub(crate) fn open(options: &SocketOptions, place: Place) -> io::Result<Box<dyn Endpoint>> {
    raise_file_limit(options.flows as usize)?;
    if options.plain {
        Ok(Box::new(Plain::open(options, place)?))
    } else {
        Ok(Box::new(Rings::open(options, place)?))
    }
}

/// Flows on one channel.
struct Rings {
    flows: Vec<Flow>,
    /// Their numbers on the channel, and back.
    ids: Vec<FlowId>,
    by_id: BTreeMap<FlowId, usize>,
    channel: Channel,
    errors: Errors,
    buffer: Vec<u8>,
}

fn count(errors: &mut Errors, completion: Completion) {
    if completion.error != 0 && !completion.more {
        *errors.entry(completion.error.into()).or_default() += 1;
    }
}

impl Rings {
    fn open(options: &SocketOptions, place: Place) -> io::Result<Self> {
        let mut flows = vec![];
        for number in 0..options.flows as usize {
            let (local, peer) = place.of(number)?;
            let flow = Flow::bind(local).context(local)?;
            if let Some(peer) = peer {
                flow.connect(peer).context(peer)?;
            }
            flows.push(flow);
        }
        let mut ids = vec![];
        let Some(first) = flows.first() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let channel = Channel::builder()
            .gso(options.offloads)
            .gro(options.offloads)
            .gro_merged(options.merged)
            .open(first)?;
        ids.extend(first.id());
        for flow in flows.iter().skip(1) {
            ids.push(flow.join(&channel).context("joining the channel")?);
        }
        let by_id = ids
            .iter()
            .zip(0..)
            .map(|(&id, number)| (id, number))
            .collect();
        Ok(Self {
            flows,
            ids,
            by_id,
            channel,
            errors: Errors::new(),
            buffer: vec![],
        })
    }
}

impl Endpoint for Rings {
    fn local(&self, flow: usize) -> io::Result<SocketAddr> {
        self.flows[flow].local_addr()
    }

    fn send(&mut self, flow: usize, to: Option<SocketAddr>, data: &[u8]) -> io::Result<()> {
        let message = to.map_or(Message::connected(), Message::to);
        let Self {
            channel, errors, ..
        } = self;
        let payload = loop {
            if let Some(payload) = channel.payload(data) {
                break payload;
            }
            let taken = channel.flush_with(|completion| count(errors, completion))?;
            if let Some(payload) = channel.payload(data) {
                break payload;
            }
            let interest = if taken {
                Interest::COMPLETION
            } else {
                Interest::WRITABLE
            };
            ignore_signals(
                channel
                    .wait(interest, Some(Duration::from_secs(1)))
                    .map(drop),
            )?;
        };
        send_patiently(channel, self.ids[flow], &message, payload, |completion| {
            count(errors, completion)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        let Self {
            channel, errors, ..
        } = self;
        while !channel.flush_with(|completion| count(errors, completion))? {
            ignore_signals(
                channel
                    .wait(Interest::WRITABLE, Some(Duration::from_secs(1)))
                    .map(drop),
            )?;
        }
        Ok(())
    }

    fn receive(
        &mut self,
        timeout: Duration,
        take: &mut dyn FnMut(Arrival<'_>),
    ) -> io::Result<usize> {
        let Self {
            channel,
            errors,
            by_id,
            buffer,
            ..
        } = self;
        let mut received = 0;
        loop {
            while let Some(packet) = channel.recv()? {
                let flow = by_id.get(&packet.flow()).copied().unwrap_or(usize::MAX);
                let from = packet.peer();
                let segment = packet.segment_size().unwrap_or(usize::MAX);
                let data: &[u8] = if packet.chunks().count() == 1 {
                    packet.chunks().next().unwrap_or_default()
                } else {
                    buffer.resize(packet.len(), 0);
                    packet.copy_to(buffer);
                    &*buffer
                };
                if data.is_empty() {
                    take(Arrival { flow, from, data });
                    received += 1;
                }
                for data in data.chunks(segment) {
                    take(Arrival { flow, from, data });
                    received += 1;
                }
                // Acknowledgements want to be sent in between.
                if received >= 16 {
                    return Ok(received);
                }
            }
            if received > 0 {
                return Ok(received);
            }
            channel.flush_with(|completion| count(errors, completion))?;
            let ready = match channel.wait(Interest::READABLE, Some(timeout)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(0),
                ready => ready?,
            };
            if ready.error {
                // An ICMP error, of which more than the count is not known here.
                if let Some(error) = self.flows.first().and_then(|f| f.take_error().ok()?) {
                    *errors.entry(error.raw_os_error().unwrap_or(0)).or_default() += 1;
                }
            }
            if !ready.readable {
                return Ok(0);
            }
        }
    }

    fn errors(&self) -> &Errors {
        &self.errors
    }
}

fn ignore_signals(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        result => result,
    }
}

/// Ordinary sockets.
struct Plain {
    sockets: Vec<UdpSocket>,
    polled: Vec<libc::pollfd>,
    errors: Errors,
    buffer: Vec<u8>,
}

impl Plain {
    fn open(options: &SocketOptions, place: Place) -> io::Result<Self> {
        let mut sockets = vec![];
        for number in 0..options.flows as usize {
            let (local, peer) = place.of(number)?;
            let socket = UdpSocket::bind(local).context(local)?;
            if let Some(peer) = peer {
                socket.connect(peer).context(peer)?;
            }
            sockets.push(socket);
        }
        let polled = sockets
            .iter()
            .map(|socket| libc::pollfd {
                fd: socket.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        Ok(Self {
            sockets,
            polled,
            errors: Errors::new(),
            buffer: vec![0; 65536],
        })
    }
}

impl Endpoint for Plain {
    fn local(&self, flow: usize) -> io::Result<SocketAddr> {
        self.sockets[flow].local_addr()
    }

    fn send(&mut self, flow: usize, to: Option<SocketAddr>, data: &[u8]) -> io::Result<()> {
        let socket = &self.sockets[flow];
        let sent = match to {
            Some(to) => socket.send_to(data, to),
            None => socket.send(data),
        };
        if let Err(error) = sent {
            *self
                .errors
                .entry(error.raw_os_error().unwrap_or(0))
                .or_default() += 1;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn receive(
        &mut self,
        timeout: Duration,
        take: &mut dyn FnMut(Arrival<'_>),
    ) -> io::Result<usize> {
        let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let count = self.polled.len() as libc::nfds_t;
        // SAFETY: The array has `count` entries.
        if unsafe { libc::poll(self.polled.as_mut_ptr(), count, millis) } < 0 {
            return ignore_signals(Err(io::Error::last_os_error())).map(|()| 0);
        }
        let mut received = 0;
        for (flow, polled) in self.polled.iter().enumerate() {
            if polled.revents == 0 {
                continue;
            }
            match self.sockets[flow].recv_from(&mut self.buffer) {
                Ok((len, from)) => {
                    received += 1;
                    take(Arrival {
                        flow,
                        from,
                        data: &self.buffer[..len],
                    });
                }
                Err(error) => {
                    *self
                        .errors
                        .entry(error.raw_os_error().unwrap_or(0))
                        .or_default() += 1;
                }
            }
        }
        Ok(received)
    }

    fn errors(&self) -> &Errors {
        &self.errors
    }
}

/// Errors as text: `{"EPERM": 3}`.
pub(crate) fn errors_to_json(errors: &Errors) -> String {
    let entries: Vec<String> = errors
        .iter()
        .map(|(&errno, count)| format!("\"{}\": {count}", name_of(errno)))
        .collect();
    format!("{{{}}}", entries.join(", "))
}

/// The name of an errno that a send may give.
fn name_of(errno: i32) -> String {
    match errno {
        libc::EPERM => "EPERM".into(),
        libc::EBADF => "EBADF".into(),
        libc::EAGAIN => "EAGAIN".into(),
        libc::ENOMEM => "ENOMEM".into(),
        libc::EACCES => "EACCES".into(),
        libc::EFAULT => "EFAULT".into(),
        libc::EINVAL => "EINVAL".into(),
        libc::EPIPE => "EPIPE".into(),
        libc::EDESTADDRREQ => "EDESTADDRREQ".into(),
        libc::EMSGSIZE => "EMSGSIZE".into(),
        libc::ENETDOWN => "ENETDOWN".into(),
        libc::ENETUNREACH => "ENETUNREACH".into(),
        libc::ENOBUFS => "ENOBUFS".into(),
        libc::ECONNREFUSED => "ECONNREFUSED".into(),
        libc::EHOSTUNREACH => "EHOSTUNREACH".into(),
        errno => format!("errno {errno}"),
    }
}
