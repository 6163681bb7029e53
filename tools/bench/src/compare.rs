// SPDX-License-Identifier: GPL-2.0

//! Whether rows got worse than a table has them.

use crate::{
    row::Row,
    table::{array, read_rows},
};
use clap::Args;
use std::{fs, io, path::PathBuf};

/// How much more a row may cost.
const MARGIN: f64 = 0.05;

#[derive(Args)]
pub(crate) struct Options {
    /// The table: an array of rows
    table: PathBuf,

    /// Where the array of the new rows goes
    #[arg(long)]
    json: PathBuf,
}

/// Reads new rows, and looks what became of each row of the table.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let new = read_rows(io::stdin().lock())?;
    fs::write(&options.json, array(&new)?)?;
    let old: Vec<Row> = serde_json::from_str(&fs::read_to_string(&options.table)?)?;
    if let (Some(old), Some(new)) = (old.first(), new.first()) {
        if old.kernel != new.kernel {
            println!(
                "# the table is of {}, and this of {}",
                old.kernel, new.kernel
            );
        }
    }
    let mut all_right = true;
    for row in &old {
        let verdict = verdict(row, &new);
        let (result, text) = match &verdict {
            Ok(text) => ("ok", text),
            Err(text) => ("not ok", text),
        };
        all_right &= verdict.is_ok();
        println!(
            "{result} - {}, {}, {} bytes, {} peers: {text}",
            row.direction, row.mode, row.payload, row.peers
        );
    }
    Ok(all_right)
}

/// What became of a row; an error if it got worse, or isn't there.
fn verdict(old: &Row, new: &[Row]) -> Result<String, String> {
    let cost = new
        .iter()
        .find(|row| row.is_as(old))
        .and_then(|row| row.insn_per_packet);
    let (Some(before), Some(now)) = (old.insn_per_packet, cost) else {
        return Err("no such row".to_owned());
    };
    let change = now / before - 1.0;
    let text = format!(
        "{before:.0} instructions before, {now:.0} now ({:+.1} %)",
        change * 100.0
    );
    match change <= MARGIN {
        true => Ok(text),
        false => Err(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(mode: &str, cost: f64) -> Row {
        Row {
            mode: mode.to_owned(),
            insn_per_packet: Some(cost),
            ..Row::default()
        }
    }

    #[test]
    fn worse_rows_are_found() {
        let new = [row("send", 104.0), row("kopi", 106.0), row("recv", 50.0)];
        assert!(verdict(&row("send", 100.0), &new).is_ok());
        assert!(verdict(&row("recv", 100.0), &new).is_ok());
        let worse = verdict(&row("kopi", 100.0), &new).unwrap_err();
        assert_eq!(worse, "100 instructions before, 106 now (+6.0 %)");
    }

    #[test]
    fn missing_rows_are_found() {
        assert!(verdict(&row("send", 100.0), &[row("kopi", 100.0)]).is_err());
        let other = Row {
            payload: 1400,
            ..row("send", 100.0)
        };
        assert!(verdict(&row("send", 100.0), &[other]).is_err());
    }
}
