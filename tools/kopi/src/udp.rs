// SPDX-License-Identifier: GPL-2.0

//! A UDP socket on rings, in the shape of the standard library's.

use crate::{
    channel::{Channel, Interest},
    flow::{Flow, FlowId},
    message::Message,
    sys,
};
use socket2::SockRef;
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::{
        atomic::{AtomicU32, Ordering},
        Mutex, MutexGuard, PoisonError,
    },
    time::{Duration, Instant},
};

/// The longest payload that the length field of UDP allows, and more than any packet holds.
const PAYLOAD_MAX: usize = 65535;

/// A UDP socket whose packets go through mapped rings, with the methods of
/// [`std::net::UdpSocket`].
///
/// Where it differs:
///
/// - There is no `try_clone`: a copy of the descriptor would be a second reader of the same rings.
///   All methods take `&self`; put the socket into an [`Arc`](std::sync::Arc).
/// - A datagram that the send buffer has no room for is sent by a later call. With O_NONBLOCK this
///   happens to one datagram at most, of which [`UdpSocket::send`] says that it was sent; the next
///   gives [`WouldBlock`](io::ErrorKind::WouldBlock).
/// - The error of a large datagram, which goes by reference, may come with the next call, as ICMP
///   errors do.
///
/// Datagrams aren't put together to trains: every one meets rules and limits by itself, as those of
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
    channel: Mutex<Channel>,
    /// The errno of a datagram that was taken before it failed, or 0.
    late_error: AtomicU32,
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
        let channel = Channel::builder()
            .frames(512)
            .rx_frames(384)
            .tx_entries(128)
            .rx_entries(512)
            .open(&flow)?;
        let id = flow.learn_number()?;
        Ok(Self {
            flow,
            id,
            channel: Mutex::new(channel),
            late_error: AtomicU32::new(0),
        })
    }

    /// Connects to the first of these peers that it can: only its datagrams arrive from now on.
    pub fn connect(&self, addresses: impl ToSocketAddrs) -> io::Result<()> {
        each(addresses, |address| self.flow.connect(address))
    }

    /// Receives a datagram; what doesn't fit into `buffer` is lost.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(|channel| {
            let packet = channel.recv()?;
            Ok(packet.map(|packet| (packet.copy_to(buffer), packet.peer())))
        })
        .map(|received| received.unwrap_or_else(|| (0, self.nobody())))
    }

    /// Receives a datagram; what doesn't fit into `buffer` is lost.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buffer).map(|(len, _)| len)
    }

    /// Receives a datagram, and leaves it where it is.
    pub fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(|channel| channel.peek(|packet| (packet.copy_to(buffer), packet.peer())))
            .map(|received| received.unwrap_or_else(|| (0, self.nobody())))
    }

    /// Receives a datagram, and leaves it where it is.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.peek_from(buffer).map(|(len, _)| len)
    }

    /// Sends a datagram to the first of these addresses.
    pub fn send_to(&self, data: &[u8], addresses: impl ToSocketAddrs) -> io::Result<usize> {
        match addresses.to_socket_addrs()?.next() {
            Some(address) => self.transmit(data, &Message::to(address)),
            None => Err(no_address()),
        }
    }

    /// Sends a datagram to the connected peer.
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        self.transmit(data, &Message::connected())
    }

    /// Sends a datagram with a TOS, a source address or what else a [`Message`] can say.
    pub fn send_message(&self, data: &[u8], message: &Message) -> io::Result<usize> {
        self.transmit(data, message)
    }

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

    fn lock(&self) -> MutexGuard<'_, Channel> {
        // A panic elsewhere leaves no ring half written.
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_late_error(&self) -> io::Result<()> {
        match self.late_error.swap(0, Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }

    /// The address that recvfrom(2) leaves when there was no datagram.
    fn nobody(&self) -> SocketAddr {
        match self.local_addr() {
            Ok(SocketAddr::V6(_)) => (Ipv6Addr::UNSPECIFIED, 0).into(),
            _ => (Ipv4Addr::UNSPECIFIED, 0).into(),
        }
    }

    /// Whether shutdown(2) was called for what comes.
    fn is_shut_down(&self) -> io::Result<bool> {
        let ready = sys::poll(self.as_raw_fd(), libc::POLLRDHUP, Some(Duration::ZERO))?;
        Ok(ready & libc::POLLRDHUP != 0)
    }

    /// Sleeps, as the socket's mode has it, until `take` gives something; `None` after a shutdown.
    fn receive<T>(
        &self,
        mut take: impl FnMut(&Channel) -> io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        self.take_late_error()?;
        let mut has_slept = false;
        loop {
            if let Some(taken) = take(&self.lock())? {
                return Ok(Some(taken));
            }
            // Another thread was faster, or nothing more will come.
            if has_slept && self.is_shut_down()? {
                return take(&self.lock());
            }
            // What an earlier call had to leave in the ring.
            self.flush(&self.lock(), None)?;
            sys::wait_rx(self.as_raw_fd())?;
            has_slept = true;
        }
    }

    /// Flushes; gives what became of the packet whose last frame is `frame`, if that is known, and
    /// keeps the errors of others for the next call. Says whether all was taken.
    fn flush(&self, channel: &Channel, frame: Option<u32>) -> io::Result<(bool, Option<u16>)> {
        let mut verdict = None;
        let all = channel.flush_with(|completion| {
            if completion.more {
                return;
            }
            if Some(completion.frame) == frame {
                verdict = Some(completion.error);
            } else if completion.error != 0 {
                self.late_error
                    .store(completion.error.into(), Ordering::Relaxed);
            }
        })?;
        Ok((all, verdict))
    }

    fn transmit(&self, data: &[u8], message: &Message) -> io::Result<usize> {
        self.take_late_error()?;
        if data.len() > PAYLOAD_MAX {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let mut patience = Patience::new(self);
        // Queue it, as soon as there is nothing before it.
        let frame = loop {
            let blocked_by = {
                let channel = self.lock();
                if !self.flush(&channel, None)?.0 {
                    Interest::WRITABLE
                } else if let Some(payload) = channel.payload(data) {
                    let last = payload.frames().last().map_or(0, |frame| frame.id());
                    channel.send(self.id, message, payload)?;
                    let (taken, verdict) = self.flush(&channel, Some(last))?;
                    match verdict {
                        Some(0) => return Ok(data.len()),
                        Some(errno) => return Err(io::Error::from_raw_os_error(errno.into())),
                        // It went by reference.
                        None if taken => return Ok(data.len()),
                        None => break last,
                    }
                } else {
                    Interest::COMPLETION
                }
            };
            patience.sleep(blocked_by)?;
        };
        // It is in the ring, and will be sent come what may. Sleep as send(2) would.
        while patience.sleep(Interest::WRITABLE).is_ok() {
            match self.flush(&self.lock(), Some(frame))? {
                (_, Some(errno)) if errno != 0 => {
                    return Err(io::Error::from_raw_os_error(errno.into()))
                }
                (false, None) => {}
                _ => break,
            }
        }
        Ok(data.len())
    }
}

/// How long a sending call may sleep.
struct Patience<'s> {
    socket: &'s UdpSocket,
    /// Once it has slept: until when, if there is a limit.
    deadline: Option<Option<Instant>>,
}

impl<'s> Patience<'s> {
    fn new(socket: &'s UdpSocket) -> Self {
        Self {
            socket,
            deadline: None,
        }
    }

    /// Sleeps until there may be room; `WouldBlock` if the call must not sleep any longer.
    fn sleep(&mut self, interest: Interest) -> io::Result<()> {
        let deadline = match self.deadline {
            Some(deadline) => deadline,
            None => {
                if sys::is_nonblocking(self.socket.as_fd())? {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let timeout = self.socket.write_timeout()?;
                let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
                *self.deadline.insert(deadline)
            }
        };
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let events = if interest == Interest::WRITABLE {
            libc::POLLOUT | libc::POLLWRBAND
        } else {
            libc::POLLWRBAND
        };
        match sys::poll(self.socket.as_raw_fd(), events, left)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        // Sends what a call had to leave in the ring, if there is room by now.
        let _ = self.lock().flush();
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

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "no addresses to send data to")
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

    #[test]
    fn timeouts_of_zero_are_refused() {
        assert!(refuse_zero(Some(Duration::ZERO)).is_err());
        assert!(refuse_zero(None).is_ok());
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
