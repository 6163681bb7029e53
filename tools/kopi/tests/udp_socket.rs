// SPDX-License-Identifier: GPL-2.0

//! What a UDP socket does, asked of the standard library's and of KOPI's alike.
//!
//! Without the kernel module KOPI's half is skipped; `KOPI_REQUIRED=1` makes that a failure.
#![cfg(not(loom))]

mod common;

use common::has_module;
use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, ToSocketAddrs},
    thread,
    time::{Duration, Instant},
};

const LOCAL: &str = "127.0.0.1:0";
/// A hang, and not a busy host.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// What both have.
trait Socket: Sized + Send + Sync {
    fn bind(address: impl ToSocketAddrs) -> io::Result<Self>;
    fn connect(&self, address: SocketAddr) -> io::Result<()>;
    fn send_to(&self, data: &[u8], to: SocketAddr) -> io::Result<usize>;
    fn send(&self, data: &[u8]) -> io::Result<usize>;
    fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)>;
    fn recv(&self, buffer: &mut [u8]) -> io::Result<usize>;
    fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)>;
    fn local_addr(&self) -> io::Result<SocketAddr>;
    fn peer_addr(&self) -> io::Result<SocketAddr>;
    fn set_nonblocking(&self, yes: bool) -> io::Result<()>;
    fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
    fn read_timeout(&self) -> io::Result<Option<Duration>>;
    fn set_ttl(&self, ttl: u32) -> io::Result<()>;
    fn ttl(&self) -> io::Result<u32>;
    fn set_broadcast(&self, yes: bool) -> io::Result<()>;
    fn take_error(&self) -> io::Result<Option<io::Error>>;
}

macro_rules! is_socket {
    ($type:ty) => {
        impl Socket for $type {
            fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
                Self::bind(address)
            }
            fn connect(&self, address: SocketAddr) -> io::Result<()> {
                self.connect(address)
            }
            fn send_to(&self, data: &[u8], to: SocketAddr) -> io::Result<usize> {
                self.send_to(data, to)
            }
            fn send(&self, data: &[u8]) -> io::Result<usize> {
                self.send(data)
            }
            fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
                self.recv_from(buffer)
            }
            fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
                self.recv(buffer)
            }
            fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
                self.peek_from(buffer)
            }
            fn local_addr(&self) -> io::Result<SocketAddr> {
                self.local_addr()
            }
            fn peer_addr(&self) -> io::Result<SocketAddr> {
                self.peer_addr()
            }
            fn set_nonblocking(&self, yes: bool) -> io::Result<()> {
                self.set_nonblocking(yes)
            }
            fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.set_read_timeout(timeout)
            }
            fn read_timeout(&self) -> io::Result<Option<Duration>> {
                self.read_timeout()
            }
            fn set_ttl(&self, ttl: u32) -> io::Result<()> {
                self.set_ttl(ttl)
            }
            fn ttl(&self) -> io::Result<u32> {
                self.ttl()
            }
            fn set_broadcast(&self, yes: bool) -> io::Result<()> {
                self.set_broadcast(yes)
            }
            fn take_error(&self) -> io::Result<Option<io::Error>> {
                self.take_error()
            }
        }
    };
}

is_socket!(std::net::UdpSocket);
is_socket!(kopi::UdpSocket);

/// A test for both, and for one sending to the other.
macro_rules! both {
    ($($name:ident),* $(,)?) => {
        mod std_alone {
            $(#[test] fn $name() { super::$name::<std::net::UdpSocket, std::net::UdpSocket>(); })*
        }
        mod kopi_alone {
            $(#[test] fn $name() {
                if super::has_module() {
                    super::$name::<kopi::UdpSocket, kopi::UdpSocket>();
                }
            })*
        }
        mod kopi_to_std {
            $(#[test] fn $name() {
                if super::has_module() {
                    super::$name::<kopi::UdpSocket, std::net::UdpSocket>();
                }
            })*
        }
        mod std_to_kopi {
            $(#[test] fn $name() {
                if super::has_module() {
                    super::$name::<std::net::UdpSocket, kopi::UdpSocket>();
                }
            })*
        }
    };
}

