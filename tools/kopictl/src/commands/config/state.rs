// SPDX-License-Identifier: GPL-2.0

//! Whether the usual file is in force, as `kopictl doctor` asks.

use super::{ask_kernel, File, Which, DEFAULT_FILE};
use crate::{
    commands::{direct::whichever_attached, is_permission, limit, location::Location},
    link::{connect, find_if_there},
    message::{device::Device, rule::Ruleset, Command},
    netlink::{Connection, Error},
};
use std::path::Path;

/// Why the usual file isn't in force, and what to do; none where that isn't seen, or for who may not ask. The
/// service puts it in force in the initial network namespace.
pub(crate) fn not_in_force(connection: &mut Connection) -> Option<(String, &'static str)> {
    if !limit::are_here() || !Path::new(DEFAULT_FILE).exists() {
        return None;
    }
    let which = Which {
        file: DEFAULT_FILE.into(),
    };
    let checked = which.read().and_then(|file| {
        let differs = ask_kernel(&file, DEFAULT_FILE)?;
        let set: Ruleset = connection.get(Command::RulesetGet, &Ruleset::default())?;
        Ok(missing(&file, connection.rules()?.len(), differs, &set))
    });
    match checked {
        Err(error) if is_permission(&error) => None,
        Err(error) => Some((
            format!("can't be put in force as it is: {error:#}"),
            "fix the file; then: systemctl reload-or-restart kopi",
        )),
        Ok(missing) => missing.map(|what| {
            let fix = "systemctl reload-or-restart kopi; at each boot: systemctl enable kopi";
            (format!("{what} in force"), fix)
        }),
    }
}

/// The devices of the usual file that aren't attached: where in the file, what is the matter, and what to do. None
/// where that isn't seen, and of a file that can't be understood.
pub(crate) fn not_attached(
    connection: &mut Connection,
) -> Result<Vec<(String, String, String)>, Error> {
    let which = Which {
        file: DEFAULT_FILE.into(),
    };
    let file = match which.read() {
        Ok(file) if limit::are_here() && !file.devices.is_empty() => file,
        _ => return Ok(Vec::new()),
    };
    let Some(attached) = whichever_attached(connection)? else {
        return Ok(Vec::new());
    };
    let socket = connect()?;
    let index = |name: &str| {
        let found = find_if_there(&socket, name).ok().flatten();
        found.map(|link| link.header.index)
    };
    Ok(unattached(&file, &attached, index))
}

fn unattached(
    file: &File,
    attached: &[Device],
    index: impl Fn(&str) -> Option<u32>,
) -> Vec<(String, String, String)> {
    let is_attached = |index| attached.iter().any(|device| device.ifindex == Some(index));
    let unattached = |(line, name, _): &(usize, String, bool)| {
        let (what, fix) = match index(name) {
            Some(index) if is_attached(index) => return None,
            Some(_) => (
                format!("{name} isn't attached"),
                format!("kopictl attach {name}, or take the line away"),
            ),
            None => (
                format!("there is no device {name}: it is attached when it comes"),
                "if the name is wrong: `ip link` shows the right one".to_owned(),
            ),
        };
        Some((Location::line(DEFAULT_FILE, *line).to_string(), what, fix))
    };
    file.devices.iter().filter_map(unattached).collect()
}

/// What of a file isn't in force where there are so many rules, which are the file's or not.
fn missing(file: &File, rules: usize, differs: bool, set: &Ruleset) -> Option<&'static str> {
    let is_enforced = set.enforce == Some(1);
    let default = file.rules.default;
    if !file.rules.rules.is_empty() && rules == 0 {
        Some("none of its rules is")
    } else if default.is_some() && default != set.default {
        Some("its default isn't")
    } else if differs {
        Some("other rules than its are")
    } else {
        match file.rules.enforce {
            Some((_, true)) if !is_enforced => Some("its `enforce on` isn't"),
            Some((_, false)) if is_enforced => Some("its `enforce off` isn't"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::rule::Verdict;

    #[test]
    fn devices_that_are_not_attached_are_named() {
        let file: File = "attach eth0\nattach eth1\nattach eht2\n".parse().unwrap();
        let attached = [Device {
            ifindex: Some(2),
            ..Device::default()
        }];
        let index = |name: &str| match name {
            "eth0" => Some(2),
            "eth1" => Some(3),
            _ => None,
        };
        let found = unattached(&file, &attached, index);
        let [(place, off, _), (_, absent, _)] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(place, "/etc/kopi/kopi.conf:2");
        assert_eq!(off, "eth1 isn't attached");
        assert!(absent.starts_with("there is no device eht2"), "{absent}");
    }

    #[test]
    fn what_is_missing_is_said() {
        let file = |text: &str| text.parse::<File>().unwrap();
        let off = Ruleset::default();
        let on = Ruleset {
            enforce: Some(1),
            ..Ruleset::default()
        };
        let nothing = file("attach eth0\n");
        assert_eq!(missing(&nothing, 0, false, &off), None);
        let both = file("rule user 0 allow\nenforce on\n");
        let of_both = |rules, differs, set| missing(&both, rules, differs, set);
        assert_eq!(of_both(0, true, &on), Some("none of its rules is"));
        assert_eq!(of_both(1, true, &on), Some("other rules than its are"));
        assert_eq!(of_both(1, false, &off), Some("its `enforce on` isn't"));
        assert_eq!(of_both(1, false, &on), None);
        let enforce_off = file("enforce off\n");
        assert_eq!(
            missing(&enforce_off, 0, false, &on),
            Some("its `enforce off` isn't")
        );
        assert_eq!(missing(&enforce_off, 0, false, &off), None);
        let deny = file("default deny\n");
        let allowed = Ruleset {
            default: Some(Verdict::Allow),
            ..Ruleset::default()
        };
        assert_eq!(
            missing(&deny, 0, false, &allowed),
            Some("its default isn't")
        );
        let denied = Ruleset {
            default: Some(Verdict::Deny),
            ..Ruleset::default()
        };
        assert_eq!(missing(&deny, 0, false, &denied), None);
    }
}
