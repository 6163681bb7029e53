// SPDX-License-Identifier: GPL-2.0

//! What is printed: tables, JSON, colours. Colours are left out by `anstream` when NO_COLOR says so or
//! the output is no terminal.

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use std::io::{self, Write};

/// Heads of tables.
pub(crate) const HEAD: Style = Style::new().bold();
/// What went wrong.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// What is of less weight.
pub(crate) const FAINT: Style = Style::new().dimmed();

/// Text that comes from others, who may have put in it what moves a terminal's cursor.
pub(crate) fn clean(text: &str) -> String {
    let escape = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(escape).collect()
}

/// Prints a value as JSON, on one line.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// A table whose columns are as wide as what is in them.
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// One with these heads; those that begin with `>` are aligned to the right.
    pub(crate) fn new(head: impl Into<Vec<&'static str>>) -> Self {
        Self {
            head: head.into(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows
            .push(cells.into_iter().map(|cell| clean(&cell)).collect());
    }

    /// Its lines, the head first.
    pub(crate) fn lines(&self) -> Vec<String> {
        let head = self
            .head
            .iter()
            .map(|title| title.trim_start_matches('>').to_owned())
            .collect();
        let mut widths = vec![0; self.head.len()];
        let all = || std::iter::once(&head).chain(&self.rows);
        for (width, cell) in all()
            .flat_map(|row: &Vec<String>| widths_of(row))
            .collect::<Vec<_>>()
        {
            if let Some(widest) = widths.get_mut(cell) {
                *widest = width.max(*widest);
            }
        }
        let line = |row: &Vec<String>| {
            let cells = row
                .iter()
                .zip(&self.head)
                .zip(&widths)
                .map(|((cell, title), &width)| {
                    if title.starts_with('>') {
                        format!("{cell:>width$}")
                    } else {
                        format!("{cell:<width$}")
                    }
                });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        all().map(line).collect()
    }

    /// Prints it.
    pub(crate) fn print(&self) -> io::Result<()> {
        let mut out = anstream::stdout().lock();
        let mut lines = self.lines().into_iter();
        if let Some(head) = lines.next() {
            writeln!(out, "{HEAD}{head}{HEAD:#}")?;
        }
        for line in lines {
            writeln!(out, "{line}")?;
        }
        out.flush()
    }
}

fn widths_of(row: &[String]) -> impl Iterator<Item = (usize, usize)> + '_ {
    row.iter()
        .enumerate()
        .map(|(place, cell)| (cell.chars().count(), place))
}

/// A number with a unit's prefix, of four digits at most.
pub(crate) fn short(number: f64) -> String {
    let mut scaled = number;
    for prefix in ["", "k", "M", "G", "T", "P"] {
        if scaled < 9999.5 {
            let digits = if scaled < 99.95 && !(prefix.is_empty() && scaled.fract() == 0.0) {
                1
            } else {
                0
            };
            return format!("{scaled:.digits$}{prefix}");
        }
        scaled /= 1000.0;
    }
    format!("{scaled:.0}E")
}

/// What is there and isn't empty, or a dash.
pub(crate) fn or_dash(value: Option<impl ToString>) -> String {
    let text = value.map(|value| value.to_string());
    text.filter(|text| !text.is_empty())
        .unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_clean() {
        let mut table = Table::new(["NAME", ">N"]);
        table.row(["a\x1b[2J".to_owned(), "7".to_owned()]);
        table.row(["longer".to_owned(), "1234".to_owned()]);
        assert_eq!(
            table.lines(),
            ["NAME           N", "a\\u{1b}[2J     7", "longer      1234"]
        );
    }

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (7.0, "7"),
            (0.5, "0.5"),
            (9999.0, "9999"),
            (12345.0, "12.3k"),
            (3e9, "3000M"),
        ] {
            assert_eq!(short(number), text);
        }
    }
}
