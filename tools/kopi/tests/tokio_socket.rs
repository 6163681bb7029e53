// SPDX-License-Identifier: GPL-2.0

//! `kopi::tokio::UdpSocket` with a real kernel, in runtimes of one thread and of several.
//!
//! Without the kernel module these are skipped; `KOPI_REQUIRED=1` makes that a failure.
#![cfg(not(loom))]

mod common;
#[path = "common/numbered.rs"]
mod numbered;

use common::has_module;
use kopi::{tokio::UdpSocket, Message, Packet};
use numbered::{datagram, echo_plain, number_of, plain, LOCAL, PATIENCE};
use socket2::SockRef;
use std::{
    env,
    future::{poll_fn, Future},
    io::{self, ErrorKind},
    net::{Shutdown, SocketAddr},
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::{
    io::{Interest, ReadBuf},
    runtime::Builder,
    time::{sleep, timeout},
};

/// Fewer than a receive buffer holds.
const WINDOW: u32 = 64;

fn run(mut builder: Builder, test: impl Future<Output = ()>) {
    if has_module() {
        let runtime = builder.enable_all().build().unwrap();
        runtime.block_on(async { timeout(PATIENCE, test).await.expect("a minute is over") });
    }
}

macro_rules! both {
    ($($name:ident),* $(,)?) => {
        mod one_thread {
            $(#[test] fn $name() { super::run(super::Builder::new_current_thread(), super::$name()); })*
        }
        mod several_threads {
            $(#[test] fn $name() {
                let mut builder = super::Builder::new_multi_thread();
                builder.worker_threads(3);
                super::run(builder, super::$name());
            })*
        }
    };
}

both!(
    thousands_come_back_from_a_plain_socket,
    thousands_come_back_to_a_plain_socket,
    batches_come_back,
    what_came_first_is_found,
    a_dropped_wait_loses_nothing,
    polled_waits_lose_nothing,
    tried_calls_and_readiness_fit,
    tasks_share_a_socket,
    a_shutdown_ends_a_wait,
    an_aborted_task_leaves_the_port,
    refusals_end_a_wait,
    a_refusal_is_told_once_to_who_tries,
    connected_sockets_hear_their_peer,
    six_works_as_four,
    errors_are_the_kernels,
);

async fn socket() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind(LOCAL).await.unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

async fn thousands_come_back_from_a_plain_socket() {
    let count = 40 * WINDOW;
    let (echo, peer) = echo_plain(count);
    let (socket, _) = socket().await;
    let mut buffer = [0; 4000];
    for round in 0..count / WINDOW {
        let numbers = round * WINDOW..(round + 1) * WINDOW;
        for number in numbers.clone() {
            socket.send_to(&datagram(number), peer).await.unwrap();
        }
        for number in numbers {
            let (len, from) = socket.recv_from(&mut buffer).await.unwrap();
            assert_eq!(from, peer);
            assert!(buffer[..len] == datagram(number), "number {number}");
        }
    }
    echo.join().unwrap();
}

async fn thousands_come_back_to_a_plain_socket() {
    let (socket, address) = socket().await;
    let asker = thread::spawn(move || {
        let (plain, _) = plain();
        plain.connect(address).unwrap();
        let mut buffer = [0; 4000];
        for round in 0..40 {
            let numbers = round * WINDOW..(round + 1) * WINDOW;
            for number in numbers.clone() {
                plain.send(&datagram(number)).unwrap();
            }
            for number in numbers {
                let len = plain.recv(&mut buffer).unwrap();
                assert!(buffer[..len] == datagram(number), "number {number}");
            }
        }
    });
    let mut buffer = [0; 4000];
    for _ in 0..40 * WINDOW {
        let (len, from) = socket.recv_from(&mut buffer).await.unwrap();
        socket.send_to(&buffer[..len], from).await.unwrap();
    }
    asker.join().unwrap();
}

async fn batches_come_back() {
    let count = 40 * WINDOW;
    let (echo, peer) = echo_plain(count);
    let (socket, _) = socket().await;
    for round in 0..count / WINDOW {
        let first = round * WINDOW;
        let data: Vec<_> = (first..first + WINDOW).map(datagram).collect();
        let batch: Vec<_> = data
            .iter()
            .map(|data| (&data[..], Message::to(peer)))
            .collect();
        let mut sent = 0;
        while sent < batch.len() {
            sent += socket.send_batch(&batch[sent..]).await.unwrap();
        }
        let mut next = 0;
        while next < data.len() {
            let show = |packet: &Packet<'_>| {
                assert_eq!(packet.peer(), peer);
                assert!(*packet.bytes() == data[next]);
                next += 1;
            };
            let received = socket.recv_batch(10, show).await.unwrap();
            assert!((1..=10).contains(&received));
        }
    }
    echo.join().unwrap();
}