both!(
    any_length_arrives,
    too_long_is_refused,
    what_does_not_fit_is_cut,
    peeking_takes_nothing,
    six_works_as_four,
    connected_sockets_know_their_peer,
    only_the_peer_is_heard,
    nobody_is_connected,
    reading_times_out,
    nonblocking_calls_do_not_sleep,
    refusals_are_reported,
    broadcast_needs_leave,
    ttl_is_kept,
    sleeper_is_woken,
    many_threads_send,
    addresses_in_use_are_refused,
    ping_pong,
);

fn pair<A: Socket, B: Socket>() -> (A, B) {
    let (a, b) = (A::bind(LOCAL).unwrap(), B::bind(LOCAL).unwrap());
    b.set_read_timeout(PATIENCE).unwrap();
    a.set_read_timeout(PATIENCE).unwrap();
    (a, b)
}

fn errno(result: io::Result<impl std::fmt::Debug>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

fn any_length_arrives<A: Socket, B: Socket>() {
    let (a, b) = pair::<A, B>();
    let to = b.local_addr().unwrap();
    let mut buffer = vec![0; 70_000];
    for len in [
        0, 1, 100, 1024, 1025, 1984, 1985, 3968, 9000, 40_000, 65_507,
    ] {
        let data: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
        assert_eq!(a.send_to(&data, to).unwrap(), len);
        let (got, from) = b.recv_from(&mut buffer).unwrap();
        assert_eq!(from, a.local_addr().unwrap());
        assert!(buffer[..got] == data, "{len} bytes");
    }
}

fn too_long_is_refused<A: Socket, B: Socket>() {
    let (a, b) = pair::<A, B>();
    let to = b.local_addr().unwrap();
    for len in [65_508, 65_535, 65_536, 1 << 20] {
        let sent = a.send_to(&vec![0; len], to);
        assert_eq!(errno(sent), Some(libc::EMSGSIZE), "{len} bytes");
    }
    // And the next one passes.
    a.send_to(b"x", to).unwrap();
    assert_eq!(b.recv(&mut [0; 4]).unwrap(), 1);
}

fn what_does_not_fit_is_cut<A: Socket, B: Socket>() {
    let (a, b) = pair::<A, B>();
    let to = b.local_addr().unwrap();
    a.send_to(b"abcdef", to).unwrap();
    a.send_to(&[9; 5000], to).unwrap();
    a.send_to(b"next", to).unwrap();
    let mut buffer = [0; 4];
    assert_eq!(b.recv(&mut buffer).unwrap(), 4);
    assert_eq!(&buffer, b"abcd");
    assert_eq!(b.recv(&mut []).unwrap(), 0);
    assert_eq!(b.recv(&mut buffer).unwrap(), 4);
    assert_eq!(&buffer, b"next");
}

fn peeking_takes_nothing<A: Socket, B: Socket>() {
    let (a, b) = pair::<A, B>();
    a.send_to(b"hello", b.local_addr().unwrap()).unwrap();
    let mut buffer = [0; 10];
    for _ in 0..3 {
        let (len, from) = b.peek_from(&mut buffer).unwrap();
        assert_eq!(
            (&buffer[..len], from),
            (&b"hello"[..], a.local_addr().unwrap())
        );
    }
    assert_eq!(b.recv(&mut buffer).unwrap(), 5);
    b.set_nonblocking(true).unwrap();
    assert_eq!(
        b.peek_from(&mut buffer).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
}

fn six_works_as_four<A: Socket, B: Socket>() {
    let (a, b) = (A::bind("[::1]:0").unwrap(), B::bind("[::1]:0").unwrap());
    b.set_read_timeout(PATIENCE).unwrap();
    a.send_to(b"six", b.local_addr().unwrap()).unwrap();
    let mut buffer = [0; 10];
    let (len, from) = b.recv_from(&mut buffer).unwrap();
    assert_eq!(
        (&buffer[..len], from),
        (&b"six"[..], a.local_addr().unwrap())
    );

    // Dual stack: an IPv4 peer is seen by its mapped address, and answered there.
    let (a, b) = (A::bind(LOCAL).unwrap(), B::bind("[::]:0").unwrap());
    a.set_read_timeout(PATIENCE).unwrap();
    b.set_read_timeout(PATIENCE).unwrap();
    let port = b.local_addr().unwrap().port();
    a.send_to(b"four", ([127, 0, 0, 1], port).into()).unwrap();
    let (len, from) = b.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"four");
    assert_eq!(from.ip().to_string(), "::ffff:127.0.0.1");
    b.send_to(b"back", from).unwrap();
    assert_eq!(a.recv(&mut buffer).unwrap(), 4);
}

fn connected_sockets_know_their_peer<A: Socket, B: Socket>() {
    let (a, b) = pair::<A, B>();
    a.connect(b.local_addr().unwrap()).unwrap();
    assert_eq!(a.peer_addr().unwrap(), b.local_addr().unwrap());
    b.connect(a.local_addr().unwrap()).unwrap();
    a.send(b"ping").unwrap();
    let mut buffer = [0; 10];
    assert_eq!(b.recv(&mut buffer).unwrap(), 4);
    b.send(b"pong!").unwrap();
    assert_eq!(a.recv(&mut buffer).unwrap(), 5);
}

fn only_the_peer_is_heard<A: Socket, B: Socket>() {
    let (a, b) = pair::<A, B>();
    let stranger = A::bind(LOCAL).unwrap();
    b.connect(a.local_addr().unwrap()).unwrap();
    let to = b.local_addr().unwrap();
    // The other one's port refuses; where that is told is not asked here.
    let _ = stranger.send_to(b"stranger", to);
    a.send_to(b"friend", to).unwrap();
    let mut buffer = [0; 10];
    let len = b.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"friend");
}

