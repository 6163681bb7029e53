// SPDX-License-Identifier: GPL-2.0

//! Tables of rows, and what was to be reached.

mod goals;

use self::goals::{goals, goals_of_many, goals_of_trips};
use crate::{ask, row::Row, wall::median};
use clap::Args;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{self, BufRead},
    path::PathBuf,
};

#[derive(Args)]
pub(crate) struct Options {
    /// Where the array of all rows goes
    #[arg(long)]
    json: PathBuf,
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let rows = read_rows(io::stdin().lock())?;
    fs::write(&options.json, array(&rows)?)?;
    print!(
        "{}{}{}{}{}",
        tables(&rows),
        ask::table(&rows),
        scale(&rows),
        round_trips(&rows),
        all_rates(&rows)
    );
    println!(
        "{}{}{}",
        goals(&rows),
        goals_of_many(&rows),
        goals_of_trips(&rows)
    );
    Ok(true)
}

/// The rows of what the machine said.
pub(crate) fn read_rows(from: impl BufRead) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for line in from.lines() {
        let line = line?;
        if line.starts_with('{') {
            rows.push(serde_json::from_str(&line)?);
        }
    }
    if rows.is_empty() {
        return Err(io::Error::other("no rows"));
    }
    Ok(rows)
}

/// A JSON array with a row in each line, as it is to be compared.
pub(crate) fn array(rows: &[Row]) -> io::Result<String> {
    let rows: Result<Vec<_>, _> = rows.iter().map(serde_json::to_string).collect();
    Ok(format!("[\n{}\n]\n", rows?.join(",\n")))
}

/// Each thing once, in the order in which they come.
pub(crate) fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for each in all {
        if !seen.contains(&each) {
            seen.push(each);
        }
    }
    seen
}

/// Whether it compares modes, policies and payloads.
fn is_plain(row: &Row) -> bool {
    row.program.is_none()
        && row.kernel_bytes.is_none()
        && row.median_ns.is_none()
        && row.packets_per_second.is_none()
}

/// Which rows make a table.
fn kind(row: &Row) -> (&str, usize, bool, Option<u32>) {
    (&row.direction, row.peers, row.offloads, row.queues)
}

/// What is counted once.
fn unit(direction: &str) -> &'static str {
    match direction {
        "TCP round trips" => "round trip",
        "TCP in bulk" => "write",
        "TCP connections" => "connection",
        _ => "packet",
    }
}

/// Tables in Markdown, one for each kind: modes down, policies and
/// payloads across.
fn tables(rows: &[Row]) -> String {
    let mut text = String::new();
    let rows: Vec<_> = rows.iter().filter(|row| is_plain(row)).collect();
    for kind in distinct(rows.iter().map(|row| kind(row))) {
        let here = rows.iter().filter(|row| self::kind(row) == kind);
        let here: Vec<_> = here.collect();
        let columns = distinct(here.iter().map(|row| (&row.policy, row.payload)));
        let cells: BTreeMap<_, _> = here
            .iter()
            .map(|row| ((&row.mode, &row.policy, row.payload), cell(row)))
            .collect();
        let (direction, peers, offloads, queues) = kind;
        let whom = match peers {
            1 => "one peer".to_owned(),
            peers => format!("{peers} peers at random"),
        };
        let mut nic = if offloads { ", NIC with offloads" } else { "" }.to_owned();
        if let Some(queues) = queues {
            let _ = write!(nic, " and {queues} queues");
        }
        let _ = writeln!(
            text,
            "{direction}, {whom}{nic}: instructions per {}\n",
            unit(direction)
        );
        let heads = columns
            .iter()
            .map(|(policy, payload)| format!(" {policy} {payload} |"));
        let _ = writeln!(text, "| |{}", heads.collect::<String>());
        let _ = writeln!(text, "| --- |{}", " ---: |".repeat(columns.len()));
        for mode in distinct(here.iter().map(|row| &row.mode)) {
            let line = columns.iter().map(|&(policy, payload)| {
                let cell = cells.get(&(mode, policy, payload));
                format!(" {} |", cell.map_or("", String::as_str))
            });
            let _ = writeln!(text, "| {mode} |{}", line.collect::<String>());
        }
        text.push('\n');
    }
    text
}

/// The first and the last row of a mode of which there are many sockets or flows.
fn ends<'r>(rows: &'r [Row], mode: &str) -> Option<(&'r Row, &'r Row)> {
    let of = |row: &&Row| row.mode == mode && row.kernel_bytes.is_some();
    let first = rows.iter().filter(of).min_by_key(|row| row.flows)?;
    let last = rows.iter().filter(of).max_by_key(|row| row.flows)?;
    Some((first, last))
}

/// Kernel memory that each socket or flow takes, but for the first one.
fn bytes_of_one(rows: &[Row], mode: &str) -> Option<f64> {
    let (first, last) = ends(rows, mode)?;
    let bytes = last.kernel_bytes? as f64 - first.kernel_bytes? as f64;
    (last.flows > first.flows).then(|| bytes / f64::from(last.flows - first.flows))
}