/// Before there was a task, or a runtime's descriptor.
async fn what_came_first_is_found() {
    let early = kopi::UdpSocket::bind(LOCAL).unwrap();
    let (plain, _) = plain();
    for number in 0..WINDOW {
        plain
            .send_to(&datagram(number), early.local_addr().unwrap())
            .unwrap();
    }
    sleep(Duration::from_millis(50)).await;
    let socket = UdpSocket::new(early).unwrap();
    let mut buffer = [0; 4000];
    for number in 0..WINDOW {
        let len = socket.recv(&mut buffer).await.unwrap();
        assert!(buffer[..len] == datagram(number));
    }
}

async fn a_dropped_wait_loses_nothing() {
    const COUNT: u32 = 4000;
    let (socket, address) = socket().await;
    let sender = thread::spawn(move || {
        let (plain, _) = plain();
        plain.connect(address).unwrap();
        let mut buffer = [0; 4];
        for number in 0..COUNT {
            plain.send(&datagram(number)).unwrap();
            if number % WINDOW == WINDOW - 1 {
                plain.recv(&mut buffer).unwrap();
            }
        }
    });
    let mut buffer = [0; 4000];
    let (mut expected, mut dropped) = (0, 0_u32);
    while expected < COUNT {
        // Polled once, or for some microseconds.
        let patience = Duration::from_micros(u64::from(dropped % 3) * 30);
        tokio::select! {
            biased;
            received = socket.recv_from(&mut buffer) => {
                let (len, from) = received.unwrap();
                assert!(buffer[..len] == datagram(expected), "number {expected}");
                if expected % WINDOW == WINDOW - 1 {
                    socket.send_to(b"more", from).await.unwrap();
                }
                expected += 1;
            }
            () = async {
                if patience.is_zero() {
                    tokio::task::yield_now().await;
                } else {
                    sleep(patience).await;
                }
            } => dropped += 1,
        }
    }
    assert!(dropped > 0);
    sender.join().unwrap();
}

async fn polled_waits_lose_nothing() {
    let count = 10 * WINDOW;
    let (echo, peer) = echo_plain(count);
    let (socket, _) = socket().await;
    socket.connect(peer).await.unwrap();
    let mut buffer = [0; 4000];
    for number in 0..count {
        let data = datagram(number);
        let sent = poll_fn(|context| socket.poll_send(context, &data)).await;
        assert_eq!(sent.unwrap(), data.len());
        let mut buffer = ReadBuf::new(&mut buffer);
        if number % 2 == 0 {
            poll_fn(|context| socket.poll_recv_ready(context))
                .await
                .unwrap();
        }
        let from = poll_fn(|context| socket.poll_recv_from(context, &mut buffer)).await;
        assert_eq!(from.unwrap(), peer);
        assert!(buffer.filled() == data);
    }
    echo.join().unwrap();
}

