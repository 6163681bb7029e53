// SPDX-License-Identifier: GPL-2.0

//! `kopi-gen recv`.

use crate::{
    datagram::Ack,
    endpoint::{self, errors_to_json, Errors, Place},
    tally::Tally,
    SocketOptions,
};
use kopi_programs::stop_on_signals;
use std::{
    io::{self, Write},
    net::SocketAddr,
    process::ExitCode,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// What to receive.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Address and port to listen on; with --flows the first of that number of ports
    #[arg(long, short, value_name = "ADDR:PORT")]
    bind: SocketAddr,

    /// Number of datagrams to wait for: those of a sender that sends more count as corrupt
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1000)]
    count: u32,

    /// Give up after this many seconds without a datagram
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    timeout: f64,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    socket: SocketOptions,
}

pub(crate) fn run(options: &Options) -> io::Result<ExitCode> {
    let stop = stop_on_signals()?;
    let patience = Duration::try_from_secs_f64(options.timeout)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let mut endpoint = endpoint::open(&options.socket, Place::Bound(options.bind))?;
    let ports = (0..options.socket.flows as usize)
        .map(|flow| Ok(endpoint.local(flow)?.port()))
        .collect::<io::Result<Vec<u16>>>()?;
    writeln!(io::stdout(), "listening on {}", endpoint.local(0)?)?;
    io::stdout().flush()?;

    let mut tally = Tally::new(options.count);
    let mut last = Instant::now();
    let mut first = None;
    // The receivers of acknowledgements: our flow, the peer, and its flow.
    let mut teller: Option<(usize, SocketAddr, Option<u32>)> = None;
    while tally.received < options.count && !stop.load(Ordering::Relaxed) {
        let count = endpoint.receive(Duration::from_millis(200), &mut |arrival| {
            let port = ports.get(arrival.flow).copied().unwrap_or(0);
            let flow = tally.take(arrival.data, port);
            teller = Some((arrival.flow, arrival.from, flow));
        })?;
        if count > 0 {
            last = Instant::now();
            first.get_or_insert(last);
        } else if last.elapsed() > patience {
            break;
        }
        // Again when nothing was received: an acknowledgement may have been lost.
        if let Some((flow, peer, theirs)) = teller {
            let ack = Ack {
                count: tally.received,
                flow: theirs,
            };
            endpoint.send(flow, Some(peer), &ack.to_bytes())?;
            endpoint.flush()?;
        }
    }

    let seconds = first.map_or(0.0, |first| (last - first).as_secs_f64());
    let missing = tally.missing(options.count);
    report(options, &tally, missing, endpoint.errors(), seconds)?;
    let faults = missing + tally.corrupt + tally.duplicate + tally.wrong_flow;
    Ok(ExitCode::from(u8::from(faults > 0)))
}

/// Prints what was received.
fn report(
    options: &Options,
    tally: &Tally,
    missing: u32,
    errors: &Errors,
    seconds: f64,
) -> io::Result<()> {
    if options.json {
        writeln!(
            io::stdout(),
            "{{\"received\": {}, \"missing\": {missing}, \"corrupt\": {}, \"duplicate\": {}, \
             \"reordered\": {}, \"wrong_flow\": {}, \"bytes\": {}, \"seconds\": {seconds:.3}, \
             \"errors\": {}}}",
            tally.received,
            tally.corrupt,
            tally.duplicate,
            tally.reordered,
            tally.wrong_flow,
            tally.bytes,
            errors_to_json(errors),
        )
    } else {
        writeln!(
            io::stdout(),
            "received {} datagrams, {} bytes in {seconds:.1} s: {missing} missing, {} corrupt, {} \
             duplicate, {} reordered, {} at the wrong flow, errors {}",
            tally.received,
            tally.bytes,
            tally.corrupt,
            tally.duplicate,
            tally.reordered,
            tally.wrong_flow,
            errors_to_json(errors),
        )
    }
}
