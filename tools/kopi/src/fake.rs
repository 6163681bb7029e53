// SPDX-License-Identifier: GPL-2.0

//! A kernel for tests: everything that is sent comes back.

use crate::{
    channel::{Bell, Builder, Channel},
    flow::{Flow, FlowId},
    pure::{
        abi::{Desc, Layout, Meta, AF_INET, DESC_META, DESC_MORE, FRAME_HEADROOM},
        geometry::Geometry,
        ring::{Consumer, Producer},
    },
    region::Region,
    udp::UdpSocket,
};
#[cfg(feature = "tokio")]
use std::sync::atomic::{AtomicU32, Ordering};
use std::{cell::RefCell, collections::VecDeque, net::SocketAddr, ptr::NonNull};

/// The other side of a channel's rings.
pub(crate) struct Kernel {
    base: NonNull<u8>,
    layout: Layout,
    tx: Consumer<Desc>,
    completion: Producer<Desc>,
    fill: Consumer<u64>,
    rx: Producer<Desc>,
    /// Errors for the packets to come.
    pub(crate) errors: VecDeque<u16>,
    /// Descriptors to take at each doorbell.
    pub(crate) appetite: u32,
    /// Keeps what it takes, as if it went by reference.
    pub(crate) keeps: bool,
    kept: Vec<Desc>,
    pub(crate) dropped: u32,
    pub(crate) bells: u32,
    /// The errno that the doorbell gives, or 0.
    pub(crate) refusal: i32,
}

// SAFETY: The mapping belongs to the process.
unsafe impl Send for Kernel {}

/// Makes a channel with a fake kernel behind it.
pub(crate) fn channel(builder: Builder) -> Channel {
    let layout = *Geometry::new(builder.request()).unwrap().layout();
    let region = Region::anonymous(layout).unwrap();
    // SAFETY: The kernel lives in the channel, beside the region; these sides are its.
    let kernel = unsafe {
        Kernel {
            base: region.at(0),
            layout,
            tx: region.consumer(&layout.tx),
            completion: region.producer(&layout.completion),
            fill: region.consumer(&layout.fill),
            rx: region.producer(&layout.rx),
            errors: VecDeque::new(),
            appetite: u32::MAX,
            keeps: false,
            kept: Vec::new(),
            dropped: 0,
            bells: 0,
            refusal: 0,
        }
    };
    kernel.tx.want_wakeup(true);
    let bell = Bell::Fake(Box::new(RefCell::new(kernel)));
    builder.assemble(region, bell).unwrap()
}

/// A UDP socket on a small channel with a fake kernel: 16 frames to send, 32 to receive, 448 bytes each.
pub(crate) fn fake_socket() -> UdpSocket {
    let socket = socket_with(small_udp());
    socket.set_nonblocking(true).unwrap();
    socket
}

/// A UDP socket on a channel of this kind with a fake kernel.
pub(crate) fn socket_with(builder: Builder) -> UdpSocket {
    let plain = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    UdpSocket::assemble(Flow::fake(plain), FlowId(0), channel(builder))
}

/// A small one whose calls sleep. No event comes but a packet's, for a connection to the address.
pub(crate) fn fake_listener() -> (UdpSocket, SocketAddr) {
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = plain.local_addr().unwrap();
    let socket = UdpSocket::assemble(Flow::fake(plain), FlowId(0), channel(small_udp()));
    (socket, address)
}

fn small_udp() -> Builder {
    Channel::builder()
        .frame_size(512)
        .frames(48)
        .rx_frames(32)
        .tx_entries(16)
        .rx_entries(32)
}

impl Kernel {
    fn bytes(&mut self, offset: u32, len: u32) -> &mut [u8] {
        assert!(u64::from(offset) + u64::from(len) <= self.layout.region_size);
        // SAFETY: Within the region; the test has one thread, and `Frame`s of these bytes are with
        // this side now.
        unsafe {
            std::slice::from_raw_parts_mut(self.base.add(offset as usize).as_ptr(), len as usize)
        }
    }