async fn tried_calls_and_readiness_fit() {
    let count = 20 * WINDOW;
    let (echo, peer) = echo_plain(count);
    let (socket, _) = socket().await;
    let mut buffer = [0; 4000];
    let (mut sent, mut received, mut in_vain) = (0, 0, 0);
    while received < count {
        let interest = if sent < received + WINDOW && sent < count {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        let ready = socket.ready(interest).await.unwrap();
        if ready.is_writable() && interest.is_writable() {
            socket.try_send_to(&datagram(sent), peer).unwrap();
            sent += 1;
        }
        if ready.is_readable() {
            match socket.try_recv_from(&mut buffer) {
                Ok((len, _)) => {
                    assert!(buffer[..len] == datagram(received));
                    received += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    in_vain += 1;
                }
            }
        }
    }
    // One that would block makes a wait wait.
    assert!(in_vain <= count, "{in_vain} times in vain");
    echo.join().unwrap();
    // The runtime may hear late of datagrams that have been received; but not for ever.
    for tries in 0.. {
        let nothing = socket.try_recv(&mut buffer).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        let wait = timeout(Duration::from_millis(50), socket.readable()).await;
        if wait.is_err() {
            break;
        }
        assert!(tries < 10, "readable with nothing to read");
    }
    socket.writable().await.unwrap();
}

async fn tasks_share_a_socket() {
    const TASKS: u32 = 4;
    const EACH: u32 = 500;
    let (echo, peer) = echo_plain(TASKS * EACH);
    let (socket, _) = socket().await;
    let socket = Arc::new(socket);
    let room = Arc::new(tokio::sync::Semaphore::new(WINDOW as usize));
    let senders = (0..TASKS).map(|task| {
        let (socket, room) = (socket.clone(), room.clone());
        tokio::spawn(async move {
            for number in task * EACH..(task + 1) * EACH {
                room.acquire().await.unwrap().forget();
                socket.send_to(&datagram(number), peer).await.unwrap();
            }
            vec![]
        })
    });
    let receivers = (0..TASKS).map(|_| {
        let (socket, room) = (socket.clone(), room.clone());
        tokio::spawn(async move {
            let (mut buffer, mut numbers) = ([0; 4000], vec![]);
            for _ in 0..EACH {
                let len = socket.recv(&mut buffer).await.unwrap();
                let number = number_of(&buffer[..len]);
                assert!(buffer[..len] == datagram(number));
                numbers.push(number);
                room.add_permits(1);
            }
            numbers
        })
    });
    let tasks: Vec<_> = senders.chain(receivers).collect();
    let mut numbers = vec![];
    for task in tasks {
        numbers.extend(task.await.unwrap());
    }
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..TASKS * EACH));
    echo.join().unwrap();
}

async fn a_shutdown_ends_a_wait() {
    let (plain, peer) = plain();
    let (socket, _) = socket().await;
    let socket = Arc::new(socket);
    socket.connect(peer).await.unwrap();
    let waiting = tokio::spawn({
        let socket = socket.clone();
        async move { socket.recv(&mut [0; 10]).await }
    });
    sleep(Duration::from_millis(50)).await;
    SockRef::from(&*socket).shutdown(Shutdown::Read).unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), 0);
    drop(plain);
}

async fn an_aborted_task_leaves_the_port() {
    for _ in 0..20 {
        let (socket, address) = socket().await;
        let waiting = tokio::spawn(async move { socket.recv(&mut [0; 10]).await });
        sleep(Duration::from_millis(2)).await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        drop(std::net::UdpSocket::bind(address).unwrap());
    }
}

async fn refusals_end_a_wait() {
    let (socket, _) = socket().await;
    let (_, nobody) = plain();
    socket.connect(nobody).await.unwrap();
    let refused = |result: io::Result<usize>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECONNREFUSED));
    };
    for _ in 0..3 {
        // The answer comes with the wait, or before it.
        let mut buffer = [0; 10];
        let (received, sent) = tokio::join!(socket.recv(&mut buffer), socket.send(b"anybody?"));
        assert_eq!(sent.unwrap(), 8);
        refused(received);
        socket.send(b"anybody?").await.unwrap();
        refused(socket.recv(&mut buffer).await);
    }
    assert!(socket.take_error().unwrap().is_none());
    // It may be a moment until a call that doesn't wait is refused.
    let mut sent = socket.send(b"anybody?").await;
    while sent.is_ok() {
        sleep(Duration::from_millis(1)).await;
        sent = socket.send(b"anybody?").await;
    }
    refused(sent);
}

async fn a_refusal_is_told_once_to_who_tries() {
    let (socket, _) = socket().await;
    let (_, nobody) = plain();
    socket.connect(nobody).await.unwrap();
    let mut buffer = [0; 10];
    type Attempt = fn(&UdpSocket, &mut [u8]) -> io::Result<usize>;
    let tries: [Attempt; 3] = [
        |socket, buffer| socket.try_recv(buffer),
        |socket, buffer| socket.try_peek_from(buffer).map(|(len, _)| len),
        |socket, _| socket.try_recv_batch(8, |_| {}),
    ];
    for attempt in tries {
        socket.send(b"anybody?").await.unwrap();
        let refused = loop {
            socket.readable().await.unwrap();
            match attempt(&socket, &mut buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                told => break told,
            }
        };
        assert_eq!(
            refused.unwrap_err().raw_os_error(),
            Some(libc::ECONNREFUSED)
        );
        let nothing = attempt(&socket, &mut buffer).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        let soon = timeout(Duration::from_millis(200), socket.readable()).await;
        assert!(soon.is_err(), "there is nothing to wake up for");
    }
}

