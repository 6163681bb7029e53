// SPDX-License-Identifier: GPL-2.0

//! `kopictl metrics`

mod listen;
mod sums;
mod text;

use self::{
    listen::{group, listen, Place},
    sums::Sums,
    text::text,
};
use crate::{
    http::{serve, Answer, Recent},
    message::{flow::Flow, info::Info, stats::Totals, Command},
    names::Names,
    netlink::{Connection, Error},
    output::{clean, remark},
    rates::{by_process, Last},
};
use anyhow::Context;
use clap::Args;
use nix::errno::Errno;
use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// To gather them takes as long as there are flows; so long, all who ask get the same.
const LASTS: Duration = Duration::from_secs(1);

/// Where to.
#[derive(Args)]
#[command(after_help = "\
Anyone who can connect sees data that the kernel gives only to CAP_NET_ADMIN: who
sends and receives how much (process, program, user), and the rules. A Unix
socket is for its owner, and for --group; ADDR:PORT is one of this machine's own
(127.0.0.1, ::1), and is for every user of it who asks it by such an address or as
localhost (Host). For other machines put a proxy in front of it that asks who they
are.")]
pub(crate) struct Options {
    /// Serve the metrics by HTTP at /metrics on this Unix socket; without it they are printed once
    #[arg(long, value_name = "PATH|ADDR:PORT", num_args = 0..=1, default_missing_value = SOCKET)]
    listen: Option<Place>,

    /// Let this group connect as well: the socket has mode 0660 instead of 0600
    #[arg(long, value_name = "NAME|GID", value_parser = group, requires = "listen")]
    group: Option<u32>,
}

const SOCKET: &str = "/run/kopi/metrics.sock";

/// Gives the metrics.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut state = State::new()?;
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
    processes: Sums,
}

impl State {
    fn new() -> Result<Self, Error> {
        Ok(Self {
            connection: Connection::open()?,
            last: Last::default(),
            processes: Sums::default(),
        })
    }

    fn answer(&mut self) -> Answer {
        let gathered = self.gather().or_else(|error| {
            // The module was loaded anew: its family has another number, and its flows begin anew.
            if !is_gone(&error) {
                return Err(error);
            }
            *self = Self::new()?;
            self.gather()
        });
        match gathered {
            Ok(body) => Answer::new("200 OK", CONTENT_TYPE, &body),
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
        self.processes.add(
            changes
                .into_iter()
                .map(|(process, (_, change))| (process, change)),
        );
        Ok(text(
            &info,
            &totals,
            &self.processes.0,
            &rules,
            &Names::default(),
        ))
    }
}

/// Whether the family that was asked isn't there.
fn is_gone(error: &anyhow::Error) -> bool {
    let netlink = error.downcast_ref::<Error>();
    netlink.is_some_and(|error| error.is(Errno::ENOENT))
}
