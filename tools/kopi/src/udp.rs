// SPDX-License-Identifier: GPL-2.0

//! A UDP socket on rings, in the shape of the standard library's.

use self::{patience::Patience, send::WRITABLE, verdicts::Sends};
use crate::{
    channel::{Builder, Channel},
    flow::{Flow, FlowId},
};
use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::{
        atomic::{AtomicU32, Ordering},
        Mutex, MutexGuard, PoisonError,
    },
};

mod batch;
mod options;
mod patience;
mod receive;
mod send;
#[cfg(feature = "tokio")]
mod unattended;
mod verdicts;

pub(crate) use self::send::Sent;

/// A UDP socket whose packets go through mapped rings, with the methods of
/// [`std::net::UdpSocket`].
///
/// Where it differs:
///
/// - There is no `try_clone`: a copy of the descriptor would be a second reader of the same rings.
///   All methods take `&self`; put the socket into an [`Arc`](std::sync::Arc).
/// - A datagram that the send buffer has no room for is sent by a later call. With O_NONBLOCK this
///   happens to one datagram at most, of which [`UdpSocket::send`] says that it was sent; the next
///   gives [`WouldBlock`](io::ErrorKind::WouldBlock), and so does [`UdpSocket::connect`].
/// - The error of a large datagram, which goes by reference, may come with the next call, as ICMP
///   errors do.
/// - Datagrams that have come are received before a pending error, such as an ICMP message's, is told.
/// - A signal's handler ends a call that waits for room to send with
///   [`Interrupted`](io::ErrorKind::Interrupted), even one with SA_RESTART, after which std's would go on; and
///   a call that receives, while a datagram waits for room.
/// - The flow information of an IPv6 peer's address isn't sent.
///
/// A datagram that a call sends by itself goes by sendmsg(2), past the ring, if there is room for it: that
/// costs less than a doorbell. Batches go by the ring.
///
/// A forked child has the same memory mapped. It may drop the socket, which its parent doesn't notice, and must
/// not use it otherwise.
///
/// Datagrams aren't put together to GSO packets: every one meets rules and limits by itself, as those of
/// a UDP socket.
///
/// # Examples
///
/// ```no_run
/// use kopi::UdpSocket;
///
/// # fn main() -> std::io::Result<()> {
/// let socket = UdpSocket::bind("127.0.0.1:34254")?;
/// let mut buffer = [0; 10];
/// let (len, from) = socket.recv_from(&mut buffer)?;
/// let answer = &mut buffer[..len];
/// answer.reverse();
/// socket.send_to(answer, from)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct UdpSocket {
    flow: Flow,
    id: FlowId,
    /// Nobody sleeps with this locked.
    shared: Mutex<Shared>,
    /// The errno of a datagram that was taken before it failed, or 0.
    late_error: AtomicU32,
    /// The process whose rings they are.
    maker: u32,
}

/// The channel, and the calls that wait for what became of their packets.
#[derive(Debug)]
struct Shared {
    channel: Channel,
    sends: Sends,
}

impl UdpSocket {
    /// A socket at the first of these local addresses that can be had.
    pub fn bind(addresses: impl ToSocketAddrs) -> io::Result<Self> {
        each(addresses, |address| Self::with_flow(Flow::bind(address)?))
    }

    /// A socket on a channel of its own, of a flow that may have been set up in ways of its own.
    ///
    /// The channel takes a megabyte, room for 384 received datagrams (fewer if they are longer than
    /// 1984 bytes), about as many as a UDP socket's receive buffer holds.
    pub fn with_flow(flow: Flow) -> io::Result<Self> {
        // As many frames to send as the COMPLETION ring has entries, so that it always has room: poll(2)
        // says nothing of that to those that wait for POLLOUT alone, as mio and tokio do.
        let channel = Channel::builder()
            .frames(512)
            .rx_frames(384)
            .tx_entries(128)
            .rx_entries(512);
        Self::on_channel(flow, channel)
    }

    /// The same on a channel of this kind, which has no more frames to send than COMPLETION has entries.
    pub(crate) fn on_channel(flow: Flow, channel: Builder) -> io::Result<Self> {
        let channel = channel.open(&flow)?;
        let id = flow.learn_number()?;
        Ok(Self::assemble(flow, id, channel))
    }

    pub(crate) fn assemble(flow: Flow, id: FlowId, channel: Channel) -> Self {
        Self {
            flow,
            id,
            shared: Mutex::new(Shared {
                channel,
                sends: Sends::default(),
            }),
            late_error: AtomicU32::new(0),
            maker: std::process::id(),
        }
    }

