// SPDX-License-Identifier: GPL-2.0

//! Shows what KOPI does, and rules it.

#![forbid(unsafe_code)]

mod attributes;
mod commands;
mod grammar;
mod hooks;
mod http;
mod kernel;
mod link;
mod message;
mod names;
mod netlink;
mod offloads;
mod output;
mod programs;
mod rates;
mod replace;
mod runtime;
mod script;

use clap::{CommandFactory, Parser, Subcommand};
use commands::{
    capture, config, direct, doctor, engine, info, limit, metrics, ps, rule, show, stats, top,
    watch,
};
use std::{
    io::{self, ErrorKind, Write},
    path::PathBuf,
    process::ExitCode,
};

/// Shows and controls KOPI: flows, channels, rules by process, events, packets, metrics.
#[derive(Parser)]
#[command(
    name = "kopictl",
    version,
    after_help = "\
Examples:
  kopictl ps --user bob
  kopictl rule add user bob exe /usr/sbin/nsd local-port 53 allow
  kopictl watch --event flow-denied --json

A flow is a KOPI socket, of UDP or TCP. A channel is memory that a program shares
with the kernel, so that packets of its flows need no system call each. The rules
decide about flows and, where they are enforced (kopictl rule enforce on), about
ordinary sockets.

kopictl acts on its own network namespace. Without CAP_NET_ADMIN there, it shows
the flows and channels of its user only, and can change nothing.

Exit status: 0 done, 1 refused by the kernel or a check, 2 wrong usage, 3 no
KOPI in this kernel, 4 not permitted."
)]
struct Options {
    /// Print JSON, one value per line
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the module: its versions, and the numbers of its objects
    Info,
    /// List flows with their processes, addresses and channels
    Ps(ps::Options),
    /// Show all fields of one flow or channel, with explanations
    #[command(subcommand)]
    Show(show::ShowSubject),
    /// Show the sums over all flows, including closed ones, and drops by reason
    Stats,
    /// Show processes live, by the packets that they send and receive
    Top(top::Options),
    /// Print events: flows opened, bound, connected, closed, denied; ordinary sockets refused;
    /// limits; overruns
    Watch(watch::Options),
    /// Capture packets, each with its process and its fate
    Capture(capture::Options),
    /// Manage rules, which decide what processes may send and receive, and how much
    #[command(subcommand, after_help = grammar::HELP)]
    Rule(rule::RuleCommand),
    /// Put the rules of a file in force; the same as `rule restore`
    #[command(after_help = grammar::HELP)]
    Restore(rule::Restore),
    /// Check the configuration file, or put it in force: limits, rules, engines, attached devices
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Look for what is missing or odd on this machine, and say how to fix it
    Doctor,
    /// Show limits, which are the sysctls below net.kopi, or set one
    Limit(limit::Options),
    /// Attach a device to the direct path: packets of flows go straight to and from its driver while
    /// nothing in between would see them
    ///
    /// A device without an XDP program gets one, which redirects UDP datagrams for the ports of flows
    /// on channels. If the device has another XDP program, only sending changes.
    ///
    /// Offloads that strip VLAN tags are turned off, because the program has to see the tags; LRO
    /// and hardware GRO only if the driver takes no program otherwise. Detaching turns on again
    /// what attaching has turned off.
    Attach(direct::Attach),
    /// Detach a device, so that all packets take the stack again, and remove the XDP program if it
    /// is kopictl's
    Detach(direct::DeviceArg),
    /// Show or set engines: kernel threads that send for busy channels, which then need no system
    /// call
    Engine {
        #[command(subcommand)]
        what: Option<engine::EngineCommand>,
    },
    /// Print or serve metrics as OpenMetrics text, for Prometheus and similar programs
    Metrics(metrics::Options),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one for each command to a folder
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
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    if causes.any(|cause| cause.kind() == ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    output::complain(format!("{error:#}"));
    let netlink = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<netlink::Error>());
    match netlink {
        _ if error.is::<commands::Usage>() => ExitCode::from(2),
        Some(netlink::Error::NoKopi) => ExitCode::from(3),
        _ if commands::is_permission(&error) => ExitCode::from(4),
        _ => ExitCode::FAILURE,
    }
}

/// Why a command has no JSON.
fn other_format(command: &Command) -> Option<&'static str> {
    match command {
        Command::Rule(rule::RuleCommand::Save { .. }) => {
            Some("rule save writes what restore reads; rule list --json has the rules")
        }
        Command::Metrics(_) => {
            Some("metrics are OpenMetrics text; stats --json and ps --json have counters")
        }
        Command::Completions { .. } => Some("completions are a script for the shell"),
        Command::Man { .. } => Some("manual pages are roff"),
        _ => None,
    }
}

fn run(options: Options) -> anyhow::Result<()> {
    let json = options.json;
    if let Some(why) = other_format(&options.command).filter(|_| json) {
        return Err(commands::Usage(format!("no --json here: {why}")).into());
    }
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
        Command::Config(what) => config::run(&what, json),
        Command::Doctor => doctor::run(json),
        Command::Limit(options) => limit::run(&options, json),
        Command::Attach(options) => direct::attach(&options),
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
