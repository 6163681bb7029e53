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

/// Datagrams on their way at a time, not acknowledged yet.
const WINDOW: usize = 32;

/// Bytes on their way at a time; one datagram always may be.
const WINDOW_BYTES: usize = 65536;

/// Time without an acknowledgement after which datagrams count as lost.
const STALL: Duration = Duration::from_secs(3);

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

    /// Ports, from ADDRESS's on, to which the flows are connected in turn
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    ports: u32,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    socket: SocketOptions,
}

pub(crate) fn run(options: &Options) -> io::Result<ExitCode> {
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
        } else if progress.elapsed() > STALL {
            state.write_off();
            progress = Instant::now();
        }
    }

    let seconds = start.elapsed().as_secs_f64();
    let is_good = state.report(options, endpoint.errors(), seconds)?;
    Ok(ExitCode::from(u8::from(!is_good)))
}

/// What is on its way.
#[derive(Default)]
struct State {
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
        let mut data = vec![];
        while self.sent < options.count && self.may_send(options) {
            let flow = self.sent % options.socket.flows;
            let port = next_port(options.address, (flow % options.ports) as usize)?.port();
            let header = Header {
                seed: options.seed,
                sequence: self.sent,
                total: options.count,
                sizes: options.size,
                flow,
                port,
            };
            datagram::make(&header, &mut data);
            self.add(data.len());
            endpoint.send(flow as usize, None, &data)?;
        }
        endpoint.flush()
    }

    fn done(&self) -> u32 {
        self.acked.saturating_add(self.lost)
    }

    fn may_send(&self, options: &Options) -> bool {
        let next = options.size.of(options.seed, self.sent);
        self.flying.is_empty()
            || (self.flying.len() < WINDOW && self.flying_bytes + next <= WINDOW_BYTES)
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
