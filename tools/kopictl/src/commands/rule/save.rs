// SPDX-License-Identifier: GPL-2.0

//! `kopictl rule save`

use super::fetch_ruleset;
use crate::{
    grammar::text_of,
    names::Names,
    netlink::Connection,
    output::{is_hidden, or_dash},
    replace,
};
use anyhow::{bail, Context};
use clap::Args;
use std::{
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
};

/// In which form, and where to.
#[derive(Args)]
pub(crate) struct Save {
    /// The file to write; standard output by default, and for -
    file: Option<PathBuf>,

    /// Print numbers instead of names of users and groups
    #[arg(long, short)]
    numeric: bool,

    /// Write lines for kopi.conf, in place of its rules, default and enforce
    #[arg(long)]
    config: bool,
}

impl Save {
    /// Writes them.
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let set = fetch_ruleset(&mut Connection::open()?)?;
        let names = Names::new(self.numeric);
        let (whose, word) = match self.config {
            true => ("kopi.conf", "rule "),
            false => ("kopictl restore", ""),
        };
        let mut text = format!(
            "# For {whose}.\ndefault {}\nenforce {}\n",
            set.default.unwrap_or_default(),
            if set.enforce == Some(1) { "on" } else { "off" }
        );
        for rule in &set.rule {
            let line = text_of(rule, &names);
            // What isn't UTF-8 was lost.
            if line.contains(|letter: char| {
                letter.is_control() || letter == char::REPLACEMENT_CHARACTER
            }) {
                bail!(
                    "rule {} has letters that can't be written: {line}",
                    or_dash(rule.handle)
                );
            }
            text += word;
            text += &line;
            text.push('\n');
        }
        match self.file.as_ref().filter(|file| *file != Path::new("-")) {
            Some(file) => replace::write(file, &text).with_context(|| file.display().to_string()),
            None if io::stdout().is_terminal() && text.contains(is_hidden_in_lines) => {
                bail!("a rule has letters that a terminal doesn't show: save to a file")
            }
            None => Ok(io::stdout().write_all(text.as_bytes())?),
        }
    }
}

fn is_hidden_in_lines(letter: char) -> bool {
    letter != '\n' && is_hidden(letter)
}
