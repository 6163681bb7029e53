// SPDX-License-Identifier: GPL-2.0

//! A UDP socket on rings for QUIC by quinn.

use crate::{tokio::UdpSocket, Flow, Message, Packet};
use ::quinn::{
    udp::{EcnCodepoint, RecvMeta, Transmit},
    AsyncUdpSocket, UdpPoller,
};
use socket2::SockRef;
use std::{
    fmt,
    future::Future,
    io::{self, ErrorKind, IoSliceMut},
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, RawFd},
    pin::Pin,
    sync::{
        atomic::{AtomicUsize, Ordering},
        Arc,
    },
    task::{ready, Context, Poll},
};

/// The longest GSO packet's payload, in bytes.
const PAYLOAD_MAX: usize = 65535 - 48;
/// Datagrams of a GSO packet, at most (UDP_MAX_SEGMENTS is 128, and was 64).
const SEGMENTS: usize = 64;
/// Errors that are passed over before one ends the endpoint.
const ERRORS_MAX: usize = 16;
/// As most of QUIC's packets have it: the socket's own, so that they need no control message.
const ECN: EcnCodepoint = EcnCodepoint::Ect0;

/// A UDP socket of quinn's: with GSO, GRO, ECN, the address to which a datagram came, and what QUIC finds the path's
/// MTU by.
///
/// Errors of single datagrams, such as EPERM of a packet filter, are losses for QUIC, as with quinn's own sockets.
///
/// # Examples
///
/// ```no_run
/// use kopi::quinn::Socket;
/// use quinn::{Endpoint, EndpointConfig, ServerConfig, TokioRuntime};
/// use std::sync::Arc;
///
/// # fn listen(server: ServerConfig) -> std::io::Result<Endpoint> {
/// let socket = Arc::new(Socket::bind("[::]:4433".parse().unwrap())?);
/// Endpoint::new_with_abstract_socket(EndpointConfig::default(), Some(server), socket, Arc::new(TokioRuntime))
/// # }
/// ```
#[derive(Debug)]
pub struct Socket {
    socket: UdpSocket,
    /// Datagrams of a GSO packet, at most: 1 from the first one on that was refused, as with quinn's own sockets.
    segments: AtomicUsize,
}

impl Socket {
    /// A socket at this local address.
    ///
    /// # Panics
    ///
    /// Outside of a runtime of tokio's with I/O enabled.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let flow = match address {
            SocketAddr::V4(_) => Flow::new_v4()?,
            SocketAddr::V6(_) => Flow::new_v6()?,
        };
        prepare(&flow, address.is_ipv6())?;
        flow.set_local(address)?;
        // Each GSO packet is a chain of frames.
        let channel = crate::Channel::builder()
            .frames(1024)
            .rx_frames(768)
            .tx_entries(256)
            .rx_entries(1024)
            .gso(true)
            .gro(true)
            .gro_merged(true);
        Ok(Self::on(UdpSocket::new(crate::UdpSocket::on_channel(
            flow, channel,
        )?)?))
    }

    fn on(socket: UdpSocket) -> Self {
        Self {
            socket,
            segments: AtomicUsize::new(SEGMENTS),
        }
    }
}

/// Sets what each datagram is sent with.
fn prepare(flow: &Flow, ipv6: bool) -> io::Result<()> {
    let fd = flow.as_raw_fd();
    let options = SockRef::from(flow.socket().as_ref());
    // Those of an IPv6 socket to IPv4 peers have IPv4's.
    options.set_tos_v4(ECN as u32)?;
    crate::sys::set_int(
        fd,
        libc::IPPROTO_IP,
        libc::IP_MTU_DISCOVER,
        libc::IP_PMTUDISC_PROBE,
    )?;
    if ipv6 {
        options.set_tclass_v6(ECN as u32)?;
        let (name, probe) = (libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE);
        crate::sys::set_int(fd, libc::IPPROTO_IPV6, name, probe)?;
    }
    Ok(())
}

