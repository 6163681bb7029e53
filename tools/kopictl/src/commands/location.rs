// SPDX-License-Identifier: GPL-2.0

//! Where in a file something is wrong, for people and as JSON.

use serde::Serialize;
use std::fmt;

/// A file, or a line of it: the context of an error.
#[derive(Debug)]
pub(crate) struct Location {
    file: String,
    line: Option<usize>,
}

impl Location {
    /// A line of a file.
    pub(crate) fn line(file: &str, line: usize) -> Self {
        Self {
            file: file.to_owned(),
            line: Some(line),
        }
    }

    /// A file as a whole.
    pub(crate) fn file(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            line: None,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(out, "{}:{line}", self.file),
            None => out.write_str(&self.file),
        }
    }
}

/// An error, as JSON.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct LocatedError {
    /// The line at which it is, if it is at one.
    line: Option<usize>,
    /// The words that are printed on standard error, too.
    text: String,
}

impl From<&anyhow::Error> for LocatedError {
    fn from(error: &anyhow::Error) -> Self {
        Self {
            line: error
                .downcast_ref::<Location>()
                .and_then(|place| place.line),
            text: format!("{error:#}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn the_line_is_found_below_other_contexts() {
        let error = anyhow!("no")
            .context(Location::line("f", 3))
            .context("outer");
        let wrong = LocatedError::from(&error);
        assert_eq!((wrong.line, &*wrong.text), (Some(3), "outer: f:3: no"));
        let error = anyhow!("no").context(Location::file("f"));
        let wrong = LocatedError::from(&error);
        assert_eq!((wrong.line, &*wrong.text), (None, "f: no"));
    }
}
