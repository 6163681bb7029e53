// SPDX-License-Identifier: GPL-2.0

//! Measures receiving, row by row: of bursts that this process sends itself, from another
//! namespace, and whose cost it has measured before on a NIC that takes all.

mod dropping;
mod packet_ring;
mod rings;
mod serving;
mod serving_uring;
mod serving_xdp;
mod sockets;
mod uring;
mod xdp;

use crate::{
    clock::Clock,
    measure::{name, Peers},
    meter::{kernel, sleeps},
    nic::{within, Count, Nic},
    policy::{Packets, Policy},
    row::{agreed, Row},
    send::{gso, gso_packets_of, PacketRing, Sender},
    traffic::{Peer, Traffic, FROM_PORT, HEADERS, TO_PORT},
};
use clap::{Args, ValueEnum};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Packets that come at once, and are then received.
const BURST: usize = 64;
/// Bursts of a run, and of the warm-up.
const BURSTS: usize = 128;
const WARM_UP: usize = 32;
/// How often a row is run until two runs after each other agree.
const RUNS_MAX: usize = 4;
/// The same of bursts that nobody receives, without which there are no rows.
const BURST_RUNS_MAX: usize = 8;
/// How long a burst takes to leave.
const NAP: Duration = Duration::from_millis(1);
/// The first of many senders.
const FIRST_SOURCE: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
/// How long a receiver waits.
const PATIENCE: Duration = Duration::from_secs(1);

/// A way to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Mode {
    /// recv(2)
    Recv,
    /// recvmmsg(2) of 64, with MSG_WAITFORONE
    Recvmmsg,
    /// recvmsg(2) with UDP_GRO
    UdpGro,
    /// io_uring: a request that receives again and again
    IoUring,
    /// AF_PACKET's RX ring
    AfPacket,
    /// AF_XDP, copied
    AfXdpCopy,
    /// AF_XDP, received by the device itself, if that can
    AfXdpZeroCopy,
    /// KOPI's RX ring
    Kopi,
    /// As that, on a channel that has asked for GRO packets, cut up
    KopiGro,
    /// As that, with GRO packets as they came
    KopiMerged,
    /// As `kopi_gro`, from a device that is attached
    KopiDirect,
    /// As `kopi_merged`, from a device that is attached
    KopiDirectMerged,
    /// As `kopi`, from a device that is attached
    KopiDirectDatagrams,
    /// recvmmsg(2) of 64, and sendmmsg(2) of the answers
    ServeMmsg,
    /// io_uring: a request that receives again and again, and one for each answer
    ServeIoUring,
    /// AF_XDP, copied both ways
    ServeAfXdpCopy,
    /// AF_XDP, received and sent by the device itself, if that can
    ServeAfXdpZeroCopy,
    /// KOPI's rings, both ways
    ServeKopi,
    /// As that, from and by a device that is attached
    ServeKopiDirect,
    /// By nobody: an XDP program drops all, which is the least that a packet can cost
    XdpDrop,
}

impl Mode {
    /// Whether the stack may merge its packets to GRO packets.
    fn has_gro(self) -> bool {
        matches!(
            self,
            Self::UdpGro
                | Self::KopiGro
                | Self::KopiMerged
                | Self::KopiDirect
                | Self::KopiDirectMerged
        )
    }

    /// Whether it needs a device that is attached.
    fn is_direct(self) -> bool {
        matches!(
            self,
            Self::KopiDirect
                | Self::KopiDirectMerged
                | Self::KopiDirectDatagrams
                | Self::ServeKopiDirect
        )
    }

    /// Whether it answers what it receives.
    fn serves(self) -> bool {
        matches!(
            self,
            Self::ServeMmsg
                | Self::ServeIoUring
                | Self::ServeAfXdpCopy
                | Self::ServeAfXdpZeroCopy
                | Self::ServeKopi
                | Self::ServeKopiDirect
        )
    }

    /// Whether policies that look at packets on their way to a socket see it.
    fn meets_hooks(self) -> bool {
        !matches!(
            self,
            Self::AfPacket
                | Self::AfXdpCopy
                | Self::AfXdpZeroCopy
                | Self::ServeAfXdpCopy
                | Self::ServeAfXdpZeroCopy
                | Self::XdpDrop
        )
    }

