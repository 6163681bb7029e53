// SPDX-License-Identifier: GPL-2.0

//! Measures a server that runs already: what a question costs it, with its answer.
//!
//! Bursts of the same question come from clients at random. A run ends when the NIC has sent as many packets as
//! there were questions.

use crate::{
    bursts::{Bursts, Costs, Ends, BURST, BURSTS, NAP, RUNS_MAX, WARM_UP},
    clock::Clock,
    meter::kernel,
    row::{agreed, Row},
    send::Sender,
    table::distinct,
    traffic::Traffic,
};
use clap::Args;
use std::{fmt::Write as _, fs, io, path::PathBuf, thread};

/// Naps until the answers to a burst have left, as long as there are some to come.
const NAPS_MAX: usize = 2000;
/// Looks at the NIC's counters from which their cost is had.
const LOOKS: u32 = 32;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    ends: Ends,

    /// The server's port
    #[arg(long)]
    port: u16,

    /// A file with the question's payload, to which the server answers with one packet
    #[arg(long)]
    question: PathBuf,

    /// The server's name
    #[arg(long)]
    program: String,

    /// What its sockets are
    #[arg(long)]
    mode: String,
}

/// What asks.
struct Bench<'o> {
    bursts: Bursts<'o>,
    clock: Clock,
    costs: Costs,
    /// Instructions of a look at the NIC's counters.
    look: f64,
    sender: Box<dyn Sender>,
    traffic: Traffic,
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let question = fs::read(&options.question)?;
    let payload = question.len();
    let bursts = Bursts::new(&options.ends, false)?;
    let traffic = || {
        let numbered = bursts.traffic(payload.max(8));
        numbered.with_payload(question.clone(), options.port)
    };
    let clock = Clock::new()?;
    let costs = bursts.costs(&clock, traffic())?;
    let look = clock.each(LOOKS, || bursts.nic.sent().map(drop))?;
    let mut bench = Bench {
        sender: bursts.sender(&traffic())?,
        traffic: traffic(),
        bursts,
        clock,
        costs,
        look,
    };
    bench.ask(WARM_UP)?;
    let mut runs = Vec::new();
    while runs.len() < 2 || (agreed(&runs[runs.len() - 2..]).is_none() && runs.len() < RUNS_MAX) {
        runs.push(bench.ask(BURSTS)? / (BURSTS * BURST) as f64);
    }
    let Some(mean) = agreed(&runs[runs.len() - 2..]) else {
        let (program, mode) = (&options.program, &options.mode);
        eprintln!("not ok: {program}, {mode}: its runs don't agree: {runs:?}");
        return Ok(false);
    };
    let sent = runs.len() * BURSTS * BURST;
    let row = Row {
        mode: options.mode.clone(),
        direction: "ask".to_owned(),
        program: Some(options.program.clone()),
        payload,
        policy: "none".to_owned(),
        flows: 1,
        peers: options.ends.peers.count().into(),
        batch: BURST,
        insn_per_packet: Some(mean),
        runs,
        warm_up: (WARM_UP * BURST) as u64,
        sent: sent as u64,
        delivered: Some(sent as u64),
        nic_packets: sent as u64,
        kernel: kernel()?,
        ..Row::default()
    };
    println!("{}", serde_json::to_string(&row)?);
    Ok(true)
}

/// A table in Markdown: programs down, ways across, each relative to the first one.
pub(crate) fn table(rows: &[Row]) -> String {
    let rows: Vec<_> = rows.iter().filter(|row| row.program.is_some()).collect();
    if rows.is_empty() {
        return String::new();
    }
    let ways = distinct(rows.iter().map(|row| &row.mode));
    let mut text = "instructions per question, with its answer\n\n| |".to_owned();
    for way in &ways {
        let _ = write!(text, " {way} |");
    }
    let _ = writeln!(text, "\n| --- |{}", " ---: |".repeat(ways.len()));
    for program in distinct(rows.iter().map(|row| &row.program)) {
        let cost = |way: &String| {
            let found = rows
                .iter()
                .find(|row| row.program == *program && row.mode == *way);
            found.and_then(|row| row.insn_per_packet)
        };
        let first = ways.first().and_then(|way| cost(way));
        let _ = write!(text, "| {} |", program.as_deref().unwrap_or_default());
        for (at, way) in ways.iter().enumerate() {
            let _ = match (cost(way), first) {
                (Some(cost), Some(first)) if at > 0 => {
                    write!(text, " {cost:.0} ({:.2}) |", cost / first)
                }
                (Some(cost), _) => write!(text, " {cost:.0} |"),
                (None, _) => write!(text, " |"),
            };
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

impl Bench<'_> {
    /// Asks in bursts: instructions of all that the server did.
    fn ask(&mut self, bursts: usize) -> io::Result<f64> {
        let before = self.bursts.nic.sent()?;
        let (mut naps, mut looks) = (0, 0);
        let start = self.clock.start();
        for burst in 1..=bursts {
            self.sender.send(&mut self.traffic, BURST)?;
            let expected = (burst * BURST) as u64;
            let mut left = 0;
            for _ in 0..NAPS_MAX {
                thread::sleep(NAP);
                left = self.bursts.nic.sent()?.since(before).packets;
                (naps, looks) = (naps + 1, looks + 1);
                if left >= expected {
                    break;
                }
            }
            if left != expected {
                return Err(io::Error::other(format!(
                    "to {expected} questions {left} packets left"
                )));
            }
        }
        let all = self.clock.since(start);
        let own = self.costs.burst * bursts as f64
            + self.costs.nap * f64::from(naps)
            + self.look * f64::from(looks);
        Ok(all - own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_relative_to_the_first() {
        let row = |program: &str, mode: &str, cost| Row {
            program: Some(program.to_owned()),
            mode: mode.to_owned(),
            insn_per_packet: Some(cost),
            ..Row::default()
        };
        let rows = [
            row("nsd", "sockets", 1000.0),
            row("nsd", "kopi_run", 950.0),
            row("knot", "sockets", 2000.0),
        ];
        let table = table(&rows);
        let lines: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| | sockets | kopi_run |",
                "| --- | ---: | ---: |",
                "| nsd | 1000 | 950 (0.95) |",
                "| knot | 2000 | |",
                ""
            ]
        );
        assert_eq!(super::table(&[Row::default()]), "");
    }
}
