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
    script,
};

/// The rules that name a program or a cgroup which isn't there any more, or a script; none for those who may not
/// see the rules.
pub(super) fn matching_nobody(connection: &mut Connection) -> Result<Vec<Finding>, Error> {
    match connection.rules() {
        Err(error) if error.is_permission() => Ok(Vec::new()),
        rules => Ok(rules?
            .iter()
            .filter_map(|rule| finding(rule).or_else(|| script(rule)))
            .collect()),
    }
}

fn script(rule: &Rule) -> Option<Finding> {
    let what = format!("rule {}", or_dash(rule.handle));
    script::of_rule(rule).map(|text| Finding::note(what, text, None))
}

/// Whether rules that are to judge ordinary sockets do: their hooks may be gone, as with the mount namespace in
/// which they were pinned. And whether hooks are left that nobody needs. None else, and for those who may not see
/// it.
pub(super) fn enforced(connection: &mut Connection) -> Result<Option<Finding>, Error> {
    let set: Ruleset = match connection.get(Command::RulesetGet, &Ruleset::default()) {
        Err(error) if error.is_permission() => return Ok(None),
        set => set?,
    };
    Ok(hooks::are_loaded().and_then(|loaded| judging(&set, loaded)))
}

fn judging(set: &Ruleset, loaded: bool) -> Option<Finding> {
    let what = "enforce";
    match (set.enforce, loaded) {
        (Some(1), true) => Some(Finding::ok(what, "rules judge ordinary sockets, too")),
        (Some(1), false) => Some(Finding::wrong(
            what,
            "rules are to judge ordinary sockets, too, and don't: hooks for that are gone",
            "kopictl rule enforce on",
        )),
        (_, true) if set.enforcing == Some(0) => Some(Finding::note(
            what,
            "hooks for ordinary sockets are loaded, and no rules need them: the network namespace that had them is gone",
            Some("kopictl rule enforce off".to_owned()),
        )),
        _ => None,
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
        let on = Ruleset {
            enforce: Some(1),
            enforcing: Some(1),
            ..Ruleset::default()
        };
        assert_eq!(judging(&on, true).unwrap().state, State::Ok);
        assert_eq!(judging(&on, false).unwrap().state, State::Wrong);
    }

    #[test]
    fn hooks_that_are_left_are_told() {
        let off = |enforcing| Ruleset {
            enforce: Some(0),
            enforcing,
            ..Ruleset::default()
        };
        let left = judging(&off(Some(0)), true).unwrap();
        assert_eq!(left.state, State::Note);
        assert_eq!(left.fix.as_deref(), Some("kopictl rule enforce off"));
        // Another namespace needs them, or there are none, or it isn't seen.
        assert_eq!(judging(&off(Some(1)), true), None);
        assert_eq!(judging(&off(Some(0)), false), None);
        assert_eq!(judging(&off(None), true), None);
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