/// Where a datagram goes, and how, but for its segments.
fn message(transmit: &Transmit<'_>) -> Message {
    let mut message = Message::to(transmit.destination);
    if let Some(source) = transmit.src_ip {
        // One of the destination's version.
        message = match (transmit.destination, source) {
            (SocketAddr::V6(_), IpAddr::V4(source)) => {
                message.source(source.to_ipv6_mapped().into())
            }
            (SocketAddr::V4(_), IpAddr::V6(source)) => match source.to_ipv4_mapped() {
                Some(source) => message.source(source.into()),
                None => message,
            },
            _ => message.source(source),
        };
    }
    match transmit.ecn {
        Some(ECN) => message,
        other => message.tos(other.map_or(0, |bits| bits as u8)),
    }
}

/// Whether a GSO packet was refused for being one, as far as its error says: where IPsec protects the path, say.
fn has_no_gso(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL))
}

/// What is said of a packet that was copied to a buffer.
fn received(packet: &Packet<'_>, len: usize) -> RecvMeta {
    let mut meta = RecvMeta::default();
    meta.addr = packet.peer();
    meta.len = len;
    meta.stride = packet.segment_size().unwrap_or(len);
    meta.ecn = EcnCodepoint::from_bits(packet.meta().tos & 3);
    meta.dst_ip = Some(packet.local_ip());
    meta
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller {
            socket: self,
            waiting: None,
        })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let plain = message(transmit);
        let mut rest = transmit.contents;
        let size = transmit.segment_size.unwrap_or(rest.len()).max(1);
        // As many whole datagrams as a packet can be long, which is all, but on devices with large ones.
        let mut most = (PAYLOAD_MAX / size).max(1) * size;
        while !rest.is_empty() {
            let part = &rest[..most.min(rest.len())];
            let message = match part.len() > size {
                true => plain.segment_size(size as u16),
                false => plain,
            };
            // An earlier datagram's error neither costs this one, nor says anything of GSO.
            self.socket.socket().forget_late_error();
            match self.socket.try_send_message(part, &message) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // After an error quinn sends all of it again. A rest that is lost is less than a part twice.
                    let begun = rest.len() < transmit.contents.len();
                    return if begun { Ok(()) } else { Err(error) };
                }
                Err(error) if part.len() > size && has_no_gso(&error) => {
                    self.segments.store(1, Ordering::Relaxed);
                    most = size;
                }
                // What is refused is lost. So is what asks whether a path has a larger MTU.
                Ok(_) | Err(_) => rest = &rest[part.len()..],
            }
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let limit = buffers.len().min(meta.len());
        let mut errors = 0;
        loop {
            let mut free = buffers.iter_mut().zip(meta.iter_mut());
            let show = |packet: &Packet<'_>| {
                if let Some((buffer, meta)) = free.next() {
                    *meta = received(packet, packet.copy_to(buffer));
                }
            };
            match ready!(self.socket.poll_recv_batch(context, limit, show)) {
                // One of what was sent before, perhaps.
                Err(_) if errors < ERRORS_MAX => errors += 1,
                done => return Poll::Ready(done),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.segments.load(Ordering::Relaxed)
    }

    fn max_receive_segments(&self) -> usize {
        SEGMENTS
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// A wait for room to send.
type Waiting = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// One of the tasks that wait for room to send.
struct Poller {
    socket: Arc<Socket>,
    waiting: Option<Waiting>,
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").finish_non_exhaustive()
    }
}

