// SPDX-License-Identifier: GPL-2.0

//! `kopictl rule` and `kopictl restore`

mod enforce;
mod save;

use super::{
    location::{LocatedError, Location},
    Usage,
};
use crate::{
    grammar::{parse, text_of, File, HELP},
    message::{
        rule::{Rule, Ruleset, Verdict},
        Command,
    },
    names::Names,
    netlink::{Connection, Error},
    output::{json, or_dash, remark, Table},
    script,
};
use anyhow::{anyhow, bail, Context};
use clap::{Args, Subcommand, ValueEnum};
pub(crate) use enforce::check_enforce;
use enforce::{at_enforce, with_hooks};
use nix::errno::Errno;
use save::Save;
use serde::Serialize;
use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

/// How often a change is tried again when somebody else's came between.
const TRIES: usize = 10;

/// What to do with rules.
#[derive(Subcommand)]
pub(crate) enum RuleCommand {
    /// Add a rule until the next boot, and print its handle, a number by which the other commands
    /// know it
    ///
    /// At each boot, those of kopi.conf are in force: `rule save --config` prints the rules as lines
    /// for that.
    #[command(after_help = HELP)]
    Add {
        /// The words of the rule, as described below
        #[arg(required = true)]
        words: Vec<String>,
    },
    /// List the rules in their order, with the packets that each decided about, and the default
    List {
        /// Print numbers instead of names of users and groups
        #[arg(long, short)]
        numeric: bool,
    },
    /// Delete rules
    Del {
        /// The handles of the rules, as `rule list` shows them
        #[arg(required = true, value_parser = clap::value_parser!(u32).range(1..))]
        handles: Vec<u32>,
    },
    /// Delete all rules; the default stays
    Flush,
    /// Set the decision about flows that match no rule
    Default {
        /// Whether their packets pass
        verdict: Verdict,
    },
    /// Have the rules judge ordinary sockets of UDP and TCP, too, whoever uses them; or only flows
    Enforce {
        /// Whether they do
        switch: Switch,
    },
    /// Write the rules in a form that `restore` reads
    Save(Save),
    /// Put the rules of a file in force, all at once or none; no change if they are in force
    /// already
    #[command(after_help = HELP)]
    Restore(Restore),
}

/// On or off.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// From where.
#[derive(Args)]
pub(crate) struct Restore {
    /// One rule per line; `default allow|deny` and `enforce on|off`, or these stay; comments after #.
    /// The file - is standard input
    file: PathBuf,

    /// Only let the kernel check the rules, and change nothing
    #[arg(long)]
    check: bool,
}

#[derive(Serialize)]
struct Shown {
    default: Verdict,
    enforce: bool,
    generation: Option<u64>,
    rules: Vec<ShownRule>,
}

#[derive(Serialize)]
struct ShownRule {
    #[serde(flatten)]
    rule: Rule,
    text: String,
}

/// What came of it.
#[derive(Default, Serialize)]
pub(crate) struct Restored {
    pub(crate) rules: usize,
    /// Or would be, of a check.
    pub(crate) changed: bool,
    generation: Option<u64>,
    errors: Vec<LocatedError>,
}

/// Does it.
pub(crate) fn run(command: RuleCommand, as_json: bool) -> anyhow::Result<()> {
    match command {
        RuleCommand::Add { words } => add(&words, as_json),
        RuleCommand::List { numeric } => list(&Names::new(numeric), as_json),
        RuleCommand::Del { handles } => del(&handles),
        RuleCommand::Flush => flush(),
        RuleCommand::Default { verdict } => change(Some(verdict), None),
        RuleCommand::Enforce { switch } => enforce(switch == Switch::On),
        RuleCommand::Save(options) => options.run(),
        RuleCommand::Restore(options) => restore(&options, as_json),
    }
}

fn add(words: &[String], as_json: bool) -> anyhow::Result<()> {
    let rule = parse(words).map_err(Usage)?;
    let script = script::of_rule(&rule);
    let question = Ruleset {
        rule: vec![rule],
        ..Ruleset::default()
    };
    let answer: Ruleset = Connection::open()?.get(Command::RuleAdd, &question)?;
    script.into_iter().for_each(remark);
    if as_json {
        return json(&answer);
    }
    Ok(writeln!(io::stdout(), "{}", or_dash(answer.handle))?)
}

