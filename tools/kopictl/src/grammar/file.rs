// SPDX-License-Identifier: GPL-2.0

//! Files of rules, a line each.

use super::{parse, Result};
use crate::message::rule::{Rule, Verdict};
use std::str::FromStr;

/// The rules of a file, each with the number of its line, and the default.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct File {
    /// What becomes of flows that no rule matches; as it was, if the file doesn't say.
    pub(crate) default: Option<Verdict>,
    /// Whether ordinary sockets are judged, too, with the number of its line; as it was, if the file
    /// doesn't say.
    pub(crate) enforce: Option<(usize, bool)>,
    /// The rules, in their order.
    pub(crate) rules: Vec<(usize, Rule)>,
}

impl File {
    /// Understands the words of one line.
    pub(crate) fn add(&mut self, line: usize, words: &[String]) -> Result<()> {
        match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => (),
            ["default", _] if self.default.is_some() => {
                return Err("default is given twice".to_owned())
            }
            ["default", "allow"] => self.default = Some(Verdict::Allow),
            ["default", "deny"] => self.default = Some(Verdict::Deny),
            ["default", ..] => return Err("default is allow or deny".to_owned()),
            ["enforce", _] if self.enforce.is_some() => {
                return Err("enforce is given twice".to_owned())
            }
            ["enforce", "on"] => self.enforce = Some((line, true)),
            ["enforce", "off"] => self.enforce = Some((line, false)),
            ["enforce", ..] => return Err("enforce is on or off".to_owned()),
            _ => {
                let rule = parse(words)?;
                if rule.before.is_some() {
                    return Err("before is for rule add; here the order counts".to_owned());
                }
                self.rules.push((line, rule));
            }
        }
        Ok(())
    }

    /// The same, but without a word of enforcing.
    pub(crate) fn without_enforce(&self) -> Self {
        Self {
            default: self.default,
            enforce: None,
            rules: self.rules.clone(),
        }
    }

    /// Whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.default.is_none() && self.enforce.is_none() && self.rules.is_empty()
    }
}

impl FromStr for File {
    /// The line, and what is wrong with it.
    type Err = (usize, String);

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let mut file = Self::default();
        each_line(text, |line, words| file.add(line, words))?;
        Ok(file)
    }
}

/// Has each line of a file understood, as the words into which a shell would split it; none of a
/// comment. Gives the line that is wrong, and what is.
pub(crate) fn each_line(
    text: &str,
    mut add: impl FnMut(usize, &[String]) -> Result<()>,
) -> std::result::Result<(), (usize, String)> {
    for (line, text) in (1..).zip(text.lines()) {
        shlex::split(text)
            .ok_or_else(|| "a quote has no end".to_owned())
            .and_then(|words| add(line, &words))
            .map_err(|what| (line, what))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn files_have_lines() {
        let file: File = "# rules\n\ndefault deny\nuser 5 allow # a note\n  remote ::1 deny\n"
            .parse()
            .unwrap();
        assert_eq!(file.default, Some(Verdict::Deny));
        assert_eq!(file.enforce, None);
        let on: File = "enforce on".parse().unwrap();
        assert_eq!((on.enforce, on.is_empty()), (Some((1, true)), false));
        let silent: File = "user 5 allow\n".parse().unwrap();
        assert_eq!(silent.default, None);
        assert_eq!(
            file.rules.iter().map(|(line, _)| *line).collect::<Vec<_>>(),
            [4, 5]
        );
        for (text, line) in [
            ("default maybe", 1),
            ("enforce maybe", 1),
            ("enforce on\nenforce on", 2),
            ("\ndefault\n", 2),
            ("default deny\ndefault deny", 2),
            ("allow\nallow 'x", 2),
            ("allow before 7", 1),
        ] {
            assert_eq!(text.parse::<File>().unwrap_err().0, line, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_understood_or_not(text in "\\PC*") {
            let _ = text.parse::<File>();
        }
    }
}
