// SPDX-License-Identifier: GPL-2.0

//! Measures round trips: of one datagram at a time, to a thread in another namespace that sends back
//! what comes, by an ordinary UDP socket; or to the same thread, which polls both ends in turn, of one kind.

mod ends;

use self::ends::{End, Library, Rings, Udp};
use crate::{
    clock::Clock,
    measure::name,
    meter::{kernel, sleeps},
    nic::{within, Count, Nic},
    row::{agreed, mean_of_last, Row},
    traffic::{FROM_PORT, HEADERS, TO_PORT},
};
use clap::{Args, ValueEnum};
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// How often a row is run until two runs after each other agree.
const RUNS_MAX: usize = 4;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Where both ends are this thread's, the port of the one that answers.
const BOTH_PORT: u16 = TO_PORT + 1;
/// Within how long who polls begins to look, which is more than one look takes.
const PHASE_NS: u64 = 16_384;

/// A way to send a datagram and get the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Mode {
    /// send(2) and recv(2), which sleeps
    Udp,
    /// As that, with SO_BUSY_POLL
    UdpBusyPoll,
    /// As that, with MSG_DONTWAIT until there is something
    UdpSpin,
    /// KOPI's rings: a doorbell, and a sleep
    Kopi,
    /// The kopi crate's UdpSocket, whose recv() sleeps
    KopiSocket,
    /// KOPI's rings: a doorbell, and a look at the RX ring until there is something
    KopiSpin,
    /// As `udp_busy_poll`, at both ends
    UdpBusyPollBoth,
    /// As `udp_spin`, at both ends
    UdpSpinBoth,
    /// As `kopi_spin`, at both ends
    KopiSpinBoth,
    /// As that, by devices that are attached
    KopiDirectBoth,
    /// As `kopi_socket`, by devices that are attached
    KopiDirectSocket,
}

#[derive(Args)]
pub(crate) struct Options {
    /// The device to send by
    #[arg(long)]
    nic: String,

    /// Its address
    #[arg(long)]
    local: Ipv4Addr,

    /// The network namespace of the device at the other end, as a file
    #[arg(long)]
    far_netns: PathBuf,

    /// Its address
    #[arg(long)]
    far: Ipv4Addr,

    /// Modes, if not all
    #[arg(long, value_delimiter = ',')]
    modes: Vec<Mode>,

    /// Bytes of payload
    #[arg(long, value_delimiter = ',', default_value = "64")]
    payloads: Vec<usize>,

    /// Round trips of each run
    #[arg(long, default_value_t = 256)]
    trips: usize,
}

/// What is common to all rows.
struct Bench<'o> {
    options: &'o Options,
    nic: Nic,
    clock: Clock,
    kernel: String,
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let echo = within(&options.far_netns, || {
        UdpSocket::bind((options.far, TO_PORT))
    })?;
    thread::spawn(move || answer(&echo));
    let bench = Bench {
        options,
        nic: Nic::open(&options.nic)?,
        clock: Clock::new()?,
        kernel: kernel()?,
    };
    let modes: Vec<Mode> = match &options.modes[..] {
        [] => {
            let all = Mode::value_variants().iter().copied();
            all.filter(|mode| !mode.is_direct()).collect()
        }
        modes => modes.to_vec(),
    };
    let mut all_right = true;
    for &payload in &options.payloads {
        for &mode in &modes {
            match bench.row(mode, payload) {
                Ok(row) => println!("{}", serde_json::to_string(&row)?),
                Err(error) => {
                    all_right = false;
                    eprintln!("not ok: {}, {payload} bytes: {error}", name(mode));
                }
            }
        }
    }
    Ok(all_right)
}

/// Sends back what comes, for ever, before all others: so a client that polls doesn't hold it up.
fn answer(socket: &UdpSocket) {
    // SAFETY: Zeroes are a valid `sched_param`, with a priority besides.
    let status = unsafe {
        let mut param: libc::sched_param = std::mem::zeroed();
        param.sched_priority = 1;
        libc::sched_setscheduler(0, libc::SCHED_FIFO, &param)
    };
    assert_eq!(status, 0, "no SCHED_FIFO: {}", io::Error::last_os_error());
    let mut buffer = [0; 65536];
    loop {
        let echoed = socket
            .recv_from(&mut buffer)
            .and_then(|(len, peer)| socket.send_to(&buffer[..len], peer));
        if let Err(error) = echoed {
            eprintln!("# the answering side: {error}");
        }
    }
}

