// SPDX-License-Identifier: GPL-2.0

//! A netcat for UDP, through rings.

use clap::Parser;
use kopi::{Flow, UdpSocket};
use kopi_programs::{complain, finish, resolve, Context};
use std::{
    io::{self, BufRead, Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    process::ExitCode,
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        Arc, Condvar, Mutex, PoisonError,
    },
    thread,
    time::{Duration, Instant},
};

/// The most payload that a datagram has over IPv4.
const DATAGRAM_MAX: usize = 65507;

/// Sends standard input as UDP datagrams and prints those that come, through mapped rings.
#[derive(Parser)]
#[command(
    name = "kopi-nc",
    version,
    after_help = "Examples:
  kopi-nc -l 7777                            # print what comes to port 7777
  echo hello | kopi-nc -w 1 192.0.2.1 7777   # send a line, wait a second for answers
  kopi-nc -n 1 192.0.2.1 7777 <<< hello      # send a line, wait for one answer
  kopi-nc --whole 2001:db8::1 9 < picture    # all of a file as one datagram

A listener answers the peer whose datagram came last, unless that came from port 0,
to which nothing can be sent. Exit status: 0 at the end,
1 if fewer datagrams than -n came before the time of -w was over, 2 after an
error (one that the peer's host reported, too)."
)]
struct Options {
    /// Wait for datagrams instead of sending first
    #[arg(short, long)]
    listen: bool,

    /// Use IPv6
    #[arg(short = '6')]
    ipv6: bool,

    /// Use IPv4
    #[arg(short = '4', conflicts_with = "ipv6")]
    ipv4: bool,

    /// Accepted and ignored: there is nothing but UDP
    #[arg(short = 'u', hide_short_help = true)]
    udp: bool,

    /// End after this many seconds without traffic; without -l, not before standard input has ended
    #[arg(short, long = "wait", value_name = "SECONDS")]
    wait: Option<f64>,

    /// End after receiving this many datagrams
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,

    /// Send from this port
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = 0)]
    source_port: u16,

    /// Send from this address
    #[arg(short = 's', long, value_name = "ADDR")]
    source: Option<std::net::IpAddr>,

    /// Send pieces of this many bytes, not lines
    #[arg(short, long, value_name = "BYTES", conflicts_with = "whole")]
    chunk: Option<usize>,

    /// Send all of standard input as one datagram
    #[arg(long)]
    whole: bool,

    /// Don't read standard input
    #[arg(short = 'd', long)]
    no_input: bool,

    /// Say on standard error what happens
    #[arg(short, long)]
    verbose: bool,

    /// Address, not needed with -l, and port
    #[arg(value_name = "[ADDR] PORT", required = true, num_args = 1..=2)]
    target: Vec<String>,
}

/// What both threads know.
struct Shared {
    socket: UdpSocket,
    /// Where to send to.
    peer: Mutex<Option<SocketAddr>>,
    peer_known: Condvar,
    start: Instant,
    /// When something was last sent or received, in milliseconds since the start.
    active: AtomicU64,
    input_ended: AtomicBool,
}

impl Shared {
    fn touch(&self) {
        let now = self.start.elapsed().as_millis() as u64;
        self.active.store(now, Ordering::Relaxed);
    }

    fn idle(&self) -> Duration {
        let active = Duration::from_millis(self.active.load(Ordering::Relaxed));
        self.start.elapsed().saturating_sub(active)
    }

    /// The peer, once there is one.
    fn wait_for_peer(&self) -> SocketAddr {
        let mut peer = self.peer.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(peer) = *peer {
                return peer;
            }
            peer = self
                .peer_known
                .wait(peer)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    finish("kopi-nc", run(options))
}

fn open(options: &Options) -> io::Result<(UdpSocket, Option<SocketAddr>)> {
    let (host, port) = match options.target.as_slice() {
        [host, port] => (Some(host.as_str()), port),
        [port] => (None, port),
        _ => unreachable!("clap counts them"),
    };
    let port: u16 = port
        .parse()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("no port: {port}")))?;
    let family = if options.ipv6 {
        Some(true)
    } else if options.ipv4 {
        Some(false)
    } else {
        None
    };
    let any = |ipv6: bool, port: u16| -> SocketAddr {
        if ipv6 {
            (Ipv6Addr::UNSPECIFIED, port).into()
        } else {
            (Ipv4Addr::UNSPECIFIED, port).into()
        }
    };
    if options.listen {
        let local = match host {
            Some(host) => resolve(host, port, family)?,
            None => any(options.ipv6, port),
        };
        return Ok((UdpSocket::bind(local).context(local)?, None));
    }
    let Some(host) = host else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "whereto? kopi-nc ADDR PORT, or -l to listen",
        ));
    };
    let peer = resolve(host, port, family)?;
    let local = match options.source {
        Some(address) => (address, options.source_port).into(),
        None => any(peer.is_ipv6(), options.source_port),
    };
    let flow = Flow::bind(local).context(local)?;
    flow.connect(peer).context(peer)?;
    Ok((UdpSocket::with_flow(flow)?, Some(peer)))
}

