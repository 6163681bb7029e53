// SPDX-License-Identifier: GPL-2.0

//! Whether the usual file is in force, as `kopictl doctor` asks.

use super::{ask_kernel, File, Which, USUAL};
use crate::{
    commands::{is_permission, limit},
    message::{rule::Ruleset, Command},
    netlink::Connection,
};
use std::path::Path;

/// Why the usual file isn't in force, and what to do; none where that isn't seen, or for who may not ask. The
/// service puts it in force in the first network namespace.
pub(crate) fn not_in_force(connection: &mut Connection) -> Option<(String, &'static str)> {
    if !limit::are_here() || !Path::new(USUAL).exists() {
        return None;
    }
    let which = Which { file: USUAL.into() };
    let checked = which.read().and_then(|file| {
        ask_kernel(&file, USUAL)?;
        let set: Ruleset = connection.get(Command::RulesetGet, &Ruleset::default())?;
        Ok(missing(&file, connection.rules()?.len(), &set))
    });
    match checked {
        Err(error) if is_permission(&error) => None,
        Err(error) => Some((
            format!("can't be put in force as it is: {error:#}"),
            "mend the file; then: systemctl reload-or-restart kopi",
        )),
        Ok(missing) => missing.map(|what| {
            let mend = "systemctl reload-or-restart kopi; at each boot: systemctl enable kopi";
            (format!("{what} in force"), mend)
        }),
    }
}

/// What of a file isn't in force where there are so many rules.
fn missing(file: &File, rules: usize, set: &Ruleset) -> Option<&'static str> {
    let enforce = file.rules.enforce.is_some_and(|(_, on)| on);
    if !file.rules.rules.is_empty() && rules == 0 {
        Some("none of its rules is")
    } else if enforce && set.enforce != Some(1) {
        Some("its `enforce on` isn't")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        let file = |text: &str| text.parse::<File>().unwrap();
        let off = Ruleset::default();
        let on = Ruleset {
            enforce: Some(1),
            ..Ruleset::default()
        };
        assert_eq!(missing(&file("attach eth0\n"), 0, &off), None);
        let both = file("rule user 0 allow\nenforce on\n");
        assert_eq!(missing(&both, 0, &on), Some("none of its rules is"));
        assert_eq!(missing(&both, 1, &off), Some("its `enforce on` isn't"));
        assert_eq!(missing(&both, 1, &on), None);
        assert_eq!(missing(&file("enforce off\n"), 0, &on), None);
    }
}
