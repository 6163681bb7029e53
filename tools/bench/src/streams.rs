// SPDX-License-Identifier: GPL-2.0

//! What TCP costs by ordinary sockets and by KOPI's flows: both ends are this thread's, on the loopback device, so
//! that what one sends is there for the other when the call returns.

use crate::{
    clock::Clock,
    measure::name,
    meter::{kernel, sleeps},
    row::{agreed, Row},
};
use clap::{Args, ValueEnum};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddrV4},
};

/// How often a row is run until two runs after each other agree.
const RUNS_MAX: usize = 6;
/// Of each end's connection.
const BACKLOG: i32 = 16;

/// Whose sockets both ends are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Mode {
    /// AF_INET
    Tcp,
    /// AF_KOPI
    KopiTcp,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// 64 bytes there, and 64 back.
    RoundTrips,
    /// 16 kB there.
    Bulk,
    /// A connection made, accepted and closed by both.
    Connections,
}

impl Work {
    const ALL: [Self; 3] = [Self::RoundTrips, Self::Bulk, Self::Connections];

    /// What a table calls it.
    fn direction(self) -> &'static str {
        match self {
            Self::RoundTrips => "TCP round trips",
            Self::Bulk => "TCP in bulk",
            Self::Connections => "TCP connections",
        }
    }

    /// Bytes at once.
    fn payload(self) -> usize {
        match self {
            Self::RoundTrips => 64,
            Self::Bulk => 16384,
            Self::Connections => 0,
        }
    }
}

#[derive(Args)]
pub(crate) struct Options {
    /// What is installed
    #[arg(long, default_value = "none")]
    policy: String,

    /// Modes, if not all
    #[arg(long, value_delimiter = ',')]
    modes: Vec<Mode>,

    /// Round trips, writes or connections of each run
    #[arg(long, default_value_t = 1024)]
    count: u32,
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let clock = Clock::new()?;
    let kernel = kernel()?;
    let modes = match &options.modes[..] {
        [] => Mode::value_variants(),
        modes => modes,
    };
    let mut all_right = true;
    for work in Work::ALL {
        for &mode in modes {
            match row(options, &clock, mode, work) {
                Ok(row) => println!(
                    "{}",
                    serde_json::to_string(&Row {
                        kernel: kernel.clone(),
                        ..row
                    })?
                ),
                Err(error) => {
                    all_right = false;
                    eprintln!("not ok: {}, {}: {error}", work.direction(), name(mode));
                }
            }
        }
    }
    Ok(all_right)
}

/// Counts one mode's work, until two runs agree.
fn row(options: &Options, clock: &Clock, mode: Mode, work: Work) -> io::Result<Row> {
    let mut ends = Ends::open(mode, work.payload())?;
    let warm_up = options.count / 4;
    ends.run(work, warm_up)?;
    let mut runs = Vec::new();
    let slept = sleeps();
    let mean = loop {
        let start = clock.start();
        ends.run(work, options.count)?;
        runs.push(clock.since(start) / f64::from(options.count));
        match runs.last_chunk::<2>().and_then(|last| agreed(last)) {
            Some(mean) => break mean,
            None if runs.len() == RUNS_MAX => {
                return Err(io::Error::other(format!(
                    "its runs don't agree: {runs:?} instructions"
                )));
            }
            None => {}
        }
    };
    let sent = runs.len() as u64 * u64::from(options.count);
    Ok(Row {
        mode: name(mode),
        direction: work.direction().to_owned(),
        payload: work.payload(),
        policy: options.policy.clone(),
        flows: 1,
        peers: 1,
        batch: 1,
        insn_per_packet: Some(mean),
        runs,
        wakeups_per_packet: (sleeps() - slept) as f64 / sent as f64,
        warm_up: warm_up.into(),
        sent,
        ..Row::default()
    })
}

/// A listener, and both ends of one of its connections.
struct Ends {
    mode: Mode,
    listener: Socket,
    address: SocketAddrV4,
    near: Socket,
    far: Socket,
    buffer: Vec<u8>,
}

impl Ends {
    fn open(mode: Mode, payload: usize) -> io::Result<Self> {
        let listener = socket(mode)?;
        listener.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into())?;
        listener.listen(BACKLOG)?;
        let address = listener.local_addr()?.as_socket_ipv4();
        let address = address.ok_or_else(|| io::Error::other("no address of IPv4"))?;
        let (near, far) = connected(mode, &listener, address)?;
        near.set_tcp_nodelay(true)?;
        far.set_tcp_nodelay(true)?;
        let buffer = vec![0x5a; payload];
        Ok(Self {
            mode,
            listener,
            address,
            near,
            far,
            buffer,
        })
    }

    /// Does some work a number of times.
    fn run(&mut self, work: Work, count: u32) -> io::Result<()> {
        for _ in 0..count {
            match work {
                Work::RoundTrips => {
                    self.near.write_all(&self.buffer)?;
                    self.far.read_exact(&mut self.buffer)?;
                    self.far.write_all(&self.buffer)?;
                    self.near.read_exact(&mut self.buffer)?;
                }
                Work::Bulk => {
                    self.near.write_all(&self.buffer)?;
                    self.far.read_exact(&mut self.buffer)?;
                }
                Work::Connections => drop(connected(self.mode, &self.listener, self.address)?),
            }
        }
        Ok(())
    }
}

fn socket(mode: Mode) -> io::Result<Socket> {
    let domain = match mode {
        Mode::Tcp => Domain::IPV4,
        Mode::KopiTcp => Domain::from(kopi::family()?),
    };
    Socket::new(domain, Type::STREAM, Some(Protocol::TCP))
}

/// Both ends of a new connection.
fn connected(mode: Mode, listener: &Socket, to: SocketAddrV4) -> io::Result<(Socket, Socket)> {
    let near = socket(mode)?;
    near.connect(&to.into())?;
    Ok((near, listener.accept()?.0))
}
