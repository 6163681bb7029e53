// SPDX-License-Identifier: GPL-2.0

//! A UDP socket on rings for tasks of tokio's.

use self::waits::Late;
use crate::{message::Message, packet::Packet, udp::Sent};
use ::tokio::{
    io::{unix::AsyncFd, Interest, ReadBuf, Ready},
    net::{lookup_host, ToSocketAddrs},
    runtime::Handle,
    task::coop,
};
use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    task::{ready, Context, Poll},
};

mod options;
mod waits;

/// What ends a wait to receive: an ICMP message's error, too.
const READABLE: Interest = Interest::READABLE.add(Interest::ERROR);
/// The same, one by one.
const RECEIVED: [Interest; 2] = [Interest::READABLE, Interest::ERROR];

/// A UDP socket whose packets go through mapped rings, with the methods of
/// [`tokio::net::UdpSocket`](::tokio::net::UdpSocket).
///
/// All methods take `&self`; put the socket into an [`Arc`] for several tasks, which may send and receive
/// at once. Of the methods named `poll_`, only the last task that called one to send, and the last one that
/// called one to receive, is woken.
///
/// # Cancel safety
///
/// Whatever future of a method here is dropped: no datagram was received by it, nor sent. A datagram of
/// which a method says that it was sent leaves by itself, at the latest when the send buffer has room. A
/// socket that is dropped before stays open until then; its runtime does that in the background. When the runtime
/// ends before, what there is no room for is lost.
///
/// # Examples
///
/// ```no_run
/// use kopi::tokio::UdpSocket;
///
/// #[tokio::main]
/// async fn main() -> std::io::Result<()> {
///     let socket = UdpSocket::bind("0.0.0.0:7777").await?;
///     let mut buffer = [0; 65536];
///     loop {
///         let (len, peer) = match socket.recv_from(&mut buffer).await {
///             Ok(received) => received,
///             Err(error) => {
///                 // Of an earlier answer, perhaps: no reason to end.
///                 eprintln!("{error}");
///                 continue;
///             }
///         };
///         if let Err(error) = socket.send_to(&buffer[..len], peer).await {
///             eprintln!("{peer}: {error}");
///         }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct UdpSocket {
    shared: Arc<Shared>,
}

/// What the socket and the task that sends what was left have in common.
#[derive(Debug)]
struct Shared {
    fd: AsyncFd<crate::UdpSocket>,
    runtime: Handle,
    /// Whether there is such a task.
    is_draining: AtomicBool,
    late: Late,
}

impl Shared {
    fn socket(&self) -> &crate::UdpSocket {
        self.fd.get_ref()
    }

    /// Sends what was left in the ring.
    async fn drain(self: Arc<Self>) {
        loop {
            let drain = |socket: &crate::UdpSocket| {
                let drained = socket.drain();
                if socket.has_late_error() {
                    self.late.tell();
                }
                drained
            };
            let drained = self.fd.async_io(Interest::WRITABLE, drain).await;
            self.is_draining.store(false, Ordering::SeqCst);
            // An error is the socket's next call's: of a broken ring, say, which would give it for ever.
            if drained.is_err()
                // Something that was left before this says that there is no such task any more?
                || !self.socket().has_unsent()
                || self.is_draining.swap(true, Ordering::SeqCst)
            {
                return;
            }
        }
    }

