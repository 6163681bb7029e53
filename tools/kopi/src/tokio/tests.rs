// SPDX-License-Identifier: GPL-2.0

//! With a fake kernel, which gives no events: what works here needs none.

use super::{waits::would_block, *};
use crate::fake::fake_socket;
use std::{
    future::{poll_fn, Future},
    time::Duration,
};

/// Runs on one thread.
fn run(test: impl Future<Output = ()>) {
    let runtime = ::tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test);
}

fn peer() -> SocketAddr {
    "192.0.2.9:99".parse().unwrap()
}

fn kernel<R>(socket: &UdpSocket, act: impl FnOnce(&mut crate::fake::Kernel) -> R) -> R {
    socket.socket().with_kernel(act)
}

#[test]
fn what_is_in_the_ring_needs_no_event() {
    run(async {
        let socket = UdpSocket::new(fake_socket()).unwrap();
        let mut buffer = [0; 10];
        for _ in 0..100 {
            assert_eq!(socket.send_to(b"hello", peer()).await.unwrap(), 5);
            assert_eq!(socket.ready(READABLE).await.unwrap(), Ready::READABLE);
            poll_fn(|context| socket.poll_recv_ready(context))
                .await
                .unwrap();
            assert_eq!(socket.peek(&mut buffer).await.unwrap(), 5);
            assert_eq!(socket.recv_from(&mut buffer).await.unwrap(), (5, peer()));
            assert!(would_block(&socket.try_recv(&mut buffer)));
            socket.try_send_to(b"tried", peer()).unwrap();
            assert_eq!(socket.try_recv(&mut buffer).unwrap(), 5);
            poll_fn(|context| socket.poll_send_to(context, b"polled", peer()))
                .await
                .unwrap();
            let mut buffer = ReadBuf::new(&mut buffer);
            buffer.put_slice(b"abc");
            poll_fn(|context| socket.poll_recv(context, &mut buffer))
                .await
                .unwrap();
            assert_eq!(buffer.filled(), b"abcpolled");
        }
    });
}

#[test]
fn a_wait_for_nothing_ends_with_its_time() {
    run(async {
        let socket = UdpSocket::new(fake_socket()).unwrap();
        let mut buffer = [0; 10];
        let soon = Duration::from_millis(20);
        let wait = ::tokio::time::timeout(soon, socket.recv(&mut buffer)).await;
        assert!(wait.is_err());
        let wait = ::tokio::time::timeout(soon, socket.readable()).await;
        assert!(wait.is_err());
    });
}

/// Has the kernel tell of room to send: the descriptor is of a plain socket here.
fn tell_of_room(socket: &UdpSocket) {
    let to = socket.local_addr().unwrap();
    socket2::SockRef::from(socket)
        .send_to(b"", &to.into())
        .unwrap();
}

#[test]
fn what_was_left_leaves_by_itself() {
    run(async {
        let socket = UdpSocket::new(fake_socket()).unwrap();
        kernel(&socket, |kernel| kernel.appetite = 0);
        socket.send_to(b"left", peer()).await.unwrap();
        assert!(would_block(&socket.try_send_to(b"more", peer())));
        let soon = Duration::from_millis(20);
        let send = socket.send_to(b"more", peer());
        assert!(::tokio::time::timeout(soon, send).await.is_err());
        kernel(&socket, |kernel| kernel.appetite = u32::MAX);
        tell_of_room(&socket);
        while socket.socket().has_unsent() {
            ::tokio::task::yield_now().await;
        }
        let mut buffer = [0; 10];
        assert_eq!(socket.recv(&mut buffer).await.unwrap(), 4);
        assert_eq!(&buffer[..4], b"left");
        // The one whose future was dropped wasn't sent.
        assert!(would_block(&socket.try_recv(&mut buffer)));
        while Arc::strong_count(&socket.shared) > 1 {
            ::tokio::task::yield_now().await;
        }
        // And so a second time, with an error that is told.
        kernel(&socket, |kernel| {
            kernel.appetite = 0;
            kernel.errors.push_back(13);
        });
        socket.send_to(b"refused", peer()).await.unwrap();
        kernel(&socket, |kernel| kernel.appetite = u32::MAX);
        tell_of_room(&socket);
        while socket.socket().has_unsent() {
            ::tokio::task::yield_now().await;
        }
        let error = socket.send_to(b"x", peer()).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    });
}

