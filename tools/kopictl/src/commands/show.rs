// SPDX-License-Identifier: GPL-2.0

//! `kopictl show`

use super::ps::{errno_name, Named};
use crate::{
    attributes::{Row, Set},
    message::{channel::Channel, flow::Flow, Command},
    names::Names,
    netlink::Connection,
    output::{clean, json, FAINT, HEAD},
};
use anyhow::Context;
use clap::Subcommand;
use std::io::{self, Write};

/// What to show.
#[derive(Subcommand)]
pub(crate) enum ShowSubject {
    /// Show a flow, by its number in `kopictl ps`
    Flow {
        /// The number
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        id: u32,
    },
    /// Show a channel, by its number in `kopictl ps`
    Channel {
        /// The number
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        id: u32,
    },
}

/// Shows one.
pub(crate) fn run(subject: &ShowSubject, as_json: bool) -> anyhow::Result<()> {
    let mut connection = Connection::open()?;
    let names = Names::default();
    match *subject {
        ShowSubject::Flow { id } => {
            let question = Flow {
                id: Some(id),
                ..Flow::default()
            };
            let flow: Flow = connection
                .get(Command::FlowGet, &question)
                .with_context(|| format!("flow {id}"))?;
            let named = Named::new(&flow, &names, None);
            if as_json {
                return json(&named);
            }
            title(&format!("Flow {id}"))?;
            let extra = |name: &str| match name {
                "uid" => named.user.clone(),
                "gid" => flow.gid.map(|gid| names.group(gid)),
                "ifindex" => named.device.clone(),
                "tx_path_ifindex" => named.tx_path_device.clone(),
                "channel_error" => flow.channel_error.map(errno_name),
                _ => None,
            };
            rows(flow.rows(), extra)?;
            if let Some(stats) = &flow.stats {
                title("Counters")?;
                rows(stats.rows(), |_| None)?;
            }
        }
        ShowSubject::Channel { id } => {
            let question = Channel {
                id: Some(id),
                ..Channel::default()
            };
            let channel: Channel = connection
                .get(Command::ChannelGet, &question)
                .with_context(|| format!("channel {id}"))?;
            if as_json {
                return json(&channel);
            }
            title(&format!("Channel {id}"))?;
            rows(channel.rows(), |name| {
                channel
                    .uid
                    .filter(|_| name == "uid")
                    .map(|uid| names.user(uid))
            })?;
            rings(&channel).context("rings")?;
        }
    }
    Ok(())
}

fn title(text: &str) -> io::Result<()> {
    writeln!(anstream::stdout(), "{HEAD}{text}{HEAD:#}")
}

/// A line for each, with the specification's words; `name` says what a number stands for.
fn rows(rows: Vec<Row>, name: impl Fn(&str) -> Option<String>) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    for Row {
        attribute, text, ..
    } in rows
    {
        let name = name(attribute.name).filter(|name| *name != text);
        let value = clean(&name.map_or_else(|| text.clone(), |name| format!("{text} ({name})")));
        let doc = attribute
            .doc
            .trim()
            .split_once("; ")
            .map_or(attribute.doc.trim(), |(doc, _)| doc);
        writeln!(
            out,
            "  {:<20}  {value:<24}  {FAINT}{doc}{FAINT:#}",
            attribute.spec_name()
        )?;
    }
    Ok(())
}

/// How full the rings are.
fn rings(channel: &Channel) -> io::Result<()> {
    let rings = [
        (
            "TX",
            &channel.tx,
            "Descriptors that the program wrote, to be sent.",
        ),
        (
            "COMPLETION",
            &channel.completion,
            "Completed descriptors, for the program.",
        ),
        ("FILL", &channel.fill, "Empty frames from the program."),
        (
            "RX",
            &channel.rx,
            "Descriptors of received packets, for the program.",
        ),
    ];
    title("Rings")?;
    let mut out = anstream::stdout().lock();
    for (name, ring, doc) in rings {
        let Some(ring) = ring else { continue };
        let (size, filled) = (ring.size.unwrap_or(0), ring.filled());
        let percent = u64::from(filled) * 100 / u64::from(size.max(1));
        let indices = format!(
            "{}..{}",
            ring.consumer.unwrap_or(0),
            ring.producer.unwrap_or(0)
        );
        let level = format!("{filled} of {size} ({percent} %)");
        writeln!(
            out,
            "  {name:<20}  {level:<24}  {FAINT}{doc} {indices}{FAINT:#}"
        )?;
    }
    Ok(())
}