    /// Connects to the first of these peers that it can: only its datagrams arrive from now on.
    ///
    /// What an earlier call left in the ring goes to the peer of before, so this waits for room as calls that
    /// send do.
    pub fn connect(&self, addresses: impl ToSocketAddrs) -> io::Result<()> {
        let addresses: Vec<_> = addresses.to_socket_addrs()?.collect();
        let mut patience = Patience::new(self, Self::write_timeout);
        loop {
            if let Some(connected) = self.attempt_connect(&addresses)? {
                return connected;
            }
            if let Some(error) = patience.sleep(WRITABLE)? {
                // It isn't this peer's.
                self.keep_another(&error);
            }
        }
    }

    /// Connects, unless something is left in the ring, which has no address if it is the connected peer's.
    pub(crate) fn attempt_connect(
        &self,
        addresses: &[SocketAddr],
    ) -> io::Result<Option<io::Result<()>>> {
        let shared = &mut *self.lock();
        // An engine takes it later than the doorbell.
        if !self.flush(shared)? || shared.channel.has_unsent() {
            return Ok(None);
        }
        Ok(Some(each(addresses, |address| self.flow.connect(address))))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic elsewhere leaves no ring half written.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Flushes, tells the calls that wait what became of their packets, and keeps the errors of others
    /// for the next call. Says whether all was taken.
    fn flush(&self, shared: &mut Shared) -> io::Result<bool> {
        let Shared { channel, sends } = shared;
        channel.flush_with(|completion| {
            if !completion.more
                && !sends.complete(completion.frame, completion.error)
                && completion.error != 0
            {
                self.keep_error(completion.error.into());
            }
        })
    }

    fn take_late_error(&self) -> io::Result<()> {
        match self.late_error.swap(0, Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }

    fn keep_error(&self, errno: u32) {
        self.late_error.store(errno, Ordering::Relaxed);
    }

    /// Keeps an error that a call met, and that isn't its own.
    fn keep_another(&self, error: &io::Error) {
        self.keep_error(error.raw_os_error().map_or(0, i32::unsigned_abs));
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        // Of a child's copy only the descriptor is closed, and the memory unmapped. The lock may be a thread's
        // that the child hasn't.
        if self.maker == std::process::id() {
            // Sends what a call had to leave in the ring, if there is room by now.
            let _ = self.lock().channel.flush();
        }
    }
}

impl AsRawFd for UdpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.flow.as_raw_fd()
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.flow.as_fd()
    }
}

/// Tries one address after the other, as std does.
fn each<T>(
    addresses: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = None;
    for address in addresses.to_socket_addrs()? {
        match attempt(address) {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "could not resolve to any addresses",
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The compiler's word that a socket can be shared by threads, as std's can.
    #[test]
    fn sockets_are_shared_and_channels_moved() {
        fn shared<T: Send + Sync>() {}
        fn moved<T: Send>() {}
        shared::<UdpSocket>();
        moved::<Channel>();
    }

    /// What is left in the ring stays the parent's.
    #[test]
    fn a_child_drops_its_copy_of_a_socket() {
        let socket = crate::fake::fake_socket();
        socket.lock().channel.fake().borrow_mut().appetite = 0;
        socket.send_to(b"left", "192.0.2.9:99").unwrap();
        // SAFETY: The child calls only what the C library allows there in fact, and ends.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                socket.lock().channel.fake().borrow_mut().appetite = u32::MAX;
                drop(socket);
                libc::_exit(0);
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert_eq!(status, 0);
        assert!(socket.lock().channel.has_unsent());
    }

    /// It has no address of its own.
    #[test]
    fn what_was_left_goes_to_the_peer_of_before() {
        let socket = crate::fake::fake_socket();
        let new: SocketAddr = "127.0.0.1:9".parse().unwrap();
        socket.lock().channel.fake().borrow_mut().appetite = 0;
        assert_eq!(socket.send(b"left").unwrap(), 4);
        let blocked = socket.connect(new).unwrap_err();
        assert_eq!(blocked.kind(), io::ErrorKind::WouldBlock);
        assert!(socket.peer_addr().is_err());
        socket.set_nonblocking(false).unwrap();
        std::thread::scope(|scope| {
            let connected = scope.spawn(|| socket.connect(new));
            socket.lock().channel.fake().borrow_mut().appetite = u32::MAX;
            connected.join().unwrap().unwrap();
        });
        assert!(!socket.lock().channel.has_unsent());
        assert_eq!(socket.peer_addr().unwrap(), new);
    }

    #[test]
    fn later_addresses_are_tried() {
        let addresses = ["192.0.2.1:1", "192.0.2.2:2"].map(|text| text.parse().unwrap());
        let port = each(&addresses[..], |address| match address.port() {
            1 => Err(io::ErrorKind::AddrNotAvailable.into()),
            port => Ok(port),
        });
        assert_eq!(port.unwrap(), 2);
        assert!(each(&[] as &[SocketAddr], |_| Ok(())).is_err());
    }
}
