// SPDX-License-Identifier: GPL-2.0

//! Ordinary sockets, and datagrams that tell which one they are.

use std::{net::SocketAddr, thread, time::Duration};

pub(crate) const LOCAL: &str = "127.0.0.1:0";
/// A hang, and not a busy host.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn plain() -> (std::net::UdpSocket, SocketAddr) {
    let socket = std::net::UdpSocket::bind(LOCAL).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// A datagram that has its number in it, of a length that no neighbour has.
pub(crate) fn datagram(number: u32) -> Vec<u8> {
    // Some take two frames; a window of them fits into a plain socket's buffer.
    let most = if number % 16 == 0 { 3000 } else { 1400 };
    let len = 4 + number as usize * 37 % most;
    let mut data: Vec<u8> = (0..len as u32).map(|at| (at ^ number) as u8).collect();
    data[..4].copy_from_slice(&number.to_ne_bytes());
    data
}

pub(crate) fn number_of(data: &[u8]) -> u32 {
    u32::from_ne_bytes(data[..4].try_into().unwrap())
}

/// Answers as many datagrams with themselves, as an ordinary program does.
pub(crate) fn echo_plain(count: u32) -> (thread::JoinHandle<()>, SocketAddr) {
    let (socket, address) = plain();
    let thread = thread::spawn(move || {
        let mut buffer = [0; 4000];
        for _ in 0..count {
            let (len, from) = socket.recv_from(&mut buffer).unwrap();
            socket.send_to(&buffer[..len], from).unwrap();
        }
    });
    (thread, address)
}
