// SPDX-License-Identifier: GPL-2.0

//! `kopictl config`

mod file;
mod state;

use super::{
    direct::{attach_if_there, index_if_there},
    engine::{BUDGET, IDLE},
    is_permission, limit,
    location::{LocatedError, Location},
    rule::{adjust, check_enforce, put_in_force},
};
use crate::{
    grammar::{self, text_of},
    link::{connect, find_if_there, name_of},
    message::{
        engine::{Engine, Engines},
        rule::Rule,
        Command,
    },
    names::Names,
    netlink::{Connection, Error},
    output::{complain, json, remark},
    script,
};
use anyhow::{anyhow, bail, Context};
use clap::{Args, Subcommand};
use file::File;
use serde::Serialize;
pub(crate) use state::{not_attached, not_in_force};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, ErrorKind},
    path::PathBuf,
};

/// The file that kopi.service applies.
const DEFAULT_FILE: &str = "/etc/kopi/kopi.conf";

/// What to do with the configuration.
#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a configuration file, and change nothing
    Check(Which),
    /// Put a configuration file in force; what it doesn't speak of stays as it is
    Apply {
        #[command(flatten)]
        which: Which,

        /// Only attach this device, and only if the file says so
        #[arg(long, value_name = "DEV", conflicts_with = "rules")]
        device: Option<String>,

        /// Only put the rules in force, with the default and enforce, as a service may do before it
        /// starts
        #[arg(long)]
        rules: bool,
    },
}

/// Which one.
#[derive(Args)]
pub(crate) struct Which {
    /// The file, as kopi.conf(5) describes it
    #[arg(default_value = DEFAULT_FILE)]
    file: PathBuf,
}

/// What of a file is applied.
enum Part<'a> {
    All,
    Rules,
    /// What it says of a device that has come.
    Device(&'a str),
}

/// What came of it.
#[derive(Default, Serialize)]
struct Applied {
    limits: usize,
    rules: usize,
    /// Rules that were in force, and aren't the file's.
    rules_taken_away: usize,
    engines: usize,
    attached: Vec<String>,
    absent: Vec<String>,
    failed: usize,
    errors: Vec<LocatedError>,
    /// The file has rules, and none is in force, nor its default and `enforce`.
    rules_refused: bool,
    /// How many of those that failed would have been done for somebody else.
    #[serde(skip)]
    not_permitted: usize,
}

/// What a check found.
#[derive(Serialize)]
struct Checked {
    /// The kernel was asked, too.
    by_kernel: bool,
    errors: Vec<LocatedError>,
}

/// Checks or applies.
pub(crate) fn run(command: &ConfigCommand, as_json: bool) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Check(which) => check(which, as_json),
        ConfigCommand::Apply {
            which,
            device,
            rules,
        } => {
            let part = match device {
                Some(device) => Part::Device(device),
                None if *rules => Part::Rules,
                None => Part::All,
            };
            apply(which, &part, as_json)
        }
    }
}

impl Which {
    fn name(&self) -> String {
        self.file.display().to_string()
    }

    fn read(&self) -> anyhow::Result<File> {
        let name = &self.name();
        let text = fs::read_to_string(&self.file).with_context(|| Location::file(name))?;
        text.parse()
            .map_err(|(line, what): (_, String)| anyhow!(what).context(Location::line(name, line)))
    }
}

/// Checks a file; JSON says what is wrong, too. What this process can't ask the kernel about isn't.
fn check(which: &Which, as_json: bool) -> anyhow::Result<()> {
    let mut by_kernel = false;
    let checked = which.read().and_then(|file| {
        script::remark_on(&file.rules, &which.name());
        match Connection::open() {
            Err(Error::NoKopi) => {
                remark("KOPI isn't loaded: names of limits, programs and cgroups were not checked");
                return Ok(());
            }
            connection => drop(connection?),
        }
        by_kernel = true;
        ask_kernel(&file, &which.name()).map(drop)
    });
    let errors = checked.as_ref().err().map(LocatedError::from);
    let printed = match as_json {
        true => json(&Checked {
            by_kernel,
            errors: errors.into_iter().collect(),
        }),
        false => Ok(()),
    };
    // Whether anybody reads it changes nothing of what came of it.
    checked.and(printed)
}

/// Has the kernel check a file; whether its rules would change anything.
fn ask_kernel(file: &File, name: &str) -> anyhow::Result<bool> {
    // Only the initial network namespace has them.
    let known = match file.limits.is_empty() {
        true => BTreeMap::new(),
        false => limit::all()?,
    };
    for (line, limit, _) in &file.limits {
        if !known.contains_key(limit) {
            return Err(anyhow!("there is no limit {limit}").context(Location::line(name, *line)));
        }
    }
    // Without a rule, there is nothing else that the kernel could refuse.
    if file.rules.rules.is_empty() {
        return check_enforce(&file.rules, name).map(|()| false);
    }
    Ok(put_in_force(&file.rules, name, true)?.changed)
}