/// What packets cost by how many sockets or flows there are, and what these do.
fn scale(rows: &[Row]) -> String {
    let here: Vec<_> = rows
        .iter()
        .filter(|row| row.kernel_bytes.is_some())
        .collect();
    let counts = distinct(here.iter().map(|row| row.flows));
    if counts.is_empty() {
        return String::new();
    }
    let mut text = "send, 64 bytes, each by a random socket or flow of so many: instructions per \
                    packet; bytes of kernel memory for each that is idle\n\n"
        .to_owned();
    let heads = counts.iter().map(|count| format!(" {count} |"));
    let _ = writeln!(text, "| |{} bytes |", heads.collect::<String>());
    let _ = writeln!(text, "| --- |{}", " ---: |".repeat(counts.len() + 1));
    for mode in distinct(here.iter().map(|row| row.mode.as_str())) {
        let line = counts.iter().map(|&count| {
            let row = here
                .iter()
                .find(|row| row.mode == mode && row.flows == count);
            format!(" {} |", row.map_or_else(String::new, |row| cell(row)))
        });
        let bytes =
            bytes_of_one(rows, mode).map_or_else(String::new, |bytes| format!("{bytes:.0}"));
        let _ = writeln!(text, "| {mode} |{} {bytes} |", line.collect::<String>());
    }
    text.push('\n');
    text
}

/// What round trips cost, and how long they took.
fn round_trips(rows: &[Row]) -> String {
    let mut lines = rows.iter().filter(|row| row.median_ns.is_some()).peekable();
    if lines.peek().is_none() {
        return String::new();
    }
    let mut text = "rtt, 64 bytes\n
| | instructions | median, ns | 99th percentile, ns |
| --- | ---: | ---: | ---: |
"
    .to_owned();
    for row in lines {
        let time = |time: Option<u64>| time.map_or_else(String::new, |time| time.to_string());
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            row.mode,
            cell(row),
            time(row.median_ns),
            time(row.p99_ns)
        );
    }
    text.push('\n');
    text
}

/// Packets per second, a table for each number of the NIC's queues.
fn all_rates(rows: &[Row]) -> String {
    let timed = rows.iter().filter(|row| row.packets_per_second.is_some());
    let timed: Vec<_> = timed.collect();
    distinct(timed.iter().map(|row| row.queues))
        .into_iter()
        .map(|queues| {
            let here: Vec<_> = timed
                .iter()
                .filter(|row| row.queues == queues)
                .copied()
                .collect();
            rates(&here, queues.unwrap_or(1))
        })
        .collect()
}

/// Packets per second, and of what the first mode had in the same round.
fn rates(here: &[&Row], queues: u32) -> String {
    let Some(first) = here.first() else {
        return String::new();
    };
    let counts = distinct(here.iter().map(|row| row.flows));
    let of = |mode: &str, flows: u32| {
        here.iter()
            .find(|row| row.mode == mode && row.flows == flows)
    };
    let mut text = format!(
        "send, 64 bytes, NIC of {queues} queues: packets per second, and times the first mode's\n\n"
    );
    let heads = counts.iter().map(|count| format!(" {count} at once | |"));
    let _ = writeln!(text, "| |{}", heads.collect::<String>());
    let _ = writeln!(text, "| --- |{}", " ---: | ---: |".repeat(counts.len()));
    for mode in distinct(here.iter().map(|row| row.mode.as_str())) {
        let line = counts.iter().map(|&count| {
            let (Some(row), Some(first)) = (of(mode, count), of(&first.mode, count)) else {
                return "  |  |".to_owned();
            };
            let times: Vec<_> = row
                .runs
                .iter()
                .zip(&first.runs)
                .map(|(own, other)| own / other)
                .collect();
            let rate = row.packets_per_second.unwrap_or_default();
            format!(" {rate:.0} | {:.2} |", median(&times))
        });
        let _ = writeln!(text, "| {mode} |{}", line.collect::<String>());
    }
    text.push('\n');
    text
}