fn list(names: &Names, as_json: bool) -> anyhow::Result<()> {
    let set = fetch_ruleset(&mut Connection::open()?)?;
    let default = set.default.unwrap_or_default();
    if as_json {
        let shown = |rule: Rule| ShownRule {
            text: text_of(&rule, names),
            rule,
        };
        let rules = set.rule.into_iter().map(shown).collect();
        return json(&Shown {
            default,
            enforce: set.enforce == Some(1),
            generation: set.generation,
            rules,
        });
    }
    let mut table = Table::new([">HANDLE", ">PACKETS", ">BYTES", ">DENIED", "RULE"]);
    for rule in &set.rule {
        let note = rule.stale().map(|what| format!("  ({what})"));
        table.row([
            or_dash(rule.handle),
            or_dash(rule.packets),
            or_dash(rule.bytes),
            or_dash(rule.denied),
            text_of(rule, names) + &note.unwrap_or_default(),
        ]);
    }
    let mut last = vec![format!("default {default}")];
    if set.enforce == Some(1) {
        last.push("enforce on".to_owned());
    }
    for text in last {
        table.row([
            String::new(),
            String::new(),
            String::new(),
            String::new(),
            text,
        ]);
    }
    Ok(table.print()?)
}

fn del(handles: &[u32]) -> anyhow::Result<()> {
    let mut connection = Connection::open()?;
    for &handle in handles {
        let rule = Rule {
            handle: Some(handle),
            ..Rule::default()
        };
        let question = Ruleset {
            rule: vec![rule],
            ..Ruleset::default()
        };
        connection
            .request::<_, Ruleset>(Command::RuleDel, &question)
            .with_context(|| format!("rule {handle}"))?;
    }
    Ok(())
}

/// The rules and the default, of one generation.
fn fetch_ruleset(connection: &mut Connection) -> anyhow::Result<Ruleset> {
    for _ in 0..TRIES {
        let before: Ruleset = connection.get(Command::RulesetGet, &Ruleset::default())?;
        let rule = connection.rules()?;
        let after: Ruleset = connection.get(Command::RulesetGet, &Ruleset::default())?;
        if before == after {
            return Ok(Ruleset { rule, ..after });
        }
    }
    Err(Error::Unsteady.into())
}

/// Takes all rules away. The default stays, if nobody sets another one meanwhile.
fn flush() -> anyhow::Result<()> {
    let mut connection = Connection::open()?;
    for _ in 0..TRIES {
        let before: Ruleset = connection.get(Command::RulesetGet, &Ruleset::default())?;
        let none = Ruleset {
            default: before.default,
            generation: before.generation,
            ..Ruleset::default()
        };
        match connection.request::<_, Ruleset>(Command::RulesetSet, &none) {
            Err(error) if error.is(Errno::EAGAIN) => (),
            answer => return answer.map(drop).map_err(Into::into),
        }
    }
    Err(Error::Unsteady.into())
}

/// Changes what is given, and neither the rules nor anything else.
fn change(default: Option<Verdict>, enforce: Option<bool>) -> anyhow::Result<()> {
    let set = Ruleset {
        default,
        enforce: enforce.map(Into::into),
        keep: true,
        ..Ruleset::default()
    };
    Connection::open()?.request::<_, Ruleset>(Command::RulesetSet, &set)?;
    Ok(())
}

/// Changes what a file of that name says beside rules; those in force stay.
pub(crate) fn adjust(file: &File, name: &str) -> anyhow::Result<()> {
    let enforce = file.enforce.map(|(_, on)| on);
    let adjusted = || change(file.default, enforce).with_context(|| Location::file(name));
    match file.enforce {
        Some((line, on)) => with_hooks(on, adjusted).map_err(|error| at_enforce(error, name, line)),
        None => adjusted(),
    }
}

/// Turns it on or off.
fn enforce(on: bool) -> anyhow::Result<()> {
    with_hooks(on, || change(None, Some(on)))
}

/// Puts a file's rules in force. JSON says what is wrong, too.
pub(crate) fn restore(options: &Restore, as_json: bool) -> anyhow::Result<()> {
    let restored = restored(options);
    let printed = match &restored {
        _ if !as_json => Ok(()),
        Ok(restored) => json(restored),
        Err(error) => json(&Restored {
            errors: vec![error.into()],
            ..Restored::default()
        }),
    };
    // Whether anybody reads it changes nothing of what came of it.
    restored.map(drop).and(printed)
}

fn restored(options: &Restore) -> anyhow::Result<Restored> {
    let name = &options.file.display().to_string();
    let text = if options.file == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(&options.file)
    };
    let file: File = match text.with_context(|| Location::file(name))?.parse() {
        Ok(file) => file,
        Err((line, what)) => return Err(anyhow!(what).context(Location::line(name, line))),
    };
    // It may have been cut off.
    if file.is_empty() {
        bail!("{name}: nothing is in it; `default allow` or `default deny` takes all rules away");
    }
    let mut restored = put_in_force(&file, name, options.check)?;
    script::remark_on(&file, name);
    if options.check {
        // What the kernel checks is without it.
        restored.changed |= changes_enforce(&file)?;
    }
    Ok(restored)
}

