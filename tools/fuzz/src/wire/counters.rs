// SPDX-License-Identifier: GPL-2.0

//! The kernel's counters of what came in.

use std::{collections::BTreeMap, fs, io};

/// What a batch changes of them, or their values; by name.
pub(crate) type Counters = BTreeMap<String, u64>;

/// Those that count later than the packet comes, and what is sent because of it: limits of rates say whether.
const OTHERS: [&str; 6] = ["Out", "Timeout", "ReasmFails", "Icmp", "Forw", "Default"];

/// Frames that a device has received.
pub(crate) fn frames(device: &str) -> io::Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/dev")?;
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let packets = lines
        .find(|(name, _)| name.trim() == device)
        .and_then(|(_, fields)| fields.split_whitespace().nth(1)?.parse().ok());
    packets.ok_or_else(|| io::Error::other(format!("{device}: no such device")))
}

/// Now.
pub(crate) fn read() -> io::Result<Counters> {
    let mut counters = Counters::new();
    for file in ["snmp", "netstat"] {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{file}"))?;
        let mut lines = text.lines();
        while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
            let mut names = names.split_whitespace();
            let group = names.next().unwrap_or_default();
            // TCP's, among others, are somebody else's.
            if ["Ip:", "IpExt:", "Udp:"].contains(&group) {
                let values = values.split_whitespace().skip(1);
                add(
                    &mut counters,
                    names.map(|name| format!("{group}{name}")).zip(values),
                );
            }
        }
    }
    let text = fs::read_to_string("/proc/thread-self/net/snmp6")?;
    let fields = text
        .lines()
        .filter_map(|line| line.split_once(char::is_whitespace));
    add(
        &mut counters,
        fields.map(|(name, value)| (name.to_owned(), value.trim())),
    );
    Ok(counters)
}

fn add<'a>(counters: &mut Counters, fields: impl Iterator<Item = (String, &'a str)>) {
    for (name, value) in fields {
        if !OTHERS.iter().any(|other| name.contains(other)) {
            counters.insert(name, value.parse().unwrap_or(0));
        }
    }
}

/// What has changed.
pub(crate) fn between(before: &Counters, now: &Counters) -> Counters {
    let changes = now.iter().map(|(name, value)| {
        let before = before.get(name).copied().unwrap_or(0);
        (name.clone(), value.wrapping_sub(before))
    });
    changes.filter(|&(_, change)| change != 0).collect()
}
