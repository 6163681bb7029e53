// SPDX-License-Identifier: GPL-2.0

//! A small DNS responder on rings: answers are written into the frames of the questions.

use clap::Parser;
use kopi::{Channel, Flow, Interest, Message, Packet};
use kopi_programs::{doze, finish, hosts::Hosts, stop_on_signals, Context};
use std::{
    fs,
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::atomic::Ordering,
};

/// Answers DNS questions (A, AAAA, PTR) from a hosts file, through mapped rings.
#[derive(Parser)]
#[command(
    name = "kopi-dns",
    version,
    after_help = "Examples:
  kopi-dns --hosts /etc/hosts --bind 0.0.0.0:5353
  dig @192.0.2.1 -p 5353 host.kopi.test +short

Names that the file doesn't have get NXDOMAIN; there is no recursion. Prints
'listening on ADDRESS' for each address, and ends with SIGINT or SIGTERM. Exit
status: 0 at the end, 2 after an error."
)]
struct Options {
    /// File with lines of an address and names
    #[arg(long, value_name = "FILE", default_value = "/etc/hosts")]
    hosts: PathBuf,

    /// Address and port to listen on; several are allowed
    #[arg(long, short, value_name = "ADDR:PORT", default_value = "0.0.0.0:53")]
    bind: Vec<SocketAddr>,

    /// End after this many answers
    #[arg(long, short = 'n', value_name = "N")]
    count: Option<u64>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    finish("kopi-dns", run(&options))
}

fn run(options: &Options) -> io::Result<ExitCode> {
    let stop = stop_on_signals()?;
    let file = options.hosts.display();
    let text = fs::read_to_string(&options.hosts).context(&file)?;
    let hosts = Hosts::parse(&text)
        .map_err(|wrong| io::Error::new(io::ErrorKind::InvalidData, wrong))
        .context(&file)?;
    let flows = options
        .bind
        .iter()
        .map(|&address| Flow::bind(address).context(address))
        .collect::<io::Result<Vec<_>>>()?;
    let Some(first) = flows.first() else {
        return Ok(ExitCode::SUCCESS);
    };
    // A megabyte: questions are short, and who asks in vain asks again.
    let channel = Channel::builder()
        .frames(512)
        .tx_entries(512)
        .rx_entries(512)
        .open(first)?;
    for flow in flows.iter().skip(1) {
        flow.join(&channel)?;
    }
    let mut out = io::stdout().lock();
    for flow in &flows {
        writeln!(out, "listening on {}", flow.local_addr()?)?;
    }
    out.flush()?;

    let end = options.count.unwrap_or(u64::MAX);
    let mut answered = 0;
    loop {
        while answered < end {
            let Some(packet) = channel.recv()? else { break };
            answered += u64::from(answer(&channel, &hosts, packet));
        }
        let all_sent = channel.flush()?;
        if stop.load(Ordering::Relaxed) || (answered >= end && all_sent) {
            return Ok(ExitCode::SUCCESS);
        }
        let interest = if all_sent {
            Interest::READABLE
        } else {
            Interest::READABLE | Interest::WRITABLE
        };
        doze("kopi-dns", &channel, first, interest)?;
    }
}

/// Answers one question, if it can be answered now: a client asks again.
fn answer(channel: &Channel, hosts: &Hosts, mut packet: Packet<'_>) -> bool {
    let Some(reply) = hosts.answer(&packet.bytes()) else {
        return false;
    };
    let (flow, back) = (packet.flow(), Message::reply_to(&packet));
    if packet.replace(&reply) < reply.len() {
        return false;
    }
    channel.send(flow, &back, packet).is_ok()
}
