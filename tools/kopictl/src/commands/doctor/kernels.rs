// SPDX-License-Identifier: GPL-2.0

//! Kernels that are installed without the module, which the next boot may start.

use super::{has_module, Finding};
use crate::kernel::{can_have_module, made_for, way_to_module};
use std::{collections::BTreeSet, fs, path::Path};

/// What is to be said of all but the running one; nothing if each has the module.
pub(super) fn without_module(root: &Path, running: &str) -> Vec<Finding> {
    let modules = root.join("lib/modules");
    let (can, cannot): (Vec<_>, Vec<_>) = installed(root)
        .into_iter()
        .filter(|name| name != running && !has_module(&modules.join(name)))
        .partition(|name| can_have_module(name));
    let mut findings = Vec::new();
    // The one that a boot starts.
    if let Some(newest) = can.iter().max_by_key(|name| numbers(name)) {
        let text = format!(
            "installed without the module, which is missing after a boot with one: {}",
            can.join(", ")
        );
        findings.push(Finding::note("kernels", text, Some(way_to_module(newest))));
    }
    if !cannot.is_empty() {
        let text = format!(
            "{}, and is missing after a boot with one of these: {}",
            made_for(),
            cannot.join(", ")
        );
        findings.push(Finding::note("kernels", text, None));
    }
    findings
}

/// The numbers of a release, the later the larger.
fn numbers(release: &str) -> Vec<u64> {
    release
        .split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect()
}

/// The releases of those whose image is there.
pub(super) fn installed(root: &Path) -> BTreeSet<String> {
    let named = |folder: &str| {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten();
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
    };
    let images = named("boot").filter_map(|name| Some(name.strip_prefix("vmlinuz-")?.to_owned()));
    let has_image = |name: &String| {
        let folder = root.join("lib/modules").join(name);
        folder.join("vmlinuz").exists()
    };
    images
        .chain(named("lib/modules").filter(has_image))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_without_the_module_are_named() {
        let root = std::env::temp_dir().join(format!("kopictl-kernels-{}", std::process::id()));
        let file = |path: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        assert_eq!(without_module(&root, "7.3.4"), []);
        file("boot/vmlinuz-7.3.4");
        file("boot/vmlinuz-7.3.5");
        file("lib/modules/7.3.5/updates/kopi.ko");
        // Of a kernel that was removed.
        file("lib/modules/7.3.3/modules.dep");
        assert_eq!(without_module(&root, "7.3.4"), []);
        file("boot/vmlinuz-7.3.6");
        file("lib/modules/7.3.10/vmlinuz");
        file("boot/vmlinuz-6.12.118");
        let [can, cannot] = &without_module(&root, "7.3.4")[..] else {
            panic!("what can't be fixed is another finding");
        };
        assert!(can.text.ends_with(": 7.3.10, 7.3.6"), "{}", can.text);
        let fix = can.fix.as_ref().unwrap();
        assert!(fix.contains("kopi-modules-7.3.10;"), "{fix}");
        assert!(cannot.text.ends_with(": 6.12.118"), "{}", cannot.text);
        assert_eq!(cannot.fix, None);
        fs::remove_dir_all(&root).unwrap();
    }
}
