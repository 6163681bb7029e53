// SPDX-License-Identifier: GPL-2.0

//! `kopictl rule` and `kopictl restore`

use super::Usage;
use crate::{
    grammar::{normal, parse, text_of, File},
    message::{Command, Rule, Ruleset, Verdict},
    names::Names,
    netlink::{Connection, Error},
    output::{json, or_dash, Table},
};
use anyhow::{bail, Context};
use clap::{Args, Subcommand};
use nix::errno::Errno;
use serde::Serialize;
use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// How often a change is tried again when somebody else's came between.
const TRIES: usize = 10;

/// What to do with rules.
#[derive(Subcommand)]
pub(crate) enum What {
    /// Add a rule, and print its handle
    Add {
        /// Its words, see below
        #[arg(required = true, trailing_var_arg = true)]
        words: Vec<String>,
    },
    /// Show the rules in their order, what each decided about, and the default
    List {
        /// Numbers instead of names of users and groups
        #[arg(long, short)]
        numeric: bool,
    },
    /// Take rules away
    Del {
        /// Their handles, of `rule list`
        #[arg(required = true, value_parser = clap::value_parser!(u32).range(1..))]
        handles: Vec<u32>,
    },
    /// Take all rules away; the default stays
    Flush,
    /// Set what becomes of flows that no rule matches; counters of rules begin anew
    Default {
        /// Whether they pass
        verdict: Verdict,
    },
    /// Write the rules in a form that `restore` understands
    Save {
        /// Where to; else standard output
        file: Option<PathBuf>,
        /// Numbers instead of names of users and groups
        #[arg(long, short)]
        numeric: bool,
    },
    /// Put a file's rules in force, all at once or none; nothing is done if they are already
    Restore(Restore),
}

/// From where.
#[derive(Args)]
pub(crate) struct Restore {
    /// A rule a line, `default allow|deny`, comments after #; - is standard input
    file: PathBuf,

    /// Let the kernel check them, and change nothing
    #[arg(long)]
    check: bool,
}

#[derive(Serialize)]
struct Shown {
    default: Verdict,
    generation: Option<u64>,
    rules: Vec<ShownRule>,
}

#[derive(Serialize)]
struct ShownRule {
    #[serde(flatten)]
    rule: Rule,
    text: String,
}

/// Does it.
pub(crate) fn run(what: What, as_json: bool) -> anyhow::Result<()> {
    match what {
        What::Add { words } => add(&words, as_json),
        What::List { numeric } => list(&Names::new(numeric), as_json),
        What::Del { handles } => del(&handles),
        What::Flush => change(|set| set.rule.clear()),
        What::Default { verdict } => change(|set| set.default = Some(verdict)),
        What::Save { file, numeric } => save(file.as_deref(), &Names::new(numeric)),
        What::Restore(options) => restore(&options, as_json),
    }
}

fn add(words: &[String], as_json: bool) -> anyhow::Result<()> {
    let question = Ruleset {
        rule: vec![parse(words).map_err(Usage)?],
        ..Ruleset::default()
    };
    let answer: Ruleset = Connection::open()?.get(Command::RuleAdd, &question)?;
    let handle = answer
        .rule
        .first()
        .and_then(|rule| rule.handle)
        .context("the kernel gave no handle")?;
    if as_json {
        return json(&Rule {
            handle: Some(handle),
            ..Rule::default()
        });
    }
    Ok(writeln!(io::stdout(), "{handle}")?)
}