fn nobody_is_connected<A: Socket, B: Socket>() {
    let (a, _) = pair::<A, B>();
    assert_eq!(a.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
    assert_eq!(errno(a.send(b"x")), Some(libc::EDESTADDRREQ));
}

fn reading_times_out<A: Socket, B: Socket>() {
    let (_, b) = pair::<A, B>();
    let timeout = Duration::from_millis(100);
    b.set_read_timeout(Some(timeout)).unwrap();
    assert_eq!(b.read_timeout().unwrap(), Some(timeout));
    let start = Instant::now();
    let error = b.recv(&mut [0; 4]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let took = start.elapsed();
    // The kernel counts ticks: std's own socket, too, comes back up to one early.
    let tick = Duration::from_millis(10);
    assert!(
        took + tick >= timeout && took < Duration::from_secs(30),
        "{took:?}"
    );
    let zero = b.set_read_timeout(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(zero.kind(), ErrorKind::InvalidInput);
    b.set_read_timeout(None).unwrap();
    assert_eq!(b.read_timeout().unwrap(), None);
}

/// What a call gives at last: on a busy machine the loopback device is a moment late.
fn at_last<T>(mut call: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(result) = call() {
            return result;
        }
        assert!(Some(begun.elapsed()) < PATIENCE, "it never came");
        thread::sleep(Duration::from_millis(1));
    }
}

fn nonblocking_calls_do_not_sleep<A: Socket, B: Socket>() {
    let (a, b) = pair::<A, B>();
    b.set_nonblocking(true).unwrap();
    let receive = || match b.recv(&mut [0; 4]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        received => Some(received.unwrap()),
    };
    assert_eq!(receive(), None);
    a.send_to(b"x", b.local_addr().unwrap()).unwrap();
    assert_eq!(at_last(receive), 1);
}

/// A socket that has sent to its peer, which is gone.
fn sent_to_nobody<A: Socket, B: Socket>() -> A {
    let (a, b) = pair::<A, B>();
    a.connect(b.local_addr().unwrap()).unwrap();
    drop(b);
    a.send(b"anybody?").unwrap();
    a
}

fn refusals_are_reported<A: Socket, B: Socket>() {
    let a = sent_to_nobody::<A, B>();
    assert_eq!(errno(a.recv(&mut [0; 4])), Some(libc::ECONNREFUSED));
    let a = sent_to_nobody::<A, B>();
    let error = at_last(|| a.send(b"hello?").err());
    assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
    let a = sent_to_nobody::<A, B>();
    let error = at_last(|| a.take_error().unwrap());
    assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
    assert!(a.take_error().unwrap().is_none());
}

fn broadcast_needs_leave<A: Socket, B: Socket>() {
    let (a, _) = pair::<A, B>();
    let to = "127.255.255.255:9".parse().unwrap();
    assert_eq!(errno(a.send_to(b"all", to)), Some(libc::EACCES));
    a.set_broadcast(true).unwrap();
    a.send_to(b"all", to).unwrap();
}

fn ttl_is_kept<A: Socket, B: Socket>() {
    let (a, _) = pair::<A, B>();
    a.set_ttl(7).unwrap();
    assert_eq!(a.ttl().unwrap(), 7);
}

fn sleeper_is_woken<A: Socket, B: Socket>() {
    let (a, b) = pair::<A, B>();
    let to = b.local_addr().unwrap();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| b.recv(&mut [0; 10]).unwrap());
        thread::sleep(Duration::from_millis(100));
        // It sleeps and yet can send.
        b.send_to(b"from the sleeper", a.local_addr().unwrap())
            .unwrap();
        assert_eq!(a.recv(&mut [0; 100]).unwrap(), 16);
        a.send_to(b"wake", to).unwrap();
        assert_eq!(sleeper.join().unwrap(), 4);
    });
}

