// SPDX-License-Identifier: GPL-2.0

//! Units of systemd whose processes may not open KOPI sockets.

use super::Finding;
use std::{collections::BTreeMap, ffi::OsStr, fs, path::Path};

/// Where systemd looks for units; those further back count more.
const FOLDERS: [&str; 4] = [
    "usr/lib/systemd/system",
    "usr/local/lib/systemd/system",
    "run/systemd/system",
    "etc/systemd/system",
];
/// The name that systemd has for the number of KOPI's family.
const NAME: &str = "AF_ECONET";
/// So many are named.
const NAMED_MAX: usize = 8;

/// One finding for all services that may open UDP sockets and no KOPI sockets; none if there are none.
pub(super) fn restricted(root: &Path) -> Option<Finding> {
    let mut units = BTreeMap::new();
    for folder in FOLDERS {
        let Ok(files) = fs::read_dir(root.join(folder)) else {
            continue;
        };
        let mut files: Vec<_> = files.flatten().map(|entry| entry.path()).collect();
        // A unit before the folder of what is changed of it.
        files.sort();
        for path in files {
            let Some(name) = path.file_name().and_then(OsStr::to_str) else {
                continue;
            };
            if let Some(unit) = name.strip_suffix(".d") {
                for change in changes(&path) {
                    read(&mut units, unit, &change);
                }
            } else {
                units.remove(name);
                // A link is another name of a unit, or masks it.
                if !path.is_symlink() {
                    read(&mut units, name, &path);
                }
            }
        }
    }
    let restricted = |families: &Vec<String>| {
        families.iter().any(|family| family == "AF_INET") && !families.iter().any(|f| f == NAME)
    };
    let names: Vec<_> = units
        .iter()
        .filter(|(name, families)| !name.starts_with("systemd-") && restricted(families))
        .map(|(name, _)| name.as_str())
        .collect();
    let first = names.get(..NAMED_MAX).unwrap_or(&names).join(", ");
    let more = match names.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!names.is_empty()).then(|| {
        Finding::note(
            "services",
            format!("may open no KOPI sockets, since they have RestrictAddressFamilies=: {first}{more}"),
            Some(format!(
                "for one that should: systemctl edit UNIT, [Service], RestrictAddressFamilies={NAME}"
            )),
        )
    })
}

fn changes(folder: &Path) -> Vec<std::path::PathBuf> {
    let Ok(files) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut files: Vec<_> = files.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// Adds the families that a file of a service allows.
fn read(units: &mut BTreeMap<String, Vec<String>>, unit: &str, file: &Path) {
    if !unit.ends_with(".service") {
        return;
    }
    let Ok(text) = fs::read_to_string(file) else {
        return;
    };
    for line in text.lines() {
        let Some(value) = line.trim().strip_prefix("RestrictAddressFamilies=") else {
            continue;
        };
        let families = units.entry(unit.to_owned()).or_default();
        // A list of what is forbidden leaves KOPI's.
        if value.is_empty() || value == "none" || value.starts_with('~') {
            families.clear();
        } else {
            families.extend(value.split_whitespace().map(str::to_owned));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_named() {
        let root = std::env::temp_dir().join(format!("kopictl-units-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(restricted(&root), None);
        let inet = "[Service]\nRestrictAddressFamilies=AF_UNIX AF_INET AF_INET6\n";
        put("usr/lib/systemd/system/a.service", inet);
        put("usr/lib/systemd/system/b.service", inet);
        put(
            "etc/systemd/system/b.service.d/kopi.conf",
            "[Service]\nRestrictAddressFamilies=AF_ECONET\n",
        );
        put("usr/lib/systemd/system/c.service", inet);
        put(
            "etc/systemd/system/c.service",
            "[Service]\nExecStart=/bin/true\n",
        );
        put(
            "usr/lib/systemd/system/d.service",
            "[Service]\nRestrictAddressFamilies=~AF_PACKET\n",
        );
        put(
            "usr/lib/systemd/system/e.service",
            "[Service]\nRestrictAddressFamilies=AF_UNIX\n",
        );
        let text = restricted(&root).unwrap().text;
        fs::remove_dir_all(&root).unwrap();
        assert!(text.ends_with(": a.service"), "{text}");
    }
}
