// SPDX-License-Identifier: GPL-2.0

//! Tables of rows, and what was to be reached.

use crate::row::Row;
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

/// A goal: at most so much of what a rival costs, with ten nft rules in force.
struct Goal {
    what: &'static str,
    direction: &'static str,
    offloads: bool,
    mode: &'static str,
    rival: &'static str,
    many: bool,
    at_most: f64,
}

const GOALS: &[Goal] = &[
    Goal {
        what: "sending 64 bytes in bulk to one peer",
        direction: "send",
        offloads: false,
        mode: "kopi_train",
        rival: "sendmmsg",
        many: false,
        at_most: 0.3,
    },
    Goal {
        what: "sending 64 bytes to random peers",
        direction: "send",
        offloads: false,
        mode: "kopi_doorbell",
        rival: "sendmmsg",
        many: true,
        at_most: 0.85,
    },
    Goal {
        what: "sending 64 bytes in bulk, NIC with segmentation offload",
        direction: "send",
        offloads: true,
        mode: "kopi_gso",
        rival: "udp_segment",
        many: false,
        at_most: 1.2,
    },
    Goal {
        what: "receiving 64 bytes, in trains",
        direction: "recv",
        offloads: false,
        mode: "kopi_merged",
        rival: "recvmmsg",
        many: false,
        at_most: 0.55,
    },
];

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let mut rows = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        // What else the machine said.
        if line.starts_with('{') {
            rows.push(serde_json::from_str(&line)?);
        }
    }
    if rows.is_empty() {
        return Err(io::Error::other("no rows"));
    }
    fs::write(&options.json, array(&rows)?)?;
    print!("{}", tables(&rows));
    println!("{}", goals(&rows));
    Ok(true)
}

/// A JSON array with a row in each line, as it is to be compared.
fn array(rows: &[Row]) -> io::Result<String> {
    let rows: Result<Vec<_>, _> = rows.iter().map(serde_json::to_string).collect();
    Ok(format!("[\n{}\n]\n", rows?.join(",\n")))
}

/// Each thing once, in the order in which they come.
fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for each in all {
        if !seen.contains(&each) {
            seen.push(each);
        }
    }
    seen
}

/// Which rows make a table.
fn kind(row: &Row) -> (&str, usize, bool) {
    (&row.direction, row.peers, row.offloads)
}

/// Tables in Markdown, one for each kind: modes down, policies and
/// payloads across.
fn tables(rows: &[Row]) -> String {
    let mut text = String::new();
    for kind in distinct(rows.iter().map(kind)) {
        let here: Vec<_> = rows.iter().filter(|row| self::kind(row) == kind).collect();
        let columns = distinct(here.iter().map(|row| (&row.policy, row.payload)));
        let cells: BTreeMap<_, _> = here
            .iter()
            .map(|row| ((&row.mode, &row.policy, row.payload), cell(row)))
            .collect();
        let (direction, peers, offloads) = kind;
        let whom = match peers {
            1 => "one peer".to_owned(),
            peers => format!("{peers} peers at random"),
        };
        let nic = if offloads { ", NIC with offloads" } else { "" };
        let _ = writeln!(text, "{direction}, {whom}{nic}: instructions per packet\n");
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

/// What a row cost, in brackets if the policy didn't see it.
fn cell(row: &Row) -> String {
    match (row.insn_per_packet, row.policy_holds) {
        (None, _) => String::new(),
        (Some(cost), Some(false)) => format!("({cost:.0})"),
        (Some(cost), _) => format!("{cost:.0}"),
    }
}

/// What was to be reached, and what was.
fn goals(rows: &[Row]) -> String {
    let mut text = String::new();
    for goal in GOALS {
        let cost = |mode| {
            rows.iter()
                .find(|row| {
                    row.mode == mode
                        && row.direction == goal.direction
                        && row.offloads == goal.offloads
                        && row.policy == "nft10"
                        && row.payload == 64
                        && (row.peers > 1) == goal.many
                })?
                .insn_per_packet
        };
        let (Some(ours), Some(theirs)) = (cost(goal.mode), cost(goal.rival)) else {
            continue;
        };
        let ratio = ours / theirs;
        let verdict = match ratio <= goal.at_most {
            true => "reached",
            false => "not reached",
        };
        let _ = writeln!(
            text,
            "{}, with ten nft rules: {} {ours:.0} / {theirs:.0} = {ratio:.2}, goal {}: {verdict}",
            goal.what, goal.mode, goal.at_most
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(mode: &str, policy: &str, peers: usize, cost: f64) -> Row {
        Row {
            mode: mode.to_owned(),
            direction: "send".to_owned(),
            offloads: false,
            payload: 64,
            policy: policy.to_owned(),
            policy_holds: None,
            flows: 1,
            peers,
            batch: 64,
            insn_per_packet: Some(cost),
            runs: vec![cost, cost],
            packets_per_second: None,
            wakeups_per_packet: 0.0,
            warm_up: 1,
            sent: 2,
            delivered: None,
            nic_packets: 2,
            nic_bytes: 212,
            policy_packets: None,
            handed: Some(2),
            kernel: "7.3.4".to_owned(),
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
            row("kopi_train", "nft10", 1, 2000.0),
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
    fn array_is_json() {
        let rows = [row("send", "none", 1, 5.0), row("send", "none", 2, 6.0)];
        let back: Vec<Row> = serde_json::from_str(&array(&rows).unwrap()).unwrap();
        assert_eq!(back, rows);
    }
}