fn run(options: Options) -> io::Result<ExitCode> {
    let (socket, peer) = open(&options)?;
    if options.verbose {
        let mut err = io::stderr();
        match peer {
            Some(peer) => writeln!(err, "connected {} to {peer}", socket.local_addr()?)?,
            None => writeln!(err, "listening on {}", socket.local_addr()?)?,
        }
    }
    let shared = Arc::new(Shared {
        socket,
        peer: Mutex::new(peer),
        peer_known: Condvar::new(),
        start: Instant::now(),
        active: AtomicU64::new(0),
        input_ended: AtomicBool::new(options.no_input),
    });
    let wait = match options.wait {
        Some(wait) => Some(Duration::try_from_secs_f64(wait).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("-w {wait}: {error}"))
        })?),
        None => None,
    };
    let receiver = Receiver {
        listen: options.listen,
        verbose: options.verbose,
        count: options.count,
        wait,
    };

    if !options.no_input {
        let shared = shared.clone();
        thread::spawn(move || {
            let sent = send_input(&options, &shared);
            shared.touch();
            shared.input_ended.store(true, Ordering::Relaxed);
            if let Err(error) = sent {
                complain("kopi-nc", error);
                std::process::exit(2);
            }
        });
    }
    receiver.run(&shared)
}

/// Sends standard input as the options say.
fn send_input(options: &Options, shared: &Shared) -> io::Result<()> {
    let mut input = io::stdin().lock();
    if options.whole {
        let mut data = vec![];
        input.read_to_end(&mut data)?;
        return send(shared, &data);
    }
    let chunk = options.chunk.unwrap_or(DATAGRAM_MAX) as u64;
    let mut data = vec![];
    loop {
        data.clear();
        let mut part = (&mut input).take(chunk);
        let len = if options.chunk.is_some() {
            part.read_to_end(&mut data)?
        } else {
            part.read_until(b'\n', &mut data)?
        };
        if len == 0 {
            return Ok(());
        }
        send(shared, &data)?;
    }
}

fn send(shared: &Shared, data: &[u8]) -> io::Result<()> {
    let peer = shared.wait_for_peer();
    if shared.socket.peer_addr().is_ok() {
        shared.socket.send(data).context(peer)?;
    } else {
        shared.socket.send_to(data, peer).context(peer)?;
    }
    shared.touch();
    Ok(())
}

struct Receiver {
    listen: bool,
    verbose: bool,
    count: Option<u64>,
    wait: Option<Duration>,
}

impl Receiver {
    /// Prints what comes.
    fn run(&self, shared: &Shared) -> io::Result<ExitCode> {
        let mut buffer = vec![0; 65536];
        let mut received = 0;
        if self.wait.is_some() {
            let tick = Duration::from_millis(20);
            shared.socket.set_read_timeout(Some(tick))?;
        }
        while self.count.is_none_or(|count| received < count) {
            match shared.socket.recv_from(&mut buffer) {
                Ok((len, from)) => {
                    received += 1;
                    shared.touch();
                    if self.verbose {
                        writeln!(io::stderr(), "{len} bytes from {from}")?;
                    }
                    // Nothing can be sent to port 0.
                    if self.listen && from.port() != 0 {
                        *shared.peer.lock().unwrap_or_else(PoisonError::into_inner) = Some(from);
                        shared.peer_known.notify_all();
                    }
                    let mut out = io::stdout().lock();
                    out.write_all(&buffer[..len])?;
                    out.flush()?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let ended = self.listen || shared.input_ended.load(Ordering::Relaxed);
                    if ended && self.wait.is_some_and(|wait| shared.idle() >= wait) {
                        let enough = self.count.is_none();
                        return Ok(ExitCode::from(u8::from(!enough)));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
