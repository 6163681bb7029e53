// SPDX-License-Identifier: GPL-2.0

//! The hooks by which the module judges ordinary sockets: programs of BPF's LSM, which stay when
//! kopictl has ended, since they are pinned.

use anyhow::{bail, Context};
use libbpf_rs::{Iter, Link, Object, ObjectBuilder};
use std::{
    fs,
    io::{self, ErrorKind, Read},
    path::Path,
};

/// Where BPF's file system is, by convention.
const BPFFS: &str = "/sys/fs/bpf";
/// Where the hooks are pinned.
const PINS: &str = "/sys/fs/bpf/kopi-enforce";
/// The program that looks at open files, and isn't a hook. It is pinned last: without it, the others
/// are of a kopictl that didn't get so far.
const FIND: &str = "kopi_found";
/// The security modules of the kernel.
const LSMS: &str = "/sys/kernel/security/lsm";

/// What is wrong where they can't be.
pub(crate) const OFF: &str = "the kernel's security module bpf is off";

/// Whether the kernel lets programs of BPF be hooks.
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

/// Loads the hooks, if they aren't there. They ask the module from then on, which refuses nothing
/// before rules are enforced.
pub(crate) fn load() -> anyhow::Result<()> {
    if Path::new(PINS).join(FIND).exists() {
        return Ok(());
    }
    // Without securityfs the kernel says what it lacks.
    if let Some(Switch::Off(mend)) = Switch::of_kernel() {
        bail!("{OFF}: {mend}");
    }
    remove(PINS)?;
    fs::create_dir(PINS).with_context(|| {
        format!("{BPFFS} has to be BPF's file system: `mount -t bpf none {BPFFS}`")
    })?;
    let pinned = pin_all();
    if pinned.is_err() {
        remove(PINS)?;
    }
    pinned.context("the hooks for ordinary sockets")
}

fn pin_all() -> anyhow::Result<()> {
    // The reason is in the error.
    libbpf_rs::set_print(None);
    let object: Object = ObjectBuilder::default().open_memory(&OBJECT.0)?.load()?;
    let mut programs: Vec<_> = object.progs_mut().collect();
    programs.sort_by_key(|program| program.name() == FIND);
    for program in programs {
        let name = program.name().to_string_lossy().into_owned();
        let mut link = program.attach().with_context(|| name.clone())?;
        link.pin(Path::new(PINS).join(&name)).context(name)?;
        // The pin keeps it.
        link.disconnect();
    }
    Ok(())
}

/// Has the module note the sockets that processes have open.
pub(crate) fn find_sockets() -> anyhow::Result<()> {
    let link = Link::open(Path::new(PINS).join(FIND)).context("the hooks for ordinary sockets")?;
    let mut iter = Iter::new(&link)?;
    // It writes nothing: to read it is to run it.
    Ok(iter.read_to_end(&mut Vec::new()).map(drop)?)
}

/// Takes the hooks away.
pub(crate) fn unload() -> io::Result<()> {
    remove(PINS)
}

fn remove(folder: &str) -> io::Result<()> {
    let pins = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        pins => pins?,
    };
    for pin in pins {
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
        let Switch::Off(mend) = Switch::of("capability,landlock,bpfilter\n") else {
            panic!("on");
        };
        assert!(
            mend.starts_with("boot with lsm=landlock,bpfilter,bpf on "),
            "{mend}"
        );
        let Switch::Off(mend) = Switch::of("\n") else {
            panic!("on");
        };
        assert!(mend.starts_with("boot with lsm=bpf on "), "{mend}");
    }
}