    /// Answers the doorbell.
    pub(crate) fn transmit(&mut self) -> u32 {
        self.bells += 1;
        let mut taken = 0;
        while taken < self.appetite && self.tx.available(1).unwrap() > 0 {
            let mut chain = vec![];
            let mut bytes = vec![];
            loop {
                let desc = self.tx.read();
                bytes.extend_from_slice(self.bytes(desc.offset, desc.len));
                chain.push(desc);
                if desc.flags & DESC_MORE == 0 {
                    break;
                }
                assert!(self.tx.available(1).unwrap() > 0, "half a packet");
            }
            taken += chain.len() as u32;
            let error = self.errors.pop_front().unwrap_or(0);
            if error == 0 {
                self.deliver(&bytes, &chain);
            }
            for desc in chain {
                self.kept.push(Desc { error, ..desc });
            }
        }
        self.tx.release(0);
        if !self.keeps {
            self.complete();
        }
        taken
    }

    /// Whether it is to wake somebody for packets.
    pub(crate) fn is_to_wake(&self) -> bool {
        self.rx.needs_wakeup()
    }

    /// What poll(2) would say.
    pub(crate) fn ready(&self) -> i16 {
        let mut ready = 0;
        if self.rx.is_unread() {
            ready |= libc::POLLIN;
        }
        if self.completion.is_unread() {
            ready |= libc::POLLWRBAND;
        }
        ready
    }

    /// Breaks the COMPLETION ring, as something else that writes to it would.
    #[cfg(feature = "tokio")]
    pub(crate) fn break_completion(&mut self) {
        let producer = self.layout.completion.producer as usize;
        // SAFETY: The index is within the region, and aligned.
        let producer = unsafe { self.base.add(producer).cast::<AtomicU32>().as_ref() };
        producer.fetch_add(self.layout.completion.size + 1, Ordering::Release);
    }

    /// Completes what it kept.
    pub(crate) fn complete(&mut self) {
        for desc in std::mem::take(&mut self.kept) {
            assert!(self.completion.room(1).unwrap() > 0);
            self.completion.write(desc);
        }
        self.completion.submit();
    }

    fn deliver(&mut self, bytes: &[u8], chain: &[Desc]) {
        let capacity = (self.layout.frame_size - FRAME_HEADROOM) as usize;
        let count = bytes.len().div_ceil(capacity).max(1) as u32;
        if self.fill.available(count).unwrap() < count || self.rx.room(count).unwrap() < count {
            self.dropped += 1;
            return;
        }
        let mut sent = Meta::default();
        if chain[0].flags & DESC_META != 0 {
            let at = chain[0].offset - FRAME_HEADROOM;
            let raw = self.bytes(at, 64).to_vec();
            let mut words = [0; 8];
            for (word, bytes) in words.iter_mut().zip(raw.chunks(8)) {
                *word = u64::from_ne_bytes(bytes.try_into().unwrap());
            }
            sent = Meta::from_words(words);
        }
        let meta = Meta {
            peer: sent.peer,
            peer_port: sent.peer_port,
            family: AF_INET,
            len: bytes.len() as u32,
            ..Meta::default()
        };
        for number in 0..count {
            let frame = self.fill.read() as u32;
            assert_eq!(frame % self.layout.frame_size, 0);
            let from = number as usize * capacity;
            let piece = &bytes[from..bytes.len().min(from + capacity)];
            if number == 0 {
                for (index, word) in meta.to_words().into_iter().enumerate() {
                    self.bytes(frame + 8 * index as u32, 8)
                        .copy_from_slice(&word.to_ne_bytes());
                }
            }
            let offset = frame + FRAME_HEADROOM;
            self.bytes(offset, piece.len() as u32)
                .copy_from_slice(piece);
            let mut flags = if number == 0 { DESC_META } else { 0 };
            if number + 1 < count {
                flags |= DESC_MORE;
            }
            self.rx.write(Desc {
                offset,
                len: piece.len() as u32,
                flow: chain[0].flow,
                flags,
                error: 0,
            });
        }
        self.fill.release(0);
        self.rx.submit();
    }
}

mod tests {
    use super::*;
    use crate::{Interest, Message, Packet};
    use std::collections::HashSet;

    const FLOW: FlowId = FlowId(3);

    fn small() -> Builder {
        Channel::builder()
            .frame_size(512)
            .frames(64)
            .tx_entries(16)
            .rx_entries(32)
    }

    fn kernel<R>(channel: &Channel, act: impl FnOnce(&mut Kernel) -> R) -> R {
        act(&mut channel.fake().borrow_mut())
    }

    fn send(channel: &Channel, data: &[u8]) {
        let to = Message::to("192.0.2.9:99".parse().unwrap());
        let payload = channel.payload(data).unwrap();
        channel.send(FLOW, &to, payload).unwrap();
    }