#[test]
fn what_was_left_goes_to_the_peer_of_before() {
    run(async {
        let socket = UdpSocket::new(fake_socket()).unwrap();
        let new: SocketAddr = "127.0.0.1:9".parse().unwrap();
        kernel(&socket, |kernel| kernel.appetite = 0);
        socket.send(b"left").await.unwrap();
        let soon = Duration::from_millis(20);
        let connected = ::tokio::time::timeout(soon, socket.connect(new)).await;
        assert!(connected.is_err() && socket.peer_addr().is_err());
        kernel(&socket, |kernel| kernel.appetite = u32::MAX);
        tell_of_room(&socket);
        socket.connect(new).await.unwrap();
        assert!(!socket.socket().has_unsent());
        assert_eq!(socket.peer_addr().unwrap(), new);
    });
}

/// No event tells of it.
#[test]
fn what_was_left_is_refused_while_a_task_receives() {
    run(async {
        let socket = UdpSocket::new(fake_socket()).unwrap();
        // What leaves it tells of room, and of nothing to receive.
        let elsewhere = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let elsewhere = elsewhere.local_addr().unwrap().into();
        let refused_later = || async {
            kernel(&socket, |kernel| kernel.appetite = 0);
            socket.send_to(b"refused", peer()).await.unwrap();
            kernel(&socket, |kernel| {
                kernel.appetite = u32::MAX;
                kernel.errors.push_back(13);
            });
            let plain = socket2::SockRef::from(&socket);
            plain.send_to(b"", &elsewhere).unwrap();
        };
        let patience = Duration::from_secs(10);
        let (mut one, mut other) = ([0; 10], [0; 10]);
        for polls in [false, true] {
            // It waits before something is left.
            let receive = async {
                if polls {
                    let mut buffer = ReadBuf::new(&mut one);
                    poll_fn(|context| socket.poll_recv(context, &mut buffer)).await
                } else {
                    socket.recv(&mut other).await.map(drop)
                }
            };
            let (received, ()) =
                ::tokio::join!(::tokio::time::timeout(patience, receive), refused_later());
            let error = received.expect("it wasn't woken").unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EACCES));
        }
    });
}

#[test]
fn an_error_that_lasts_ends_the_task() {
    run(async {
        let socket = UdpSocket::new(fake_socket()).unwrap();
        kernel(&socket, |kernel| kernel.appetite = 0);
        socket.send_to(b"left", peer()).await.unwrap();
        assert_eq!(Arc::strong_count(&socket.shared), 2);
        kernel(&socket, |kernel| kernel.break_completion());
        tell_of_room(&socket);
        let ended = async {
            while Arc::strong_count(&socket.shared) > 1 {
                ::tokio::task::yield_now().await;
            }
        };
        let ended = ::tokio::time::timeout(Duration::from_secs(5), ended).await;
        // Dropping the runtime would wait for it.
        ended.unwrap_or_else(|_| std::process::abort());
        assert!(socket.socket().has_unsent());
        let error = socket.send_to(b"more", peer()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    });
}

#[test]
fn a_busy_socket_leaves_time_to_others() {
    run(async {
        let socket = UdpSocket::new(fake_socket()).unwrap();
        let (tell, mut told) = ::tokio::sync::oneshot::channel();
        ::tokio::spawn(async move { tell.send(()).unwrap() });
        let mut buffer = [0; 10];
        while told.try_recv().is_err() {
            socket.send_to(b"x", peer()).await.unwrap();
            socket.recv(&mut buffer).await.unwrap();
        }
        // By poll, too.
        let (tell, mut told) = ::tokio::sync::oneshot::channel();
        ::tokio::spawn(async move { tell.send(()).unwrap() });
        while told.try_recv().is_err() {
            poll_fn(|context| socket.poll_send_to(context, b"x", peer()))
                .await
                .unwrap();
            let mut buffer = ReadBuf::new(&mut buffer);
            poll_fn(|context| socket.poll_recv(context, &mut buffer))
                .await
                .unwrap();
        }
    });
}

#[test]
fn batches_go_and_come() {
    run(async {
        let socket = UdpSocket::new(fake_socket()).unwrap();
        let batch = [(&b"abc"[..], Message::to(peer())); 20];
        assert_eq!(socket.send_batch(&batch).await.unwrap(), 16);
        assert_eq!(socket.try_send_batch(&batch[16..]).unwrap(), 4);
        let mut lengths = vec![];
        let show = |packet: &Packet<'_>| lengths.push(packet.len());
        assert_eq!(socket.recv_batch(100, show).await.unwrap(), 20);
        assert_eq!(lengths, [3; 20]);
        assert!(would_block(&socket.try_recv_batch(100, |_| ())));
    });
}
