// SPDX-License-Identifier: GPL-2.0

//! Changes that have the rules judge ordinary sockets, too, or no more.

use crate::{
    commands::location::Location,
    grammar::File,
    hooks,
    message::{rule::Ruleset, Command},
    netlink::Connection,
    output::remark,
};
use anyhow::Context;

/// Says that it is about the line with `enforce`, unless another place is known.
pub(super) fn at_enforce(error: anyhow::Error, name: &str, line: usize) -> anyhow::Error {
    match error.is::<Location>() {
        true => error,
        false => error.context(Location::line(name, line)),
    }
}

/// Whether enforcing could be had where a file of that name wants it. Nothing is loaded.
pub(crate) fn check_enforce(file: &File, name: &str) -> anyhow::Result<()> {
    match file.enforce {
        Some((line, true)) => hooks::could_load().with_context(|| Location::line(name, line)),
        _ => Ok(()),
    }
}

/// Makes a change that has the rules enforced, or no more, with the hooks that it takes.
pub(super) fn with_hooks<T>(
    on: bool,
    change: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let before: Ruleset = Connection::open()?.get(Command::RulesetGet, &Ruleset::default())?;
    // Others than root of the machine see no number, and the kernel says what they lack.
    if before.enforcing.is_none() {
        return change();
    }
    let _lock = hooks::lock()?;
    if on {
        hooks::load()?;
    }
    let changed = change();
    let followed = follow(on);
    // Why it was refused says more.
    let changed = changed?;
    followed.map(|()| changed)
}

/// Once the rules are enforced, what sockets there are is noted; the hooks go when no rules are.
fn follow(on: bool) -> anyhow::Result<()> {
    let set: Ruleset = Connection::open()?.get(Command::RulesetGet, &Ruleset::default())?;
    if on && set.enforce == Some(1) {
        // The rules are in force whether it can be done or not.
        if let Err(error) = hooks::find_sockets() {
            remark(format!(
                "rules are enforced, but the sockets that are open now can't be looked up: of these, the program \
                 isn't known before they are used again: {error:#}"
            ));
        }
        return Ok(());
    }
    if set.enforcing == Some(0) {
        hooks::unload()?;
    }
    Ok(())
}