impl UdpPoller for Poller {
    fn poll_writable(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let socket = &this.socket;
        let waiting = this.waiting.get_or_insert_with(|| {
            let socket = socket.clone();
            Box::pin(async move { socket.socket.writable().await })
        });
        let done = ready!(waiting.as_mut().poll(context));
        this.waiting = None;
        Poll::Ready(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    /// Room for one of the two packets that this much takes.
    #[test]
    fn what_went_out_in_part_is_not_sent_again() {
        let runtime = ::tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _in_it = runtime.enter();
        let channel = crate::Channel::builder()
            .frame_size(8192)
            .frames(18)
            .rx_frames(9)
            .tx_entries(16)
            .rx_entries(16);
        let fake = fake::socket_with(channel);
        fake.with_kernel(|kernel| kernel.keeps = true);
        let socket = Socket::on(UdpSocket::new(fake).unwrap());
        let contents = vec![7; 60 * 1400];
        let all = Transmit {
            contents: &contents,
            segment_size: Some(1400),
            ..transmit("192.0.2.1:5", None, Some(ECN))
        };
        socket.try_send(&all).unwrap();
        let first = socket.socket.try_recv(&mut vec![0; 65536]).unwrap();
        assert_eq!(first, 46 * 1400);
        // Of what doesn't begin nothing is lost.
        let blocked = socket.try_send(&all).unwrap_err();
        assert_eq!(blocked.kind(), ErrorKind::WouldBlock);
    }

    /// As IPsec refuses GSO packets.
    #[test]
    fn gso_is_given_up_where_there_is_none() {
        let runtime = ::tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _in_it = runtime.enter();
        let fake = fake::fake_socket();
        fake.with_kernel(|kernel| kernel.errors.extend([libc::EIO as u16; 2]));
        let socket = Socket::on(UdpSocket::new(fake).unwrap());
        let all = Transmit {
            contents: b"aaabbbc",
            segment_size: Some(3),
            ..transmit("192.0.2.1:5", None, Some(ECN))
        };
        let one = Transmit {
            contents: b"aaa",
            ..all
        };
        socket.try_send(&one).unwrap();
        assert_eq!(socket.max_transmit_segments(), SEGMENTS);
        socket.try_send(&all).unwrap();
        assert_eq!(socket.max_transmit_segments(), 1);
        for expected in [&b"aaa"[..], b"bbb", b"c"] {
            let mut buffer = [0; 10];
            let len = socket.socket.try_recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], expected);
        }
    }

    /// It is another datagram's: to a peer with port 0, say, whom nobody can answer.
    #[test]
    fn late_errors_cost_no_other_datagram() {
        let runtime = ::tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _in_it = runtime.enter();
        for errno in [libc::EINVAL, libc::EPERM] {
            let socket = Socket::on(UdpSocket::new(fake::fake_socket()).unwrap());
            let udp = socket.socket.socket();
            let all = Transmit {
                contents: b"aaabbbc",
                segment_size: Some(3),
                ..transmit("192.0.2.1:5", None, Some(ECN))
            };
            udp.with_kernel(|kernel| kernel.appetite = 0);
            socket.try_send(&all).unwrap();
            udp.with_kernel(|kernel| {
                kernel.appetite = u32::MAX;
                kernel.errors.push_back(errno as u16);
            });
            udp.drain().unwrap();
            assert!(udp.has_late_error());
            socket.try_send(&all).unwrap();
            assert_eq!(socket.max_transmit_segments(), SEGMENTS);
            assert_eq!(socket.socket.try_recv(&mut [0; 10]).unwrap(), 7);
        }
    }

    fn transmit<'a>(
        destination: &str,
        source: Option<&str>,
        ecn: Option<EcnCodepoint>,
    ) -> Transmit<'a> {
        Transmit {
            destination: destination.parse().unwrap(),
            ecn,
            contents: &[],
            segment_size: None,
            src_ip: source.map(|source| source.parse().unwrap()),
        }
    }

    #[test]
    fn sources_are_of_the_destinations_version() {
        let of = |destination, source| message(&transmit(destination, Some(source), Some(ECN)));
        let to = |destination: &str| Message::to(destination.parse().unwrap());
        let from = |source: &str| source.parse().unwrap();
        let (v4, v6, mapped) = ("192.0.2.1:5", "[2001:db8::1]:5", "[::ffff:192.0.2.1]:5");
        assert_eq!(of(v4, "192.0.2.9"), to(v4).source(from("192.0.2.9")));
        assert_eq!(of(v4, "::ffff:192.0.2.9"), to(v4).source(from("192.0.2.9")));
        assert_eq!(of(v4, "2001:db8::9"), to(v4));
        assert_eq!(of(v6, "2001:db8::9"), to(v6).source(from("2001:db8::9")));
        assert_eq!(
            of(mapped, "192.0.2.9"),
            to(mapped).source(from("::ffff:192.0.2.9"))
        );
    }

    #[test]
    fn the_usual_ecn_is_the_sockets() {
        let (to, all) = ("192.0.2.1:5", Message::to("192.0.2.1:5".parse().unwrap()));
        assert_eq!(message(&transmit(to, None, Some(ECN))), all);
        assert_eq!(message(&transmit(to, None, None)), all.tos(0));
        assert_eq!(
            message(&transmit(to, None, Some(EcnCodepoint::Ce))),
            all.tos(3)
        );
    }
}
