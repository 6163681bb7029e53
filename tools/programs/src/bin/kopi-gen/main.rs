// SPDX-License-Identifier: GPL-2.0

//! Makes UDP traffic whose every byte can be checked, and checks it.

mod datagram;
mod endpoint;
mod flood;
mod recv;
mod send;
mod tally;

use clap::{Args, Parser, Subcommand};
use datagram::Sizes;
use kopi_programs::finish;
use std::process::ExitCode;

/// Generates and checks UDP traffic, through mapped rings or ordinary sockets.
#[derive(Parser)]
#[command(
    name = "kopi-gen",
    version,
    after_help = "Examples:
  kopi-gen recv --bind 192.0.2.2:9000 --count 20000 &
  kopi-gen send 192.0.2.2:9000 --count 20000 --size 0..65507
  kopi-gen send --plain 192.0.2.1:9000 --count 1000 --size 1400
  kopi-gen flood 192.0.2.2:9 --seconds 5 --size 64
  kopi-gen sink --bind 0.0.0.0:9 --timeout 3

Exit status: 0 if all arrived intact (flood, sink: always at the end), 1 if
something is missing or wrong, 2 after an error."
)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Send datagrams to a `kopi-gen recv`, at the pace of its acknowledgements
    Send(send::Options),
    /// Receive from a `kopi-gen send`, check and acknowledge
    Recv(recv::Options),
    /// Send datagrams as fast as they go, without acknowledgements, to a `kopi-gen sink`
    Flood(flood::FloodOptions),
    /// Receive and count
    Sink(flood::SinkOptions),
}

/// What both sides can choose of the socket.
#[derive(Args, Clone, Debug)]
struct SocketOptions {
    /// Use ordinary UDP sockets instead of KOPI's
    #[arg(long)]
    plain: bool,

    /// Let runs of datagrams travel as one, as UDP_SEGMENT and UDP_GRO do (KOPI only)
    #[arg(long, conflicts_with = "plain")]
    offloads: bool,

    /// Receive GRO packets as one packet (KOPI only)
    #[arg(long, requires = "offloads")]
    merged: bool,

    /// Number of flows, all on one channel
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    flows: u32,
}

fn main() -> ExitCode {
    let result = match Options::parse().command {
        Command::Send(options) => send::run(&options),
        Command::Recv(options) => recv::run(&options),
        Command::Flood(options) => flood::flood(&options),
        Command::Sink(options) => flood::sink(&options),
    };
    finish("kopi-gen", result)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn options_make_sense() {
        super::Options::command().debug_assert();
    }
}
