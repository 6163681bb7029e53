// SPDX-License-Identifier: GPL-2.0

//! `kopictl engine`

use crate::{
    message::{
        engine::{Engine, Engines},
        Command,
    },
    netlink::Connection,
    output::{json, or_dash, Table},
};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::ops::RangeInclusive;

/// What to do.
#[derive(Subcommand)]
pub(crate) enum EngineCommand {
    /// Show the engines; the default
    Show,
    /// Set the engines; all others end
    Set(Set),
    /// End all engines, so that programs send by system calls
    Off,
}

/// Which, and how they work.
#[derive(Args)]
pub(crate) struct Set {
    /// The CPUs that get an engine each, such as 2,3 or 2-5 or both
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    cpus: Cpus,

    /// Microseconds for which an empty ring is polled; 1000 by default
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(..=IDLE_MAX))]
    idle: Option<u64>,

    /// Bytes that one channel may send before the next channel's turn; 65536 by default
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(BUDGETS))]
    budget: Option<u32>,
}

/// Numbers of CPUs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cpus(pub(crate) Vec<u32>);

/// What an engine has for which nothing else is said, as the module has it.
pub(crate) const IDLE: u64 = 1000;
pub(crate) const BUDGET: u32 = 65536;

/// An hour.
pub(crate) const IDLE_MAX: u64 = 3_600_000_000;
/// Bytes that may be one turn.
pub(crate) const BUDGETS: RangeInclusive<i64> = 1024..=1 << 24;

/// More CPUs than Linux has.
const CPUS_MAX: usize = 1 << 16;

/// A list of CPUs, as the kernel writes them; each is there once.
pub(crate) fn cpus(text: &str) -> Result<Cpus, String> {
    let wrong = |part: &str| format!("{part:?} is no CPU, nor a range of them");
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let parse = |number: &str| number.parse::<u32>().map_err(|_| wrong(part));
        let (first, last) = (parse(first)?, parse(last)?);
        let count = usize::try_from(last.checked_sub(first).ok_or_else(|| wrong(part))?);
        if count.is_ok_and(|count| count + all.len() >= CPUS_MAX) {
            return Err(wrong(part));
        }
        all.extend(first..=last);
    }
    all.sort_unstable();
    all.dedup();
    Ok(Cpus(all))
}

/// An engine with what follows from its counters.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    engine: &'a Engine,
    /// Of the time that it was awake, how much it worked for channels.
    #[serde(skip_serializing_if = "Option::is_none")]
    busy_percent: Option<u64>,
}

impl<'a> From<&'a Engine> for Shown<'a> {
    fn from(engine: &'a Engine) -> Self {
        let busy = engine.busy.unwrap_or(0);
        Self {
            engine,
            busy_percent: (busy.saturating_mul(100)).checked_div(engine.awake.unwrap_or(0)),
        }
    }
}

/// Shows engines, or sets them.
pub(crate) fn run(command: Option<&EngineCommand>, as_json: bool) -> anyhow::Result<()> {
    let mut connection = Connection::open()?;
    let engines = match command {
        None | Some(EngineCommand::Show) => {
            let engines: Vec<Engine> = connection.dump(Command::EngineGet)?;
            let shown = engines.iter().map(Shown::from).collect::<Vec<_>>();
            if as_json {
                return json(&shown);
            }
            return Ok(table(&shown).print()?);
        }
        Some(EngineCommand::Set(set)) => Engines {
            cpu: set.cpus.0.clone(),
            idle: set.idle,
            budget: set.budget,
        },
        Some(EngineCommand::Off) => Engines::default(),
    };
    connection.request::<_, Engines>(Command::EngineSet, &engines)?;
    Ok(())
}

fn table(engines: &[Shown<'_>]) -> Table {
    let mut table = Table::new([
        ">CPU",
        ">IDLE US",
        ">BUDGET",
        ">CHANNELS",
        ">VISITS",
        ">WAKEUPS",
        ">AWAKE MS",
        ">BUSY %",
    ]);
    for Shown {
        engine,
        busy_percent,
    } in engines
    {
        table.row([
            or_dash(engine.cpu),
            or_dash(engine.idle),
            or_dash(engine.budget),
            or_dash(engine.channels),
            or_dash(engine.visits),
            or_dash(engine.wakeups),
            or_dash(engine.awake.map(|time| time / 1_000_000)),
            or_dash(*busy_percent),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpus("2"), Ok(Cpus(vec![2])));
        assert_eq!(cpus("0,4-6"), Ok(Cpus(vec![0, 4, 5, 6])));
        assert_eq!(cpus("1,1,0-1"), Ok(Cpus(vec![0, 1])));
        for wrong in [
            "",
            "a",
            "1,",
            "3-2",
            "-1",
            "1-",
            "0-99999999",
            "0-60000,0-60000",
        ] {
            assert!(cpus(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_module_has_the_same_defaults() {
        let module = include_str!("../../../../src/netlink/engines.rs");
        assert!(module.contains(&format!("DEFAULT_IDLE_US: u64 = {IDLE};")));
        assert!(module.contains(&format!("DEFAULT_BUDGET: u32 = {BUDGET};")));
    }

    #[test]
    fn an_engine_is_a_line() {
        let engine = Engine {
            cpu: Some(3),
            busy: Some(25),
            awake: Some(100),
            ..Engine::default()
        };
        let lines = table(&[Shown::from(&engine)]).lines();
        assert!(
            lines[1].starts_with("  3") && lines[1].ends_with("25"),
            "{lines:?}"
        );
        let slept = Engine::default();
        assert_eq!(Shown::from(&slept).busy_percent, None);
    }
}
