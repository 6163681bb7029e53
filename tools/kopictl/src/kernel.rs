// SPDX-License-Identifier: GPL-2.0

//! The running kernel, and which ones can have the module.

use nix::sys::utsname::uname;

/// The series that the module is made for.
const SERIES: [&str; 2] = ["7.2", "7.3"];

/// Its release, as `uname -r` prints it.
pub(crate) fn release() -> nix::Result<String> {
    Ok(uname()?.release().to_string_lossy().into_owned())
}

/// Whether there can be a module for the kernel of that release.
pub(crate) fn can_have_module(release: &str) -> bool {
    SERIES.iter().any(|series| {
        let rest = release.strip_prefix(series);
        rest.is_some_and(|rest| rest.starts_with('.'))
    })
}

/// How to come to a module for it.
pub(crate) fn way_to_module(release: &str) -> String {
    match can_have_module(release) {
        true => format!(
            "apt install kopi-modules-{release}; for a kernel without one: kopi-build-module, of the package kopi-source"
        ),
        false => format!(
            "{}: apt install -t trixie-backports linux-image-amd64",
            made_for()
        ),
    }
}

/// Which kernels have one.
pub(crate) fn made_for() -> String {
    format!(
        "KOPI's module is made for the series {}",
        SERIES.join(" and ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_have_no_module() {
        for release in ["7.2.13+deb13-amd64", "7.3.4"] {
            assert!(can_have_module(release), "{release}");
        }
        for release in [
            "6.12.118+deb13-amd64",
            "7.30.1",
            "17.3.4",
            "7",
            "7.4.0",
            "7.3-rc5",
            "?",
        ] {
            assert!(!can_have_module(release), "{release}");
        }
        assert!(way_to_module("7.3.4").starts_with("apt install kopi-modules-7.3.4;"));
        assert!(way_to_module("6.12.1").contains("the series 7.2 and 7.3: apt install -t"));
    }

    #[test]
    fn the_packages_know_the_same() {
        let command = include_str!("../../../packaging/kopi-build-module");
        assert!(command.contains(&format!("series_known=({})", SERIES.join(" "))));
        let hook = include_str!("../../../packaging/kernel-postinst");
        let pattern = SERIES.map(|series| format!("{series}.*")).join(" | ");
        assert!(hook.contains(&format!("{pattern})")), "{pattern}");
        assert!(hook.contains(&SERIES.join(" and ")));
    }
}
