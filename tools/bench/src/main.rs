// SPDX-License-Identifier: GPL-2.0

//! Counts what a packet costs by KOPI's rings and by their rivals.

mod ask;
mod bpf;
mod bursts;
mod clock;
mod compare;
mod measure;
mod meter;
mod nic;
mod option;
mod plot;
mod policy;
mod receive;
mod row;
mod rtt;
mod scale;
mod send;
mod streams;
mod table;
mod tpacket;
mod traffic;
mod wall;
mod wire;
mod xdp;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Counts the instructions that packets cost by KOPI's rings and by their rivals, in the machine of
/// `qemu/vm --icount`.
#[derive(Parser)]
#[command(version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Send by each mode, and write a JSON object for each row
    Send(measure::Options),
    /// Receive by each mode, and write a JSON object for each row
    Recv(receive::Options),
    /// Have a server answer, and write a JSON object for the row
    Ask(ask::Options),
    /// Send by up to this number of sockets or flows at random, and write a JSON object for each row
    Scale(scale::Options),
    /// Send a datagram and wait for the answer, by each mode, and write a JSON object for each row
    Rtt(rtt::Options),
    /// Count what TCP costs by ordinary sockets and by flows, and write a JSON object for each row
    Streams(streams::Options),
    /// Send by each mode, and write packets per second: a JSON object for each row
    Wall(wall::Options),
    /// Check that all modes put the same bytes on the wire
    Wire(wire::Options),
    /// Read such rows, write them as an array, and print tables
    Table(table::Options),
    /// Read such rows, and fail if one got worse than a table has it
    Compare(compare::Options),
    /// Draw such an array
    Plot(plot::Options),
}

fn main() -> ExitCode {
    let result = match Options::parse().command {
        Command::Send(options) => measure::run(&options),
        Command::Recv(options) => receive::run(&options),
        Command::Ask(options) => ask::run(&options),
        Command::Scale(options) => scale::run(&options),
        Command::Rtt(options) => rtt::run(&options),
        Command::Streams(options) => streams::run(&options),
        Command::Wall(options) => wall::run(&options),
        Command::Wire(options) => wire::run(&options),
        Command::Compare(options) => compare::run(&options),
        Command::Plot(options) => plot::run(&options),
        Command::Table(options) => table::run(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("kopi-bench: {error}");
            ExitCode::from(2)
        }
    }
}
