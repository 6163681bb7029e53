// SPDX-License-Identifier: GPL-2.0

//! `kopi-gen flood` and `kopi-gen sink`: traffic without acknowledgements.

use crate::{
    datagram::{self, Header},
    endpoint::{self, errors_to_json, Place},
    Sizes, SocketOptions,
};
use kopi_programs::stop_on_signals;
use std::{
    io::{self, Write},
    net::SocketAddr,
    process::ExitCode,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// What to send.
#[derive(clap::Args, Debug)]
pub(crate) struct FloodOptions {
    /// Where to
    address: SocketAddr,

    /// End after this many datagrams
    #[arg(long, short = 'n', value_name = "N")]
    count: Option<u32>,

    /// End after this many seconds
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,

    /// Bytes of each: a number, or MIN..MAX for a random one of these (both included)
    #[arg(long, value_name = "BYTES", default_value = "64")]
    size: Sizes,

    /// Datagrams between two doorbells
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,

    #[command(flatten)]
    socket: SocketOptions,
}

/// What to receive.
#[derive(clap::Args, Debug)]
pub(crate) struct SinkOptions {
    /// Address and port to listen on; with --flows the first of that number of ports
    #[arg(long, short, value_name = "ADDR:PORT")]
    bind: SocketAddr,

    /// End after this many datagrams
    #[arg(long, short = 'n', value_name = "N")]
    count: Option<u64>,

    /// End after this many seconds without a datagram
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,

    #[command(flatten)]
    socket: SocketOptions,
}

fn duration(seconds: f64) -> io::Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

pub(crate) fn flood(options: &FloodOptions) -> io::Result<ExitCode> {
    let stop = stop_on_signals()?;
    let limit = options.seconds.map(duration).transpose()?;
    let mut endpoint = endpoint::open(&options.socket, Place::Connected(options.address, 1))?;
    let count = options.count.unwrap_or(u32::MAX);
    let mut data = vec![];
    let (mut sent, mut bytes) = (0u32, 0u64);
    let start = Instant::now();
    while sent < count && !stop.load(Ordering::Relaxed) {
        if limit.is_some_and(|limit| start.elapsed() >= limit) {
            break;
        }
        for _ in 0..options.batch.min(count - sent) {
            let flow = sent % options.socket.flows;
            let header = Header {
                seed: 1,
                sequence: sent,
                total: count,
                sizes: options.size,
                flow,
                port: options.address.port(),
            };
            datagram::make(&header, &mut data);
            endpoint.send(flow as usize, None, &data)?;
            sent += 1;
            bytes += data.len() as u64;
        }
        endpoint.flush()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let errors: u64 = endpoint.errors().values().sum();
    writeln!(
        io::stdout(),
        "{{\"sent\": {}, \"bytes\": {bytes}, \"seconds\": {seconds:.3}, \"errors\": {}}}",
        u64::from(sent).saturating_sub(errors),
        errors_to_json(endpoint.errors()),
    )?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn sink(options: &SinkOptions) -> io::Result<ExitCode> {
    let stop = stop_on_signals()?;
    let patience = options.timeout.map(duration).transpose()?;
    let mut endpoint = endpoint::open(&options.socket, Place::Bound(options.bind))?;
    writeln!(io::stdout(), "listening on {}", endpoint.local(0)?)?;
    io::stdout().flush()?;
    let count = options.count.unwrap_or(u64::MAX);
    let (mut received, mut bytes) = (0, 0u64);
    let mut last = Instant::now();
    let mut first = None;
    while received < count && !stop.load(Ordering::Relaxed) {
        let count = endpoint.receive(Duration::from_millis(100), &mut |arrival| {
            bytes += arrival.data.len() as u64;
        })?;
        received += count as u64;
        if count > 0 {
            last = Instant::now();
            first.get_or_insert(last);
        } else if patience.is_some_and(|patience| last.elapsed() > patience) {
            break;
        }
    }
    let seconds = first.map_or(0.0, |first| (last - first).as_secs_f64());
    writeln!(
        io::stdout(),
        "{{\"received\": {received}, \"bytes\": {bytes}, \"seconds\": {seconds:.3}}}"
    )?;
    Ok(ExitCode::SUCCESS)
}
