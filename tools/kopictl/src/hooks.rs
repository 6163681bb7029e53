// SPDX-License-Identifier: GPL-2.0

//! The hooks by which the module judges ordinary sockets: programs of the BPF LSM, which stay when
//! kopictl has ended, since they are pinned.

use crate::{output::remark, programs, runtime};
use anyhow::{bail, Context};
use libbpf_rs::{Iter, Link, ObjectBuilder, OpenObject};
use nix::{
    fcntl::Flock,
    sys::statfs::{statfs, BPF_FS_MAGIC},
};
use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::Path,
};

/// Where bpffs is, by convention.
const BPFFS: &str = "/sys/fs/bpf";
/// The same as the machine's first process sees it, and its pins.
const MACHINES: &str = "/proc/1/root/sys/fs/bpf";
const MACHINES_PINS: &str = "/proc/1/root/sys/fs/bpf/kopi-enforce";
/// Where the hooks are pinned.
const PINS: &str = "/sys/fs/bpf/kopi-enforce";
/// The program that looks at open files, and isn't a hook.
const FIND: &str = "kopi_found";
/// The inode number of the machine's initial PID namespace: PROC_PID_INIT_INO (include/linux/proc_ns.h).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// The lock of those who load and unload, below the folder of what there is as long as the machine
/// runs.
const LOCK_FILE: &str = "enforce.lock";
/// The security modules of the kernel.
const LSMS: &str = "/sys/kernel/security/lsm";

/// What is wrong where they can't be.
pub(crate) const OFF: &str = "the kernel's security module bpf is off";

/// Whether the kernel lets BPF programs be hooks.
#[derive(Debug, PartialEq)]
pub(crate) enum Switch {
    On,
    /// With what turns it on.
    Off(String),
}

impl Switch {
    /// This kernel's, if securityfs says it.
    pub(crate) fn of_kernel() -> Option<Self> {
        fs::read_to_string(LSMS).ok().map(|names| Self::of(&names))
    }

    /// That of a kernel with these security modules.
    fn of(names: &str) -> Self {
        let names: Vec<_> = names.trim().split(',').collect();
        if names.contains(&"bpf") {
            return Self::On;
        }
        // The parameter takes the place of the kernel's list. The first module is always there.
        let mut kept: Vec<_> = names
            .into_iter()
            .filter(|name| !["", "capability"].contains(name))
            .collect();
        kept.push("bpf");
        Self::Off(format!(
            "boot with lsm={} on the kernel's command line (GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub)",
            kept.join(",")
        ))
    }
}

/// The object with the programs, aligned as ELF needs it.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/enforce.bpf.o")));

/// Waits until no other kopictl loads or unloads hooks; none begins as long as this is there.
pub(crate) fn lock() -> anyhow::Result<Flock<File>> {
    runtime::lock(LOCK_FILE).context("enforcing is turned on and off by root")
}

/// Loads those of the hooks that aren't there. They ask the module from then on, which refuses nothing
/// before rules are enforced.
pub(crate) fn load() -> anyhow::Result<()> {
    let (object, missing) = to_load()?;
    if missing.is_empty() {
        return Ok(());
    }
    runtime::at(Path::new(PINS), 0).with_context(folder_of_pins)?;
    let pinned = pin(object, &missing);
    if pinned.is_err() {
        for name in &missing {
            let _ = fs::remove_file(Path::new(PINS).join(name));
        }
        // Unless others are in it, which somebody may need.
        let _ = fs::remove_dir(PINS);
    }
    pinned.context("the hooks for ordinary sockets")
}

/// Says what keeps the hooks from being loaded, as far as that is seen without loading them.
pub(crate) fn could_load() -> anyhow::Result<()> {
    to_load().map(drop)
}

/// The programs, and the names of those that are to be loaded, since they aren't there.
fn to_load() -> anyhow::Result<(OpenObject, Vec<String>)> {
    // The reason of an error is in the error.
    libbpf_rs::set_print(None);
    let object = ObjectBuilder::default().open_memory(&OBJECT.0)?;
    if !is_machines() {
        bail!(
            "{}",
            elsewhere("hooks that are pinned in it are gone with it")
        );
    }
    // Whoever owns the folder could take the hooks away, or have others in their place.
    if is_there(PINS) {
        runtime::check(Path::new(PINS), 0).with_context(folder_of_pins)?;
    }
    let missing = missing(Path::new(PINS), names_of(&object));
    if !missing.is_empty() {
        // Without securityfs the kernel says what it lacks.
        if let Some(Switch::Off(fix)) = Switch::of_kernel() {
            bail!("{OFF}: {fix}");
        }
        if statfs(BPFFS).map_or(true, |found| found.filesystem_type() != BPF_FS_MAGIC) {
            bail!("{}", folder_of_pins());
        }
    }
    Ok((object, missing))
}

fn names_of(object: &OpenObject) -> impl Iterator<Item = String> + '_ {
    object
        .progs()
        .map(|program| program.name().to_string_lossy().into_owned())
}

/// Whether all hooks are loaded, wherever their pins are; nothing for who may not see that.
pub(crate) fn are_loaded() -> Option<bool> {
    let loaded = programs::loaded()?;
    let object = ObjectBuilder::default().open_memory(&OBJECT.0).ok()?;
    let is_there = |name: String| {
        loaded
            .iter()
            .any(|(_, other)| other == programs::kept(&name))
    };
    let all = names_of(&object).all(is_there);
    Some(all)
}