    /// Makes of an attempt a result, and sees to what was left.
    fn finish<T, L>(
        self: &Arc<Self>,
        sent: Sent<T, L>,
        left: impl FnOnce(L) -> T,
    ) -> io::Result<T> {
        match sent {
            Sent::Taken(sent) => Ok(sent),
            Sent::Left(sent) => {
                if !self.is_draining.swap(true, Ordering::SeqCst) {
                    self.runtime.spawn(self.clone().drain());
                }
                Ok(left(sent))
            }
            Sent::Blocked(_) => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn try_send(self: &Arc<Self>, data: &[u8], message: &Message) -> io::Result<usize> {
        let sent = self.socket().attempt(data, message)?;
        self.finish(sent, |ticket| self.socket().forget(ticket))?;
        Ok(data.len())
    }

    fn try_send_batch(self: &Arc<Self>, datagrams: &[(&[u8], Message)]) -> io::Result<usize> {
        let sent = self.socket().attempt_batch(datagrams)?;
        self.finish(sent, |count| count)
    }
}

/// Receives into what is left of a buffer.
fn fill<T>(
    buffer: &mut ReadBuf<'_>,
    receive: impl FnOnce(&mut [u8]) -> io::Result<(usize, T)>,
) -> io::Result<T> {
    let (len, with) = receive(buffer.initialize_unfilled())?;
    buffer.advance(len);
    Ok(with)
}

impl UdpSocket {
    /// A socket at the first of these local addresses that can be had.
    pub async fn bind(addresses: impl ToSocketAddrs) -> io::Result<Self> {
        let mut last = None;
        for address in lookup_host(addresses).await? {
            match crate::UdpSocket::bind(address).and_then(Self::new) {
                Ok(socket) => return Ok(socket),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(no_address))
    }

    /// A socket of the runtime of which this is called.
    ///
    /// # Panics
    ///
    /// Outside of a runtime with I/O enabled, as tokio's `from_std`.
    pub fn new(socket: crate::UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        // SAFETY: The descriptor is the socket's own, and the socket keeps it open as long as it lives, and never
        // replaces it.
        let fd = unsafe { AsyncFd::register(socket) }?;
        Ok(Self {
            shared: Arc::new(Shared {
                fd,
                runtime: Handle::current(),
                is_draining: AtomicBool::new(false),
                late: Late::default(),
            }),
        })
    }

    /// Connects to the first of these peers that it can: only its datagrams arrive from now on.
    /// What was left goes to the peer of before, so this waits for room.
    pub async fn connect(&self, addresses: impl ToSocketAddrs) -> io::Result<()> {
        let addresses: Vec<_> = lookup_host(addresses).await?.collect();
        let connect = || match self.socket().attempt_connect(&addresses)? {
            Some(connected) => Ok(connected),
            None => Err(ErrorKind::WouldBlock.into()),
        };
        self.shared.when_ready(Interest::WRITABLE, connect).await?
    }

    pub(crate) fn socket(&self) -> &crate::UdpSocket {
        self.shared.socket()
    }

    /// Waits until a method named `try_` may succeed; that is never sure.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        if interest.is_readable() && self.socket().has_received() {
            coop::consume_budget().await;
            return Ok(Ready::READABLE);
        }
        Ok(self.shared.fd.ready(interest).await?.ready())
    }

    /// Waits until there may be a datagram to receive.
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(READABLE).await.map(drop)
    }

