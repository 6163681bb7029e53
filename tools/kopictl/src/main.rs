// SPDX-License-Identifier: GPL-2.0

//! Shows what KOPI does, and rules it.

#![forbid(unsafe_code)]

mod attributes;
mod commands;
mod grammar;
mod http;
mod link;
mod message;
mod names;
mod netlink;
mod output;
mod rates;
mod runtime;

use clap::{CommandFactory, Parser, Subcommand};
use commands::{capture, direct, engine, info, limit, metrics, ps, rule, show, stats, top, watch};
use std::{
    io::{self, ErrorKind, Write},
    path::PathBuf,
    process::ExitCode,
};

/// Shows what KOPI does, and rules it: flows, channels, rules by process, events, packets, metrics.
#[derive(Parser)]
#[command(
    name = "kopictl",
    version,
    after_help = "\
Examples:
  kopictl ps --user bob
  kopictl rule add user bob exe /usr/bin/postgres local-port 5432 allow
  kopictl watch --event flow-denied --json

All is of the network namespace that it is run in. Without CAP_NET_ADMIN there,
one's own flows and channels are shown, and nothing can be changed.

Exit status: 0 done, 1 refused by the kernel or a check, 2 wrong usage, 3 no
KOPI in this kernel, 4 not permitted."
)]
struct Options {
    /// Print JSON, a value a line
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The module, its versions, and how much there is of what
    Info,
    /// Flows: processes, addresses, channels
    Ps(ps::Options),
    /// All about one flow or channel, explained
    #[command(subcommand)]
    Show(show::What),
    /// Sums of all flows, those that were closed included, and drops by reason
    Stats,
    /// Processes by what they send and receive, live
    Top(top::Options),
    /// What happens: flows opened, bound, connected, closed, denied; limits; overruns
    Watch(watch::Options),
    /// Packets, each with the process that it is of and what became of it
    Capture(capture::Options),
    /// Rules: who may send and receive what, and how much
    #[command(subcommand, after_help = grammar::HELP)]
    Rule(rule::What),
    /// Put a file's rules in force: the same as `rule restore`
    #[command(after_help = grammar::HELP)]
    Restore(rule::Restore),
    /// Show limits, the sysctls below net.kopi, or set one
    Limit(limit::Options),
    /// Have GSO packets leave by a device's driver, where nothing would look at them in between, and what
    /// comes in coalesced to GRO packets
    ///
    /// Without a program of XDP the device gets one, which redirects UDP datagrams to ports of flows
    /// that asked for GSO packets. With one of somebody else's, only sending is changed.
    Attach(direct::Which),
    /// Have all go by the stack again, and take the program off if it is kopictl's
    Detach(direct::Which),
    /// Engines: kernel threads that send for busy channels, so that these need no system call
    Engine {
        #[command(subcommand)]
        what: Option<engine::What>,
    },
    /// OpenMetrics text, for Prometheus and the like
    Metrics(metrics::Options),
    /// Completions for a shell
    Completions {
        /// Which
        shell: clap_complete::Shell,
    },
    /// The manual page on standard output, or one for each command in a folder
    Man {
        /// The folder
        folder: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let options = Options::parse();
    // What is printed isn't done before it is written.
    let Err(error) = run(options).and_then(|()| Ok(io::stdout().flush()?)) else {
        return ExitCode::SUCCESS;
    };
    let causes = || {
        error
            .chain()
            .filter_map(|cause| cause.downcast_ref::<io::Error>())
    };
    if causes().any(|cause| cause.kind() == ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    output::complain(format!("{error:#}"));
    let netlink = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<netlink::Error>());
    match netlink {
        _ if error.is::<commands::Usage>() => ExitCode::from(2),
        Some(netlink::Error::NoKopi) => ExitCode::from(3),
        Some(error) if error.is_permission() => ExitCode::from(4),
        None if causes().any(|cause| cause.kind() == ErrorKind::PermissionDenied) => {
            ExitCode::from(4)
        }
        _ => ExitCode::FAILURE,
    }
}

fn run(options: Options) -> anyhow::Result<()> {
    let json = options.json;
    match options.command {
        Command::Info => info::run(json),
        Command::Ps(options) => ps::run(&options, json),
        Command::Show(what) => show::run(&what, json),
        Command::Stats => stats::run(json),
        Command::Top(options) => top::run(&options, json),
        Command::Watch(options) => watch::run(&options, json),
        Command::Capture(options) => capture::run(&options, json),
        Command::Rule(what) => rule::run(what, json),
        Command::Restore(options) => rule::restore(&options, json),
        Command::Limit(options) => limit::run(&options, json),
        Command::Attach(which) => direct::attach(&which),
        Command::Detach(which) => direct::detach(&which),
        Command::Engine { what } => engine::run(what.as_ref(), json),
        Command::Metrics(options) => metrics::run(&options),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Options::command(), "kopictl", &mut script);
            Ok(io::stdout().write_all(&script)?)
        }
        Command::Man {
            folder: Some(folder),
        } => Ok(clap_mangen::generate_to(Options::command(), folder)?),
        Command::Man { folder: None } => {
            Ok(clap_mangen::Man::new(Options::command()).render(&mut io::stdout())?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_makes_sense() {
        Options::command().debug_assert();
    }
}