/// Whether a file would have the rules enforced that aren't now, or the other way round.
fn changes_enforce(file: &File) -> anyhow::Result<bool> {
    let now: Ruleset = Connection::open()?.get(Command::RulesetGet, &Ruleset::default())?;
    Ok(file
        .enforce
        .is_some_and(|(_, on)| on != (now.enforce == Some(1))))
}

/// Puts the rules of a file of that name in force, or only has the kernel check them.
pub(crate) fn put_in_force(file: &File, name: &str, check: bool) -> anyhow::Result<Restored> {
    let put = || replace_all(file, check).map_err(|error| located(error, name, file));
    match file.enforce {
        // A check loads no hooks.
        Some(_) if check => {
            let restored = put()?;
            check_enforce(file, name)?;
            Ok(restored)
        }
        Some((line, on)) => with_hooks(on, put).map_err(|error| at_enforce(error, name, line)),
        None => put(),
    }
}

/// Replaces all rules by a file's.
fn replace_all(file: &File, check: bool) -> Result<Restored, Error> {
    let mut connection = Connection::open()?;
    for _ in 0..TRIES {
        let before: Ruleset = connection.get(Command::RulesetGet, &Ruleset::default())?;
        match connection.get::<_, Ruleset>(Command::RulesetSet, &set_of(file, &before, check)) {
            Err(error) if error.is(Errno::EAGAIN) => (),
            Err(error) => return Err(error),
            Ok(after) => {
                return Ok(Restored {
                    rules: file.rules.len(),
                    changed: after.generation != before.generation,
                    generation: after.generation,
                    errors: Vec::new(),
                })
            }
        }
    }
    Err(Error::Unsteady)
}

/// The set that is a file's. Where it takes over the default that was `before`, nobody may have set
/// another meanwhile; nor may anybody have changed what a check compares it with.
fn set_of(file: &File, before: &Ruleset, check: bool) -> Ruleset {
    let enforce = file.enforce.filter(|_| !check);
    Ruleset {
        default: file.default.or(before.default),
        generation: before
            .generation
            .filter(|_| check || file.default.is_none()),
        rule: file.rules.iter().map(|(_, rule)| rule.clone()).collect(),
        check,
        enforce: enforce.map(|(_, on)| on.into()),
        ..Ruleset::default()
    }
}

/// Says on which line what was refused is.
fn located(error: Error, name: &str, file: &File) -> anyhow::Error {
    let line = match &error {
        Error::Refused(refusal) if refusal.is_about("enforce") => {
            file.enforce.map(|(line, _)| line)
        }
        Error::Refused(refusal) => refusal
            .rule()
            .and_then(|rule| file.rules.get(rule))
            .map(|(line, _)| *line),
        _ => None,
    };
    let place = line.map_or_else(|| Location::file(name), |line| Location::line(name, line));
    anyhow::Error::new(error).context(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Refusal;

    #[test]
    fn a_default_that_is_not_the_files_must_still_be_the_one() {
        let before = Ruleset {
            default: Some(Verdict::Allow),
            generation: Some(7),
            ..Ruleset::default()
        };
        let set = |text: &str| set_of(&text.parse().unwrap(), &before, false);
        let silent = set("user 5 allow");
        assert_eq!(
            (silent.default, silent.generation),
            (Some(Verdict::Allow), Some(7))
        );
        let own = set("default deny");
        assert_eq!((own.default, own.generation), (Some(Verdict::Deny), None));
    }

    #[test]
    fn what_is_refused_has_its_line() {
        let file: File = "default deny\nuser 5 allow\nenforce on\nuser 6 allow"
            .parse()
            .unwrap();
        let text = |attribute: &[(&str, usize)]| {
            let path = attribute.iter().map(|&(name, at)| (name.to_owned(), at));
            let refusal = Refusal {
                errno: libc::EOPNOTSUPP,
                attribute: path.collect(),
                ..Refusal::default()
            };
            format!("{:#}", located(Error::Refused(refusal), "f", &file))
        };
        assert!(text(&[("rule", 1)]).starts_with("f:4: "));
        assert!(text(&[("rule", 1), ("exe", 0)]).starts_with("f:4: exe: "));
        assert!(text(&[("enforce", 0)]).starts_with("f:3: "));
        assert!(text(&[]).starts_with("f: "));
    }
}
