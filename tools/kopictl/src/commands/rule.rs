// SPDX-License-Identifier: GPL-2.0

//! `kopictl rule` and `kopictl restore`

use super::Usage;
use crate::{
    grammar::{parse, text_of, File},
    hooks,
    message::{Command, Rule, Ruleset, Verdict},
    names::Names,
    netlink::{Connection, Error},
    output::{is_hidden, json, or_dash, Table},
};
use anyhow::{bail, Context};
use clap::{Args, Subcommand, ValueEnum};
use nix::errno::Errno;
use serde::Serialize;
use std::{
    ffi::{OsStr, OsString},
    fs::{self, OpenOptions},
    io::{self, ErrorKind, IsTerminal, Read, Write},
    os::unix::fs::{fchown, MetadataExt},
    path::{Path, PathBuf},
};

/// How often a change is tried again when somebody else's came between.
const TRIES: usize = 10;

/// What to do with rules.
#[derive(Subcommand)]
pub(crate) enum What {
    /// Add a rule, and print its handle
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
    Save {
        /// The file to write; standard output by default, and for -
        file: Option<PathBuf>,
        /// Print numbers instead of names of users and groups
        #[arg(long, short)]
        numeric: bool,
    },
    /// Put the rules of a file in force, all at once or none; no change if they are in force
    /// already
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
#[derive(Serialize)]
pub(crate) struct Restored {
    pub(crate) rules: usize,
    changed: bool,
    generation: Option<u64>,
}

/// Does it.
pub(crate) fn run(what: What, as_json: bool) -> anyhow::Result<()> {
    match what {
        What::Add { words } => add(&words, as_json),
        What::List { numeric } => list(&Names::new(numeric), as_json),
        What::Del { handles } => del(&handles),
        What::Flush => change(|set| set.rule.clear()),
        What::Default { verdict } => change(|set| set.default = Some(verdict)),
        What::Enforce { switch } => enforce(switch == Switch::On),
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

/// Changes the whole set, if nobody else does so meanwhile. What stays keeps handle and counters.
fn change(how: impl Fn(&mut Ruleset)) -> anyhow::Result<()> {
    let mut connection = Connection::open()?;
    for _ in 0..TRIES {
        let mut set = fetch_ruleset(&mut connection)?;
        how(&mut set);
        // Its path leads to another file, which would get the rule.
        if let Some(stale) = set.rule.iter().find(|rule| rule.exe_stale) {
            bail!(
                "the program of rule {} was replaced: restore the rules, or take it away",
                or_dash(stale.handle)
            );
        }
        set.rule = set.rule.iter().map(Rule::input).collect();
        set.enforcing = None;
        match connection.request::<_, Ruleset>(Command::RulesetSet, &set) {
            Err(error) if error.is(Errno::EAGAIN) => (),
            answer => return answer.map(drop).map_err(Into::into),
        }
    }
    Err(Error::Unsteady.into())
}

/// Turns it on or off.
fn enforce(on: bool) -> anyhow::Result<()> {
    let enforcing = |on: bool| change(|set| set.enforce = Some(on.into()));
    if on {
        hooks::load()?;
    }
    let changed = enforcing(on);
    follow(on)?;
    changed
}

/// Once the rules are enforced, what sockets there are is noted; the hooks go when no rules are.
fn follow(on: bool) -> anyhow::Result<()> {
    let set: Ruleset = Connection::open()?.get(Command::RulesetGet, &Ruleset::default())?;
    if on && set.enforce == Some(1) {
        return hooks::find_sockets();
    }
    if set.enforcing == Some(0) {
        hooks::unload()?;
    }
    Ok(())
}

fn save(file: Option<&Path>, names: &Names) -> anyhow::Result<()> {
    let set = fetch_ruleset(&mut Connection::open()?)?;
    let mut text = format!(
        "# For kopictl restore.\ndefault {}\nenforce {}\n",
        set.default.unwrap_or_default(),
        if set.enforce == Some(1) { "on" } else { "off" }
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
    match file.filter(|file| *file != Path::new("-")) {
        Some(file) => write(file, &text).with_context(|| file.display().to_string()),
        None if io::stdout().is_terminal() && text.contains(is_hidden_in_lines) => {
            bail!("a rule has letters that a terminal doesn't show: save to a file")
        }
        None => Ok(io::stdout().write_all(text.as_bytes())?),
    }
}

fn is_hidden_in_lines(letter: char) -> bool {
    letter != '\n' && is_hidden(letter)
}

/// Writes a file: all of it or nothing, and it lasts. Where there is a link, the file that it leads to
/// is meant; mode and owner stay.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let before = match fs::metadata(file) {
        Ok(before) if before.is_file() => Some(before),
        // A pipe, say.
        Ok(_) => {
            return OpenOptions::new()
                .write(true)
                .open(file)?
                .write_all(text.as_bytes())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let file = match fs::symlink_metadata(file) {
        Ok(link) if link.is_symlink() => fs::canonicalize(file)?,
        _ => file.to_owned(),
    };
    let name = file.file_name().ok_or(ErrorKind::InvalidInput)?;
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let (new, mut out) = create(folder, name)?;
    let written = out
        .write_all(text.as_bytes())
        .and_then(|()| match &before {
            Some(before) => {
                fchown(&out, Some(before.uid()), Some(before.gid()))?;
                out.set_permissions(before.permissions())
            }
            None => Ok(()),
        })
        .and_then(|()| out.sync_all())
        .and_then(|()| fs::rename(&new, &file));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written?;
    // And the name of it.
    fs::File::open(folder)?.sync_all()
}

/// Makes a file that wasn't there, which nobody can have put there to be written to.
fn create(folder: &Path, name: &OsStr) -> io::Result<(PathBuf, fs::File)> {
    let mut last = ErrorKind::AlreadyExists.into();
    for number in 0..TRIES {
        let mut new = OsString::from(".");
        new.push(name);
        new.push(format!(".{}.{number}", std::process::id()));
        let new = folder.join(new);
        match OpenOptions::new().write(true).create_new(true).open(&new) {
            Ok(file) => return Ok((new, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
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
    // It may have been cut off.
    if file.is_empty() {
        bail!("{name}: nothing is in it; `default allow` or `default deny` takes all rules away");
    }
    let restored = put_in_force(&file, &name.to_string(), options.check)?;
    if as_json {
        return json(&restored);
    }
    Ok(())
}

/// Puts the rules of a file of that name in force, or only has the kernel check them.
pub(crate) fn put_in_force(file: &File, name: &str, check: bool) -> anyhow::Result<Restored> {
    let mut connection = Connection::open()?;
    let before: Ruleset = connection.get(Command::RulesetGet, &Ruleset::default())?;
    if file.enforce == Some(true) && !check {
        hooks::load()?;
    }
    let set = Ruleset {
        default: file.default.or(before.default),
        rule: file.rules.iter().map(|(_, rule)| rule.clone()).collect(),
        check,
        // A check loads no hooks.
        enforce: file.enforce.filter(|_| !check).map(u32::from),
        ..Ruleset::default()
    };
    let after: anyhow::Result<Ruleset> = connection
        .get(Command::RulesetSet, &set)
        .map_err(|error| located(error, name, file));
    if let Some(enforce) = file.enforce.filter(|_| !check) {
        follow(enforce)?;
    }
    let after = after?;
    Ok(Restored {
        rules: file.rules.len(),
        changed: after.generation != before.generation,
        generation: after.generation,
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, PermissionsExt};

    #[test]
    fn files_are_replaced_as_a_whole() {
        let folder = std::env::temp_dir().join(format!("kopictl-save-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let (real, link, planted) = (
            folder.join("real"),
            folder.join("link"),
            folder.join("real.new"),
        );
        fs::write(&real, "old").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("real", &link).unwrap();
        symlink("/dev/null", &planted).unwrap();
        // One of the names that are tried.
        let first = format!(".real.{}.0", std::process::id());
        symlink("victim", folder.join(&first)).unwrap();

        write(&link, "new").unwrap();
        assert_eq!(fs::read_to_string(&real).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&real).unwrap().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&planted).unwrap().is_symlink());
        assert!(!folder.join("victim").exists());
        write(&folder.join("another"), "x").unwrap();
        let error = write(Path::new("/dev/full"), "x").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(28));
        assert!(write(&folder.join("nowhere/file"), "x").is_err());
        // Nothing is left besides.
        let mut names: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, [&*first, "another", "link", "real", "real.new"]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
