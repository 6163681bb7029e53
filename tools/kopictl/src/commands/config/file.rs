// SPDX-License-Identifier: GPL-2.0

//! The configuration file, kopi.conf(5).

use crate::{
    commands::{
        engine::{cpus, BUDGETS, IDLE_MAX},
        limit,
    },
    grammar::{self, each_line},
    message::engine::Engines,
};
use std::str::FromStr;

/// Bytes of the longest alternative name of a device: `ALTIFNAMSIZ` of the kernel, without the zero.
const ALTERNATIVE_MAX: usize = 127;

/// What a file says; what it says nothing about stays as it is.
#[derive(Debug, Default)]
pub(super) struct File {
    /// Each with its line.
    pub(super) limits: Vec<(usize, String, u32)>,
    /// Each with its line, and whether its offloads are left as they are.
    pub(super) devices: Vec<(usize, String, bool)>,
    /// The engines and their line; none are to be there where the list of CPUs is empty.
    pub(super) engines: Option<(usize, Engines)>,
    pub(super) rules: grammar::File,
}

impl FromStr for File {
    /// The line, and what is wrong with it.
    type Err = (usize, String);

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut file = Self::default();
        each_line(text, |line, words| file.add(line, words))?;
        Ok(file)
    }
}

impl File {
    /// Only what it says of attaching devices whose name is such a one.
    pub(super) fn only(self, is_it: impl Fn(&str) -> bool) -> Self {
        let mut devices = self.devices;
        devices.retain(|(_, named, _)| is_it(named));
        Self {
            devices,
            ..Self::default()
        }
    }

    /// Only its rules, with what it says of the default and of enforcing.
    pub(super) fn only_rules(self) -> Self {
        Self {
            rules: self.rules,
            ..Self::default()
        }
    }

    fn add(&mut self, line: usize, words: &[String]) -> Result<(), String> {
        match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => {}
            ["limit", name, value] => {
                let value = limit::value(value).map_err(|what| format!("limit {name}: {what}"))?;
                if self.limits.iter().any(|(_, known, _)| known == name) {
                    return Err(format!("limit {name} is given twice"));
                }
                self.limits.push((line, name.to_owned(), value));
            }
            ["attach", device] | ["attach", device, "keep-offloads"] => {
                let wrong = |letter: char| letter == '/' || letter.is_whitespace();
                if device.is_empty() || device.len() > ALTERNATIVE_MAX || device.contains(wrong) {
                    return Err(format!("attach: {device:?} is no name of a device"));
                }
                if self.devices.iter().any(|(_, known, _)| known == device) {
                    return Err(format!("attach {device} is given twice"));
                }
                let keep_offloads = words.len() > 2;
                self.devices.push((line, device.to_owned(), keep_offloads));
            }
            ["engines", ..] if self.engines.is_some() => {
                return Err("engines is given twice".to_owned())
            }
            ["engines", "off"] => self.engines = Some((line, Engines::default())),
            ["engines", ref rest @ ..] => self.engines = Some((line, engines(rest)?)),
            ["rule", _, ..] => self.rules.add(line, &words[1..])?,
            ["default" | "enforce", ..] => self.rules.add(line, words)?,
            ["limit", ..] => return Err("limit has a name and a number".to_owned()),
            ["attach", ..] => {
                return Err("attach has the name of one device, and maybe keep-offloads".to_owned())
            }
            ["rule"] => return Err("rule has the words of kopictl rule add".to_owned()),
            [other, ..] => {
                return Err(format!(
                    "{other}: a line begins with limit, attach, engines, rule, default or enforce"
                ))
            }
        }
        Ok(())
    }
}