/// Applies a file, or a part of it.
fn apply(which: &Which, part: &Part<'_>, as_json: bool) -> anyhow::Result<()> {
    let name = which.name();
    let mut applied = Applied::default();
    let begun = which.read().and_then(|mut file| {
        match part {
            Part::All => (),
            Part::Rules => file = file.only_rules(),
            Part::Device(device) => {
                file = file.only(|named| named == *device || is_of(named, device));
                // Others come, too, with or without the module.
                if file.devices.is_empty() {
                    return Ok(());
                }
            }
        }
        Connection::open()?;
        applied.apply(&file, &name);
        Ok(())
    });
    if let Err(error) = &begun {
        applied.count(error);
    }
    let printed = match as_json {
        true => json(&applied),
        false => Ok(()),
    };
    // Whether anybody reads it changes nothing of what came of it.
    begun.and_then(|()| applied.result(&name)).and(printed)
}

/// Whether a name in a file is an alternative one of a device, as `kopictl attach` takes it, too.
fn is_of(named: &str, device: &str) -> bool {
    let found = connect().and_then(|socket| find_if_there(&socket, named));
    found.is_ok_and(|link| link.as_ref().and_then(name_of) == Some(device))
}

/// Attaches the device that a line names, if it is there; says whether it is. `known` has the lines before by the
/// numbers of their devices: one device has several names.
fn attach_one(
    known: &mut BTreeMap<u32, usize>,
    line: usize,
    device: &str,
    keep_offloads: bool,
) -> anyhow::Result<bool> {
    if let Some(index) = index_if_there(device)? {
        let before = *known.entry(index).or_insert(line);
        if before != line {
            bail!("attach {device}: line {before} has the same device by another name");
        }
    }
    attach_if_there(device, keep_offloads)
}

impl Applied {
    /// One line that can't be put in force doesn't keep others from it, but that rules are one change. They
    /// come before what makes packets faster.
    fn apply(&mut self, file: &File, name: &str) {
        for (line, limit, value) in &file.limits {
            let result = limit::all().and_then(|known| match known.contains_key(limit) {
                true => limit::set(limit, *value),
                false => Err(anyhow!("there is no limit {limit}")),
            });
            self.limits += usize::from(self.record(name, *line, result).is_some());
        }
        self.put_rules(&file.rules, name);
        if let Some((line, engines)) = &file.engines {
            let set = set_engines(engines);
            if self.record(name, *line, set).is_some() {
                self.engines = engines.cpu.len();
            }
        }
        let mut known = BTreeMap::new();
        for (line, device, keep_offloads) in &file.devices {
            let there = attach_one(&mut known, *line, device, *keep_offloads);
            match self.record(name, *line, there) {
                Some(true) => self.attached.push(device.clone()),
                Some(false) => {
                    remark(format!(
                        "{name}:{line}: there is no device {device}: it is attached when it comes"
                    ));
                    self.absent.push(device.clone());
                }
                None => {}
            }
        }
    }

    /// Where `enforce` can't be had, the rules and the default are in force without it.
    fn put_rules(&mut self, file: &grammar::File, name: &str) {
        let mut put = apply_rules(file, name);
        if let (Err(error), true) = (&put, file.enforce.is_some()) {
            let rest = apply_rules(&file.without_enforce(), name);
            // Else it was about the rest.
            if rest.is_ok() {
                self.fail(error);
            }
            put = rest;
        }
        match put {
            Ok((rules, taken_away)) => {
                self.rules = rules;
                self.rules_taken_away = taken_away;
                script::remark_on(file, name);
            }
            // It has the line.
            Err(error) => {
                self.rules_refused = !file.rules.is_empty();
                self.fail(&error);
            }
        }
    }

    /// Records the result of a line; gives it, unless it is an error, which is printed.
    fn record<T>(&mut self, name: &str, line: usize, result: anyhow::Result<T>) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(error) => {
                self.fail(&error.context(Location::line(name, line)));
                None
            }
        }
    }

    fn fail(&mut self, error: &anyhow::Error) {
        self.count(error);
        complain(format!("{error:#}"));
    }

    fn count(&mut self, error: &anyhow::Error) {
        self.failed += 1;
        self.not_permitted += usize::from(is_permission(error));
        self.errors.push(error.into());
    }

    /// The result of all lines.
    fn result(&self, name: &str) -> anyhow::Result<()> {
        let lines = |number| match number {
            1 => "a line is not in force".to_owned(),
            number => format!("{number} lines are not in force"),
        };
        let text = match (self.rules_refused, self.failed) {
            (false, 0) => return Ok(()),
            (false, failed) => format!("{name}: {}", lines(failed)),
            (true, failed) => {
                let others = match failed - 1 {
                    0 => String::new(),
                    others => format!("; besides, {}", lines(others)),
                };
                format!(
                    "{name}: none of its rules is in force, nor its default and enforce; those from before stay{others}"
                )
            }
        };
        if self.not_permitted == self.failed {
            return Err(io::Error::new(ErrorKind::PermissionDenied, text).into());
        }
        bail!(text)
    }
}

