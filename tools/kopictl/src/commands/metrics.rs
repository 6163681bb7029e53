// SPDX-License-Identifier: GPL-2.0

//! `kopictl metrics`

use super::Usage;
use crate::{
    grammar::text_of,
    http::{serve, Answer, Listener, Recent},
    message::{Command, Flow, Info, Rule, Stats, Totals},
    names::{gid, Names},
    netlink::Connection,
    output::{clean, remark},
    rates::{by_process, Counts, Last, Process},
    runtime,
};
use anyhow::{bail, Context};
use clap::Args;
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    collections::HashMap,
    fmt::{self, Display, Write as _},
    fs::{self, File, Permissions},
    io::{self, ErrorKind, Write as _},
    net::{SocketAddr, TcpListener},
    os::{
        fd::OwnedFd,
        unix::{
            fs::{lchown, FileTypeExt, MetadataExt, PermissionsExt},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
    str::FromStr,
    time::{Duration, Instant},
};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Clients that are not served yet.
const BACKLOG: i32 = 64;
/// To gather them takes as long as there are flows; so long, all who ask get the same.
const LASTS: Duration = Duration::from_secs(1);

/// Where to.
#[derive(Args)]
#[command(after_help = "\
/metrics shows to whom can ask what the kernel shows to CAP_NET_ADMIN only: who
sends and receives how much (process, program, user), and the rules. A Unix
socket is for its owner, and for --group; ADDR:PORT is one of this machine's own
(127.0.0.1, ::1), and is for every user of it. For other machines put a proxy in
front of it that asks who they are.")]
pub(crate) struct Options {
    /// Serve the metrics by HTTP at /metrics on this Unix socket; without it they are printed once
    #[arg(long, value_name = "PATH|ADDR:PORT", num_args = 0..=1, default_missing_value = SOCKET)]
    listen: Option<Place>,

    /// Let this group connect as well: the socket has mode 0660 instead of 0600
    #[arg(long, value_name = "NAME|GID", value_parser = group, requires = "listen")]
    group: Option<u32>,
}

const SOCKET: &str = "/run/kopi/metrics.sock";

/// Where clients come from.
#[derive(Clone, Debug, PartialEq)]
enum Place {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Self::Unix(text.into()));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Self::Tcp(address)),
            Ok(_) => Err("only this machine's own addresses, as 127.0.0.1, are served".to_owned()),
            Err(_) => Err("an absolute path, or an address and port were expected".to_owned()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(out),
            Self::Tcp(address) => address.fmt(out),
        }
    }
}

fn group(text: &str) -> Result<u32, String> {
    gid(text).ok_or_else(|| format!("there is no group {text}"))
}

/// Listens, and says where.
fn listen(place: &Place, group: Option<u32>) -> anyhow::Result<(Listener, String)> {
    match place {
        Place::Unix(path) => {
            if path.parent() == Some(Path::new(runtime::FOLDER)) {
                runtime::folder()?;
            }
            let listener = listen_at(path, group)?;
            Ok((listener, format!("{}", path.display())))
        }
        Place::Tcp(_) if group.is_some() => {
            bail!(Usage("--group is of a Unix socket".to_owned()))
        }
        Place::Tcp(address) => {
            let listener = TcpListener::bind(address)?;
            let url = format!("http://{}/metrics", listener.local_addr()?);
            Ok((Listener::Tcp(listener), url))
        }
    }
}

/// A Unix socket, which only its owner can connect to, and the group if there is one.
fn listen_at(path: &Path, group: Option<u32>) -> anyhow::Result<Listener> {
    // Or the file that is given to the group could be another by then.
    let folder = fs::metadata(path.parent().unwrap_or(Path::new("/")))?;
    if folder.mode() & 0o022 != 0 && folder.mode() & 0o1000 == 0 {
        bail!("others can write to the folder");
    }
    // One that nobody listens at was left behind.
    let is_socket = |file: fs::Metadata| file.file_type().is_socket();
    if fs::symlink_metadata(path).is_ok_and(is_socket)
        && UnixStream::connect(path)
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    {
        fs::remove_file(path)?;
    }
    let file = File::from(OwnedFd::from(Socket::new(
        Domain::UNIX,
        Type::STREAM,
        None,
    )?));
    // The file that bind() makes has this mode, less the umask.
    file.set_permissions(Permissions::from_mode(0o600))?;
    let socket = Socket::from(OwnedFd::from(file));
    socket.bind(&SockAddr::unix(path)?)?;
    if let Some(group) = group {
        lchown(path, None, Some(group))?;
        fs::set_permissions(path, Permissions::from_mode(0o660))?;
    }
    // Nobody could connect before.
    socket.listen(BACKLOG)?;
    Ok(Listener::Unix(OwnedFd::from(socket).into()))
}