fn list(names: &Names, as_json: bool) -> anyhow::Result<()> {
    let set = held(&mut Connection::open()?)?;
    let default = set.default.unwrap_or_default();
    if as_json {
        let shown = |rule: Rule| ShownRule {
            text: text_of(&rule, names),
            rule,
        };
        let rules = set.rule.into_iter().map(shown).collect();
        return json(&Shown {
            default,
            generation: set.generation,
            rules,
        });
    }
    let mut table = Table::new(&[">HANDLE", ">PACKETS", ">BYTES", ">DENIED", "RULE"]);
    for rule in &set.rule {
        let note = if rule.exe_stale {
            "  (the program's file was replaced)"
        } else {
            ""
        };
        table.row([
            or_dash(rule.handle),
            or_dash(rule.packets),
            or_dash(rule.bytes),
            or_dash(rule.denied),
            text_of(rule, names) + note,
        ]);
    }
    let text = format!("default {default}");
    table.row([
        String::new(),
        String::new(),
        String::new(),
        String::new(),
        text,
    ]);
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
fn held(connection: &mut Connection) -> anyhow::Result<Ruleset> {
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

/// Changes the whole set, if nobody else does so meanwhile.
fn change(how: impl Fn(&mut Ruleset)) -> anyhow::Result<()> {
    let mut connection = Connection::open()?;
    for _ in 0..TRIES {
        let mut set = held(&mut connection)?;
        how(&mut set);
        set.rule.iter_mut().for_each(|rule| *rule = normal(rule));
        match connection.request::<_, Ruleset>(Command::RulesetSet, &set) {
            Err(error) if error.is(Errno::EAGAIN) => (),
            answer => return answer.map(drop).map_err(Into::into),
        }
    }
    Err(Error::Unsteady.into())
}

fn save(file: Option<&Path>, names: &Names) -> anyhow::Result<()> {
    let set = held(&mut Connection::open()?)?;
    let mut text = format!(
        "# For kopictl restore.\ndefault {}\n",
        set.default.unwrap_or_default()
    );
    for rule in &set.rule {
        let line = text_of(rule, names);
        // What isn't UTF-8 was lost.
        if line
            .contains(|letter: char| letter.is_control() || letter == char::REPLACEMENT_CHARACTER)
        {
            bail!(
                "rule {} has letters that can't be written: {line}",
                or_dash(rule.handle)
            );
        }
        text += &line;
        text.push('\n');
    }
    let Some(file) = file else {
        return Ok(io::stdout().write_all(text.as_bytes())?);
    };
    // All of it or nothing.
    let mut new = file.as_os_str().to_owned();
    new.push(".new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, file))
        .with_context(|| file.display().to_string())
}

/// Puts a file's rules in force.
pub(crate) fn restore(options: &Restore, as_json: bool) -> anyhow::Result<()> {
    let name = options.file.display();
    let text = if options.file == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(&options.file)
    };
    let file: File = match text.with_context(|| name.to_string())?.parse() {
        Ok(file) => file,
        Err((line, what)) => bail!("{name}:{line}: {what}"),
    };
    let mut connection = Connection::open()?;
    let changed = !is_in_force(&file, &held(&mut connection)?);
    if changed || options.check {
        let rule = file.rules.iter().map(|(_, rule)| rule.clone()).collect();
        let set = Ruleset {
            default: Some(file.default),
            rule,
            check: options.check,
            ..Ruleset::default()
        };
        let answer = connection.request::<_, Ruleset>(Command::RulesetSet, &set);
        answer.map_err(|error| located(error, &name.to_string(), &file))?;
    }
    if as_json {
        let (rules, changed) = (file.rules.len(), changed && !options.check);
        return json(
            &serde_json::json!({ "rules": rules, "changed": changed, "check": options.check }),
        );
    }
    Ok(())
}

/// Says on which line the rule is that was refused.
fn located(error: Error, name: &str, file: &File) -> anyhow::Error {
    let rule = match &error {
        Error::Refused(refusal) => refusal.rule(),
        _ => None,
    };
    match rule.and_then(|rule| file.rules.get(rule)) {
        Some((line, _)) => anyhow::Error::new(error).context(format!("{name}:{line}")),
        None => anyhow::Error::new(error).context(name.to_owned()),
    }
}

/// Whether a file says what holds already, of files and cgroups that are still the same.
fn is_in_force(file: &File, held: &Ruleset) -> bool {
    let same_cgroup = |rule: &Rule| match (&rule.cgroup_path, rule.cgroup) {
        (Some(path), Some(number)) => {
            fs::metadata(format!("/sys/fs/cgroup{path}")).is_ok_and(|at| at.ino() == number)
        }
        _ => true,
    };
    let same = |((_, new), old): (&(usize, Rule), &Rule)| {
        normal(new) == normal(old) && !old.exe_stale && same_cgroup(old)
    };
    held.default == Some(file.default)
        && held.rule.len() == file.rules.len()
        && file.rules.iter().zip(&held.rule).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_force_is_known() {
        let file: File = "default deny\nuser 5 allow\nexe /bin/sh deny"
            .parse()
            .unwrap();
        // As the kernel shows them.
        let rules = vec![
            Rule {
                handle: Some(1),
                uid_min: Some(5),
                uid_max: Some(5),
                packets: Some(8),
                ..Rule::default()
            },
            Rule {
                exe: Some("/bin/sh".to_owned()),
                verdict: Some(Verdict::Deny),
                ..Rule::default()
            },
        ];
        let held = Ruleset {
            default: Some(Verdict::Deny),
            rule: rules,
            ..Ruleset::default()
        };
        assert!(is_in_force(&file, &held));

        let mut other = held.clone();
        other.rule[1].exe_stale = true;
        assert!(!is_in_force(&file, &other));
        other = held.clone();
        other.rule.swap(0, 1);
        assert!(!is_in_force(&file, &other));
        other = held.clone();
        other.default = Some(Verdict::Allow);
        assert!(!is_in_force(&file, &other));
        other = held;
        (other.rule[0].cgroup_path, other.rule[0].cgroup) =
            (Some("/not there".to_owned()), Some(1));
        assert!(!is_in_force(&file, &other));
    }
}