async fn connected_sockets_hear_their_peer() {
    let (one, at_one) = socket().await;
    let (other, at_other) = socket().await;
    let (stranger, _) = plain();
    one.connect(at_other).await.unwrap();
    other.connect(at_one).await.unwrap();
    assert_eq!(one.peer_addr().unwrap(), at_other);
    // The port refuses; where that is told is not asked here.
    let _ = stranger.send_to(b"stranger", at_one);
    other.send(b"friend").await.unwrap();
    let mut buffer = [0; 100];
    assert_eq!(one.peek(&mut buffer).await.unwrap(), 6);
    assert_eq!(one.recv(&mut buffer).await.unwrap(), 6);
    assert_eq!(&buffer[..6], b"friend");
}

async fn six_works_as_four() {
    let socket = UdpSocket::bind("[::1]:0").await.unwrap();
    let plain = std::net::UdpSocket::bind("[::1]:0").unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain.send_to(b"six", socket.local_addr().unwrap()).unwrap();
    let mut buffer = [0; 10];
    let (len, from) = socket.recv_from(&mut buffer).await.unwrap();
    assert_eq!((len, from), (3, plain.local_addr().unwrap()));
    socket.send_to(&buffer[..len], from).await.unwrap();
    assert_eq!(plain.recv(&mut buffer).unwrap(), 3);
}

async fn errors_are_the_kernels() {
    let (socket, address) = socket().await;
    let taken = UdpSocket::bind(address).await.unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    let errno = |result: io::Result<usize>| result.unwrap_err().raw_os_error();
    assert_eq!(errno(socket.send(b"x").await), Some(libc::EDESTADDRREQ));
    let broadcast = "127.255.255.255:9";
    assert_eq!(
        errno(socket.send_to(b"x", broadcast).await),
        Some(libc::EACCES)
    );
    socket.set_broadcast(true).unwrap();
    assert_eq!(socket.send_to(b"x", broadcast).await.unwrap(), 1);
    let long = vec![0; 65_508];
    assert_eq!(
        errno(socket.send_to(&long, address).await),
        Some(libc::EMSGSIZE)
    );
    let long = vec![0; 65_536];
    let batch = [(&long[..], Message::to(address))];
    assert_eq!(errno(socket.send_batch(&batch).await), Some(libc::EMSGSIZE));
}

/// To a peer behind a slow device, which counts what comes, and says so by a datagram to a plain socket:
/// the selftest has one, and says where by KOPI_SLOW_PEER.
async fn full_buffers() {
    let Some(peer) = env::var("KOPI_SLOW_PEER").ok() else {
        return;
    };
    let peer: SocketAddr = peer.parse().unwrap();
    let judge = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    judge.set_read_timeout(Some(PATIENCE)).unwrap();
    let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
    SockRef::from(&socket).set_send_buffer_size(5000).unwrap();
    let mut dropped = 0;
    for number in 0..200_u32 {
        let mut data = [0; 1200];
        data[..4].copy_from_slice(&number.to_be_bytes());
        // One whose future was dropped wasn't sent, and goes anew.
        while timeout(Duration::from_millis(2), socket.send_to(&data, peer))
            .await
            .map(Result::unwrap)
            .is_err()
        {
            dropped += 1;
        }
    }
    assert!(dropped > 0, "the buffer was never full");
    // Nothing is called any more, and yet all leave. The judge's question gets through the slow device.
    let answer = tokio::task::spawn_blocking(move || {
        let mut buffer = [0; 100];
        judge.send_to(b"how many?", peer).unwrap();
        let len = judge.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    });
    assert_eq!(answer.await.unwrap(), "200 in order");
}

#[test]
fn full_buffers_of_one_thread() {
    run(Builder::new_current_thread(), full_buffers());
}

#[test]
fn full_buffers_of_several_threads() {
    run(Builder::new_multi_thread(), full_buffers());
}