    /// `far` is the sender, if there is one only.
    fn open(
        self,
        device: u32,
        near: SocketAddrV4,
        far: Option<SocketAddrV4>,
        payload: usize,
    ) -> io::Result<Box<dyn Receiver>> {
        let socket = || {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
            socket.bind(&near.into())?;
            if let Some(far) = far {
                socket.connect(&far.into())?;
            }
            socket.set_read_timeout(Some(PATIENCE))?;
            io::Result::Ok(socket)
        };
        let flow = || {
            let flow = kopi::Flow::bind(near.into())?;
            if let Some(far) = far {
                flow.connect(far.into())?;
            }
            io::Result::Ok(flow)
        };
        Ok(match self {
            Self::Recv => Box::new(sockets::Plain {
                socket: socket()?,
                buffer: vec![0; payload],
            }),
            Self::Recvmmsg => Box::new(sockets::Many::new(socket()?, payload)),
            Self::ServeMmsg => Box::new(serving::Messages::new(socket()?, payload)),
            Self::ServeIoUring => Box::new(serving_uring::Server::new(socket()?, payload)?),
            Self::ServeAfXdpCopy => Box::new(serving_xdp::Server::new(device, false)?),
            Self::ServeAfXdpZeroCopy => Box::new(serving_xdp::Server::new(device, true)?),
            Self::ServeKopi | Self::ServeKopiDirect => Box::new(serving::Answers::new(flow()?)?),
            Self::UdpGro => Box::new(sockets::Merged::new(socket()?)?),
            Self::IoUring => Box::new(uring::Multishot::new(socket()?, payload)?),
            Self::AfPacket => Box::new(packet_ring::PacketRing::new(device)?),
            Self::AfXdpCopy => Box::new(xdp::Xdp::new(device, false)?),
            Self::AfXdpZeroCopy => Box::new(xdp::Xdp::new(device, true)?),
            Self::XdpDrop => Box::new(dropping::Drops::new(device)?),
            Self::Kopi
            | Self::KopiGro
            | Self::KopiMerged
            | Self::KopiDirect
            | Self::KopiDirectMerged
            | Self::KopiDirectDatagrams => {
                let merged = matches!(self, Self::KopiMerged | Self::KopiDirectMerged);
                Box::new(rings::Rings::new(flow()?, self.has_gro(), merged)?)
            }
        })
    }
}

/// Receives by some mode.
trait Receiver {
    /// Receives what there is; sleeps until there is something.
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()>;

