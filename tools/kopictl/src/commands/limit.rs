// SPDX-License-Identifier: GPL-2.0

//! `kopictl limit`

use super::Usage;
use crate::{
    netlink::Connection,
    output::{json, Table},
};
use anyhow::{bail, Context};
use clap::Args;
use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

const FOLDER: &str = "/proc/sys/net/kopi";

/// Which, and what it shall be.
#[derive(Args)]
pub(crate) struct Options {
    /// The limit's name, such as `user_max_flows`
    name: Option<String>,

    /// The new value
    #[arg(value_parser = value)]
    value: Option<u32>,
}

/// What a limit can be: the sysctls are of 32 bits.
pub(crate) fn value(text: &str) -> Result<u32, String> {
    let wrong = |_| format!("{text} is no number from 0 to {}", u32::MAX);
    text.parse().map_err(wrong)
}

/// Whether this network namespace, which is the first one then, shows them.
pub(crate) fn are_here() -> bool {
    Path::new(FOLDER).exists()
}

/// Shows limits, or sets one.
pub(crate) fn run(options: &Options, as_json: bool) -> anyhow::Result<()> {
    let all = all()?;
    let names = || {
        all.keys()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    };
    if let Some(name) = options
        .name
        .as_ref()
        .filter(|name| !all.contains_key(*name))
    {
        return Err(Usage(format!("there is no limit {name}; there are {}", names())).into());
    }
    match (&options.name, options.value) {
        (Some(name), Some(value)) => set(name, value),
        (Some(name), None) if !as_json => Ok(writeln!(io::stdout(), "{}", all[name])?),
        (name, _) => {
            let chosen = all
                .iter()
                .filter(|(key, _)| name.as_ref().is_none_or(|name| name == *key));
            if as_json {
                return json(&chosen.collect::<BTreeMap<_, _>>());
            }
            let mut table = Table::new(["LIMIT", ">VALUE"]);
            chosen.for_each(|(key, value)| table.row([key.clone(), value.to_string()]));
            Ok(table.print()?)
        }
    }
}

/// The limits with their values.
pub(crate) fn all() -> anyhow::Result<BTreeMap<String, u64>> {
    read(Path::new(FOLDER))
}

/// Sets a limit, which must be one.
pub(crate) fn set(name: &str, value: u32) -> anyhow::Result<()> {
    let path: PathBuf = [FOLDER, name].iter().collect();
    fs::write(path, value.to_string()).with_context(|| format!("net.kopi.{name}"))
}

/// All sysctls of a folder that are numbers.
fn read(folder: &Path) -> anyhow::Result<BTreeMap<String, u64>> {
    let files = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Connection::open()?;
            bail!("limits are kept in the initial network namespace: ask there");
        }
        files => files?,
    };
    let mut all = BTreeMap::new();
    for file in files {
        let file = file?;
        let text = fs::read_to_string(file.path())?;
        if let Ok(value) = text.trim().parse() {
            all.insert(file.file_name().to_string_lossy().into_owned(), value);
        }
    }
    Ok(all)
}