/// What a row cost, in brackets if the policy didn't see it.
fn cell(row: &Row) -> String {
    match (row.insn_per_packet, row.policy_holds) {
        (None, _) => String::new(),
        (Some(cost), Some(false)) => format!("({cost:.0})"),
        (Some(cost), _) => format!("{cost:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(mode: &str, policy: &str, peers: usize, cost: f64) -> Row {
        Row {
            mode: mode.to_owned(),
            direction: "send".to_owned(),
            payload: 64,
            policy: policy.to_owned(),
            flows: 1,
            peers,
            batch: 64,
            insn_per_packet: Some(cost),
            runs: vec![cost, cost],
            warm_up: 1,
            sent: 2,
            nic_packets: 2,
            nic_bytes: 212,
            handed: Some(2),
            kernel: "7.3.4".to_owned(),
            ..Row::default()
        }
    }

    #[test]
    fn table_has_modes_down_and_policies_across() {
        let mut blind = row("af_packet", "nft10", 1, 4200.0);
        blind.policy_holds = Some(false);
        let rows = [
            row("sendmmsg", "none", 1, 5390.4),
            row("sendmmsg", "nft10", 1, 7640.0),
            blind,
            row("sendmmsg", "none", 255, 6000.0),
        ];
        assert_eq!(
            tables(&rows),
            "send, one peer: instructions per packet

| | none 64 | nft10 64 |
| --- | ---: | ---: |
| sendmmsg | 5390 | 7640 |
| af_packet |  | (4200) |

send, 255 peers at random: instructions per packet

| | none 64 |
| --- | ---: |
| sendmmsg | 6000 |

"
        );
    }

    #[test]
    fn goals_compare_rows_of_one_kind() {
        let rows = [
            row("sendmmsg", "none", 1, 1.0),
            row("sendmmsg", "nft10", 1, 8000.0),
            row("kopi_gso_descs", "nft10", 1, 2000.0),
            row("sendmmsg", "nft10", 255, 8000.0),
            row("kopi_doorbell", "nft10", 255, 8000.0),
        ];
        let text = goals(&rows);
        assert!(
            text.contains("2000 / 8000 = 0.25, goal 0.3: reached"),
            "{text}"
        );
        assert!(
            text.contains("8000 / 8000 = 1.00, goal 0.85: not reached"),
            "{text}"
        );
        assert_eq!(goals(&rows[..2]), "");
    }

    #[test]
    fn many_flows_have_a_table_of_their_own() {
        let many = |mode: &str, flows, cost, bytes| Row {
            flows,
            kernel_bytes: Some(bytes),
            ..row(mode, "none", 1, cost)
        };
        let rows = [
            row("send", "none", 1, 4000.0),
            many("send", 1, 5000.0, 3_000),
            many("send", 101, 5000.0, 303_000),
            many("kopi_doorbell", 1, 6000.0, 10_000),
            many("kopi_doorbell", 101, 7200.0, 360_000),
        ];
        assert!(tables(&rows).ends_with("| send | 4000 |\n\n"));
        let text = scale(&rows);
        assert!(text.contains("| | 1 | 101 | bytes |\n"), "{text}");
        assert!(text.contains("| send | 5000 | 5000 | 3000 |\n"), "{text}");
        assert!(
            text.contains("| kopi_doorbell | 6000 | 7200 | 3500 |\n"),
            "{text}"
        );
        let goals = goals_of_many(&rows);
        assert!(goals.contains("= 1.20, goal 1.15: not reached"), "{goals}");
        assert!(goals.contains("= 500 bytes, goal 512: reached"), "{goals}");
        assert_eq!(scale(&rows[..1]) + &goals_of_many(&rows[..1]), "");
    }

    #[test]
    fn round_trips_have_times() {
        let trip = Row {
            median_ns: Some(1000),
            p99_ns: Some(2000),
            ..row("kopi_spin", "none", 1, 900.0)
        };
        assert!(round_trips(&[trip.clone()]).ends_with("| kopi_spin | 900 | 1000 | 2000 |\n\n"));
        let end = |mode: &str, cost| Row {
            mode: mode.to_owned(),
            insn_per_packet: Some(cost),
            ..trip.clone()
        };
        let ends = [
            end("kopi_spin_both", 1_020_000.0),
            end("udp_busy_poll_both", 1_050_000.0),
        ];
        assert!(goals_of_trips(&ends).contains("20000 / 50000 = 0.40, goal 0.5: reached"));
        assert_eq!(goals_of_trips(&[]), "");
        assert_eq!(tables(&[trip]), "");
        assert_eq!(round_trips(&[]), "");
    }

    #[test]
    fn rates_are_compared_round_by_round() {
        let rate = |mode: &str, runs: &[f64]| Row {
            insn_per_packet: None,
            packets_per_second: Some(median(runs)),
            runs: runs.to_vec(),
            ..row(mode, "none", 1, 0.0)
        };
        let rows = [
            rate("sendmmsg", &[100.0, 50.0, 80.0]),
            rate("kopi_gso_descs", &[200.0, 150.0, 160.0]),
        ];
        let text = all_rates(&rows);
        assert!(text.contains("| sendmmsg | 80 | 1.00 |\n"), "{text}");
        assert!(text.contains("| kopi_gso_descs | 160 | 2.00 |\n"), "{text}");
        assert_eq!(tables(&rows), "");
    }

    #[test]
    fn array_is_json() {
        let rows = [row("send", "none", 1, 5.0), row("send", "none", 2, 6.0)];
        let back: Vec<Row> = serde_json::from_str(&array(&rows).unwrap()).unwrap();
        assert_eq!(back, rows);
    }
}
