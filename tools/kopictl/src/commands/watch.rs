// SPDX-License-Identifier: GPL-2.0

//! `kopictl watch`

use super::ps::Named;
use crate::{
    message::{flow::Flow, Event},
    names::Names,
    netlink::{Connection, Error, Heard},
    output::{clean, complain, json, or_dash, remark, HEAD},
};
use clap::Args;
use jiff::Zoned;
use serde::Serialize;
use std::io::Write;

/// Which events.
#[derive(Args)]
pub(crate) struct Options {
    /// Only events of this kind; may be repeated
    #[arg(long, short, value_name = "NAME")]
    event: Vec<Event>,

    /// End after this number of events
    #[arg(long, short = 'c', value_name = "N")]
    count: Option<u64>,

    /// Print numbers instead of names of users and devices
    #[arg(long, short)]
    numeric: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    event: String,
    #[serde(flatten)]
    flow: &'a Named<'a>,
}

/// Prints events until there were enough.
pub(crate) fn run(options: &Options, as_json: bool) -> anyhow::Result<()> {
    let mut connection = Connection::open()?;
    connection.subscribe_to_families()?;
    connection.subscribe()?;
    if !as_json {
        let head = ["ID", "PID", "PROGRAM", "USER"];
        let head = line("TIME", "EVENT", head, "ADDRESSES");
        writeln!(anstream::stderr(), "{HEAD}{head}{HEAD:#}")?;
    }
    let names = Names::new(options.numeric);
    let mut left = options.count.unwrap_or(u64::MAX);
    while left > 0 {
        let heard = match connection.hear::<Flow>() {
            Ok(heard) => heard,
            Err(error @ Error::Lost) => {
                complain(error);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for each in heard {
            match each {
                Heard::Gone => remark("KOPI was unloaded: there are no events until it is back"),
                Heard::Back => {
                    connection.subscribe()?;
                    remark("KOPI is loaded again: there are events again");
                }
                Heard::Event(event, flow) if left > 0 && options.wants(event) => {
                    print(event, &Named::new(&flow, &names, None), as_json)?;
                    left -= 1;
                }
                Heard::Event(..) => (),
            }
        }
    }
    Ok(())
}

impl Options {
    fn wants(&self, event: Event) -> bool {
        self.event.is_empty() || self.event.contains(&event)
    }
}

fn print(event: Event, flow: &Named<'_>, as_json: bool) -> anyhow::Result<()> {
    let now = Zoned::now();
    if as_json {
        return json(&Line {
            time: now.timestamp().to_string(),
            event: event.to_string(),
            flow,
        });
    }
    let time = now.strftime("%H:%M:%S%.3f").to_string();
    Ok(writeln!(
        anstream::stdout(),
        "{}",
        describe(&time, event, flow)
    )?)
}

fn line(time: &str, event: &str, [id, pid, program, user]: [&str; 4], rest: &str) -> String {
    clean(&format!(
        "{time:<12}  {event:<14}  {id:>6}  {pid:>7}  {program:<15}  {user:<10}  {rest}"
    ))
}

/// An event on a line.
fn describe(time: &str, event: Event, named: &Named<'_>) -> String {
    let flow = named.flow;
    let mut rest = format!("{} -> {}", or_dash(flow.local()), or_dash(flow.remote()));
    if let Some((kind, state)) = named.kind.zip(flow.tcp_state) {
        rest += &format!("  {kind} {state}");
    }
    match (&flow.limit, flow.rule) {
        (Some(limit), _) => rest += &format!("  net.kopi.{limit}"),
        (None, Some(0)) => rest += "  by the default",
        (None, Some(rule)) => rest += &format!("  by rule {rule}"),
        (None, None) => (),
    }
    if let Some(direction) = flow.direction {
        rest += &format!("  {direction}");
    }
    if let Some(operation) = flow.operation {
        rest += &format!("  {operation}");
    }
    let (program, user) = (or_dash(named.program), or_dash(named.user.as_deref()));
    let (id, pid) = (or_dash(flow.id), or_dash(flow.pid.filter(|&pid| pid != 0)));
    line(
        time,
        &event.to_string(),
        [&id, &pid, &program, &user],
        &rest,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        attributes::Port,
        message::{flow::Operation, rule::Directions},
    };

    #[test]
    fn an_event_is_a_line() {
        let flow = Flow {
            id: Some(5),
            uid: Some(1002),
            command: Some("evil\n".to_owned()),
            local_address: Some([0, 0, 0, 0].into()),
            local_port: Some(Port(5432)),
            rule: Some(0),
            direction: Some(Directions::BOTH),
            ..Flow::default()
        };
        let named = Named::new(&flow, &Names::new(true), None);
        let line = describe("12:00", Event::FlowDenied, &named);
        let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            words,
            "12:00 flow-denied 5 - evil\\n 1002 0.0.0.0:5432 -> - by the default out+in"
        );
        let refused = Flow {
            id: None,
            rule: Some(3),
            direction: Some(Directions::IN),
            operation: Some(Operation::Bind),
            ..flow
        };
        let named = Named::new(&refused, &Names::new(true), None);
        let line = describe("12:00", Event::SocketDenied, &named);
        assert!(line.contains("  socket-denied        -  "), "{line}");
        assert!(line.ends_with("  by rule 3  in  bind"), "{line}");
    }
}