    #[test]
    fn what_is_sent_comes_back() {
        let channel = channel(small());
        for len in [0, 1, 447, 448, 449, 896, 5000] {
            let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
            send(&channel, &data);
            assert!(channel.flush().unwrap());
            let packet = channel.recv().unwrap().unwrap();
            assert_eq!(packet.flow(), FLOW);
            assert_eq!(packet.len(), len);
            assert_eq!(*packet.bytes(), data);
            assert_eq!(packet.peer(), "192.0.2.9:99".parse().unwrap());
            drop(packet);
            assert!(channel.recv().unwrap().is_none());
            assert_eq!(channel.free_frames(), 32, "after {len} bytes");
        }
    }

    #[test]
    fn one_doorbell_for_many() {
        let channel = channel(small());
        for _ in 0..16 {
            send(&channel, b"x");
        }
        assert!(channel.flush().unwrap());
        assert_eq!(kernel(&channel, |kernel| kernel.bells), 1);
        // Nothing to show.
        channel.flush().unwrap();
        assert_eq!(kernel(&channel, |kernel| kernel.bells), 1);
    }

    #[test]
    fn owned_frames_are_distinct() {
        let channel = channel(small());
        for _ in 0..8 {
            send(&channel, b"abc");
        }
        channel.flush().unwrap();
        let mut packets = vec![];
        while let Some(packet) = channel.recv().unwrap() {
            packets.push(packet);
        }
        let mut frames = vec![];
        while let Some(frame) = channel.frame() {
            frames.push(frame);
        }
        let mut starts: Vec<u32> = frames.iter().map(|frame| frame.id()).collect();
        let payloads: Vec<_> = packets.into_iter().map(Packet::into_payload).collect();
        let held = payloads.iter().flat_map(|payload| payload.frames());
        starts.extend(held.map(|frame| frame.id()));
        let distinct: HashSet<u32> = starts.iter().copied().collect();
        assert_eq!(distinct.len(), starts.len());
    }

    #[test]
    fn packets_are_sent_on_in_their_frames() {
        let channel = channel(small());
        send(&channel, b"ping");
        channel.flush().unwrap();
        let mut packet = channel.recv().unwrap().unwrap();
        packet.frames_mut().next().unwrap()[1] = b'o';
        let reply = Message::reply_to(&packet);
        channel.send(packet.flow(), &reply, packet).unwrap();
        channel.flush().unwrap();
        let packet = channel.recv().unwrap().unwrap();
        assert_eq!(*packet.bytes(), *b"pong");
        drop(packet);
        channel.recv().unwrap();
        assert_eq!(channel.free_frames(), 32);
    }

    #[test]
    fn errors_come_with_completions() {
        let channel = channel(small());
        kernel(&channel, |kernel| kernel.errors.extend([0, 90, 0]));
        for _ in 0..3 {
            send(&channel, b"x");
        }
        let mut errors = vec![];
        channel
            .flush_with(|completion| errors.push((completion.flow, completion.error)))
            .unwrap();
        assert_eq!(errors, [(FLOW, 0), (FLOW, 90), (FLOW, 0)]);
    }

    #[test]
    fn full_ring_gives_the_packet_back() {
        let channel = channel(small());
        kernel(&channel, |kernel| kernel.appetite = 0);
        for _ in 0..16 {
            send(&channel, b"x");
        }
        let payload = channel.payload(b"one more").unwrap();
        let unsent = channel
            .send(FLOW, &Message::connected(), payload)
            .unwrap_err();
        assert_eq!(unsent.error.kind(), std::io::ErrorKind::WouldBlock);
        assert_eq!(unsent.payload.len(), 8);
        assert!(!channel.flush().unwrap());
        kernel(&channel, |kernel| kernel.appetite = u32::MAX);
        assert!(channel.flush().unwrap());
        channel
            .send(FLOW, &Message::connected(), unsent.payload)
            .unwrap();
    }

    #[test]
    fn too_long_a_chain_is_refused() {
        let channel = channel(small());
        let payload = channel.payload(&[0; 17 * 448]).unwrap();
        let unsent = channel
            .send(FLOW, &Message::connected(), payload)
            .unwrap_err();
        assert_eq!(unsent.error.raw_os_error(), Some(libc::EMSGSIZE));
        drop(unsent);
        assert_eq!(channel.free_frames(), 32);
        assert!(channel.payload(&[0; 33 * 448]).is_none());
        assert_eq!(channel.free_frames(), 32);
    }

