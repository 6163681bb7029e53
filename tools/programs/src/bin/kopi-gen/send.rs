// SPDX-License-Identifier: GPL-2.0

//! `kopi-gen send`.

use crate::{
    datagram::{self, Ack, Header},
    endpoint::{self, errors_to_json, Endpoint, Errors, Place},
    Sizes, SocketOptions,
};
use kopi_programs::next_port;
use std::{
    collections::VecDeque,
    io::{self, Write},
    net::SocketAddr,
    process::ExitCode,
    time::{Duration, Instant},
};

/// What to send.
///
/// Nothing is sent twice: what is lost is reported as lost.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Where a `kopi-gen recv` listens
    address: SocketAddr,

    /// Number of datagrams
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1000)]
    count: u32,

    /// Bytes of each: a number, or MIN..MAX for a random one of these (both included)
    #[arg(long, value_name = "BYTES", default_value = "64..1400")]
    size: Sizes,

    /// What the random contents and sizes start from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Datagrams on their way at a time, not acknowledged yet
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    window: u32,

    /// Bytes on their way at a time; one datagram always may be
    #[arg(long, value_name = "BYTES", default_value_t = 65536)]
    window_bytes: usize,

    /// Send this many datagrams of a fixed size at once, as one GSO packet (needs --offloads, or --plain)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..64))]
    gso: u32,

    /// Ports, from ADDRESS's on, to which the flows are connected in turn
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    ports: u32,

    /// Seconds without an acknowledgement after which datagrams count as lost
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    stall: u64,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    socket: SocketOptions,
}

impl Options {
    /// Refuses what doesn't go together.
    fn check(&self) -> io::Result<()> {
        if self.gso <= 1 {
            return Ok(());
        }
        let size = u32::from(self.size.max);
        if self.size.min != self.size.max || size == 0 {
            return Err(invalid("--gso needs one --size, and not 0"));
        }
        if self.gso * size > datagram::LEN_MAX {
            return Err(invalid("--gso times --size is more than 65507 bytes"));
        }
        if !self.socket.plain && !self.socket.offloads {
            return Err(invalid("--gso needs --offloads"));
        }
        Ok(())
    }
}

pub(crate) fn run(options: &Options) -> io::Result<ExitCode> {
    options.check()?;
    let place = Place::Connected(options.address, options.ports);
    let mut endpoint = endpoint::open(&options.socket, place)?;
    let start = Instant::now();
    let mut state = State::default();
    let mut progress = Instant::now();
    while state.sent < options.count || state.done() < options.count {
        state.send_window(options, &mut *endpoint)?;
        let before = state.acked;
        endpoint.receive(
            Duration::from_millis(50),
            &mut |arrival| match Ack::from_bytes(arrival.data) {
                Some(ack) => {
                    if ack.flow.is_some_and(|flow| flow as usize != arrival.flow) {
                        state.wrong_flow += 1;
                    }
                    state.acknowledge(ack.count);
                }
                None => state.strange += 1,
            },
        )?;
        if state.acked > before {
            progress = Instant::now();
        } else if progress.elapsed() > Duration::from_secs(options.stall) {
            state.write_off();
            progress = Instant::now();
        }
    }

    let seconds = start.elapsed().as_secs_f64();
    let is_good = state.report(options, endpoint.errors(), seconds)?;
    Ok(ExitCode::from(u8::from(!is_good)))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// What is on its way.
#[derive(Default)]
struct State {
    batches: u32,
    sent: u32,
    bytes: u64,
    acked: u32,
    lost: u32,
    /// Sizes of what is neither acknowledged nor lost.
    flying: VecDeque<usize>,
    flying_bytes: usize,
    wrong_flow: u32,
    strange: u32,
}

impl State {
    /// Sends as much as may be on its way.
    fn send_window(&mut self, options: &Options, endpoint: &mut dyn Endpoint) -> io::Result<()> {
        let (mut data, mut gso) = (vec![], vec![]);
        while self.sent < options.count && self.may_send(options) {
            let flow = self.batches % options.socket.flows;
            let port = next_port(options.address, (flow % options.ports) as usize)?.port();
            gso.clear();
            for _ in 0..options.gso.min(options.count - self.sent) {
                let header = Header {
                    seed: options.seed,
                    sequence: self.sent,
                    total: options.count,
                    sizes: options.size,
                    flow,
                    port,
                };
                datagram::make(&header, &mut data);
                gso.extend_from_slice(&data);
                self.add(data.len());
            }
            let segment = (options.gso > 1).then_some(options.size.max);
            endpoint.send(flow as usize, None, &gso, segment)?;
            self.batches = self.batches.wrapping_add(1);
        }
        endpoint.flush()
    }

    fn done(&self) -> u32 {
        self.acked.saturating_add(self.lost)
    }

    fn may_send(&self, options: &Options) -> bool {
        let next = self.next_size(options) * options.gso as usize;
        self.flying.is_empty()
            || (self.flying.len() + options.gso as usize <= options.window as usize
                && self.flying_bytes + next <= options.window_bytes)
    }

    fn next_size(&self, options: &Options) -> usize {
        options.size.of(options.seed, self.sent)
    }

    fn add(&mut self, len: usize) {
        self.sent += 1;
        self.bytes += len as u64;
        self.flying.push_back(len);
        self.flying_bytes += len;
    }

    fn acknowledge(&mut self, count: u32) {
        while self.acked < count && self.acked < self.sent {
            self.acked += 1;
            if let Some(len) = self.flying.pop_front() {
                self.flying_bytes -= len;
            } else {
                // It had been written off.
                self.lost = self.lost.saturating_sub(1);
            }
        }
    }

    fn write_off(&mut self) {
        self.lost += self.flying.len() as u32;
        self.flying.clear();
        self.flying_bytes = 0;
    }

    /// Prints what became of all, and says whether that is how it should be.
    fn report(&self, options: &Options, errors: &Errors, seconds: f64) -> io::Result<bool> {
        let missing = options.count.saturating_sub(self.acked);
        let all_errors: u64 = errors.values().sum();
        if options.json {
            writeln!(
                io::stdout(),
                "{{\"sent\": {}, \"acknowledged\": {}, \"missing\": {missing}, \"wrong_flow\": {}, \
                 \"strange\": {}, \"bytes\": {}, \"seconds\": {seconds:.3}, \"errors\": {}}}",
                self.sent,
                self.acked,
                self.wrong_flow,
                self.strange,
                self.bytes,
                errors_to_json(errors),
            )?;
        } else {
            writeln!(
                io::stdout(),
                "sent {} datagrams, {} bytes in {seconds:.1} s: {} acknowledged, {missing} missing, \
                 {} acknowledgements at the wrong flow, {} strange datagrams, errors {}",
                self.sent,
                self.bytes,
                self.acked,
                self.wrong_flow,
                self.strange,
                errors_to_json(errors),
            )?;
        }
        Ok(missing == 0 && self.wrong_flow == 0 && self.strange == 0 && all_errors == 0)
    }
}
