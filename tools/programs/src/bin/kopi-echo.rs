// SPDX-License-Identifier: GPL-2.0

//! An echo server on rings: answers leave from the frames in which the questions came.

use clap::Parser;
use kopi::{Channel, Flow, Interest, Message};
use kopi_programs::{doze, finish, next_port, raise_file_limit, stop_on_signals, Context};
use std::{
    io::{self, Write},
    net::SocketAddr,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

/// Sends every UDP datagram back to where it came from, through mapped rings.
#[derive(Parser)]
#[command(
    name = "kopi-echo",
    version,
    after_help = "Examples:
  kopi-echo --bind 0.0.0.0:7777
  kopi-echo --bind 192.0.2.1:7 --bind '[2001:db8::1]:7'
  kopi-echo --bind 127.0.0.1:20000 --flows 10000    # ports 20000 to 29999

Prints 'listening on ADDRESS' for each address once it can be reached, and
ends with SIGINT or SIGTERM. Exit status: 0 at the end, 2 after an error."
)]
struct Options {
    /// Address and port to listen on; several are allowed
    #[arg(long, short, value_name = "ADDR:PORT", default_value = "0.0.0.0:7")]
    bind: Vec<SocketAddr>,

    /// End after this many datagrams
    #[arg(long, short = 'n', value_name = "N")]
    count: Option<u64>,

    /// Let runs of datagrams travel as one, as UDP_SEGMENT and UDP_GRO do
    #[arg(long)]
    offloads: bool,

    /// Listen on this many consecutive ports of each address, all on one channel
    #[arg(long, value_name = "N", default_value_t = 1)]
    flows: usize,

    /// Print counters at the end, on standard error
    #[arg(long)]
    stats: bool,
}

#[derive(Default)]
struct Counters {
    echoed: u64,
    bytes: u64,
    failed: u64,
    dropped: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    finish("kopi-echo", run(&options))
}

fn run(options: &Options) -> io::Result<ExitCode> {
    let stop = stop_on_signals()?;
    raise_file_limit(options.flows * options.bind.len())?;
    let mut addresses = vec![];
    for &address in &options.bind {
        for number in 0..options.flows {
            addresses.push(next_port(address, number)?);
        }
    }
    let flows = addresses
        .iter()
        .map(|&address| Flow::bind(address).context(address))
        .collect::<io::Result<Vec<_>>>()?;
    let Some(first) = flows.first() else {
        return Ok(ExitCode::SUCCESS);
    };
    let channel = Channel::builder()
        .gso(options.offloads)
        .gro(options.offloads)
        .open(first)?;
    for flow in flows.iter().skip(1) {
        flow.join(&channel)?;
    }

    let mut out = io::stdout().lock();
    for flow in &flows {
        writeln!(out, "listening on {}", flow.local_addr()?)?;
    }
    out.flush()?;

    let mut counters = Counters::default();
    let result = echo(options, &channel, first, &stop, &mut counters);
    if options.stats {
        let mut out = io::stderr().lock();
        writeln!(
            out,
            "echoed {} datagrams, {} bytes; {} refused by the network stack, {} dropped",
            counters.echoed, counters.bytes, counters.failed, counters.dropped
        )?;
        for flow in &flows {
            writeln!(out, "{}: {:?}", flow.local_addr()?, flow.stats()?)?;
        }
    }
    result.map(|()| ExitCode::SUCCESS)
}

fn echo(
    options: &Options,
    channel: &Channel,
    first: &Flow,
    stop: &AtomicBool,
    counters: &mut Counters,
) -> io::Result<()> {
    let end = options.count.unwrap_or(u64::MAX);
    loop {
        while counters.echoed < end {
            let Some(packet) = channel.recv()? else { break };
            counters.echoed += 1;
            counters.bytes += packet.len() as u64;
            let back = Message::reply_to(&packet);
            // Without room to send, an echo server's answer is lost, as on any busy host.
            if channel.send(packet.flow(), &back, packet).is_err() {
                counters.dropped += 1;
            }
        }
        let all_sent = channel.flush_with(|completion| {
            if completion.error != 0 && !completion.more {
                counters.failed += 1;
            }
        })?;
        if stop.load(Ordering::Relaxed) || (counters.echoed >= end && all_sent) {
            return Ok(());
        }
        let interest = if all_sent {
            Interest::READABLE
        } else {
            Interest::READABLE | Interest::WRITABLE
        };
        doze("kopi-echo", channel, first, interest)?;
    }
}
