// SPDX-License-Identifier: GPL-2.0

//! Who sent and received how much: sums of packets by process.

use super::packet::Packet;
use crate::{
    names::Names,
    output::{json, or_dash, short, Table},
    rates::Process,
};
use kopi::pure::abi::{MON_OUT, MON_PASSED};
use serde::Serialize;
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

/// So many processes, and flows of each; users choose how many there are. Those that are more have a row
/// together.
const PROCESSES_MAX: usize = 16384;
const FLOWS_MAX: usize = 1 << 20;

/// What a process's packets came to.
#[derive(Debug, Default, PartialEq)]
struct Sums {
    flows: HashSet<u32>,
    out: u64,
    r#in: u64,
    bytes: u64,
    dropped: u64,
}

/// A row, also of JSON.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    process: Process,
    user: String,
    flows: usize,
    /// Datagrams.
    packets: u64,
    out_packets: u64,
    in_packets: u64,
    /// Of IP.
    bytes: u64,
    /// Of `packets`.
    dropped: u64,
    packets_per_second: f64,
}

/// Sums of packets by process.
#[derive(Default)]
pub(super) struct Summary {
    processes: HashMap<Process, Sums>,
    /// Flows of all.
    flows: usize,
}

impl Summary {
    /// Adds a packet.
    pub(super) fn add(&mut self, packet: &Packet<'_>) {
        let mut process = Process {
            pid: packet.header.pid,
            program: packet.program().into_owned(),
            uid: packet.header.uid,
        };
        if self.processes.len() >= PROCESSES_MAX && !self.processes.contains_key(&process) {
            process = Process {
                pid: 0,
                program: "(others)".to_owned(),
                uid: u32::MAX,
            };
        }
        let sums = self.processes.entry(process).or_default();
        let datagrams = packet.datagrams();
        // While accept() makes a flow, it has no number.
        let flow = packet.header.flow;
        if flow != 0 && self.flows < FLOWS_MAX && sums.flows.insert(flow) {
            self.flows += 1;
        }
        match packet.header.direction {
            MON_OUT => sums.out += datagrams,
            _ => sums.r#in += datagrams,
        }
        sums.bytes += u64::from(packet.length);
        if packet.header.verdict != MON_PASSED {
            sums.dropped += datagrams;
        }
    }

    /// The rows, those of most packets first.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn rows(&self, took: Duration, names: &Names) -> Vec<Row> {
        let rows = self.processes.iter().map(|(process, sums)| Row {
            process: process.clone(),
            user: names.user(process.uid),
            flows: sums.flows.len(),
            packets: sums.out + sums.r#in,
            out_packets: sums.out,
            in_packets: sums.r#in,
            bytes: sums.bytes,
            dropped: sums.dropped,
            packets_per_second: (sums.out + sums.r#in) as f64 / took.as_secs_f64(),
        });
        let mut rows = rows.collect::<Vec<_>>();
        rows.sort_by(|a, b| (b.packets, &a.process).cmp(&(a.packets, &b.process)));
        rows
    }

    /// Prints it; the packets came in that time.
    pub(super) fn print(&self, took: Duration, names: &Names, as_json: bool) -> anyhow::Result<()> {
        let rows = self.rows(took, names);
        if as_json {
            return json(&rows);
        }
        Ok(table(&rows).print()?)
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new([
        ">PID",
        "PROGRAM",
        "USER",
        ">FLOWS",
        ">OUT",
        ">IN",
        ">BYTES",
        ">DROPPED",
        ">PACKETS/S",
    ]);
    for row in rows {
        table.row([
            or_dash(Some(row.process.pid).filter(|&pid| pid != 0)),
            row.process.program.clone(),
            row.user.clone(),
            row.flows.to_string(),
            row.out_packets.to_string(),
            row.in_packets.to_string(),
            row.bytes.to_string(),
            row.dropped.to_string(),
            short(row.packets_per_second),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            flows::Paths,
            packet::tests::{header, with_packet},
        },
        *,
    };
    use kopi::pure::abi::{MonHdr, MON_DROPPED, MON_IN};

    #[test]
    fn there_is_a_bound() {
        let mut summary = Summary::default();
        for pid in 1..=u32::try_from(PROCESSES_MAX).unwrap() + 10 {
            let header = MonHdr { pid, ..header() };
            with_packet(header, 52, 52, Paths::default(), |packet| {
                summary.add(packet);
            });
        }
        assert_eq!(summary.processes.len(), PROCESSES_MAX + 1);
        let rows = summary.rows(Duration::from_secs(1), &Names::new(true));
        assert_eq!(
            (&*rows[0].process.program, rows[0].packets),
            ("(others)", 10)
        );
    }

    #[test]
    fn processes_are_sorted_by_packets() {
        let mut summary = Summary::default();
        let gso = MonHdr {
            gso_size: 10,
            flow: 6,
            ..header()
        };
        let inbound = MonHdr {
            direction: MON_IN,
            verdict: MON_DROPPED,
            ..header()
        };
        let other = MonHdr {
            pid: 0,
            uid: 0,
            ..header()
        };
        let paths = Paths {
            exe: Some("/bin/x"),
            cgroup: None,
        };
        for header in [other, other, gso, inbound] {
            with_packet(header, 52, 52, paths, |packet| summary.add(packet));
        }
        let lines = table(&summary.rows(Duration::from_secs(2), &Names::new(true))).lines();
        let words = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            lines.iter().map(words).collect::<Vec<_>>(),
            [
                "PID PROGRAM USER FLOWS OUT IN BYTES DROPPED PACKETS/S",
                "123 x 1001 2 6 1 200 1 3.5",
                "- x 0 1 2 0 200 0 1",
            ]
        );
    }
}