    #[test]
    fn kept_frames_stay_away() {
        let channel = channel(small().rx_frames(0));
        kernel(&channel, |kernel| kernel.keeps = true);
        for _ in 0..10 {
            send(&channel, b"x");
        }
        channel.flush().unwrap();
        assert_eq!(channel.free_frames(), 54);
        kernel(&channel, Kernel::complete);
        channel.reap(|_| {}).unwrap();
        assert_eq!(channel.free_frames(), 64);
    }

    #[test]
    fn frames_go_back_to_the_kernel() {
        let channel = channel(small());
        for round in 0u32..1000 {
            send(&channel, &round.to_ne_bytes());
            channel.flush().unwrap();
            let packet = channel.recv().unwrap().unwrap();
            assert_eq!(*packet.bytes(), round.to_ne_bytes());
        }
        assert_eq!(kernel(&channel, |kernel| kernel.dropped), 0);
    }

    #[test]
    fn peeking_takes_nothing() {
        let channel = channel(small());
        send(&channel, &[7; 1000]);
        channel.flush().unwrap();
        for _ in 0..3 {
            let len = channel.peek(|packet| packet.len()).unwrap();
            assert_eq!(len, Some(1000));
        }
        assert_eq!(channel.recv().unwrap().unwrap().len(), 1000);
        assert_eq!(channel.peek(|_| ()).unwrap(), None);
    }

    #[test]
    fn waiting_flushes_and_sees_what_is_there() {
        let channel = channel(small());
        send(&channel, b"x");
        let ready = channel.wait(Interest::READABLE, None).unwrap();
        assert!(ready.readable);
    }

    #[test]
    fn answers_take_the_place_of_questions() {
        let channel = channel(small());
        for (len, fits) in [
            (0, 0),
            (3, 3),
            (448, 448),
            (500, 500),
            (1344, 1344),
            (1400, 1344),
        ] {
            send(&channel, &[7; 1344]);
            channel.flush().unwrap();
            let mut packet = channel.recv().unwrap().unwrap();
            assert_eq!(packet.replace(&vec![8; len]), fits);
            assert_eq!(*packet.bytes(), vec![8; fits]);
        }
        channel.recv().unwrap();
        assert_eq!(channel.free_frames(), 32);
    }

    #[test]
    fn the_only_frame_to_receive_into_comes_back() {
        let channel = channel(small().frames(2).rx_frames(1));
        send(&channel, b"x");
        channel.flush().unwrap();
        let packet = channel.recv().unwrap().unwrap();
        let reply = Message::reply_to(&packet);
        // It is sent on, with the other one, and no frame is there to receive into.
        kernel(&channel, |kernel| kernel.keeps = true);
        channel.send(FLOW, &reply, packet).unwrap();
        send(&channel, b"y");
        channel.flush().unwrap();
        assert!(!channel.wait(Interest::READABLE, None).unwrap().any());
        kernel(&channel, Kernel::complete);
        assert!(channel.wait(Interest::READABLE, None).unwrap().completion);
    }

    #[test]
    fn nobody_sleeps_on_what_an_engine_left() {
        let channel = channel(small());
        // As with an engine: no doorbell is needed.
        kernel(&channel, |kernel| kernel.tx.want_wakeup(false));
        send(&channel, b"x");
        assert!(channel.flush().unwrap());
        assert_eq!(kernel(&channel, |kernel| kernel.bells), 0);
        assert!(!channel.arm(true).unwrap());
        // It lets go, and nothing was sent.
        kernel(&channel, |kernel| kernel.tx.want_wakeup(true));
        channel.arm(true).unwrap();
        assert_eq!(kernel(&channel, |kernel| kernel.bells), 1);
        // It stopped because there was no room for completions.
        kernel(&channel, |kernel| kernel.appetite = 0);
        send(&channel, b"y");
        assert!(channel.arm(true).unwrap());
        while channel.recv().unwrap().is_some() {}
        assert!(channel.arm(true).unwrap(), "completions are to be taken");
        let ready = channel.wait(Interest::READABLE, None).unwrap();
        assert!(ready.completion);
        assert!(!channel.flush().unwrap());
        assert!(!channel.arm(true).unwrap());
    }

    #[test]
    #[should_panic(expected = "another channel")]
    fn frames_stay_with_their_channel() {
        let (one, other) = (channel(small()), channel(small()));
        let payload = one.payload(b"x").unwrap();
        let _ = other.send(FLOW, &Message::connected(), payload);
    }
}
