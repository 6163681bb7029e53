// SPDX-License-Identifier: GPL-2.0

//! What can be tested of the program where there is no KOPI: its statuses, its help, its files.

use std::process::{Command, Output};

fn kopictl(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kopictl"))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn wrong_usage_is_2() {
    for arguments in [
        &["nothing"][..],
        &["show", "flow", "0"],
        &["rule", "add"],
        &["watch", "--event", "x"],
        &["rule", "save", "--json"],
        &["metrics", "--json"],
        &["--json", "man"],
        &["--json", "completions", "bash"],
    ] {
        assert_eq!(kopictl(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let wrong = kopictl(&["--json", "completions", "bash"]);
    assert!(wrong.stdout.is_empty());
    let wrong = kopictl(&["rule", "add", "user", "0", "permit"]);
    assert_eq!(wrong.status.code(), Some(2));
    let error = String::from_utf8(wrong.stderr).unwrap();
    assert_eq!(
        error,
        "kopictl: permit is not a keyword of rules; see kopictl rule --help\n"
    );
}

#[test]
fn files_with_errors_are_1_and_the_line_is_named() {
    let file = std::env::temp_dir().join(format!("kopictl-rules-{}", std::process::id()));
    std::fs::write(&file, "default deny\nuser 0 local-port 99999 allow\n").unwrap();
    let wrong = kopictl(&["restore", file.to_str().unwrap()]);
    let error = String::from_utf8(wrong.stderr).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(wrong.status.code(), Some(1));
    assert!(
        error.contains(&format!("{}:2: 99999", file.display())),
        "{error}"
    );
}

#[test]
fn help_has_the_grammar_and_the_statuses() {
    let help = |arguments: &[&str]| String::from_utf8(kopictl(arguments).stdout).unwrap();
    assert!(help(&["--help"]).contains("4 not permitted"));
    for words in [
        &["rule", "--help"][..],
        &["rule", "add", "--help"],
        &["rule", "restore", "--help"],
    ] {
        assert!(help(words).contains("remote ADDR[/LEN]"), "{words:?}");
    }
    assert!(help(&["man"]).contains(".SH"));
    assert!(help(&["completions", "bash"]).contains("complete"));
}

#[test]
fn there_is_a_page_for_each_command() {
    let folder = std::env::temp_dir().join(format!("kopictl-man-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let status = kopictl(&["man", folder.to_str().unwrap()]).status;
    let pages = ["kopictl.1", "kopictl-rule.1", "kopictl-rule-add.1"]
        .map(|page| folder.join(page).exists());
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(status.success());
    assert_eq!(pages, [true; 3]);
}
