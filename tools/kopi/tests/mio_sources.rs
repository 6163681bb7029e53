// SPDX-License-Identifier: GPL-2.0

//! Sockets and channels of a real kernel as event sources of mio's.
//!
//! Without the kernel module these are skipped; `KOPI_REQUIRED=1` makes that a failure.
#![cfg(not(loom))]

mod common;

use common::has_module;
use kopi::{Channel, Flow, Message};
use mio::{Events, Interest, Poll, Token};
use std::{
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

const LOCAL: &str = "127.0.0.1:0";
/// A hang, and not a busy host.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));
const TOKEN: Token = Token(7);
const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);

fn plain() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind(LOCAL).unwrap();
    socket.set_read_timeout(PATIENCE).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Waits for an event to receive.
fn wait(poll: &mut Poll, events: &mut Events) {
    loop {
        poll.poll(events, PATIENCE).unwrap();
        assert!(!events.is_empty(), "no event in a minute");
        assert!(events.iter().all(|event| event.token() == TOKEN));
        if events.iter().any(mio::event::Event::is_readable) {
            return;
        }
    }
}

#[test]
fn socket_tells_of_each_batch() {
    if !has_module() {
        return;
    }
    let (plain, peer) = plain();
    let mut socket = kopi::UdpSocket::bind(LOCAL).unwrap();
    socket.set_nonblocking(true).unwrap();
    let at = socket.local_addr().unwrap();
    // It is there before the socket is registered, and an event nevertheless.
    plain.send_to(&[0], at).unwrap();
    let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(8));
    poll.registry().register(&mut socket, TOKEN, BOTH).unwrap();
    let mut buffer = [0; 10];
    let mut expected = 0..=255_u8;
    for round in 0..64 {
        if round > 0 {
            for number in round * 4..round * 4 + 4 {
                plain.send_to(&[number as u8], at).unwrap();
            }
        } else {
            for number in 1..4 {
                plain.send_to(&[number], at).unwrap();
            }
        }
        let mut left = 4;
        while left > 0 {
            wait(&mut poll, &mut events);
            loop {
                match socket.recv_from(&mut buffer) {
                    Ok((len, from)) => {
                        assert_eq!((len, from), (1, peer));
                        assert_eq!(Some(buffer[0]), expected.next());
                        socket.send_to(&buffer[..1], from).unwrap();
                        left -= 1;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        break;
                    }
                }
            }
        }
        for _ in 0..4 {
            assert_eq!(plain.recv(&mut buffer).unwrap(), 1);
        }
    }
    poll.registry().deregister(&mut socket).unwrap();
    plain.send_to(b"untold", at).unwrap();
    poll.poll(&mut events, Some(Duration::from_millis(50)))
        .unwrap();
    assert!(events.is_empty());
}

#[test]
fn channel_sleeps_in_a_poll_of_mios() {
    if !has_module() {
        return;
    }
    let (plain, _) = plain();
    let first = Flow::bind(LOCAL.parse().unwrap()).unwrap();
    let mut channel = Channel::builder().open(&first).unwrap();
    let mut second = Flow::bind(LOCAL.parse().unwrap()).unwrap();
    second.join(&channel).unwrap();
    let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(8));
    let registry = poll.registry();
    registry.register(&mut channel, TOKEN, BOTH).unwrap();
    registry
        .register(&mut second, TOKEN, Interest::READABLE)
        .unwrap();
    registry.reregister(&mut second, TOKEN, BOTH).unwrap();
    registry.deregister(&mut second).unwrap();
    let mut buffer = [0; 10];
    for round in 0..500_u32 {
        let flow = if round % 2 == 0 { &first } else { &second };
        plain
            .send_to(&round.to_ne_bytes(), flow.local_addr().unwrap())
            .unwrap();
        while !channel.arm(true).unwrap() {
            wait(&mut poll, &mut events);
        }
        let packet = channel.recv().unwrap().unwrap();
        assert_eq!(Some(packet.flow()), flow.id());
        let back = Message::reply_to(&packet);
        channel.send(packet.flow(), &back, packet).unwrap();
        channel.flush().unwrap();
        assert!(channel.recv().unwrap().is_none());
        assert_eq!(plain.recv(&mut buffer).unwrap(), 4);
        assert_eq!(buffer[..4], round.to_ne_bytes());
    }
}
