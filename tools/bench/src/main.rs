// SPDX-License-Identifier: GPL-2.0

//! Counts what a packet costs by KOPI's rings and by their rivals.

mod clock;
mod measure;
mod nic;
mod policy;
mod receive;
mod row;
mod send;
mod table;
mod traffic;
mod wire;

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
    /// Check that all modes put the same bytes on the wire
    Wire(wire::Options),
    /// Read such rows, write them as an array, and print tables
    Table(table::Options),
}

fn main() -> ExitCode {
    let result = match Options::parse().command {
        Command::Send(options) => measure::run(&options),
        Command::Recv(options) => receive::run(&options),
        Command::Wire(options) => wire::run(&options),
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
