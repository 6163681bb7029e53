// SPDX-License-Identifier: GPL-2.0

//! Channels of a real kernel, as programs use them.
//!
//! Without the kernel module these are skipped; `KOPI_REQUIRED=1` makes that a failure.
#![cfg(not(loom))]

mod common;

use common::has_module;
use kopi::{Channel, Flow, FlowId, Interest, Message};
use std::{
    net::{SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

const LOCAL: &str = "127.0.0.1:0";
/// A hang, and not a busy host.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

fn flow() -> Flow {
    Flow::bind(LOCAL.parse().unwrap()).unwrap()
}

fn plain() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind(LOCAL).unwrap();
    socket.set_read_timeout(PATIENCE).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

#[test]
fn memory_that_is_not_allowed() {
    if !has_module() {
        return;
    }
    let error = Channel::builder()
        .frame_size(65536)
        .frames(1 << 14)
        .open(&flow())
        .unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    let error = Channel::builder().tx_entries(3).open(&flow()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn many_flows_on_one_channel() {
    if !has_module() {
        return;
    }
    let first = flow();
    let channel = Channel::builder().open(&first).unwrap();
    let mut flows = vec![first];
    for _ in 0..100 {
        let flow = flow();
        let id = flow.join(&channel).unwrap();
        assert_eq!(flow.id(), Some(id));
        flows.push(flow);
    }
    let (plain, _) = plain();
    for flow in &flows {
        let to = flow.local_addr().unwrap();
        plain.send_to(&to.port().to_ne_bytes(), to).unwrap();
    }
    for flow in &flows {
        while channel.wait(Interest::READABLE, PATIENCE).unwrap().readable {
            if let Some(packet) = channel.recv().unwrap() {
                assert_eq!(Some(packet.flow()), flow.id());
                assert_eq!(packet.local(), flow.local_addr().unwrap());
                assert_eq!(packet.peer(), plain.local_addr().unwrap());
                let port = flow.local_addr().unwrap().port();
                assert_eq!(*packet.bytes(), port.to_ne_bytes());
                break;
            }
        }
    }
    assert_eq!(flows[0].stats().unwrap().flows, 101);

    // A number that is given back can't be sent with.
    let gone = flows.pop().unwrap().id().unwrap();
    let mut errors = vec![];
    for id in [gone, FlowId(1 << 20), flows[50].id().unwrap()] {
        let to = Message::to(plain.local_addr().unwrap());
        let payload = channel.payload(b"x").unwrap();
        channel.send(id, &to, payload).unwrap();
    }
    channel
        .flush_with(|completion| errors.push(completion.error))
        .unwrap();
    assert_eq!(errors, [libc::EBADF as u16, libc::EBADF as u16, 0]);
}

#[test]
fn batches_keep_their_order() {
    if !has_module() {
        return;
    }
    for gso in [false, true] {
        let (from, to) = (flow(), flow());
        from.connect(to.local_addr().unwrap()).unwrap();
        let sender = Channel::builder().gso(gso).open(&from).unwrap();
        let receiver = Channel::builder().gro(gso).open(&to).unwrap();
        let mut expected = 0u32;
        for round in 0..50 {
            for number in 0..100u32 {
                let mut frame = sender.frame().unwrap();
                frame.extend_from_slice(&(round * 100 + number).to_ne_bytes());
                sender
                    .send(from.id().unwrap(), &Message::connected(), frame)
                    .unwrap();
            }
            assert!(sender.flush().unwrap());
            while expected < (round + 1) * 100 {
                let Some(packet) = receiver.recv().unwrap() else {
                    let ready = receiver.wait(Interest::READABLE, PATIENCE).unwrap();
                    assert!(ready.readable, "{expected} came: {:?}", to.stats());
                    continue;
                };
                assert_eq!(*packet.bytes(), expected.to_ne_bytes());
                expected += 1;
            }
        }
        let stats = from.stats().unwrap();
        assert_eq!((stats.tx_packets, stats.tx_errors), (5000, 0));
        assert_eq!(to.stats().unwrap().rx_packets, 5000);
    }
}

#[test]
fn segments_are_cut_and_merged() {
    if !has_module() {
        return;
    }
    let (from, to) = (flow(), flow());
    from.connect(to.local_addr().unwrap()).unwrap();
    let sender = Channel::builder().gso(true).open(&from).unwrap();
    let receiver = Channel::builder()
        .gro(true)
        .gro_merged(true)
        .open(&to)
        .unwrap();
    let data: Vec<u8> = (0..10_500).map(|at| (at / 1000) as u8).collect();
    let payload = sender.payload(&data).unwrap();
    let message = Message::connected().segment_size(1000);
    sender.send(from.id().unwrap(), &message, payload).unwrap();
    sender.flush().unwrap();
    let mut received = vec![];
    while received.len() < data.len() {
        assert!(
            receiver
                .wait(Interest::READABLE, PATIENCE)
                .unwrap()
                .readable
        );
        while let Some(packet) = receiver.recv().unwrap() {
            match packet.segment_size() {
                Some(size) => assert_eq!(size, 1000),
                None => assert!(packet.len() <= 1000),
            }
            received.extend_from_slice(&packet.bytes());
        }
    }
    assert_eq!(received, data);

    // Not on a channel without GSO packets.
    let from = flow();
    let channel = Channel::builder().open(&from).unwrap();
    let payload = channel.payload(&data).unwrap();
    let message = Message::to(to.local_addr().unwrap()).segment_size(1000);
    channel.send(from.id().unwrap(), &message, payload).unwrap();
    let mut errors = vec![];
    channel
        .flush_with(|completion| errors.push(completion.error))
        .unwrap();
    assert_eq!(errors, [libc::EINVAL as u16; 6]);
}

#[test]
fn full_receivers_drop_and_go_on() {
    if !has_module() {
        return;
    }
    let to = flow();
    let channel = Channel::builder()
        .frames(32)
        .rx_frames(16)
        .rx_entries(16)
        .tx_entries(16)
        .open(&to)
        .unwrap();
    let (plain, _) = plain();
    for number in 0..100u8 {
        plain.send_to(&[number], to.local_addr().unwrap()).unwrap();
    }
    let (begun, counts) = (Instant::now(), || {
        let stats = to.stats().unwrap();
        (
            stats.rx_packets,
            stats.rx_drop_no_frame + stats.rx_drop_ring_full,
        )
    });
    // On a busy machine the loopback device is a moment late.
    while counts().0 + counts().1 < 100 && Some(begun.elapsed()) < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(counts(), (16, 84));
    let mut numbers = vec![];
    while let Some(packet) = channel.recv().unwrap() {
        numbers.push(packet.bytes()[0]);
    }
    assert_eq!(numbers, (0..16).collect::<Vec<u8>>());
    assert!(channel.recv().unwrap().is_none());
    plain.send_to(b"!", to.local_addr().unwrap()).unwrap();
    assert!(channel.wait(Interest::READABLE, PATIENCE).unwrap().readable);
    assert_eq!(*channel.recv().unwrap().unwrap().bytes(), *b"!");
}

#[test]
fn metadata_goes_out_and_comes_in() {
    if !has_module() {
        return;
    }
    let (from, to) = (flow(), flow());
    let sender = Channel::builder().open(&from).unwrap();
    let receiver = Channel::builder().open(&to).unwrap();
    let source = "127.0.0.1".parse().unwrap();
    let message = Message::to(to.local_addr().unwrap())
        .tos(0x2a)
        .ttl(9)
        .source(source);
    let payload = sender.payload(b"x").unwrap();
    sender.send(from.id().unwrap(), &message, payload).unwrap();
    sender.flush().unwrap();
    receiver.wait(Interest::READABLE, PATIENCE).unwrap();
    let packet = receiver.recv().unwrap().unwrap();
    let meta = packet.meta();
    assert_eq!((meta.tos, meta.ttl, meta.len), (0x2a, 9, 1));
    assert_eq!(packet.peer(), from.local_addr().unwrap());
    assert_eq!(packet.local(), to.local_addr().unwrap());
    assert_eq!(packet.timestamp(), None);
    assert_ne!(meta.ifindex, 0);
}

#[test]
fn waits_end_when_they_should() {
    if !has_module() {
        return;
    }
    let to = flow();
    let channel = Channel::builder().open(&to).unwrap();
    let start = Instant::now();
    let ready = channel
        .wait(Interest::READABLE, Some(Duration::from_millis(50)))
        .unwrap();
    assert!(!ready.any());
    assert!(start.elapsed() >= Duration::from_millis(50));
    assert!(channel.wait(Interest::WRITABLE, PATIENCE).unwrap().writable);
    let address = to.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (plain, _) = plain();
            for _ in 0..100 {
                thread::sleep(Duration::from_millis(1));
                plain.send_to(b"x", address).unwrap();
            }
        });
        let mut received = 0;
        while received < 100 {
            assert!(channel.wait(Interest::READABLE, PATIENCE).unwrap().readable);
            while channel.recv().unwrap().is_some() {
                received += 1;
            }
        }
    });
}

