// SPDX-License-Identifier: GPL-2.0

//! The table of counters (`src/pure/counters.rs`) against what is written by hand; `uapi.rs` compares the
//! header.
#![cfg(not(loom))]

use kopi::pure::counters::COUNTERS;
use std::{fs, path::Path};

fn read(path: &str) -> String {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(tree.join(path)).unwrap()
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

/// `qemu/check netlink` compares the header with `uapi/kopi.yaml`, a test of kopictl its messages.
#[test]
fn attributes_are_those_of_netlink() {
    let header = read("uapi/kopi_netlink.h");
    let given = header
        .split(|char: char| !char.is_ascii_alphanumeric() && char != '_')
        .filter(|word| word.starts_with("KOPI_A_STATS_") && *word != "KOPI_A_STATS_MAX")
        .map(str::to_owned);
    let table = COUNTERS
        .iter()
        .filter_map(|counter| counter.attribute.map(str::to_owned));
    assert_eq!(sorted(table.collect()), sorted(given.collect()));
    for counter in COUNTERS {
        if let Some(attribute) = counter.attribute {
            let name = counter.name.to_uppercase();
            assert_eq!(attribute, format!("KOPI_A_STATS_{name}"));
        }
    }
}

#[test]
fn documentation_has_all_counters() {
    let document = read("docs/abi.md");
    let (_, section) = document.split_once("\n## Counters\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split_once("` |")?.0.to_owned()));
    let table = COUNTERS.iter().map(|counter| counter.name.to_owned());
    assert_eq!(sorted(rows.collect()), sorted(table.collect()));
}

/// The name says what a counter is of, as sums and tests go by it.
#[test]
fn names_begin_with_their_direction() {
    for counter in COUNTERS {
        match counter.of {
            "sent" | "sum" => assert!(counter.name.starts_with("tx_"), "{counter:?}"),
            "received" => assert!(counter.name.starts_with("rx_"), "{counter:?}"),
            of => assert_eq!((of, counter.attribute), ("channel", None), "{counter:?}"),
        }
    }
}
