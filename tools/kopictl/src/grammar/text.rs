// SPDX-License-Identifier: GPL-2.0

//! From a rule to words.

use super::bits;
use crate::{
    message::rule::{Directions, Rule, Verdict},
    names::Names,
};
use std::net::IpAddr;

/// The words of a rule, for `parse`; those that the shell would split are quoted.
pub(crate) fn text_of(rule: &Rule, names: &Names) -> String {
    let mut words = Words::default();
    words.conditions(rule, names);
    words.decisions(rule);
    words.add("comment", rule.comment.clone());
    if rule.shared {
        words.flag("shared");
    }
    let rated = rule.rate_bytes.or(rule.rate_packets).is_some();
    let marked = rule.mark.or(rule.priority).or(rule.weight).is_some();
    match rule.verdict {
        Some(Verdict::Deny) => words.flag("deny"),
        _ if rated || marked => (),
        _ => words.flag("allow"),
    }
    words.0.join(" ")
}

/// Words in the making.
#[derive(Default)]
struct Words(Vec<String>);

impl Words {
    /// Adds a word that has a value, if there is one.
    fn add(&mut self, word: &str, value: Option<String>) {
        if let Some(value) = value {
            let quoted = shlex::try_quote(&value)
                .map_or_else(|_| value.clone(), |quoted| quoted.into_owned());
            self.0.extend([word.to_owned(), quoted]);
        }
    }

    /// Adds a word by itself.
    fn flag(&mut self, word: &str) {
        self.0.push(word.to_owned());
    }

    /// What a flow must match.
    fn conditions(&mut self, rule: &Rule, names: &Names) {
        let user = |min| match rule.uid_max {
            Some(max) if max != min => format!("{min}-{max}"),
            _ => names.user(min),
        };
        let network = |address: IpAddr| match rule.remote_prefix {
            Some(prefix) if prefix < bits(address) => format!("{address}/{prefix}"),
            _ => address.to_string(),
        };
        let one_way = rule.direction.filter(|&way| way != Directions::BOTH);
        self.add("user", rule.uid_min.map(user));
        self.add("group", rule.gid.map(|gid| names.group(gid)));
        self.add("cgroup", rule.cgroup_path.clone());
        self.add("exe", rule.exe.clone());
        self.add("protocol", rule.protocol.map(protocol));
        self.add("local-port", span(rule.local_port_min, rule.local_port_max));
        self.add("remote", rule.remote_address.map(network));
        self.add(
            "remote-port",
            span(rule.remote_port_min, rule.remote_port_max),
        );
        self.add("device", rule.device.clone());
        self.add("direction", one_way.map(|way| way.to_string()));
    }

    /// What becomes of packets, but for the verdict.
    fn decisions(&mut self, rule: &Rule) {
        let in_bits = |bytes: u64| match bytes.checked_mul(8) {
            Some(bits) => prefixed(bits, "bit"),
            None => prefixed(bytes, "byte"),
        };
        let in_packets = |packets| prefixed(packets, "pps");
        let rate = rule.rate_bytes.or(rule.rate_packets);
        let usual = rate.map(|rate| (rate / 10).max(1));
        let burst = rule.burst.filter(|_| rule.burst != usual);
        self.add("mark", rule.mark.map(|mark| format!("{mark:#x}")));
        self.add("priority", rule.priority.map(class));
        self.add("weight", rule.weight.map(|weight| weight.to_string()));
        self.add("rate", rule.rate_bytes.map(in_bits));
        self.add("rate", rule.rate_packets.map(in_packets));
        self.add("burst", burst.map(|burst| burst.to_string()));
    }
}

fn span(min: Option<u16>, max: Option<u16>) -> Option<String> {
    let min = min?;
    Some(match max {
        Some(max) if max != min => format!("{min}-{max}"),
        _ => min.to_string(),
    })
}

fn protocol(number: u8) -> String {
    match number {
        17 => "udp".to_owned(),
        6 => "tcp".to_owned(),
        _ => number.to_string(),
    }
}

fn class(priority: u32) -> String {
    match priority >> 16 {
        0 => priority.to_string(),
        major => format!("{major:x}:{:x}", priority & 0xffff),
    }
}

fn prefixed(number: u64, unit: &str) -> String {
    let prefixes = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    match prefixes
        .iter()
        .find(|(factor, _)| number != 0 && number % factor == 0)
    {
        Some((factor, prefix)) => format!("{}{prefix}{unit}", number / factor),
        None => format!("{number}{unit}"),
    }
}
