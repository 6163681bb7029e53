// SPDX-License-Identifier: GPL-2.0

//! The metrics as OpenMetrics text.

use crate::{
    grammar::text_of,
    message::{
        info::Info,
        rule::Rule,
        stats::{Stats, Totals},
    },
    names::Names,
    output::clean,
    rates::{Counts, Process},
};
use std::{
    collections::HashMap,
    fmt::{Display, Write},
};

/// All metrics.
pub(super) fn text(
    info: &Info,
    totals: &Totals,
    processes: &HashMap<Process, Counts>,
    rules: &[Rule],
    names: &Names,
) -> String {
    let mut text = Text(String::new());
    text.module(info);
    text.totals(totals);
    text.processes(processes, names);
    text.rules(rules, names);
    text.0 += "# EOF\n";
    text.0
}

/// A metric's name, its help, and where its values are.
type Kind<T, V> = (&'static str, &'static str, fn(&T) -> V);

/// A label's value without what deceives. OpenMetrics has a word for the end of a line, and for no other of those.
pub(super) fn visible(value: &str) -> String {
    let lines = value.split('\n').map(clean);
    lines.collect::<Vec<_>>().join("\n")
}

/// Text in the making.
struct Text(String);

impl Text {
    /// Begins a metric.
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(
            self.0,
            "# TYPE kopi_{name} {kind}\n# HELP kopi_{name} {help}\n"
        );
    }

    /// Adds a sample of it.
    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let label = |(name, value): &(&str, &str)| {
            let escaped = visible(value)
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            format!("{name}=\"{escaped}\"")
        };
        let labels = labels.iter().map(label).collect::<Vec<_>>().join(",");
        let labels = if labels.is_empty() {
            labels
        } else {
            format!("{{{labels}}}")
        };
        let _ = writeln!(self.0, "kopi_{name}{labels} {value}");
    }

    fn module(&mut self, info: &Info) {
        self.metric("module", "info", "The loaded module.");
        let abi = info.abi_version.unwrap_or(0).to_string();
        self.sample("module_info", &[("abi_version", &abi)], 1);
        self.metric("flows", "gauge", "Open flows.");
        self.sample("flows", &[], info.flows.unwrap_or(0));
        self.metric("rules", "gauge", "Rules in force.");
        self.sample("rules", &[], info.rules.unwrap_or(0));
        self.metric(
            "rules_generation",
            "gauge",
            "A number that grows with each change of the rules.",
        );
        self.sample("rules_generation", &[], info.generation.unwrap_or(0));
    }

    fn totals(&mut self, totals: &Totals) {
        self.metric(
            "flows_opened",
            "counter",
            "Number of flows that were opened, including closed ones.",
        );
        self.sample("flows_opened_total", &[], totals.flows_opened.unwrap_or(0));
        self.metric(
            "flows_denied",
            "counter",
            "Number of calls that rules refused, of flows that they stopped, and of a few packets.",
        );
        self.sample("flows_denied_total", &[], totals.flows_denied.unwrap_or(0));

        let zero = Stats::default();
        let stats = totals.stats.as_ref().unwrap_or(&zero);
        let (out, back) = ([("direction", "out")], [("direction", "in")]);
        self.metric("packets", "counter", "Datagrams that passed.");
        self.sample("packets_total", &out, stats.tx_packets.unwrap_or(0));
        self.sample("packets_total", &back, stats.rx_packets.unwrap_or(0));
        self.metric("bytes", "counter", "Payload that passed.");
        self.sample("bytes_total", &out, stats.tx_bytes.unwrap_or(0));
        self.sample("bytes_total", &back, stats.rx_bytes.unwrap_or(0));
        self.metric(
            "drops",
            "counter",
            "Datagrams that did not pass, by reason.",
        );
        for (direction, reason, drops) in stats.drops() {
            self.sample(
                "drops_total",
                &[("direction", direction), ("reason", &reason)],
                drops,
            );
        }
    }

    fn processes(&mut self, processes: &HashMap<Process, Counts>, names: &Names) {
        let mut sorted = processes.iter().collect::<Vec<_>>();
        sorted.sort_by_key(|(process, _)| *process);
        let kinds: [Kind<Counts, [f64; 2]>; 2] = [
            (
                "process_packets",
                "Datagrams of processes that have flows.",
                |sum| [sum.out_packets, sum.in_packets],
            ),
            (
                "process_bytes",
                "Payload of processes that have flows.",
                |sum| [sum.out_bytes, sum.in_bytes],
            ),
        ];
        for (name, help, values) in kinds {
            self.metric(name, "counter", help);
            for (Process { pid, program, uid }, counts) in &sorted {
                let (pid, user) = (pid.to_string(), names.user(*uid));
                for (direction, value) in std::iter::zip(["out", "in"], values(counts)) {
                    let labels = [
                        ("pid", &*pid),
                        ("program", program),
                        ("user", &*user),
                        ("direction", direction),
                    ];
                    self.sample(&format!("{name}_total"), &labels, value);
                }
            }
        }
        self.metric(
            "process_drops",
            "counter",
            "Datagrams of processes that were dropped, in both directions.",
        );
        for (Process { pid, program, uid }, counts) in &sorted {
            let labels = [
                ("pid", &*pid.to_string()),
                ("program", program),
                ("user", &*names.user(*uid)),
            ];
            self.sample("process_drops_total", &labels, counts.drops);
        }
    }

    fn rules(&mut self, rules: &[Rule], names: &Names) {
        let kinds: [Kind<Rule, Option<u64>>; 3] = [
            (
                "rule_packets",
                "Number of datagrams about which the rule decided.",
                |rule| rule.packets,
            ),
            ("rule_bytes", "Their payload, in bytes.", |rule| rule.bytes),
            (
                "rule_denied",
                "Number of calls that the rule refused, of flows that it stopped, and of a few packets.",
                |rule| rule.denied,
            ),
        ];
        for (name, help, value) in kinds {
            self.metric(name, "counter", help);
            for rule in rules {
                let (handle, words) = (rule.handle.unwrap_or(0).to_string(), text_of(rule, names));
                let labels = [("handle", &*handle), ("rule", &*words)];
                self.sample(&format!("{name}_total"), &labels, value(rule).unwrap_or(0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::flow::Flow;

    #[test]
    fn metrics_are_openmetrics() {
        let stats = Stats {
            tx_packets: Some(7),
            rx_drop_ring_full: Some(3),
            ..Stats::default()
        };
        let totals = Totals {
            stats: Some(stats),
            ..Totals::default()
        };
        let process = Process {
            pid: 9,
            program: "a\"b\n".to_owned(),
            uid: 0,
        };
        let counts = Counts {
            out_packets: 5.0,
            ..Counts::default()
        };
        let rule = Rule {
            handle: Some(2),
            uid_min: Some(0),
            packets: Some(4),
            ..Rule::default()
        };
        let text = text(
            &Info::default(),
            &totals,
            &HashMap::from([(process, counts)]),
            &[rule],
            &Names::new(true),
        );
        for line in [
            "kopi_packets_total{direction=\"out\"} 7",
            "kopi_drops_total{direction=\"in\",reason=\"ring-full\"} 3",
            "kopi_process_packets_total{pid=\"9\",program=\"a\\\"b\\n\",user=\"0\",direction=\"out\"} 5",
            "kopi_rule_packets_total{handle=\"2\",rule=\"user 0 allow\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        // Every sample belongs to the metric above it.
        let mut metric = "";
        for line in text.lines().filter(|line| *line != "# EOF") {
            match line.strip_prefix("# TYPE ") {
                Some(rest) => metric = rest.split(' ').next().unwrap(),
                None => assert!(
                    line.trim_start_matches("# HELP ").starts_with(metric),
                    "{line}"
                ),
            }
        }
    }

    #[test]
    fn labels_hide_nothing() {
        let mut text = Text(String::new());
        text.sample("x", &[("program", "a\u{1b}[2J\u{9b}\u{202e}\n\"")], 1);
        let expected = r#"kopi_x{program="a\\u{1b}[2J\\u{9b}\\u{202e}\n\""} 1"#;
        assert_eq!(text.0.trim_end(), expected);
    }

    #[test]
    fn the_dashboard_asks_for_what_there_is() {
        let dashboard = include_str!("../../../../../docs/grafana.json");
        let rule = [Rule::default()];
        let processes = HashMap::from([(Process::of(&Flow::default()), Counts::default())]);
        let stats = Stats {
            tx_drop_rule: Some(0),
            ..Stats::default()
        };
        let totals = Totals {
            stats: Some(stats),
            ..Totals::default()
        };
        let names = Names::new(true);
        let text = text(&Info::default(), &totals, &processes, &rule, &names);
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let mut asked = 0;
        for name in dashboard.split(|letter| !is_name(letter)) {
            if name.starts_with("kopi_") {
                asked += 1;
                assert!(
                    text.contains(&format!("\n{name}{{")) || text.contains(&format!("\n{name} ")),
                    "{name}"
                );
            }
        }
        assert!(asked > 8);
    }
}
