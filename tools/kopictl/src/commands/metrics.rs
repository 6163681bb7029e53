// SPDX-License-Identifier: GPL-2.0

//! `kopictl metrics`

use crate::{
    grammar::text_of,
    message::{Command, Flow, Info, Rule, Stats, Totals},
    names::Names,
    netlink::Connection,
    output::BAD,
    rates::{by_process, Counts, Last, Process},
};
use anyhow::anyhow;
use clap::Args;
use std::{
    collections::HashMap,
    fmt::{Display, Write as _},
    io::{self, Write as _},
    net::SocketAddr,
    time::Instant,
};
use tiny_http::{Header, Method, Response, Server};

const CONTENT_TYPE: &str =
    "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where to.
#[derive(Args)]
pub(crate) struct Options {
    /// Serve them by HTTP, at /metrics, until the end; else they are printed once
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
}

/// Gives the metrics.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut state = State {
        connection: Connection::open()?,
        last: Last::default(),
        processes: HashMap::new(),
    };
    let Some(address) = options.listen else {
        return Ok(io::stdout().write_all(state.gather()?.as_bytes())?);
    };
    // What isn't permitted is said at once.
    state.gather()?;
    let server = Server::http(address).map_err(|error| anyhow!("{address}: {error}"))?;
    anstream::eprintln!("listening on http://{}/metrics", server.server_addr());
    let header = CONTENT_TYPE
        .parse::<Header>()
        .map_err(|()| anyhow!("{CONTENT_TYPE}"))?;
    for request in server.incoming_requests() {
        let response = match (request.method(), request.url()) {
            (Method::Get | Method::Head, "/metrics") => match state.gather() {
                Ok(text) => Response::from_string(text).with_header(header.clone()),
                Err(error) => Response::from_string(format!("{error:#}\n")).with_status_code(503),
            },
            (Method::Get | Method::Head, _) => {
                Response::from_string("see /metrics\n").with_status_code(404)
            }
            _ => Response::from_string("GET only\n").with_status_code(405),
        };
        if let Err(error) = request.respond(response) {
            anstream::eprintln!("{BAD}kopictl:{BAD:#} {error}");
        }
    }
    Ok(())
}

struct State {
    connection: Connection,
    last: Last,
    /// Sums of processes. They outlive flows, since a counter must not go back.
    processes: HashMap<Process, Counts>,
}

impl State {
    fn gather(&mut self) -> anyhow::Result<String> {
        let info = self.connection.get(Command::InfoGet, &Info::default())?;
        let totals = self
            .connection
            .get(Command::TotalsGet, &Totals::default())?;
        let flows: Vec<Flow> = self.connection.dump(Command::FlowGet)?;
        let rules = self.connection.rules()?;
        let (changes, _) = self.last.changes(&flows, Instant::now());
        let changes = by_process(flows.iter().zip(changes));
        // Those without flows are gone.
        self.processes
            .retain(|process, _| changes.contains_key(process));
        for (process, (_, change)) in changes {
            *self.processes.entry(process).or_default() += change;
        }
        Ok(text(
            &info,
            &totals,
            &self.processes,
            &rules,
            &Names::default(),
        ))
    }
}

/// A metric's name, its help, and where its values are.
type Kind<T, V> = (&'static str, &'static str, fn(&T) -> V);

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
            let escaped = value
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
}

fn text(
    info: &Info,
    totals: &Totals,
    processes: &HashMap<Process, Counts>,
    rules: &[Rule],
    names: &Names,
) -> String {
    let mut text = Text(String::new());
    let zero = Stats::default();
    let stats = totals.stats.as_ref().unwrap_or(&zero);

    text.metric("module", "info", "KOPI, as it is loaded.");
    let abi = info.abi_version.unwrap_or(0).to_string();
    text.sample("module_info", &[("abi_version", &abi)], 1);
    text.metric("flows", "gauge", "Open flows.");
    text.sample("flows", &[], info.flows.unwrap_or(0));
    text.metric("rules", "gauge", "Rules in force.");
    text.sample("rules", &[], info.rules.unwrap_or(0));
    text.metric(
        "rules_generation",
        "gauge",
        "Rises with each change of the rules.",
    );
    text.sample("rules_generation", &[], info.generation.unwrap_or(0));
    text.metric("flows_opened", "counter", "Flows that were ever opened.");
    text.sample("flows_opened_total", &[], totals.flows_opened.unwrap_or(0));
    text.metric(
        "flows_denied",
        "counter",
        "Calls of bind() and connect(), and live flows, that a rule stopped.",
    );
    text.sample("flows_denied_total", &[], totals.flows_denied.unwrap_or(0));

    let (out, back) = ([("direction", "out")], [("direction", "in")]);
    text.metric("packets", "counter", "Datagrams that passed.");
    text.sample("packets_total", &out, stats.tx_packets.unwrap_or(0));
    text.sample("packets_total", &back, stats.rx_packets.unwrap_or(0));
    text.metric("bytes", "counter", "Payload that passed.");
    text.sample("bytes_total", &out, stats.tx_bytes.unwrap_or(0));
    text.sample("bytes_total", &back, stats.rx_bytes.unwrap_or(0));
    text.metric(
        "drops",
        "counter",
        "Datagrams that did not pass, by reason.",
    );
    for (direction, reason, drops) in stats.drops() {
        text.sample(
            "drops_total",
            &[("direction", direction), ("reason", &reason)],
            drops,
        );
    }

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
        text.metric(name, "counter", help);
        for (Process { pid, program, uid }, counts) in &sorted {
            let (pid, user) = (pid.to_string(), names.user(*uid));
            for (direction, value) in std::iter::zip(["out", "in"], values(counts)) {
                let labels = [
                    ("pid", &*pid),
                    ("program", program),
                    ("user", &*user),
                    ("direction", direction),
                ];
                text.sample(&format!("{name}_total"), &labels, value);
            }
        }
    }
    text.metric(
        "process_drops",
        "counter",
        "Datagrams that processes lost, both ways.",
    );
    for (Process { pid, program, uid }, counts) in &sorted {
        let labels = [
            ("pid", &*pid.to_string()),
            ("program", program),
            ("user", &*names.user(*uid)),
        ];
        text.sample("process_drops_total", &labels, counts.drops);
    }

    let kinds: [Kind<Rule, Option<u64>>; 3] = [
        (
            "rule_packets",
            "Datagrams that a rule decided about.",
            |rule| rule.packets,
        ),
        ("rule_bytes", "Their payload.", |rule| rule.bytes),
        (
            "rule_denied",
            "Calls of bind() and connect(), and live flows, that it stopped.",
            |rule| rule.denied,
        ),
    ];
    for (name, help, value) in kinds {
        text.metric(name, "counter", help);
        for rule in rules {
            let (handle, words) = (rule.handle.unwrap_or(0).to_string(), text_of(rule, names));
            let labels = [("handle", &*handle), ("rule", &*words)];
            text.sample(&format!("{name}_total"), &labels, value(rule).unwrap_or(0));
        }
    }
    text.0 += "# EOF\n";
    text.0
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_dashboard_asks_for_what_there_is() {
        let dashboard = include_str!("../../../../docs/grafana.json");
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