    /// Waits until there may be room to send.
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(drop)
    }

    /// As [`UdpSocket::readable`].
    pub fn poll_recv_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.socket().has_received() {
            ready!(coop::poll_proceed(context)).made_progress();
            return Poll::Ready(Ok(()));
        }
        self.shared.fd.poll_read_ready(context).map_ok(drop)
    }

    /// As [`UdpSocket::writable`].
    pub fn poll_send_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.fd.poll_write_ready(context).map_ok(drop)
    }

    /// Sends a datagram with a TOS, a source address or what else a [`Message`] can say.
    pub async fn send_message(&self, data: &[u8], message: &Message) -> io::Result<usize> {
        let send = || self.shared.try_send(data, message);
        self.shared.when_ready(Interest::WRITABLE, send).await
    }

    fn poll_send_message(
        &self,
        context: &mut Context<'_>,
        data: &[u8],
        message: &Message,
    ) -> Poll<io::Result<usize>> {
        let send = || self.shared.try_send(data, message);
        self.shared
            .poll_when_ready(context, AsyncFd::poll_write_ready, send)
    }

    /// As [`UdpSocket::send_message`], or [`WouldBlock`](ErrorKind::WouldBlock).
    pub fn try_send_message(&self, data: &[u8], message: &Message) -> io::Result<usize> {
        let send = || self.shared.try_send(data, message);
        self.shared.try_now(&[Interest::WRITABLE], send)
    }

    /// Sends a datagram to the connected peer.
    pub async fn send(&self, data: &[u8]) -> io::Result<usize> {
        self.send_message(data, &Message::connected()).await
    }

    /// As [`UdpSocket::send`].
    pub fn poll_send(&self, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send_message(context, data, &Message::connected())
    }

    /// As [`UdpSocket::send`], or [`WouldBlock`](ErrorKind::WouldBlock).
    pub fn try_send(&self, data: &[u8]) -> io::Result<usize> {
        self.try_send_message(data, &Message::connected())
    }

    /// Sends a datagram to the first of these addresses.
    pub async fn send_to(&self, data: &[u8], peer: impl ToSocketAddrs) -> io::Result<usize> {
        let peer = lookup_host(peer).await?.next().ok_or_else(no_address)?;
        self.send_message(data, &Message::to(peer)).await
    }

    /// As [`UdpSocket::send_to`].
    pub fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        data: &[u8],
        peer: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.poll_send_message(context, data, &Message::to(peer))
    }

    /// As [`UdpSocket::send_to`], or [`WouldBlock`](ErrorKind::WouldBlock).
    pub fn try_send_to(&self, data: &[u8], peer: SocketAddr) -> io::Result<usize> {
        self.try_send_message(data, &Message::to(peer))
    }

    /// Sends datagrams by one doorbell, as many of the first ones as there is room for, one at least, and
    /// gives their number.
    ///
    /// The error with which one of them is refused comes with the next call. One that can't be sent at all
    /// (EMSGSIZE) is an error of this call if it is the first, and else ends the batch before it.
    pub async fn send_batch(&self, datagrams: &[(&[u8], Message)]) -> io::Result<usize> {
        let send = || self.shared.try_send_batch(datagrams);
        self.shared.when_ready(Interest::WRITABLE, send).await
    }

    /// As [`UdpSocket::send_batch`].
    pub fn poll_send_batch(
        &self,
        context: &mut Context<'_>,
        datagrams: &[(&[u8], Message)],
    ) -> Poll<io::Result<usize>> {
        let send = || self.shared.try_send_batch(datagrams);
        self.shared
            .poll_when_ready(context, AsyncFd::poll_write_ready, send)
    }

    /// As [`UdpSocket::send_batch`], or [`WouldBlock`](ErrorKind::WouldBlock).
    pub fn try_send_batch(&self, datagrams: &[(&[u8], Message)]) -> io::Result<usize> {
        let send = || self.shared.try_send_batch(datagrams);
        self.shared.try_now(&[Interest::WRITABLE], send)
    }

    /// Receives a datagram; what doesn't fit into `buffer` is lost.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let receive = || self.socket().recv_from(buffer);
        self.shared.when_received(receive).await
    }

    /// As [`UdpSocket::recv_from`].
    pub fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        let receive = || fill(buffer, |free| self.socket().recv_from(free));
        self.shared.poll_when_received(context, receive)
    }

    /// As [`UdpSocket::recv_from`], or [`WouldBlock`](ErrorKind::WouldBlock).
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let receive = || self.socket().recv_from(buffer);
        self.shared.try_now(&RECEIVED, receive)
    }

    /// Receives a datagram; what doesn't fit into `buffer` is lost.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buffer).await.map(|(len, _)| len)
    }

    /// As [`UdpSocket::recv`].
    pub fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_recv_from(context, buffer).map_ok(drop)
    }

    /// As [`UdpSocket::recv`], or [`WouldBlock`](ErrorKind::WouldBlock).
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.try_recv_from(buffer).map(|(len, _)| len)
    }

    /// Receives a datagram, and leaves it where it is.
    pub async fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let peek = || self.socket().peek_from(buffer);
        self.shared.when_received(peek).await
    }

    /// As [`UdpSocket::peek_from`].
    pub fn poll_peek_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        let peek = || fill(buffer, |free| self.socket().peek_from(free));
        self.shared.poll_when_received(context, peek)
    }

    /// As [`UdpSocket::peek_from`], or [`WouldBlock`](ErrorKind::WouldBlock).
    pub fn try_peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let peek = || self.socket().peek_from(buffer);
        self.shared.try_now(&RECEIVED, peek)
    }

    /// Receives a datagram, and leaves it where it is.
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.peek_from(buffer).await.map(|(len, _)| len)
    }

    /// Receives up to `limit` datagrams, one at least, and shows them where the kernel put them, without
    /// a copy; gives their number. Waits only for the first one.
    ///
    /// `show` must not use the socket, which is locked meanwhile: it would wait for itself.
    pub async fn recv_batch(
        &self,
        limit: usize,
        mut show: impl FnMut(&Packet<'_>),
    ) -> io::Result<usize> {
        let receive = || self.socket().recv_batch(limit, &mut show);
        self.shared.when_received(receive).await
    }

    /// As [`UdpSocket::recv_batch`].
    pub fn poll_recv_batch(
        &self,
        context: &mut Context<'_>,
        limit: usize,
        mut show: impl FnMut(&Packet<'_>),
    ) -> Poll<io::Result<usize>> {
        let receive = || self.socket().recv_batch(limit, &mut show);
        self.shared.poll_when_received(context, receive)
    }

    /// As [`UdpSocket::recv_batch`], or [`WouldBlock`](ErrorKind::WouldBlock).
    pub fn try_recv_batch(
        &self,
        limit: usize,
        mut show: impl FnMut(&Packet<'_>),
    ) -> io::Result<usize> {
        let receive = || self.socket().recv_batch(limit, &mut show);
        self.shared.try_now(&RECEIVED, receive)
    }
}

impl AsRawFd for UdpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket().as_raw_fd()
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

fn no_address() -> io::Error {
    io::Error::new(
        ErrorKind::InvalidInput,
        "could not resolve to any addresses",
    )
}

#[cfg(test)]
mod tests;
