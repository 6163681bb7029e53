// SPDX-License-Identifier: GPL-2.0

//! `kopictl doctor`

mod kernels;
mod nics;
mod rules;
mod signatures;
mod units;

use crate::{
    commands::config::{not_attached, not_in_force},
    hooks::{self, Switch},
    kernel::{release, way_to_module},
    message::{info::Info, Command},
    netlink::{Connection, Error},
    output::{clean, json, BAD, FAINT},
};
use nix::{
    errno::Errno,
    sys::resource::{getrlimit, Resource, RLIM_INFINITY},
};
use serde::Serialize;
use socket2::{Domain, Socket, Type};
use std::{
    fmt::Display,
    fs,
    io::{self, Write},
    path::Path,
};

/// Bytes of a channel as the library makes it unless it is told otherwise, rounded up.
const CHANNEL: u64 = 2200 << 10;

/// Where packages put the guide for administrators.
const GUIDE: &str = "/usr/share/doc/kopi-tools/admin.md";

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Ok,
    /// Something to know.
    Note,
    /// KOPI can't be used so.
    Wrong,
}

/// What was found out of one thing.
#[derive(Debug, PartialEq, Serialize)]
struct Finding {
    what: String,
    state: State,
    text: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Finding {
    fn ok(what: impl Display, text: impl Display) -> Self {
        Self::new(what, State::Ok, text, None)
    }

    fn note(what: impl Display, text: impl Display, fix: Option<String>) -> Self {
        Self::new(what, State::Note, text, fix)
    }

    fn wrong(what: impl Display, text: impl Display, fix: impl Display) -> Self {
        Self::new(what, State::Wrong, text, Some(fix.to_string()))
    }

    fn new(what: impl Display, state: State, text: impl Display, fix: Option<String>) -> Self {
        Self {
            what: what.to_string(),
            state,
            text: text.to_string(),
            fix,
        }
    }
}

/// Says what is missing or odd on this machine. Fails if KOPI can't be used.
pub(crate) fn run(as_json: bool) -> anyhow::Result<()> {
    let mut findings = Vec::new();
    let mut connection = Connection::open();
    let family = match &mut connection {
        Ok(connection) => {
            let info: Info = connection.get(Command::InfoGet, &Info::default())?;
            findings.push(Finding::ok("module", "loaded"));
            info.address_family
        }
        Err(Error::NoKopi) => {
            findings.push(missing_module());
            None
        }
        Err(error) => {
            findings.push(Finding::wrong("module", error, "ask as root"));
            None
        }
    };
    if let Ok(running) = release() {
        let is_missing = matches!(connection, Err(Error::NoKopi));
        findings.extend(signatures::demanded(Path::new("/"), &running, is_missing));
        findings.extend(kernels::without_module(Path::new("/"), &running));
    }
    if let Some(family) = family {
        findings.push(socket_opens(i32::try_from(family)?));
    }
    findings.push(locked_memory());
    let mut connection = connection.ok();
    let enforced = connection.as_mut().map(rules::enforced).transpose()?;
    let can_be = || Switch::of_kernel().map(enforcing);
    findings.extend(enforced.flatten().or_else(can_be));
    findings.extend(units::restricted(Path::new("/")));
    if let Some(connection) = &mut connection {
        let config = not_in_force(connection);
        findings.extend(config.map(|(text, fix)| Finding::wrong("kopi.conf", text, fix)));
        let off = not_attached(connection)?.into_iter();
        findings.extend(off.map(|(place, text, fix)| {
            Finding::note("kopi.conf", format!("{place}: {text}"), Some(fix))
        }));
        findings.extend(rules::matching_nobody(connection)?);
    }
    findings.extend(nics::all(connection.as_mut())?);
    let printed = match as_json {
        true => json(&findings),
        false => print(&findings).map_err(Into::into),
    };
    // Whether anybody reads it changes nothing of what was found.
    wrong(&findings).and(printed)
}

/// An error if something is wrong.
fn wrong(findings: &[Finding]) -> anyhow::Result<()> {
    let mut wrong = findings
        .iter()
        .filter(|finding| finding.state == State::Wrong);
    match wrong.next() {
        Some(finding) => anyhow::bail!("{}: {}", finding.what, finding.text),
        None => Ok(()),
    }
}

fn print(findings: &[Finding]) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    for finding in findings {
        let (what, text) = (clean(&finding.what), clean(&finding.text));
        match finding.state {
            State::Wrong => writeln!(out, "{BAD}{what:<12}{BAD:#} {text}")?,
            _ => writeln!(out, "{what:<12} {text}")?,
        }
        if let Some(fix) = &finding.fix {
            writeln!(out, "{:<12} {FAINT}{}{FAINT:#}", "", clean(fix))?;
        }
    }
    Ok(())
}

