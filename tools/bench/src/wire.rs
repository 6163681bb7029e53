// SPDX-License-Identifier: GPL-2.0

//! Whether all modes put the same bytes on the wire: the peer, in another namespace, captures them.

use crate::{
    measure::name,
    nic::{within, Nic},
    option,
    send::{named_or_all, Mode},
    tpacket,
    traffic::{normal, Peer, Traffic, HEADERS, TO_PORT},
};
use clap::Args;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{self, Read},
    net::{Ipv4Addr, UdpSocket},
    path::PathBuf,
    time::Duration,
};

/// Packets of each mode: enough for more than one GSO packet.
const PACKETS: usize = 200;
/// How long a packet may be on its way.
const PATIENCE: Duration = Duration::from_secs(5);
/// Of the capture, so that nothing is lost.
const BUFFER: usize = 16 << 20;

#[derive(Args)]
pub(crate) struct Options {
    /// The device to send by
    #[arg(long)]
    nic: String,

    /// Its address
    #[arg(long)]
    local: Ipv4Addr,

    /// The peer's network namespace, as a file
    #[arg(long)]
    peer_netns: PathBuf,

    /// The peer's device
    #[arg(long)]
    peer_nic: String,

    /// Its address
    #[arg(long)]
    peer: Ipv4Addr,

    /// Modes, if not all that any NIC can do
    #[arg(long, value_delimiter = ',')]
    modes: Vec<Mode>,

    /// Bytes of payload
    #[arg(long, value_delimiter = ',', default_value = "64,512,1400")]
    payloads: Vec<usize>,
}

/// The peer's side.
struct Capture {
    socket: Socket,
    mac: [u8; 6],
    /// Without somebody who listens, the peer would answer with errors.
    _sink: UdpSocket,
}

impl Capture {
    /// Makes the peer's sockets, in its namespace.
    fn open(options: &Options) -> io::Result<Self> {
        let nic = Nic::open(&options.peer_nic)?;
        let ipv4 = (libc::ETH_P_IP as u16).to_be();
        let socket = Socket::new(
            Domain::PACKET,
            Type::RAW,
            Some(Protocol::from(i32::from(ipv4))),
        )?;
        tpacket::bind(&socket, nic.index(), ipv4)?;
        // Beyond what the system allows to all.
        option::set(
            &socket,
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            BUFFER as libc::c_int,
        )?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            mac: nic.mac(&socket)?,
            socket,
            _sink: UdpSocket::bind((options.peer, TO_PORT))?,
        })
    }

    /// The next UDP packet to the benchmark's port.
    fn next(&self) -> io::Result<Vec<u8>> {
        let mut buffer = [0; 65536];
        loop {
            let len = (&self.socket).read(&mut buffer)?;
            let frame = &buffer[..len];
            if frame.get(36..38) == Some(&TO_PORT.to_be_bytes()) {
                return Ok(frame.to_vec());
            }
        }
    }
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let nic = Nic::open(&options.nic)?;
    let mac = nic.mac(&UdpSocket::bind("0.0.0.0:0")?)?;
    let capture = within(&options.peer_netns, || Capture::open(options))?;
    let peer = Peer {
        address: options.peer,
        mac: capture.mac,
    };
    let traffic = |payload| Traffic::new(options.local, mac, vec![peer], payload);
    let modes = named_or_all(&options.modes);
    let mut all_right = true;
    for &payload in &options.payloads {
        for &mode in &modes {
            let mut to_send = traffic(payload);
            mode.open(nic.index(), 0, &to_send)?
                .send(&mut to_send, PACKETS)?;
            let mut to_come = traffic(payload);
            let expected: Vec<_> = (0..PACKETS)
                .map(|_| {
                    let mut frame = vec![0; HEADERS + payload];
                    to_come.frame(&mut frame);
                    normal(&frame).expect("a frame with a right checksum")
                })
                .collect();
            let mut seen = Vec::new();
            for _ in 0..PACKETS {
                seen.push(normal(&capture.next()?).unwrap_or_default());
            }
            let in_order = expected == seen;
            // What io_uring couldn't send at once it sends later.
            seen.sort_unstable_by_key(|frame| frame.get(HEADERS..HEADERS + 8).map(<[u8]>::to_vec));
            let right = expected.iter().zip(&seen).filter(|(a, b)| a == b).count();
            all_right &= right == PACKETS;
            println!(
                "# {}: {}, {payload} bytes: {right} of {PACKETS} frames arrived as they should{}",
                if right == PACKETS { "ok" } else { "not ok" },
                name(mode),
                if in_order { "" } else { ", in another order" },
            );
        }
    }
    Ok(all_right)
}
