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
    bursts::{Bursts, Costs, Ends, BURST, BURSTS, NAP, RUNS_MAX, WARM_UP},
    clock::Clock,
    measure::{name, Peers},
    meter::{kernel, sleeps},
    nic::Count,
    policy::{Packets, Policy},
    row::{agreed, mean_of_last, Row},
    send::gso_packets_of,
    traffic::{FROM_PORT, HEADERS, TO_PORT},
};
use clap::{Args, ValueEnum};
use socket2::{Domain, Protocol, Socket, Type};
use std::{io, net::SocketAddrV4, os::fd::AsRawFd, thread, time::Duration};

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

    /// What a burst costs besides receiving it.
    fn besides(self, costs: &Costs) -> f64 {
        match self {
            // Nobody is woken by what is dropped: that receiver naps.
            Self::XdpDrop => costs.burst + costs.nap,
            _ => costs.burst,
        }
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

    /// Checks that all that was sent has come, and that the NIC has counted what it has to.
    fn check(&self, sent: u64, counted: Count, at_nic: Count) -> io::Result<()> {
        if counted != at_nic || self.packets != sent || self.wrong > 0 {
            return Err(io::Error::other(format!(
                "of {at_nic:?} {counted:?} came, and {} were received, {} of them wrong",
                self.packets, self.wrong
            )));
        }
        Ok(())
    }
}

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    ends: Ends,

    /// The NICs do checksums and segmentation: what comes from the other end are GRO packets, which arrive whole
    #[arg(long)]
    offloads: bool,

    /// Modes, if not all
    #[arg(long, value_delimiter = ',')]
    modes: Vec<Mode>,

    /// Bytes of payload
    #[arg(long, value_delimiter = ',', default_value = "64,512,1400")]
    payloads: Vec<usize>,

    #[command(flatten)]
    policy: Policy,
}

/// What is common to all rows.
struct Bench<'o> {
    options: &'o Options,
    bursts: Bursts<'o>,
    clock: Clock,
    kernel: String,
}

/// What the runs of a row have shown.
struct Runs {
    /// Instructions per packet, the mean of the last two, which agree.
    mean: f64,
    /// Instructions per packet, of each.
    each: Vec<f64>,
    /// How often the receiver slept.
    sleeps: u64,
    /// What has come, with the packets before the runs.
    tally: Tally,
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let bench = Bench {
        bursts: Bursts::new(&options.ends, options.offloads)?,
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
        let costs = bench
            .bursts
            .costs(&bench.clock, bench.bursts.traffic(payload))?;
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
    /// Waits until so many answers have left by the NIC, which counts them some time after.
    fn have_left(&self, before: Count, answers: u64) -> io::Result<()> {
        let mut left = 0;
        for _ in 0..100 {
            left = self.bursts.nic.sent()?.since(before).packets;
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
        let near = SocketAddrV4::new(self.options.ends.local, TO_PORT);
        let far = (self.options.ends.peers == Peers::One)
            .then(|| SocketAddrV4::new(self.options.ends.far, FROM_PORT));
        let seen = self.options.policy.count()?;
        let (before, sent_before) = (self.bursts.nic.received()?, self.bursts.nic.sent()?);
        let mut receiver = mode.open(self.bursts.nic.index(), near, far, payload)?;
        let runs = self.runs(&mut *receiver, payload, mode.besides(costs))?;
        let warm_up = (WARM_UP * BURST) as u64;
        let sent = (runs.each.len() * BURSTS * BURST) as u64;
        let datagrams = warm_up + sent;
        let counted = self.bursts.nic.received()?.since(before);
        let at_nic = self.at_nic(datagrams, payload);
        runs.tally.check(datagrams, counted, at_nic)?;
        let answers = if mode.serves() { datagrams } else { 0 };
        receiver.finish()?;
        // Virtio-net doesn't count what it sends without a copy.
        let counted_answers = match mode {
            Mode::ServeAfXdpZeroCopy => 0,
            _ => answers,
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
            datagrams: datagrams + answers,
        };
        Ok(Row {
            mode: name(mode),
            direction: if mode.serves() { "serve" } else { "recv" }.to_owned(),
            offloads: self.options.offloads,
            payload,
            policy: self.options.policy.name.clone(),
            policy_holds: self.options.policy.holds(policy_packets, &packets)?,
            flows: 1,
            peers: self.options.ends.peers.count().into(),
            batch: BURST,
            insn_per_packet: Some(runs.mean),
            runs: runs.each,
            wakeups_per_packet: runs.sleeps as f64 / sent as f64,
            warm_up,
            sent,
            delivered: Some(sent),
            nic_packets: counted.packets * sent / datagrams,
            nic_bytes: counted.bytes * sent / datagrams,
            policy_packets,
            handed: packets.handed,
            kernel: self.kernel.clone(),
            ..Row::default()
        })
    }

    /// Has bursts received, in runs until two agree; `besides` is what each burst costs besides that.
    fn runs(&self, receiver: &mut dyn Receiver, payload: usize, besides: f64) -> io::Result<Runs> {
        let mut traffic = self.bursts.traffic(payload);
        let mut ring = self.bursts.sender(&traffic)?;
        let mut tally = Tally::new(payload);
        let mut receive = |count: usize| {
            for _ in 0..count {
                ring.send(&mut traffic, BURST)?;
                let expected = tally.packets + BURST as u64;
                while tally.packets < expected {
                    receiver.receive(&mut tally)?;
                }
            }
            io::Result::Ok(())
        };
        receive(WARM_UP)?;
        let mut each = Vec::new();
        let slept = sleeps();
        // Now and then the kernel has something else to do in between; all runs are shown.
        while each.len() < 2 || (agreed(&each[each.len() - 2..]).is_none() && each.len() < RUNS_MAX)
        {
            let start = self.clock.start();
            receive(BURSTS)?;
            let burst = self.clock.since(start) / BURSTS as f64;
            each.push((burst - besides) / BURST as f64);
        }
        let sleeps = sleeps() - slept;
        Ok(Runs {
            mean: mean_of_last(&each, "a packet")?,
            each,
            sleeps,
            tally,
        })
    }

    /// What the NIC counts of so many datagrams.
    fn at_nic(&self, datagrams: u64, payload: usize) -> Count {
        let packets = match self.options.offloads {
            false => datagrams,
            true => datagrams / BURST as u64 * gso_packets_of(BURST, payload) as u64,
        };
        Count {
            packets,
            bytes: packets * HEADERS as u64 + datagrams * payload as u64,
        }
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
