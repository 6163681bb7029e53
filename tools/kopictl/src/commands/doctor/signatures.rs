// SPDX-License-Identifier: GPL-2.0

//! Kernels that take only signed modules, as with Secure Boot.

use super::{guide, kernels::installed, Finding};
use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

/// What the kernel's lockdown keeps even root from, in brackets.
const LOCKDOWN: &str = "sys/kernel/security/lockdown";
/// Whether the kernel was told to take only signed modules.
const ENFORCED: &str = "sys/module/module/parameters/sig_enforce";
/// The end of a module's file with a signature: MODULE_SIG_STRING (include/linux/module_signature.h).
const END: &[u8] = b"~Module signature appended~\n";

/// What is to be said where the kernel takes only signed modules: of those that aren't; else, where KOPI's isn't
/// loaded, that this may be why.
pub(super) fn demanded(root: &Path, running: &str, is_missing: bool) -> Option<Finding> {
    let why = why(root)?;
    // One that isn't there, or can't be read, isn't told.
    let has_signature = |kernel: &str| {
        let folder = root.join("lib/modules").join(kernel);
        is_signed(&folder.join("updates/kopi.ko")).ok()
    };
    let mut kernels = installed(root);
    kernels.insert(running.to_owned());
    kernels.retain(|kernel| has_signature(kernel) == Some(false));
    let unsigned: Vec<_> = kernels.into_iter().collect();
    let sign = "sign it with a key that mokutil has enrolled, or turn Secure Boot off";
    let (what, fix) = match (&unsigned[..], is_missing) {
        ([], false) => return None,
        ([], true) if has_signature(running) == Some(true) => (
            "KOPI's has a signature, which counts if its key is enrolled".to_owned(),
            "`mokutil --list-enrolled` must have the key of `modinfo -F signer kopi`",
        ),
        ([], true) => ("that of KOPI's packages isn't".to_owned(), sign),
        (kernels, _) => (
            format!(
                "KOPI's has no signature, and a boot can't load it: {}",
                kernels.join(", ")
            ),
            sign,
        ),
    };
    Some(Finding::note(
        "signatures",
        format!("{why}: the kernel loads only signed modules; {what}"),
        Some(format!("{fix}: {}", guide())),
    ))
}

/// Why the running kernel takes only signed modules, if it does. Who can't read it gets no word of it.
fn why(root: &Path) -> Option<String> {
    let read = |path| fs::read_to_string(root.join(path)).unwrap_or_default();
    let locked =
        mode(&read(LOCKDOWN)).map(|mode| format!("lockdown is {mode}, as with Secure Boot"));
    let is_enforced = read(ENFORCED).trim() == "Y";
    locked.or(is_enforced.then(|| "module.sig_enforce is on".to_owned()))
}

/// How the kernel is locked down, if it is.
fn mode(modes: &str) -> Option<&str> {
    let (_, mode) = modes.split_once('[')?;
    let (mode, _) = mode.split_once(']')?;
    (mode != "none").then_some(mode)
}

/// Whether a module's file, which isn't compressed, has a signature, whosever it is.
fn is_signed(module: &Path) -> io::Result<bool> {
    let mut file = File::open(module)?;
    let length = file.metadata()?.len();
    let end = u64::try_from(END.len()).unwrap_or_default();
    file.seek(SeekFrom::Start(length.saturating_sub(end)))?;
    let mut read = Vec::new();
    file.take(end).read_to_end(&mut read)?;
    Ok(read == END)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_the_next_boot_cannot_load_are_told() {
        let root = std::env::temp_dir().join(format!("kopictl-signed-{}", std::process::id()));
        let file = |path: &str, text: &[u8]| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let told = |is_missing| demanded(&root, "7.3.4", is_missing).map(|found| found.text);
        let running = "lib/modules/7.3.4/updates/kopi.ko";
        file(running, b"\x7fELF");
        assert_eq!(told(true), None);
        file(LOCKDOWN, b"[none] integrity confidentiality\n");
        assert_eq!(told(true), None);
        file(LOCKDOWN, b"none [integrity] confidentiality\n");
        let text = told(false).unwrap();
        assert!(text.starts_with("lockdown is integrity, "), "{text}");
        assert!(text.ends_with("can't load it: 7.3.4"), "{text}");
        file(running, &[&[0; 100], END].concat());
        assert_eq!(told(false), None);
        assert!(told(true).unwrap().ends_with("if its key is enrolled"));
        fs::remove_file(root.join(running)).unwrap();
        assert!(told(true).unwrap().ends_with("packages isn't"));
        // The next boot may start another, also one that was told by a parameter.
        file(LOCKDOWN, b"");
        file(ENFORCED, b"Y\n");
        file("boot/vmlinuz-7.3.5", b"");
        file("lib/modules/7.3.5/updates/kopi.ko", b"");
        file("boot/vmlinuz-7.3.6", b"");
        file("lib/modules/7.3.6/updates/kopi.ko.xz", b"");
        let text = told(false).unwrap();
        assert!(text.starts_with("module.sig_enforce is on: "), "{text}");
        assert!(text.ends_with("can't load it: 7.3.5"), "{text}");
        file(ENFORCED, b"N\n");
        assert_eq!(told(true), None);
        fs::remove_dir_all(&root).unwrap();
    }
}
