// SPDX-License-Identifier: GPL-2.0

//! A UDP socket on rings, in the shape of the standard library's.

use crate::{
    channel::{Builder, Channel},
    flow::{Flow, FlowId},
    message::Message,
    sys,
};
use socket2::{SockRef, Socket};
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::{
        atomic::{AtomicU32, Ordering},
        Mutex, MutexGuard, PoisonError,
    },
    thread,
    time::{Duration, Instant},
};

mod batch;
#[cfg(feature = "tokio")]
mod unattended;

/// The longest payload that the length field of UDP allows, and more than any packet holds.
const PAYLOAD_MAX: usize = 65535;
/// Poll's events of room to send, or of frames that came back.
const WRITABLE: i16 = libc::POLLOUT | libc::POLLWRBAND;
/// How often to look again where poll(2) can't sleep.
const NAP: Duration = Duration::from_millis(5);

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
}

/// The channel, and the calls that wait for what became of their packets.
#[derive(Debug)]
struct Shared {
    channel: Channel,
    sends: Sends,
}

/// Calls of which the kernel has yet to say what became of their packets.
#[derive(Debug, Default)]
struct Sends {
    next: u64,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    /// The last of the packet.
    frame: u32,
    verdict: Option<u16>,
}

impl Sends {
    /// Begins to wait for a packet with this last frame.
    fn begin(&mut self, frame: u32) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.waiting.push(Waiting {
            ticket,
            frame,
            verdict: None,
        });
        ticket
    }

    /// Takes the completion of a frame, found by any thread; says whether a call waits for it. Then the
    /// frame may be another packet's, whose completion isn't this call's.
    fn complete(&mut self, frame: u32, error: u16) -> bool {
        let mut waiting = self.waiting.iter_mut();
        match waiting.find(|call| call.frame == frame && call.verdict.is_none()) {
            Some(call) => {
                call.verdict = Some(error);
                true
            }
            None => false,
        }
    }

    fn verdict(&self, ticket: u64) -> Option<u16> {
        let mut waiting = self.waiting.iter();
        waiting.find(|call| call.ticket == ticket)?.verdict
    }

    fn end(&mut self, ticket: u64) {
        self.waiting.retain(|call| call.ticket != ticket);
    }
}

/// What became of a datagram, or of several, that a call had to send.
pub(crate) enum Sent<T, L> {
    /// The kernel has taken all.
    Taken(T),
    /// Some are in the ring, from where a later call sends them.
    Left(L),
    /// Nothing was sent. One of these events of poll(2) comes first.
    Blocked(i16),
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
        }
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

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic elsewhere leaves no ring half written.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut patience = Patience::new(self, Self::read_timeout);
        let mut has_slept = false;
        loop {
            if let Some(taken) = take(&self.lock().channel)? {
                return Ok(Some(taken));
            }
            // Another thread was faster, or nothing more will come.
            if has_slept && self.is_shut_down()? {
                return take(&self.lock().channel);
            }
            // What an earlier call had to leave in the ring.
            self.flush(&mut self.lock())?;
            if has_slept {
                // This would begin with the timeout anew.
                if let Some(error) = patience.sleep(libc::POLLIN)? {
                    return Err(error);
                }
            } else {
                patience.begin();
                self.wait_rx()?;
                has_slept = true;
            }
        }
    }

    fn wait_rx(&self) -> io::Result<()> {
        #[cfg(test)]
        if self.lock().channel.is_fake() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        sys::wait_rx(self.as_raw_fd())
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

    fn keep_error(&self, errno: u32) {
        self.late_error.store(errno, Ordering::Relaxed);
    }

    /// Puts a packet into the ring, and gives its last frame; `None` while there are too few frames.
    fn queue(&self, channel: &Channel, data: &[u8], message: &Message) -> io::Result<Option<u32>> {
        let needed = data.len().div_ceil(channel.frame_capacity()).max(1);
        if channel.spare_frames() < needed {
            return Ok(None);
        }
        let Some(payload) = channel.payload(data) else {
            return Ok(None);
        };
        let last = payload.frames().last().map(|frame| frame.id());
        channel.send(self.id, message, payload)?;
        Ok(last)
    }

    fn transmit(&self, data: &[u8], message: &Message) -> io::Result<usize> {
        let mut patience = Patience::new(self, Self::write_timeout);
        let ticket = loop {
            match self.attempt(data, message)? {
                Sent::Taken(()) => return Ok(data.len()),
                Sent::Left(ticket) => break ticket,
                Sent::Blocked(events) => {
                    if let Some(error) = patience.sleep(events)? {
                        return Err(error);
                    }
                }
            }
        };
        let left = self.leave(Some(ticket), &mut patience);
        self.lock().sends.end(ticket);
        left.map(|()| data.len())
    }

    /// Sends a datagram as soon as there is nothing before it. Of one that is left, gives a ticket, which
    /// the caller has to end.
    pub(crate) fn attempt(&self, data: &[u8], message: &Message) -> io::Result<Sent<(), u64>> {
        self.take_late_error()?;
        if data.len() > PAYLOAD_MAX {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let shared = &mut *self.lock();
        if !self.flush(shared)? {
            return Ok(Sent::Blocked(WRITABLE));
        }
        let Some(last) = self.queue(&shared.channel, data, message)? else {
            return Ok(Sent::Blocked(libc::POLLWRBAND));
        };
        let ticket = shared.sends.begin(last);
        let taken = self.flush(shared);
        let verdict = shared.sends.verdict(ticket);
        if verdict.is_none() && matches!(taken, Ok(false)) {
            return Ok(Sent::Left(ticket));
        }
        shared.sends.end(ticket);
        taken?;
        // Without a verdict it went by reference.
        refusal(verdict).map(Sent::Taken)
    }

    /// Sleeps as send(2) would until a packet, or else all of them, has left the ring, which it will do
    /// come what may.
    fn leave(&self, ticket: Option<u64>, patience: &mut Patience<'_>) -> io::Result<()> {
        loop {
            match patience.sleep(WRITABLE) {
                Ok(None) => {}
                // It isn't this packet's.
                Ok(Some(error)) => {
                    let errno = error.raw_os_error().map_or(0, i32::unsigned_abs);
                    self.keep_error(errno);
                }
                Err(_) => return Ok(()),
            }
            let shared = &mut *self.lock();
            let taken = self.flush(shared)?;
            let verdict = ticket.and_then(|ticket| shared.sends.verdict(ticket));
            if taken || verdict.is_some() {
                return refusal(verdict);
            }
        }
    }
}

/// The error with which a packet was refused, if it was.
fn refusal(verdict: Option<u16>) -> io::Result<()> {
    match verdict {
        None | Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno.into())),
    }
}