/// A channel goes on when the flow that opened it, and others, are gone, and moves to a thread.
#[test]
fn channels_outlive_flows_and_move() {
    if !has_module() {
        return;
    }
    let first = flow();
    let channel = Channel::builder().open(&first).unwrap();
    let second = flow();
    second.join(&channel).unwrap();
    drop(first);
    thread::spawn(move || {
        let (plain, address) = plain();
        let to = Message::to(address);
        let payload = channel.payload(b"still here").unwrap();
        channel.send(second.id().unwrap(), &to, payload).unwrap();
        channel.flush().unwrap();
        let mut buffer = [0; 20];
        assert_eq!(plain.recv(&mut buffer).unwrap(), 10);
    })
    .join()
    .unwrap();
}

#[test]
fn send_buffers_fill_and_empty() {
    if !has_module() {
        return;
    }
    let (from, to) = (flow(), flow());
    from.connect(to.local_addr().unwrap()).unwrap();
    let options = socket2::SockRef::from(&from);
    options.set_send_buffer_size(4096).unwrap();
    let channel = Channel::builder().open(&from).unwrap();
    let mut completed = 0;
    let mut sent = 0;
    while sent < 2000 {
        let mut frame = match channel.frame() {
            Some(frame) => frame,
            None => {
                channel.wait(Interest::COMPLETION, PATIENCE).unwrap();
                channel.flush_with(|_| completed += 1).unwrap();
                continue;
            }
        };
        frame.extend_from_slice(&[7; 1500]);
        match channel.send(from.id().unwrap(), &Message::connected(), frame) {
            Ok(()) => sent += 1,
            Err(unsent) => {
                assert_eq!(unsent.error.kind(), std::io::ErrorKind::WouldBlock);
                drop(unsent);
                assert!(channel.wait(Interest::WRITABLE, PATIENCE).unwrap().any());
            }
        }
    }
    let start = Instant::now();
    while !channel.flush_with(|_| completed += 1).unwrap() {
        channel.wait(Interest::WRITABLE, PATIENCE).unwrap();
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    let stats = from.stats().unwrap();
    assert_eq!(stats.tx_packets + stats.tx_errors, 2000, "{stats:?}");
}