/// Why it isn't loaded.
fn missing_module() -> Finding {
    let release = release().unwrap_or_else(|_| "?".to_owned());
    let folder = Path::new("/lib/modules").join(&release);
    if has_module(&folder) {
        Finding::wrong(
            "module",
            "not loaded",
            "modprobe kopi; at each boot: systemctl enable --now kopi",
        )
    } else {
        Finding::wrong(
            "module",
            format!("there is none for the kernel {release}"),
            way_to_module(&release),
        )
    }
}

/// The guide for administrators, where it is.
fn guide() -> String {
    let places = [GUIDE.to_owned(), format!("{GUIDE}.gz")];
    let found = places.into_iter().find(|place| Path::new(place).exists());
    found.unwrap_or_else(|| "docs/admin.md".to_owned())
}

/// Whether depmod knows of it, or where packages put it.
fn has_module(folder: &Path) -> bool {
    folder.join("updates/kopi.ko").exists()
        || fs::read_to_string(folder.join("modules.dep"))
            .is_ok_and(|text| text.lines().any(|line| line.contains("/kopi.ko")))
}

/// Whether this process may have a socket.
fn socket_opens(family: i32) -> Finding {
    match Socket::new(Domain::from(family), Type::DGRAM, None) {
        Ok(_) => Finding::ok("sockets", format!("can be opened (family {family})")),
        Err(error) if error.raw_os_error() == Some(Errno::EMFILE as i32) => Finding::wrong(
            "sockets",
            error,
            "kopictl limit user_max_flows N, or end some of this user's programs",
        ),
        Err(error) => Finding::wrong(
            "sockets",
            format!(
                "{error}: something keeps this process from opening sockets of family {family}"
            ),
            "look at seccomp, RestrictAddressFamilies, AppArmor, SELinux and cgroup programs",
        ),
    }
}

/// Whether an ordinary user can have channels.
fn locked_memory() -> Finding {
    let what = "memlock";
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Err(error) => Finding::note(what, error, None),
        Ok((RLIM_INFINITY, _)) => Finding::ok(what, "unlimited"),
        Ok((bytes, _)) if bytes >= CHANNEL => {
            let channels = bytes / CHANNEL;
            let text = format!(
                "{} MiB: some {channels} channels of the usual size",
                bytes >> 20
            );
            Finding::ok(what, text)
        }
        Ok((bytes, _)) => Finding::note(
            what,
            format!(
                "{} KiB: a channel of the usual size doesn't fit",
                bytes >> 10
            ),
            Some("LimitMEMLOCK= in the unit, or memlock in /etc/security/limits.conf".to_owned()),
        ),
    }
}

/// Whether the rules can be enforced for ordinary sockets.
fn enforcing(switch: Switch) -> Finding {
    let what = "enforce";
    match switch {
        Switch::On => Finding::ok(what, "rules can judge ordinary sockets, too"),
        Switch::Off(fix) => Finding::note(
            what,
            format!("rules can't judge ordinary sockets: {}", hooks::OFF),
            Some(fix),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enforcing_needs_bpf() {
        assert_eq!(enforcing(Switch::On).state, State::Ok);
        let off = enforcing(Switch::Off("boot".to_owned()));
        assert_eq!((off.state, off.fix.as_deref()), (State::Note, Some("boot")));
        assert!(off.text.ends_with("bpf is off"), "{}", off.text);
    }

    #[test]
    fn modules_are_found() {
        let folder = std::env::temp_dir().join(format!("kopictl-doctor-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert!(!has_module(&folder));
        fs::write(folder.join("modules.dep"), "extra/kopi.ko.xz:\n").unwrap();
        assert!(has_module(&folder));
        fs::remove_dir_all(&folder).unwrap();
    }
}