/// Tries until it is done.
fn patiently(mut is_done: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_done()? {
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}

/// Has who polls begin to look another time after each packet: with one clock for all, packets would
/// come at the same point of its loop each time, be it just before it looks or just after.
struct Phase(u32);

impl Phase {
    /// Spins while the packet is still on its way.
    fn shift(&mut self) {
        let start = Instant::now();
        // Evenly spread, by the golden ratio.
        self.0 = self.0.wrapping_add(0x9e37_79b9);
        let time = (u64::from(self.0) * PHASE_NS) >> 32;
        while start.elapsed() < Duration::from_nanos(time) {}
    }
}

/// The end of which trips are measured, and the other one if this thread has that, too.
struct Ends {
    near: Box<dyn End>,
    far: Option<Box<dyn End>>,
    /// If they poll.
    phase: Option<Phase>,
}

impl Ends {
    fn trip(&mut self, payload: &[u8]) -> io::Result<()> {
        self.near.send(payload)?;
        self.phase.iter_mut().for_each(Phase::shift);
        patiently(|| {
            if let Some(far) = &mut self.far {
                if far.receive(payload)? {
                    far.send(payload)?;
                    self.phase.iter_mut().for_each(Phase::shift);
                }
            }
            self.near.receive(payload)
        })
    }
}

impl Mode {
    /// Whether this thread has both ends.
    fn is_both(self) -> bool {
        matches!(
            self,
            Self::UdpBusyPollBoth | Self::UdpSpinBoth | Self::KopiSpinBoth | Self::KopiDirectBoth
        )
    }

    /// Whether it sleeps until the answer is there.
    fn sleeps(self) -> bool {
        matches!(
            self,
            Self::Udp | Self::Kopi | Self::KopiSocket | Self::KopiDirectSocket
        )
    }

    /// Whether its devices are attached.
    fn is_direct(self) -> bool {
        matches!(self, Self::KopiDirectBoth | Self::KopiDirectSocket)
    }

    fn end(
        self,
        own: SocketAddrV4,
        other: SocketAddrV4,
        payload: usize,
    ) -> io::Result<Box<dyn End>> {
        Ok(match self {
            Self::Kopi | Self::KopiSpin | Self::KopiSpinBoth | Self::KopiDirectBoth => {
                Box::new(Rings::open(own, other, self)?)
            }
            Self::KopiSocket | Self::KopiDirectSocket => {
                Box::new(Library::open(own, other, payload)?)
            }
            Self::Udp
            | Self::UdpBusyPoll
            | Self::UdpSpin
            | Self::UdpBusyPollBoth
            | Self::UdpSpinBoth => Box::new(Udp::open(own, other, self, payload)?),
        })
    }

    fn open(self, options: &Options, payload: usize) -> io::Result<Ends> {
        let port = match self.is_both() {
            true => BOTH_PORT,
            false => TO_PORT,
        };
        let near = SocketAddrV4::new(options.local, FROM_PORT);
        let far = SocketAddrV4::new(options.far, port);
        let answering = || within(&options.far_netns, || self.end(far, near, payload));
        Ok(Ends {
            near: self.end(near, far, payload)?,
            far: self.is_both().then(answering).transpose()?,
            phase: (!self.sleeps()).then_some(Phase(0)),
        })
    }
}

impl Bench<'_> {
    fn row(&self, mode: Mode, payload: usize) -> io::Result<Row> {
        let mut ends = mode.open(self.options, payload)?;
        let trips = self.options.trips;
        let mut data: Vec<u8> = (0..payload).map(|at| at as u8).collect();
        let mut number = 0u64;
        let mut times = Vec::new();
        let mut run = |count: usize| {
            times.clear();
            for _ in 0..count {
                data[..8].copy_from_slice(&number.to_be_bytes());
                number += 1;
                let start = Instant::now();
                ends.trip(&data)?;
                times.push(start.elapsed().as_nanos() as u64);
            }
            times.sort_unstable();
            io::Result::Ok((percentile(&times, 50), percentile(&times, 99)))
        };
        let before = self.nic.sent()?;
        let warm_up = trips / 4;
        run(warm_up)?;
        let mut runs: Vec<f64> = Vec::new();
        let mut latency = (0, 0);
        let slept = sleeps();
        // Now and then the kernel has something else to do in between; all runs are shown.
        while runs.len() < 2 || (agreed(&runs[runs.len() - 2..]).is_none() && runs.len() < RUNS_MAX)
        {
            let start = self.clock.start();
            latency = run(trips)?;
            runs.push(self.clock.since(start) / trips as f64);
        }
        let sleeps = sleeps() - slept;
        let mean = mean_of_last(&runs, "a round trip")?;
        let sent = (runs.len() * trips) as u64;
        self.have_left(before, sent + warm_up as u64, payload)?;
        Ok(Row {
            mode: name(mode),
            direction: "rtt".to_owned(),
            payload,
            policy: "none".to_owned(),
            flows: 1,
            peers: 1,
            batch: 1,
            insn_per_packet: Some(mean),
            runs,
            median_ns: Some(latency.0),
            p99_ns: Some(latency.1),
            wakeups_per_packet: sleeps as f64 / sent as f64,
            warm_up: warm_up as u64,
            sent,
            delivered: Some(sent),
            nic_packets: sent,
            nic_bytes: sent * (HEADERS + payload) as u64,
            kernel: self.kernel.clone(),
            ..Row::default()
        })
    }

    /// Checks that the NIC has sent so many packets since `before`, and nothing else.
    fn have_left(&self, before: Count, packets: u64, payload: usize) -> io::Result<()> {
        let left = self.nic.sent()?.since(before);
        let expected = Count {
            packets,
            bytes: packets * (HEADERS + payload) as u64,
        };
        if left != expected {
            return Err(io::Error::other(format!(
                "of {expected:?} the NIC sent {left:?}"
            )));
        }
        Ok(())
    }
}

/// A percentile of sorted times.
fn percentile(times: &[u64], hundredths: usize) -> u64 {
    let at = (times.len() * hundredths).div_ceil(100).max(1) - 1;
    times.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_times() {
        let times: Vec<u64> = (1..=200).collect();
        assert_eq!(percentile(&times, 50), 100);
        assert_eq!(percentile(&times, 99), 198);
        assert_eq!(percentile(&[7], 50), 7);
        assert_eq!(percentile(&[7], 99), 7);
        assert_eq!(percentile(&[], 99), 0);
    }
}
