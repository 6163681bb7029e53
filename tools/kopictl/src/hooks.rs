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
    if fs::read_to_string(LSMS).is_ok_and(|names| !names.split(',').any(|name| name == "bpf")) {
        bail!("the kernel's security module bpf is off: add it to `lsm=` on the kernel's command line");
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