fn many_threads_send<A: Socket, B: Socket>() {
    let (a, b) = pair::<A, B>();
    let to = b.local_addr().unwrap();
    const EACH: usize = 30;
    thread::scope(|scope| {
        for number in 0..4u8 {
            let a = &a;
            scope.spawn(move || {
                for _ in 0..EACH {
                    a.send_to(&[number; 300], to).unwrap();
                }
            });
        }
        let mut counts = [0; 4];
        let mut buffer = [0; 400];
        for _ in 0..4 * EACH {
            let len = b.recv(&mut buffer).unwrap();
            assert_eq!(len, 300);
            assert!(buffer[..300].iter().all(|&byte| byte == buffer[0]));
            counts[usize::from(buffer[0])] += 1;
        }
        assert_eq!(counts, [EACH; 4]);
    });
}

fn addresses_in_use_are_refused<A: Socket, B: Socket>() {
    let (a, _) = pair::<A, B>();
    let Err(error) = B::bind(a.local_addr().unwrap()) else {
        panic!("bound twice");
    };
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}

fn ping_pong<A: Socket, B: Socket>() {
    let (a, b) = pair::<A, B>();
    let (at_a, at_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 10_000];
            for _ in 0..2000 {
                let (len, from) = b.recv_from(&mut buffer).unwrap();
                assert_eq!(from, at_a);
                b.send_to(&buffer[..len], from).unwrap();
            }
        });
        let mut buffer = [0; 10_000];
        for number in 0..2000usize {
            let data = vec![number as u8; number * 3];
            a.send_to(&data, at_b).unwrap();
            let len = a.recv(&mut buffer).unwrap();
            assert!(buffer[..len] == data);
        }
    });
}

/// A thread that was woken in vain, since another one was faster, sleeps no longer for that.
#[test]
fn losers_of_a_race_keep_their_time() {
    if !has_module() {
        return;
    }
    let (a, b) = pair::<std::net::UdpSocket, kopi::UdpSocket>();
    let to = b.local_addr().unwrap();
    let timeout = Duration::from_secs(1);
    b.set_read_timeout(Some(timeout)).unwrap();
    thread::scope(|scope| {
        let receivers = [(); 4].map(|()| {
            scope.spawn(|| {
                let mut longest = Duration::ZERO;
                loop {
                    let begun = Instant::now();
                    let received = b.recv(&mut [0; 4]);
                    longest = longest.max(begun.elapsed());
                    match received {
                        Ok(0) => return longest,
                        Ok(_) => {}
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                    }
                }
            })
        });
        // The machine as a whole may stand still.
        let mut stood = Duration::ZERO;
        for _ in 0..20 {
            a.send_to(b"x", to).unwrap();
            let begun = Instant::now();
            thread::sleep(timeout / 4);
            stood += begun.elapsed().saturating_sub(timeout / 4);
        }
        for _ in 0..receivers.len() {
            a.send_to(b"", to).unwrap();
        }
        for receiver in receivers {
            let longest = receiver.join().unwrap();
            assert!(longest < timeout * 3 + stood, "{longest:?} {stood:?}");
        }
    });
}