/// Whether bpffs is here the one of the machine's first process, as far as that can be seen. Another
/// one ends with the mount namespace that has it, of which `ip netns exec` makes one for each command.
fn is_machines() -> bool {
    is_same(Path::new(BPFFS), Path::new(MACHINES))
}

fn is_same(here: &Path, machines: &Path) -> bool {
    let device = |path| fs::metadata(path).map(|found| found.dev());
    match device(machines) {
        Ok(machines) => device(here).is_ok_and(|here| here == machines),
        Err(_) => true,
    }
}

/// Whether this process sees all others, as far as its PID namespace tells: the kernel shows the open files of those
/// only to whom they have a number.
fn sees_all_processes(namespace: &Path) -> bool {
    fs::metadata(namespace).map_or(true, |found| found.ino() == FIRST_PID_NAMESPACE)
}

/// What to do where it isn't.
fn elsewhere(what: &str) -> String {
    format!(
        "{BPFFS} isn't the machine's here, as under `ip netns exec`, and {what}: \
         `nsenter --net=/run/netns/NAME kopictl …` sees the machine's"
    )
}

/// What the folder of pins needs.
fn folder_of_pins() -> String {
    format!("{BPFFS} has to be bpffs, of root's: `mount -t bpf -o mode=700 none {BPFFS}`")
}

/// Whether there is something of that name, be it a link to nowhere.
fn is_there(path: &str) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Those of the names that no pin in the folder has.
fn missing(folder: &Path, names: impl Iterator<Item = String>) -> Vec<String> {
    names.filter(|name| !folder.join(name).exists()).collect()
}

fn pin(object: OpenObject, names: &[String]) -> anyhow::Result<()> {
    let object = object.load()?;
    for program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        if !names.contains(&name) {
            continue;
        }
        let mut link = program.attach().with_context(|| name.clone())?;
        link.pin(Path::new(PINS).join(&name)).context(name)?;
        // The pin keeps it.
        link.disconnect();
    }
    Ok(())
}

/// Has the module note the sockets that processes have open, as far as this one sees them.
pub(crate) fn find_sockets() -> anyhow::Result<()> {
    if !sees_all_processes(Path::new("/proc/self/ns/pid")) {
        remark(
            "this PID namespace isn't the machine's, as in a container: of sockets that processes have open outside \
             of it, the program isn't known before they are used again",
        );
    }
    let link = Link::open(Path::new(PINS).join(FIND)).context("the hooks for ordinary sockets")?;
    let mut iter = Iter::new(&link)?;
    // It writes nothing: to read it is to run it.
    Ok(iter.read_to_end(&mut Vec::new()).map(drop)?)
}

/// Takes the hooks away.
pub(crate) fn unload() -> anyhow::Result<()> {
    if !is_machines() && is_there(MACHINES_PINS) {
        bail!("{}", elsewhere("the hooks stay loaded"));
    }
    Ok(remove(PINS, 0)?)
}

/// Removes a folder of pins that is that user's.
fn remove(folder: &str, owner: u32) -> io::Result<()> {
    if !is_there(folder) {
        return Ok(());
    }
    // What a link names is somebody else's.
    for pin in fs::read_dir(runtime::at(Path::new(folder), owner)?)? {
        fs::remove_file(pin?.path())?;
    }
    fs::remove_dir(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bpf_is_looked_for() {
        assert_eq!(Switch::of("capability,landlock,apparmor,bpf\n"), Switch::On);
        let Switch::Off(fix) = Switch::of("capability,landlock,bpfilter\n") else {
            panic!("on");
        };
        assert!(
            fix.starts_with("boot with lsm=landlock,bpfilter,bpf on "),
            "{fix}"
        );
        let Switch::Off(fix) = Switch::of("\n") else {
            panic!("on");
        };
        assert!(fix.starts_with("boot with lsm=bpf on "), "{fix}");
    }

    #[test]
    fn what_is_missing_is_found() {
        let folder = std::env::temp_dir().join(format!("kopictl-hooks-{}", std::process::id()));
        let names = || [FIND, "kopi_bind"].map(str::to_owned).into_iter();
        assert_eq!(missing(&folder, names()), [FIND, "kopi_bind"]);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(FIND), "").unwrap();
        assert_eq!(missing(&folder, names()), ["kopi_bind"]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn another_file_system_is_told_from_the_machines() {
        let [here, proc, nowhere] = ["/", "/proc", "/nowhere"].map(Path::new);
        assert!(is_same(here, here) && is_same(here, nowhere) && is_same(nowhere, nowhere));
        assert!(!is_same(here, proc) && !is_same(nowhere, here));
    }

    #[test]
    fn another_namespace_is_told_from_the_first() {
        let [other, nowhere] = ["/proc/self/ns/net", "/nowhere"].map(Path::new);
        assert!(!sees_all_processes(other) && sees_all_processes(nowhere));
    }

    #[test]
    fn only_an_owners_pins_are_removed() {
        let base = std::env::temp_dir().join(format!("kopictl-pins-{}", std::process::id()));
        let (folder, link) = (base.join("folder"), base.join("link"));
        fs::create_dir_all(&folder).unwrap();
        let owner = fs::metadata(&base).unwrap().uid();
        fs::write(folder.join("pin"), "").unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        let [folder, link] = [folder, link].map(|path| path.to_str().unwrap().to_owned());
        assert!(remove(&link, owner).is_err() && remove(&folder, owner + 1).is_err());
        assert!(is_there(&format!("{folder}/pin")));
        assert!(remove(&folder, owner).is_ok() && !is_there(&folder) && is_there(&link));
        assert!(remove(&folder, owner).is_ok());
        fs::remove_dir_all(&base).unwrap();
    }
}
