// SPDX-License-Identifier: GPL-2.0

//! `kopictl ps`

use super::{seconds, user};
use crate::{
    message::{
        flow::{ChannelUse, Flow},
        Command,
    },
    names::Names,
    netlink::Connection,
    output::{json, or_dash, short, Table},
    rates::{Counts, Last},
};
use clap::{Args, ValueEnum};
use nix::errno::Errno;
use serde::Serialize;
use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// Which flows, and what of them.
#[derive(Args)]
pub(crate) struct Options {
    /// Only flows of this user
    #[arg(long, value_name = "NAME|UID", value_parser = user)]
    user: Option<u32>,

    /// Only flows of this process
    #[arg(long)]
    pid: Option<u32>,

    /// Only flows of this program, which is a path or its last component
    #[arg(long, value_name = "PATH|NAME")]
    exe: Option<String>,

    /// Show full paths of programs, what flows use channels for or why not, and the TX and RX paths
    /// of packets if devices are attached
    #[arg(long, short)]
    wide: bool,

    /// Print numbers instead of names of users and devices
    #[arg(long, short)]
    numeric: bool,

    /// Measure for this time, and show packets, bytes and drops per second
    #[arg(long, short, value_name = "SECONDS", value_parser = seconds)]
    interval: Option<Duration>,
}

/// A flow with what isn't in its message; also for JSON.
#[derive(Serialize)]
pub(crate) struct Named<'a> {
    #[serde(flatten)]
    pub(crate) flow: &'a Flow,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) program: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tx_path_device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rates: Option<Counts>,
}

impl<'a> Named<'a> {
    /// A flow, and its rates if they are known.
    pub(crate) fn new(flow: &'a Flow, names: &Names, rates: Option<Counts>) -> Self {
        Self {
            flow,
            program: flow.program(),
            kind: flow.kind(),
            user: flow.uid.map(|uid| names.user(uid)),
            device: flow
                .ifindex
                .filter(|&index| index != 0)
                .map(|index| names.device(index)),
            tx_path_device: flow.tx_path_ifindex.map(|index| names.device(index)),
            rates,
        }
    }

    /// What each table shows of it; a wide one has the full path of its program.
    fn cells(&self, wide: bool) -> [String; 11] {
        let flow = self.flow;
        let program = self
            .program
            .filter(|_| !wide || flow.exe.is_none())
            .or(flow.exe.as_deref());
        [
            or_dash(flow.id),
            or_dash(flow.pid.filter(|&pid| pid != 0)),
            or_dash(program),
            or_dash(self.user.as_deref()),
            or_dash(flow.cgroup_path.as_deref()),
            or_dash(flow.kind()),
            or_dash(flow.tcp_state),
            or_dash(flow.local()),
            or_dash(flow.remote()),
            or_dash(self.device.as_deref()),
            or_dash(flow.channel),
        ]
    }

    /// What it uses a channel for, and the paths of its packets.
    fn paths(&self) -> [String; 3] {
        let flow = self.flow;
        let channel = flow
            .channel_use
            .map(|it| by_channel(it, flow.channel_error));
        let out = flow.tx_path.map(|path| {
            let device = self.tx_path_device.as_deref().unwrap_or("?");
            format!("{device}: {}", word(&path))
        });
        let back = flow.rx_path.map(|path| word(&path));
        [or_dash(channel), or_dash(out), or_dash(back)]
    }
}