/// How long a call may sleep, from its first sleep on.
struct Patience<'s> {
    socket: &'s UdpSocket,
    timeout: fn(&UdpSocket) -> io::Result<Option<Duration>>,
    begun: Option<Instant>,
}

impl<'s> Patience<'s> {
    fn new(socket: &'s UdpSocket, timeout: fn(&UdpSocket) -> io::Result<Option<Duration>>) -> Self {
        Self {
            socket,
            timeout,
            begun: None,
        }
    }

    /// The time runs from now on, unless it does already.
    fn begin(&mut self) -> Instant {
        *self.begun.get_or_insert_with(Instant::now)
    }

    /// Sleeps until one of these events of poll(2), or gives the flow's error; `WouldBlock` if the call
    /// must not sleep any longer.
    fn sleep(&mut self, events: i16) -> io::Result<Option<io::Error>> {
        let begun = self.begin();
        if sys::is_nonblocking(self.socket.as_fd())? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let timeout = (self.timeout)(self.socket)?;
        let deadline = timeout.and_then(|timeout| begun.checked_add(timeout));
        sleep_until(self.socket.flow.socket(), events, deadline)
    }
}

/// Sleeps until one of these events of poll(2), or gives the pending error; `WouldBlock` after the
/// deadline.
fn sleep_until(
    socket: &Socket,
    events: i16,
    deadline: Option<Instant>,
) -> io::Result<Option<io::Error>> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let ready = sys::poll(socket.as_raw_fd(), events, left)?;
        if ready & events != 0 {
            return Ok(None);
        }
        if ready & libc::POLLERR != 0 {
            if let Some(error) = socket.take_error()? {
                return Ok(Some(error));
            }
        }
        if ready == 0 || left == Some(Duration::ZERO) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // There is something in the error queue, say, which is no event of ours, and which poll(2)
        // can't be told to pass over.
        thread::sleep(left.map_or(NAP, |left| left.min(NAP)));
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        // Sends what a call had to leave in the ring, if there is room by now.
        let _ = self.lock().channel.flush();
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

    /// Two packets of one frame, one after the other, are two calls'.
    #[test]
    fn completions_are_of_the_call_that_sent() {
        let mut sends = Sends::default();
        let first = sends.begin(64);
        assert!(!sends.complete(128, 1));
        assert_eq!(sends.verdict(first), None);
        assert!(sends.complete(64, 0));
        // The frame is free, and taken by another call, whose packet is refused.
        let second = sends.begin(64);
        assert_eq!(
            (sends.verdict(first), sends.verdict(second)),
            (Some(0), None)
        );
        assert!(sends.complete(64, 13));
        assert_eq!(
            (sends.verdict(first), sends.verdict(second)),
            (Some(0), Some(13))
        );
        // A third call waits no more.
        sends.end(first);
        sends.end(second);
        assert!(!sends.complete(64, 13));
    }

    /// Errors are given once; those in the error queue end no sleep before its time.
    #[test]
    fn error_queues_end_no_sleep() {
        let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let peer = nobody.local_addr().unwrap();
        drop(nobody);
        let socket = Socket::new(
            socket2::Domain::IPV4,
            socket2::Type::DGRAM,
            Some(socket2::Protocol::UDP),
        )
        .unwrap();
        let yes = 1_i32;
        // SAFETY: The option is an `int`.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_IP,
                libc::IP_RECVERR,
                std::ptr::from_ref(&yes).cast(),
                4,
            )
        };
        assert_eq!(set, 0);
        socket.connect(&peer.into()).unwrap();
        socket.send(b"x").unwrap();
        let soon = || Some(Instant::now() + Duration::from_secs(5));
        let error = sleep_until(&socket, libc::POLLIN, soon()).unwrap();
        assert_eq!(error.unwrap().kind(), io::ErrorKind::ConnectionRefused);
        let ready = sys::poll(socket.as_raw_fd(), libc::POLLIN, Some(Duration::ZERO)).unwrap();
        assert_eq!(ready, libc::POLLERR, "the error queue isn't empty");
        let (begun, time) = (Instant::now(), Duration::from_millis(100));
        let over = sleep_until(&socket, libc::POLLIN, Some(begun + time)).unwrap_err();
        assert_eq!(over.kind(), io::ErrorKind::WouldBlock);
        assert!(begun.elapsed() >= time);
        let writable = sleep_until(&socket, libc::POLLOUT, soon()).unwrap();
        assert!(writable.is_none());
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
