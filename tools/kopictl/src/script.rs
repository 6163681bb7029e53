// SPDX-License-Identifier: GPL-2.0

//! Scripts, which no process has for its program: who runs one runs the interpreter that its first line names.

use crate::{grammar, message::rule::Rule, output::remark};
use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

/// As much of the first line as is shown; the kernel reads 256 bytes.
const SHOWN: u64 = 80;

/// Says of which rules of a file of that name the program is a script. They are in force, and match nobody.
pub(crate) fn remark_on(file: &grammar::File, name: &str) {
    for (line, rule) in &file.rules {
        if let Some(what) = of_rule(rule) {
            remark(format!("{name}:{line}: {what}"));
        }
    }
}

/// What is to be said of a rule whose program is a script.
pub(crate) fn of_rule(rule: &Rule) -> Option<String> {
    let path = rule.exe.as_ref()?;
    // What can't be read isn't told.
    let first = first_line(Path::new(path)).ok().flatten()?;
    Some(format!(
        "exe {path} is a script: the program of who runs it is the interpreter ({first}), so the rule doesn't match; \
         a rule by user or cgroup may be what is meant"
    ))
}

/// The first line of a script; nothing of another file.
fn first_line(path: &Path) -> io::Result<Option<String>> {
    // Not a pipe, which may have nothing to read.
    if !fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let mut start = Vec::new();
    File::open(path)?.take(SHOWN).read_to_end(&mut start)?;
    let line = start.split(|&byte| byte == b'\n').next();
    let script = line.filter(|line| line.starts_with(b"#!"));
    Ok(script.map(|line| String::from_utf8_lossy(line).trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_told() {
        let path = std::env::temp_dir().join(format!("kopictl-script-{}", std::process::id()));
        let told = |text: &[u8]| {
            fs::write(&path, text).unwrap();
            let exe = path.to_str().map(str::to_owned);
            of_rule(&Rule {
                exe,
                ..Rule::default()
            })
        };
        let text = told(b"#!/usr/bin/perl -wT\n# psql\n").unwrap();
        assert!(text.contains("(#!/usr/bin/perl -wT)"), "{text}");
        assert!(told(&[b"#!/bin/", &[b'x'; 1000][..]].concat()).is_some());
        assert_eq!(told(b"\x7fELF#!"), None);
        assert_eq!(told(b""), None);
        fs::remove_file(&path).unwrap();
        let other = |exe: Option<&str>| Rule {
            exe: exe.map(str::to_owned),
            ..Rule::default()
        };
        assert_eq!(of_rule(&other(None)), None);
        assert_eq!(of_rule(&other(Some("/nowhere"))), None);
        assert_eq!(of_rule(&other(Some("/dev/zero"))), None);
    }
}
