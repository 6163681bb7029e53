// SPDX-License-Identifier: GPL-2.0

//! Kernels that are installed without the module, which the next boot may start.

use super::{has_module, Finding};
use std::{collections::BTreeSet, fs, path::Path};

/// One finding for all but the running one; none if each has the module.
pub(super) fn without_module(root: &Path, running: &str) -> Option<Finding> {
    let modules = root.join("lib/modules");
    let names: Vec<_> = installed(root)
        .into_iter()
        .filter(|name| name != running && !has_module(&modules.join(name)))
        .collect();
    let first = names.first()?;
    let text = format!(
        "installed without the module, which is missing after a boot with one: {}",
        names.join(", ")
    );
    let mend = format!(
        "apt install kopi-modules-{first}; for a kernel without one: kopi-build-module, of the package kopi-source"
    );
    Some(Finding::note("kernels", text, Some(mend)))
}

/// The releases of those whose image is there.
fn installed(root: &Path) -> BTreeSet<String> {
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
        assert_eq!(without_module(&root, "7.3.4"), None);
        file("boot/vmlinuz-7.3.4");
        file("boot/vmlinuz-7.3.5");
        file("lib/modules/7.3.5/updates/kopi.ko");
        // Of a kernel that was removed.
        file("lib/modules/7.3.3/modules.dep");
        assert_eq!(without_module(&root, "7.3.4"), None);
        file("boot/vmlinuz-7.3.6");
        file("lib/modules/7.3.7/vmlinuz");
        let found = without_module(&root, "7.3.4").unwrap();
        assert!(found.text.ends_with(": 7.3.6, 7.3.7"), "{}", found.text);
        assert!(found.mend.unwrap().contains("kopi-modules-7.3.6;"));
        fs::remove_dir_all(&root).unwrap();
    }
}