/// Gives the metrics.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut state = State {
        connection: Connection::open()?,
        last: Last::default(),
        processes: HashMap::new(),
    };
    let Some(place) = &options.listen else {
        return Ok(io::stdout().write_all(state.gather()?.as_bytes())?);
    };
    // What isn't permitted is said at once.
    state.gather()?;
    let (listener, url) = listen(place, options.group).with_context(|| place.to_string())?;
    remark(format!("listening on {url}"));
    let mut recent = Recent::new(LASTS);
    let page = |path: &str| match path {
        "/metrics" => recent.get(|| state.answer()),
        _ => Answer::line("404 Not Found", "see /metrics"),
    };
    Ok(serve(&listener, page)?)
}

struct State {
    connection: Connection,
    last: Last,
    /// Sums of processes. They outlive flows, since a counter must not go back.
    processes: HashMap<Process, Counts>,
}

impl State {
    fn answer(&mut self) -> Answer {
        match self.gather() {
            Ok(body) => Answer {
                status: "200 OK",
                kind: CONTENT_TYPE,
                body,
            },
            Err(error) => Answer::line("503 Service Unavailable", &clean(&format!("{error:#}"))),
        }
    }

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
            // OpenMetrics has a word for the end of a line, and for no other of those.
            let lines = value.split('\n').map(clean).collect::<Vec<_>>();
            let escaped = lines
                .join("\n")
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

    text.metric("module", "info", "The loaded module.");
    let abi = info.abi_version.unwrap_or(0).to_string();
    text.sample("module_info", &[("abi_version", &abi)], 1);
    text.metric("flows", "gauge", "Open flows.");
    text.sample("flows", &[], info.flows.unwrap_or(0));
    text.metric("rules", "gauge", "Rules in force.");
    text.sample("rules", &[], info.rules.unwrap_or(0));
    text.metric(
        "rules_generation",
        "gauge",
        "A number that grows with each change of the rules.",
    );
    text.sample("rules_generation", &[], info.generation.unwrap_or(0));
    text.metric(
        "flows_opened",
        "counter",
        "Number of flows that were opened, including closed ones.",
    );
    text.sample("flows_opened_total", &[], totals.flows_opened.unwrap_or(0));
    text.metric(
        "flows_denied",
        "counter",
        "Number of bind() and connect() calls, and of live flows, that a rule denied.",
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
        "Datagrams of processes that were dropped, in both directions.",
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
            "Number of datagrams about which the rule decided.",
            |rule| rule.packets,
        ),
        ("rule_bytes", "Their payload, in bytes.", |rule| rule.bytes),
        (
            "rule_denied",
            "Number of bind() and connect() calls that the rule refused, and of live flows that it stopped.",
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
    fn labels_hide_nothing() {
        let mut text = Text(String::new());
        text.sample("x", &[("program", "a\u{1b}[2J\u{9b}\u{202e}\n\"")], 1);
        let expected = r#"kopi_x{program="a\\u{1b}[2J\\u{9b}\\u{202e}\n\""} 1"#;
        assert_eq!(text.0.trim_end(), expected);
    }

    #[test]
    fn only_this_machine_is_served() {
        for (text, place) in [
            ("/run/x", Some(Place::Unix("/run/x".into()))),
            (
                "127.0.0.1:9",
                Some(Place::Tcp("127.0.0.1:9".parse().unwrap())),
            ),
            ("[::1]:9", Some(Place::Tcp("[::1]:9".parse().unwrap()))),
            ("0.0.0.0:9", None),
            ("[::]:9", None),
            ("192.0.2.1:9", None),
            ("x", None),
        ] {
            assert_eq!(text.parse().ok(), place, "{text}");
        }
    }

    #[test]
    fn sockets_are_their_owners() {
        let folder = std::env::temp_dir().join(format!("kopictl-metrics-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("socket");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        let first = listen_at(&path, None).unwrap();
        assert_eq!(mode(), 0o600);
        assert!(listen_at(&path, None).is_err(), "it is in use");
        drop(first);
        // It was left behind.
        let group = fs::metadata(&folder).unwrap().gid();
        let second = listen_at(&path, Some(group)).unwrap();
        assert_eq!(mode(), 0o660);
        drop(second);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(listen_at(&path, None).is_err(), "no socket");
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        assert!(listen_at(&folder.join("other"), None).is_err());
        fs::remove_dir_all(&folder).unwrap();
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
