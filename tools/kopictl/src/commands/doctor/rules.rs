// SPDX-License-Identifier: GPL-2.0

//! Whether the rules name what is there.

use super::{guide, Finding};
use crate::{
    hooks,
    message::{
        rule::{Rule, Ruleset},
        Command,
    },
    netlink::{Connection, Error},
    output::or_dash,
};

/// The rules that name a program or a cgroup which isn't there any more; none for those who may not see
/// the rules.
pub(super) fn stale(connection: &mut Connection) -> Result<Vec<Finding>, Error> {
    match connection.rules() {
        Err(error) if error.is_permission() => Ok(Vec::new()),
        rules => Ok(rules?.iter().filter_map(finding).collect()),
    }
}

/// Whether rules that are to judge ordinary sockets do: their hooks may be gone, as with the mount namespace in
/// which they were pinned. None if they aren't to, and for those who may not see it.
pub(super) fn enforced(connection: &mut Connection) -> Result<Option<Finding>, Error> {
    let set: Ruleset = match connection.get(Command::RulesetGet, &Ruleset::default()) {
        Err(error) if error.is_permission() => return Ok(None),
        set => set?,
    };
    match set.enforce {
        Some(1) => Ok(hooks::are_loaded().map(judging)),
        _ => Ok(None),
    }
}

fn judging(loaded: bool) -> Finding {
    let what = "enforce";
    match loaded {
        true => Finding::ok(what, "rules judge ordinary sockets, too"),
        false => Finding::wrong(
            what,
            "rules are to judge ordinary sockets, too, and don't: hooks for that are gone",
            "kopictl rule enforce on",
        ),
    }
}

fn finding(rule: &Rule) -> Option<Finding> {
    let what = rule.stale()?;
    let paths: Vec<_> = [
        (rule.exe_stale, "exe", &rule.exe),
        (rule.cgroup_stale, "cgroup", &rule.cgroup_path),
    ]
    .into_iter()
    .filter(|(is_stale, ..)| *is_stale)
    .map(|(_, word, path)| format!("{word} {}", or_dash(path.as_ref())))
    .collect();
    Some(Finding::note(
        format!("rule {}", or_dash(rule.handle)),
        format!("{}: {what}", paths.join(" ")),
        Some(format!(
            "what the path leads to now isn't matched before the rules are restored: {}",
            guide()
        )),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::State;

    #[test]
    fn hooks_that_are_gone_are_wrong() {
        assert_eq!(judging(true).state, State::Ok);
        assert_eq!(judging(false).state, State::Wrong);
    }

    #[test]
    fn what_is_gone_is_named() {
        let mut rule = Rule {
            handle: Some(3),
            exe: Some("/x".to_owned()),
            cgroup_path: Some("/y".to_owned()),
            ..Rule::default()
        };
        assert_eq!(finding(&rule), None);
        rule.cgroup_stale = true;
        let found = finding(&rule).unwrap();
        assert_eq!(found.what, "rule 3");
        assert_eq!(found.text, "cgroup /y: the cgroup was removed");
        rule.exe_stale = true;
        assert!(finding(&rule)
            .unwrap()
            .text
            .starts_with("exe /x cgroup /y: "));
    }
}
