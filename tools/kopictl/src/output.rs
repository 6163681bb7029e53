// SPDX-License-Identifier: GPL-2.0

//! What is printed: tables, JSON, colours. Colours are left out by `anstream` when NO_COLOR says so or
//! the output is no terminal.

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use std::{
    fmt::Display,
    io::{self, Write},
};

/// Heads of tables.
pub(crate) const HEAD: Style = Style::new().bold();
/// What went wrong.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// What is of less weight.
pub(crate) const FAINT: Style = Style::new().dimmed();

/// Whether a letter isn't seen, or makes others be seen as they are not: controls (C0, DEL, C1), marks,
/// overrides and isolates of direction, what has no width, ends of lines and paragraphs, tags.
pub(crate) fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// Text that comes from others, who may have put in it what moves a terminal's cursor, or deceives who
/// reads it. All that is printed goes through this.
pub(crate) fn clean(text: &str) -> String {
    let escape = |letter: char| match is_hidden(letter) {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(escape).collect()
}

/// Says on standard error that something went wrong. If that can't be written, there is nobody to tell.
pub(crate) fn complain(what: impl Display) {
    let text = clean(&what.to_string());
    let _ = writeln!(anstream::stderr(), "{BAD}kopictl:{BAD:#} {text}");
}

/// Says on standard error how things are.
pub(crate) fn remark(what: impl Display) {
    let _ = writeln!(anstream::stderr(), "{}", clean(&what.to_string()));
}

/// Prints a value as JSON, on one line.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    json_to(&mut io::stdout().lock(), value)
}

/// Writes a value as JSON, on one line.
pub(crate) fn json_to(out: &mut impl Write, value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string(value).map_err(io::Error::from)?;
    writeln!(out, "{}", clean_json(&text))?;
    Ok(out.flush()?)
}

/// JSON that means the same, and hides nothing: such letters are in strings only.
fn clean_json(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_hidden(letter) {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                clean += &format!("\\u{unit:04x}");
            }
        } else {
            clean.push(letter);
        }
    }
    clean
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
    fn nothing_is_hidden() {
        for (text, shown) in [
            ("a\u{1b}[2J", "a\\u{1b}[2J"),
            ("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}"),
            (
                "\u{202e}txt\u{2066}\u{2069}",
                "\\u{202e}txt\\u{2066}\\u{2069}",
            ),
            ("a\u{200b}b\u{feff}", "a\\u{200b}b\\u{feff}"),
            ("\u{2028}\u{e0041}\r\n", "\\u{2028}\\u{e0041}\\r\\n"),
            ("Zo\u{eb} \u{5d0} \u{4e2d}", "Zo\u{eb} \u{5d0} \u{4e2d}"),
        ] {
            assert_eq!(clean(text), shown);
            let json = clean_json(&serde_json::to_string(text).unwrap());
            assert!(!json.chars().any(is_hidden), "{json}");
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
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
