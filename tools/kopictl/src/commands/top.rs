// SPDX-License-Identifier: GPL-2.0

//! `kopictl top`

use super::seconds;
use crate::{
    message::Command,
    names::Names,
    netlink::Connection,
    output::{clean, json, short, Table},
    rates::{by_process, Counts, Last, Process},
};
use clap::{Args, ValueEnum};
use ratatui::{
    crossterm::event::{self, Event, KeyCode, KeyModifiers},
    layout::{Constraint, Layout},
    style::Stylize,
    text::Line,
    widgets::{self, Row},
    DefaultTerminal, Frame,
};
use serde::Serialize;
use std::{
    io::{self, IsTerminal},
    thread::sleep,
    time::{Duration, Instant},
};

/// How it is shown.
#[derive(Args)]
pub(crate) struct Options {
    /// Time between two updates
    #[arg(long, short, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    interval: Duration,

    /// The order of the processes
    #[arg(long, short, value_name = "WHAT", default_value = "bytes")]
    sort: Sort,
}

/// What comes first.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Sort {
    /// By packets
    Packets,
    /// By bytes
    Bytes,
    /// By drops
    Drops,
    /// By the user's name
    User,
}

const HEAD: [&str; 10] = [
    ">PID",
    "PROGRAM",
    "USER",
    ">FLOWS",
    ">OUT PKT/S",
    ">OUT B/S",
    ">IN PKT/S",
    ">IN B/S",
    ">DROPS/S",
    ">B/S",
];

/// A process and what it does in a second.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    process: Process,
    user: String,
    flows: usize,
    #[serde(flatten)]
    rates: Counts,
}

impl Shown {
    fn cells(&self) -> [String; 10] {
        let Counts {
            out_packets,
            out_bytes,
            in_packets,
            in_bytes,
            drops,
        } = self.rates;
        let [out_packets, out_bytes, in_packets, in_bytes, drops, bytes] = [
            out_packets,
            out_bytes,
            in_packets,
            in_bytes,
            drops,
            self.rates.bytes(),
        ]
        .map(short);
        let Process { pid, program, .. } = &self.process;
        let (pid, program, user) = (pid.to_string(), clean(program), clean(&self.user));
        [
            pid,
            program,
            user,
            self.flows.to_string(),
            out_packets,
            out_bytes,
            in_packets,
            in_bytes,
            drops,
            bytes,
        ]
    }
}

struct State {
    connection: Connection,
    last: Last,
    names: Names,
    shown: Vec<Shown>,
    sort: Sort,
}

impl State {
    /// Fetches the flows anew.
    fn refresh(&mut self) -> anyhow::Result<()> {
        let flows = self.connection.dump(Command::FlowGet)?;
        let (changes, seconds) = self.last.changes(&flows, Instant::now());
        let factor = seconds.map_or(0.0, f64::recip);
        let shown = |(process, (flows, change)): (Process, (usize, Counts))| Shown {
            user: self.names.user(process.uid),
            process,
            flows,
            rates: change * factor,
        };
        self.shown = by_process(flows.iter().zip(changes))
            .into_iter()
            .map(shown)
            .collect();
        self.arrange();
        Ok(())
    }

    fn arrange(&mut self) {
        let most = |value: fn(&Counts) -> f64| {
            move |a: &Shown, b: &Shown| value(&b.rates).total_cmp(&value(&a.rates))
        };
        self.shown.sort_by_key(|shown| shown.process.pid);
        match self.sort {
            Sort::Packets => self.shown.sort_by(most(Counts::packets)),
            Sort::Bytes => self.shown.sort_by(most(Counts::bytes)),
            Sort::Drops => self.shown.sort_by(most(|rates| rates.drops)),
            Sort::User => self.shown.sort_by(|a, b| a.user.cmp(&b.user)),
        }
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let [top, middle, bottom] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let mut sum = Counts::default();
        self.shown.iter().for_each(|shown| sum += shown.rates);
        let title = format!(
            "kopictl top: {} processes, {} packets/s, {} bytes/s, {} drops/s",
            self.shown.len(),
            short(sum.packets()),
            short(sum.bytes()),
            short(sum.drops)
        );
        frame.render_widget(Line::from(title).bold(), top);
        let cell = |title: &str, text: String| {
            let line = Line::from(text);
            if title.starts_with('>') {
                line.right_aligned()
            } else {
                line
            }
        };
        let row = |cells: [String; 10]| {
            Row::new(
                HEAD.iter()
                    .zip(cells)
                    .map(|(title, text)| cell(title, text)),
            )
        };
        let widths = [7, 16, 12, 6, 10, 9, 10, 9, 9, 9].map(Constraint::Length);
        let head = row(HEAD.map(|title| title.trim_start_matches('>').to_owned())).reversed();
        let rows = self.shown.iter().map(|shown| row(shown.cells()));
        frame.render_widget(widgets::Table::new(rows, widths).header(head), middle);
        let keys = "sort by: p packets  b bytes  d drops  u user    q quit";
        frame.render_widget(Line::from(keys).dim(), bottom);
    }

    /// Draws and listens until it is enough.
    fn live(&mut self, terminal: &mut DefaultTerminal, interval: Duration) -> anyhow::Result<()> {
        let mut next = Instant::now() + interval;
        loop {
            terminal.draw(|frame| self.draw(frame))?;
            if !event::poll(next.saturating_duration_since(Instant::now()))? {
                self.refresh()?;
                next = Instant::now() + interval;
                continue;
            }
            let Event::Key(key) = event::read()? else {
                continue;
            };
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                    return Ok(())
                }
                KeyCode::Char('p') => self.sort = Sort::Packets,
                KeyCode::Char('b') => self.sort = Sort::Bytes,
                KeyCode::Char('d') => self.sort = Sort::Drops,
                KeyCode::Char('u') => self.sort = Sort::User,
                _ => continue,
            }
            self.arrange();
        }
    }
}

/// Shows processes, live; without a terminal, once.
pub(crate) fn run(options: &Options, as_json: bool) -> anyhow::Result<()> {
    let (connection, last, names) = (Connection::open()?, Last::default(), Names::default());
    let mut state = State {
        connection,
        last,
        names,
        shown: Vec::new(),
        sort: options.sort,
    };
    state.refresh()?;
    if !as_json && io::stdout().is_terminal() && io::stdin().is_terminal() {
        let mut terminal = ratatui::try_init()?;
        let ended = state.live(&mut terminal, options.interval);
        ratatui::restore();
        return ended;
    }
    sleep(options.interval);
    state.refresh()?;
    if as_json {
        return json(&state.shown);
    }
    let mut table = Table::new(HEAD);
    state
        .shown
        .iter()
        .for_each(|shown| table.row(shown.cells()));
    Ok(table.print()?)
}