/// Puts the file's rules in force. Returns their number, and how many were taken away. Without one, those in force stay,
/// whatever else the file says.
fn apply_rules(file: &grammar::File, name: &str) -> anyhow::Result<(usize, usize)> {
    if file.is_empty() {
        return Ok((0, 0));
    }
    if file.rules.is_empty() {
        adjust(file, name)?;
        return Ok((0, 0));
    }
    // Where they can't be asked for, the change says why, or isn't less in force.
    let rules = || Connection::open().and_then(|mut connection| connection.rules());
    let before = rules().unwrap_or_default();
    let put = put_in_force(file, name, false)?;
    let after = put.changed.then(rules).and_then(Result::ok);
    let gone = after.map_or(0, |after| taken_away(&before, &after));
    let whose = format!("{name} doesn't have");
    match gone {
        0 => (),
        1 => remark(format!("a rule that {whose} was taken away")),
        gone => remark(format!("{gone} rules that {whose} were taken away")),
    }
    Ok((put.rules, gone))
}

/// How many of the rules aren't there any more. Those that say the same are the same, whatever their handles.
fn taken_away(before: &[Rule], after: &[Rule]) -> usize {
    let names = Names::new(true);
    let mut left = BTreeMap::<_, usize>::new();
    for rule in after {
        *left.entry(text_of(rule, &names)).or_default() += 1;
    }
    let is_gone = |rule: &&Rule| match left.get_mut(&text_of(rule, &names)) {
        Some(count @ 1..) => {
            *count -= 1;
            false
        }
        _ => true,
    };
    before.iter().filter(is_gone).count()
}

/// Sets the engines, unless they are as they should be.
fn set_engines(wanted: &Engines) -> anyhow::Result<()> {
    let mut connection = Connection::open()?;
    let there: Vec<Engine> = connection.dump(Command::EngineGet)?;
    if !match_config(&there, wanted) {
        connection.request::<_, Engines>(Command::EngineSet, wanted)?;
    }
    Ok(())
}

/// Whether engines are as a line wants them, in which a word that is missing means the default.
fn match_config(there: &[Engine], wanted: &Engines) -> bool {
    let cpus: BTreeSet<_> = there.iter().filter_map(|engine| engine.cpu).collect();
    let is_as = |engine: &Engine| {
        engine.idle == Some(wanted.idle.unwrap_or(IDLE))
            && engine.budget == Some(wanted.budget.unwrap_or(BUDGET))
    };
    cpus == BTreeSet::from_iter(wanted.cpu.iter().copied()) && there.iter().all(is_as)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_engines_means_the_same_whatever_was_before() {
        let engine = |idle, budget| Engine {
            cpu: Some(3),
            idle: Some(idle),
            budget: Some(budget),
            ..Engine::default()
        };
        let line = |idle, budget| Engines {
            cpu: vec![3, 3],
            idle,
            budget,
        };
        assert!(match_config(&[engine(IDLE, BUDGET)], &line(None, None)));
        assert!(match_config(&[engine(500, BUDGET)], &line(Some(500), None)));
        assert!(!match_config(&[engine(500, BUDGET)], &line(None, None)));
        assert!(!match_config(&[engine(IDLE, 1024)], &line(None, None)));
        assert!(!match_config(&[], &line(None, None)));
        assert!(match_config(&[], &Engines::default()));
    }

    #[test]
    fn rules_that_are_taken_away_are_counted() {
        let rules = |texts: &[&str]| -> Vec<Rule> {
            let words = texts.iter().map(|text| text.split(' ').collect::<Vec<_>>());
            (1..)
                .zip(words)
                .map(|(handle, words)| Rule {
                    handle: Some(handle),
                    ..grammar::parse(&words).unwrap()
                })
                .collect()
        };
        let (first, second) = ("user 5 deny", "user 6 allow");
        let of = |before: &[&str], after: &[&str]| taken_away(&rules(before), &rules(after));
        assert_eq!(of(&[], &[first]), 0);
        assert_eq!(of(&[first, second], &[second, first]), 0);
        assert_eq!(of(&[first, second], &[second]), 1);
        assert_eq!(of(&[first, first], &[first]), 1);
    }

    #[test]
    fn that_no_rule_is_in_force_is_said() {
        let mut applied = Applied::default();
        assert!(applied.result("f").is_ok());
        let text = |applied: &Applied| applied.result("f").unwrap_err().to_string();
        applied.failed = 1;
        assert_eq!(text(&applied), "f: a line is not in force");
        applied.rules_refused = true;
        let none =
            "f: none of its rules is in force, nor its default and enforce; those from before stay";
        assert_eq!(text(&applied), none);
        applied.failed = 3;
        assert_eq!(
            text(&applied),
            format!("{none}; besides, 2 lines are not in force")
        );
    }
}