    /// Waits until what it has received and answered is done with.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sleeps until there is something to read.
fn poll(socket: &Socket) -> io::Result<()> {
    let mut poll = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: One entry.
    match unsafe { libc::poll(&mut poll, 1, PATIENCE.as_millis() as libc::c_int) } {
        1.. => Ok(()),
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What has come.
struct Tally {
    payload: usize,
    packets: u64,
    wrong: u64,
}

impl Tally {
    fn new(payload: usize) -> Self {
        Self {
            payload,
            packets: 0,
            wrong: 0,
        }
    }

    /// A datagram with `headers` bytes before its payload.
    #[inline]
    fn add_frame(&mut self, frame: &[u8], headers: usize) {
        let payload = frame.get(headers..).unwrap_or_default();
        self.add(payload.len(), payload);
    }

    /// A datagram of `len` bytes, which begins so: with its number.
    #[inline]
    fn add(&mut self, len: usize, beginning: &[u8]) {
        let right = len == self.payload && beginning.starts_with(&self.packets.to_be_bytes());
        self.wrong += u64::from(!right);
        self.packets += 1;
    }
}

#[derive(Args)]
pub(crate) struct Options {
    /// The device to receive by
    #[arg(long)]
    nic: String,

    /// Its address
    #[arg(long)]
    local: Ipv4Addr,

    /// The network namespace of the device at the other end, as a file
    #[arg(long)]
    far_netns: PathBuf,

    /// The device at the other end
    #[arg(long)]
    far_nic: String,

    /// Its address
    #[arg(long)]
    far: Ipv4Addr,

    /// The network namespace of a NIC that takes all, and else is as that at the other end
    #[arg(long)]
    void_netns: PathBuf,

    /// That NIC
    #[arg(long)]
    void_nic: String,

    /// The NICs do checksums and segmentation: what comes from the other end are GRO packets, which arrive whole
    #[arg(long)]
    offloads: bool,

    /// Modes, if not all
    #[arg(long, value_delimiter = ',')]
    modes: Vec<Mode>,

    /// Bytes of payload
    #[arg(long, value_delimiter = ',', default_value = "64,512,1400")]
    payloads: Vec<usize>,

    /// Whom the packets come from: one, or at random 255, whose addresses are 198.18.1.1 and the next
    /// ones
    #[arg(long, value_enum, default_value = "one")]
    peers: Peers,

    #[command(flatten)]
    policy: Policy,
}

/// What is taken out of the measurements, in instructions.
struct Costs {
    /// A burst until it has left.
    burst: f64,
    /// A nap.
    nap: f64,
}

/// What is common to all rows.
struct Bench<'o> {
    options: &'o Options,
    nic: Nic,
    mac: [u8; 6],
    far_index: u32,
    far_mac: [u8; 6],
    void_index: u32,
    clock: Clock,
    kernel: String,
}

/// The addresses of many senders.
fn sources() -> Vec<Ipv4Addr> {
    let first = u32::from(FIRST_SOURCE);
    (0..u32::from(Peers::Many.count()))
        .map(|number| Ipv4Addr::from(first + number))
        .collect()
}

fn mac_of(nic: &Nic) -> io::Result<[u8; 6]> {
    nic.mac(&UdpSocket::bind("0.0.0.0:0")?)
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let nic = Nic::open(&options.nic)?;
    let (far_index, far_mac) = within(&options.far_netns, || {
        let far = Nic::open(&options.far_nic)?;
        Ok((far.index(), mac_of(&far)?))
    })?;
    let void_index = within(&options.void_netns, || {
        Ok(Nic::open(&options.void_nic)?.index())
    })?;
    let bench = Bench {
        mac: mac_of(&nic)?,
        nic,
        far_index,
        far_mac,
        void_index,
        clock: Clock::new()?,
        kernel: kernel()?,
        options,
    };
    let modes = match &options.modes[..] {
        // The others have the device for themselves; and io_uring the port, for some time after.
        [] => Mode::value_variants()
            .iter()
            .copied()
            .filter(|&mode| mode.meets_hooks() && !mode.is_direct() && mode != Mode::IoUring)
            .filter(|mode| !mode.serves())
            .collect(),
        modes => modes.to_vec(),
    };
    let mut all_right = true;
    for &payload in &options.payloads {
        let costs = bench.costs(payload)?;
        let burst = costs.burst;
        eprintln!("# a burst of {BURST} packets of {payload} bytes is {burst:.0} instructions");
        for &mode in &modes {
            match bench.row(mode, payload, &costs) {
                Ok(row) => println!("{}", serde_json::to_string(&row)?),
                Err(error) => {
                    all_right = false;
                    let policy = &options.policy.name;
                    eprintln!("not ok: {}, {payload} bytes, {policy}: {error}", name(mode));
                }
            }
        }
    }
    Ok(all_right)
}

impl Bench<'_> {
    /// What comes from the other end.
    fn traffic(&self, payload: usize) -> Traffic {
        let near = Peer {
            address: self.options.local,
            mac: self.mac,
        };
        let traffic = Traffic::new(self.options.far, self.far_mac, vec![near], payload);
        match self.options.peers {
            Peers::One => traffic,
            Peers::Many => traffic.with_sources(sources()),
        }
    }

    /// What sends it, by a device in a namespace.
    fn sender(&self, netns: &Path, device: u32, traffic: &Traffic) -> io::Result<Box<dyn Sender>> {
        within(netns, || match self.options.offloads {
            true => gso(BURST, traffic),
            false => Ok(Box::new(PacketRing::new(device, 0, BURST)?)),
        })
    }

    /// What a burst costs until it has left, and a nap.
    fn costs(&self, payload: usize) -> io::Result<Costs> {
        let nap = self.clock.each(BURSTS as u32, || {
            thread::sleep(NAP);
            Ok(())
        })?;
        let mut traffic = self.traffic(payload);
        let mut ring = self.sender(&self.options.void_netns, self.void_index, &traffic)?;
        let mut runs = Vec::new();
        for _ in 0..BURST_RUNS_MAX {
            let each = self.clock.each(BURSTS as u32, || {
                ring.send(&mut traffic, BURST)?;
                thread::sleep(NAP);
                Ok(())
            })?;
            runs.push(each - nap);
            // Not the first one, which warms up.
            if runs.len() > 2 {
                if let Some(burst) = agreed(&runs[runs.len() - 2..]) {
                    return Ok(Costs { burst, nap });
                }
            }
        }
        Err(io::Error::other(format!(
            "the bursts' costs don't agree: {runs:?}"
        )))
    }

    /// Waits until so many answers have left by the NIC, which counts them some time after.
    fn have_left(&self, before: Count, answers: u64) -> io::Result<()> {
        let mut left = 0;
        for _ in 0..100 {
            left = self.nic.sent()?.since(before).packets;
            if left == answers {
                return Ok(());
            }
            thread::sleep(NAP);
        }
        Err(io::Error::other(format!(
            "{left} answers left, and not {answers}"
        )))
    }

    fn row(&self, mode: Mode, payload: usize, costs: &Costs) -> io::Result<Row> {
        // Nobody is woken by what is dropped: that receiver naps.
        let own = match mode {
            Mode::XdpDrop => costs.burst + costs.nap,
            _ => costs.burst,
        };
        let near = SocketAddrV4::new(self.options.local, TO_PORT);
        let far = (self.options.peers == Peers::One)
            .then(|| SocketAddrV4::new(self.options.far, FROM_PORT));
        let seen = self.options.policy.count()?;
        let (before, sent_before) = (self.nic.received()?, self.nic.sent()?);
        let mut receiver = mode.open(self.nic.index(), near, far, payload)?;
        let mut traffic = self.traffic(payload);
        let mut ring = self.sender(&self.options.far_netns, self.far_index, &traffic)?;
        let mut tally = Tally::new(payload);
        let mut bursts = |count: usize| {
            for _ in 0..count {
                ring.send(&mut traffic, BURST)?;
                let expected = tally.packets + BURST as u64;
                while tally.packets < expected {
                    receiver.receive(&mut tally)?;
                }
            }
            io::Result::Ok(())
        };
        bursts(WARM_UP)?;
        let mut runs = Vec::new();
        let slept = sleeps();
        // Now and then the kernel has something else to do in between; all runs are shown.
        while runs.len() < 2 || (agreed(&runs[runs.len() - 2..]).is_none() && runs.len() < RUNS_MAX)
        {
            let start = self.clock.start();
            bursts(BURSTS)?;
            let each = self.clock.since(start) / BURSTS as f64;
            runs.push((each - own) / BURST as f64);
        }
        let sleeps = sleeps() - slept;
        let mean = agreed(&runs[runs.len() - 2..]).ok_or_else(|| {
            io::Error::other(format!(
                "its runs don't agree: {runs:?} instructions a packet"
            ))
        })?;
        let warm_up = (WARM_UP * BURST) as u64;
        let sent = (runs.len() * BURSTS * BURST) as u64;
        let counted = self.nic.received()?.since(before);
        let expected = Count {
            packets: warm_up + sent,
            bytes: (warm_up + sent) * (HEADERS + payload) as u64,
        };
        let at_nic = match self.options.offloads {
            false => expected,
            true => {
                let gro = expected.packets / BURST as u64 * gso_packets_of(BURST, payload) as u64;
                Count {
                    packets: gro,
                    bytes: gro * HEADERS as u64 + expected.packets * payload as u64,
                }
            }
        };
        if counted != at_nic || tally.packets != expected.packets || tally.wrong > 0 {
            return Err(io::Error::other(format!(
                "of {at_nic:?} {counted:?} came, and {} were received, {} of them wrong",
                tally.packets, tally.wrong
            )));
        }
        let answers = if mode.serves() { expected.packets } else { 0 };
        receiver.finish()?;
        // Virtio-net doesn't count what it sends without a copy.
        let counted_answers = if mode == Mode::ServeAfXdpZeroCopy {
            0
        } else {
            answers
        };
        self.have_left(sent_before, counted_answers)?;
        let policy_packets = match (seen, self.options.policy.count()?) {
            (Some(before), Some(after)) => Some(after - before),
            _ => None,
        };
        let packets = Packets {
            meet_hooks: mode.meets_hooks(),
            meet_device: mode.meets_hooks(),
            // GRO packets that arrive whole are handed over as they are.
            handed: (self.options.offloads || !mode.has_gro()).then_some(at_nic.packets + answers),
            datagrams: expected.packets + answers,
        };
        Ok(Row {
            mode: name(mode),
            direction: if mode.serves() { "serve" } else { "recv" }.to_owned(),
            offloads: self.options.offloads,
            payload,
            policy: self.options.policy.name.clone(),
            policy_holds: self.options.policy.holds(policy_packets, &packets)?,
            flows: 1,
            peers: self.options.peers.count().into(),
            batch: BURST,
            insn_per_packet: Some(mean),
            runs,
            wakeups_per_packet: sleeps as f64 / sent as f64,
            warm_up,
            sent,
            delivered: Some(sent),
            nic_packets: counted.packets * sent / expected.packets,
            nic_bytes: counted.bytes * sent / expected.packets,
            policy_packets,
            handed: packets.handed,
            kernel: self.kernel.clone(),
            ..Row::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_wrong_is_noticed() {
        let mut tally = Tally::new(64);
        let packet = |number: u64| {
            let mut packet = [0; 64];
            packet[..8].copy_from_slice(&number.to_be_bytes());
            packet
        };
        tally.add(64, &packet(0));
        tally.add(64, &packet(1));
        assert_eq!((tally.packets, tally.wrong), (2, 0));
        tally.add(63, &packet(2));
        tally.add(64, &packet(4));
        tally.add(64, &[]);
        assert_eq!((tally.packets, tally.wrong), (5, 3));
    }
}