/// A way's name, as JSON has it.
fn word(way: &impl ValueEnum) -> String {
    way.to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

/// What a flow uses a channel for, or why none, in a word or two.
fn by_channel(it: ChannelUse, error: Option<u32>) -> String {
    match error {
        Some(errno) => format!("{}: {}", word(&it), errno_name(errno)),
        None => word(&it),
    }
}

/// An errno's name, such as ENOMEM.
pub(crate) fn errno_name(errno: u32) -> String {
    match i32::try_from(errno).map_or(Errno::UnknownErrno, Errno::from_raw) {
        Errno::UnknownErrno => format!("errno {errno}"),
        known => format!("{known:?}"),
    }
}

impl Options {
    fn wants(&self, flow: &Flow) -> bool {
        let exe = |exe: &String| flow.exe.as_ref() == Some(exe) || flow.program() == Some(exe);
        self.user.is_none_or(|user| flow.uid == Some(user))
            && self.pid.is_none_or(|pid| flow.pid == Some(pid))
            && self.exe.as_ref().is_none_or(exe)
    }

    fn table(&self, flows: &[Named<'_>]) -> Table {
        let mut head = vec![
            ">ID", ">PID", "PROGRAM", "USER", "CGROUP", "KIND", "STATE", "LOCAL", "REMOTE",
            "DEVICE", ">CHANNEL",
        ];
        if self.wide {
            head.extend(["CHANNEL USE", "TX PATH", "RX PATH"]);
        }
        if self.interval.is_some() {
            head.extend([">PACKETS/S", ">BYTES/S", ">DROPS/S"]);
        }
        let mut table = Table::new(head);
        for named in flows {
            let cells = named.cells(self.wide);
            let paths = self.wide.then(|| named.paths());
            let rates = named.rates;
            let rates = rates.map(|rates| [rates.packets(), rates.bytes(), rates.drops].map(short));
            table.row(
                cells
                    .into_iter()
                    .chain(paths.into_iter().flatten())
                    .chain(rates.into_iter().flatten()),
            );
        }
        table
    }
}

/// Shows flows.
pub(crate) fn run(options: &Options, as_json: bool) -> anyhow::Result<()> {
    let mut connection = Connection::open()?;
    let mut last = Last::default();
    if let Some(interval) = options.interval {
        last.changes(&connection.dump(Command::FlowGet)?, Instant::now());
        sleep(interval);
    }
    let mut flows: Vec<Flow> = connection.dump(Command::FlowGet)?;
    flows.sort_by_key(|flow| flow.id);
    let (changes, seconds) = last.changes(&flows, Instant::now());
    let names = Names::new(options.numeric);
    let named = std::iter::zip(&flows, changes)
        .filter(|(flow, _)| options.wants(flow))
        .map(|(flow, change)| {
            Named::new(
                flow,
                &names,
                seconds.map(|seconds| change * seconds.recip()),
            )
        });
    let named = named.collect::<Vec<_>>();
    if as_json {
        return json(&named);
    }
    Ok(options.table(&named).print()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        attributes::Port,
        message::{
            flow::TcpState,
            paths::{RxPath, TxPath},
        },
    };

    fn flow() -> Flow {
        Flow {
            id: Some(3),
            pid: Some(77),
            uid: Some(0),
            exe: Some("/usr/bin/kopi-echo".to_owned()),
            local_address: Some([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1].into()),
            local_port: Some(Port(7777)),
            protocol: Some(6),
            tcp_state: Some(TcpState::Listen),
            ..Flow::default()
        }
    }

    fn options() -> Options {
        Options {
            user: None,
            pid: None,
            exe: None,
            wide: false,
            numeric: true,
            interval: None,
        }
    }

    #[test]
    fn a_flow_is_a_line() {
        let (names, flow) = (Names::new(true), flow());
        let lines = options().table(&[Named::new(&flow, &names, None)]).lines();
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            [
                "3",
                "77",
                "kopi-echo",
                "0",
                "-",
                "tcp6",
                "listen",
                "192.0.2.1:7777",
                "-",
                "-",
                "-"
            ]
        );
        let wide = Options {
            wide: true,
            ..options()
        };
        assert!(wide.table(&[Named::new(&flow, &names, None)]).lines()[1]
            .contains("/usr/bin/kopi-echo"));
        let by_eth0 = Flow {
            tx_path: Some(TxPath::Tap),
            tx_path_ifindex: Some(2),
            rx_path: Some(RxPath::NotRedirected),
            channel_use: Some(ChannelUse::Refused),
            channel_error: Some(12),
            ..flow.clone()
        };
        let lines = wide.table(&[Named::new(&by_eth0, &names, None)]).lines();
        assert!(
            lines[0].ends_with("TX PATH  RX PATH") && lines[1].contains("2: tap   not-redirected")
        );
        assert!(lines[1].contains("refused: ENOMEM"));
        let json = serde_json::to_value(Named::new(&flow, &names, None)).unwrap();
        assert_eq!(
            (&json["program"], &json["local_port"]),
            (&"kopi-echo".into(), &7777.into())
        );
    }

    #[test]
    fn flows_are_chosen() {
        for (expected, exe, pid) in [
            (true, Some("kopi-echo"), None),
            (true, Some("/usr/bin/kopi-echo"), Some(77)),
            (false, Some("/bin/kopi-echo"), None),
            (false, None, Some(78)),
        ] {
            let options = Options {
                exe: exe.map(str::to_owned),
                pid,
                ..options()
            };
            assert_eq!(options.wants(&flow()), expected);
        }
    }
}