/// The engines that these words ask for.
fn engines(words: &[&str]) -> Result<Engines, String> {
    let mut engines = Engines::default();
    for pair in words.chunks(2) {
        let &[word, value] = pair else {
            return Err(format!("engines: {} has no value", pair[0]));
        };
        let wrong = || format!("engines: {word} can't be {value}");
        match word {
            "cpus" if engines.cpu.is_empty() => engines.cpu = cpus(value)?.0,
            "idle" if engines.idle.is_none() => {
                let idle = value.parse().ok().filter(|&idle| idle <= IDLE_MAX);
                engines.idle = Some(idle.ok_or_else(wrong)?);
            }
            "budget" if engines.budget.is_none() => {
                let budget = value.parse().ok();
                let budget = budget.filter(|&budget| BUDGETS.contains(&i64::from(budget)));
                engines.budget = Some(budget.ok_or_else(wrong)?);
            }
            "cpus" | "idle" | "budget" => return Err(format!("engines: {word} is given twice")),
            _ => {
                return Err(format!(
                    "engines: {word}: there are cpus, idle and budget, or off alone"
                ))
            }
        }
    }
    if engines.cpu.is_empty() {
        return Err("engines: on which cpus? or off".to_owned());
    }
    Ok(engines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let text = "\
# a comment
limit user_max_flows 10   # another
attach eth0
attach wan-1 keep-offloads
engines cpus 1,3-4 idle 500
rule user 0 local-port 53 allow
rule local-port 53 deny comment 'of root only'
default allow
";
        let file: File = text.parse().unwrap();
        assert_eq!(file.limits, [(2, "user_max_flows".to_owned(), 10)]);
        assert_eq!(
            file.devices,
            [(3, "eth0".to_owned(), false), (4, "wan-1".to_owned(), true)]
        );
        let (line, engines) = file.engines.as_ref().unwrap();
        assert_eq!(
            (*line, &*engines.cpu, engines.idle),
            (5, &[1, 3, 4][..], Some(500))
        );
        let lines: Vec<_> = file.rules.rules.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [6, 7]);
        let empty: File = "# nothing\n\n".parse().unwrap();
        assert!(empty.rules.is_empty() && empty.engines.is_none());
        let off: File = "engines off".parse().unwrap();
        assert!(off.engines.unwrap().1.cpu.is_empty());
        let rules = text.parse::<File>().unwrap().only_rules();
        assert_eq!(rules.rules.rules.len(), 2);
        assert!(rules.rules.default.is_some());
        assert!(rules.limits.is_empty() && rules.devices.is_empty() && rules.engines.is_none());
        let one = file.only(|name| name == "eth0");
        assert_eq!(one.devices, [(3, "eth0".to_owned(), false)]);
        assert!(one.limits.is_empty() && one.rules.is_empty());
    }

    #[test]
    fn errors_have_their_line() {
        let too_long = format!("attach {}", "x".repeat(ALTERNATIVE_MAX + 1));
        for (text, line, what) in [
            ("attach", 1, "attach has"),
            ("\nattach eth0 eth1", 2, "attach has"),
            ("attach eth0\nattach eth0", 2, "twice"),
            ("attach a/b", 1, "no name"),
            (&*too_long, 1, "no name"),
            ("limit x", 1, "limit has"),
            ("limit x -1", 1, "no number"),
            ("limit x 4294967296", 1, "0 to 4294967295"),
            ("limit x 1\nlimit x 2", 2, "twice"),
            ("engines", 1, "which cpus"),
            ("engines cpus", 1, "no value"),
            ("engines cpus 1 idle x", 1, "can't be"),
            ("engines cpus 1 budget 1", 1, "can't be"),
            ("engines cpus 1 cpus 2", 1, "twice"),
            ("engines off\nengines cpus 1", 2, "twice"),
            ("engines off now", 1, "there are cpus"),
            ("rule", 1, "words"),
            ("rule user 0", 1, "no decision"),
            ("rule before 1 user 0 deny", 1, "order counts"),
            ("default maybe", 1, "allow or deny"),
            ("user 0 deny", 1, "begins with"),
            ("rule comment 'x deny", 1, "quote"),
        ] {
            let (at, error) = text.parse::<File>().unwrap_err();
            assert_eq!(at, line, "{text}");
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
