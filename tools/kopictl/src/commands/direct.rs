// SPDX-License-Identifier: GPL-2.0

//! `kopictl attach`, `kopictl detach`

use crate::{
    link::{self, connect, program_of, set_program, take_off_program},
    message::{device::Device, Command},
    netlink::{Connection, Error},
    offloads::Offloads,
    output::remark,
    programs, runtime,
};
use anyhow::{bail, Context};
use aya::{
    include_bytes_aligned,
    maps::{Array, Map, MapData},
    programs::{loaded_programs, ProgramFd, ProgramInfo, Xdp},
    Ebpf,
};
use clap::Args;
use memmap2::{MmapOptions, MmapRaw};
use netlink_packet_route::link::{LinkMessage, XdpAttached};
use netlink_sys::Socket;
use nix::{
    errno::Errno,
    fcntl::Flock,
    sys::signal::{SigSet, SigmaskHow, Signal},
};
use std::{collections::BTreeSet, fs::File, os::fd::AsFd};

/// What is attached where there is no program, and taken away again.
const PROGRAM: &str = "kopi_redirect";
/// Its map.
const PORT_MAP: &str = "port_map";

/// The lock of those who attach and detach.
const LOCK_FILE: &str = "attach.lock";

/// A device.
#[derive(Args)]
pub(crate) struct DeviceArg {
    /// The device's name
    #[arg(value_name = "DEV")]
    device: String,
}

/// A device to attach.
#[derive(Args)]
pub(crate) struct Attach {
    #[command(flatten)]
    which: DeviceArg,

    /// Leave the device's offloads as they are
    #[arg(long)]
    keep_offloads: bool,
}

/// Attaches a device, with an XDP program if it has none but an old one of kopictl's.
pub(crate) fn attach(options: &Attach) -> anyhow::Result<()> {
    let _undisturbed = Undisturbed::begin();
    let mut device = FoundDevice::find(&options.which.device, Some(Connection::open()?))?;
    attach_found(&mut device, options.keep_offloads)
}

/// Attaches the device of that name, if it is there and isn't attached as it should be; says whether it is
/// there.
pub(crate) fn attach_if_there(name: &str, keep_offloads: bool) -> anyhow::Result<bool> {
    let _undisturbed = Undisturbed::begin();
    let Some(mut device) = FoundDevice::find_if_there(name, Some(Connection::open()?))? else {
        return Ok(false);
    };
    if device.is_attached()? {
        if program_of(&device.link).0 != XdpAttached::None {
            change_offloads(&device, keep_offloads)?;
            return Ok(true);
        }
        // Somebody took the program off, and the module only knows of the map that it had.
        device.request(Command::DeviceDetach, None)?;
    }
    match attach_found(&mut device, keep_offloads) {
        // Another was faster, who doesn't take that lock.
        Err(_) if device.is_attached_with_program()? => Ok(true),
        result => result.map(|()| true),
    }
}

/// The number of the device of that name, if it is there.
pub(crate) fn index_if_there(name: &str) -> anyhow::Result<Option<u32>> {
    let found = link::find_if_there(&connect()?, name)?;
    Ok(found.map(|link| link.header.index))
}

/// While a device is attached or detached: no other kopictl does so, and no signal ends this one, since offloads
/// that are turned off are noted later, and are turned on again after the note is gone.
struct Undisturbed {
    before: Option<SigSet>,
    _lock: Option<Flock<File>>,
}

impl Undisturbed {
    /// Waits for the lock. A process that may not have it, since it isn't root but has the capability, goes without.
    fn begin() -> Self {
        Self::with(runtime::lock(LOCK_FILE).ok())
    }

    fn with(lock: Option<Flock<File>>) -> Self {
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        Self {
            before: signals.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok(),
            _lock: lock,
        }
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // One that came meanwhile ends the process now.
            let _ = before.thread_set_mask();
        }
    }
}

/// Has the offloads of an attached device be as if it had been attached so. Where the program isn't
/// kopictl's, they are left alone, as they were then.
fn change_offloads(device: &FoundDevice<'_>, keep_offloads: bool) -> anyhow::Result<()> {
    // An older program has no note, and may be without one.
    let Some(own) = OwnProgram::of(&device.link).filter(|own| own.note().is_ok()) else {
        return Ok(());
    };
    let mut off = TurnedOff::before(device, Some(&own))?;
    let before = off.names.clone();
    let (changed, what) = if keep_offloads {
        off.restore()?;
        let on = std::mem::take(&mut off.names);
        off.names = before.difference(&on).copied().collect();
        (on, "turned on again")
    } else {
        off.turn_off(STRIP)?;
        let turned = off.names.difference(&before).copied().collect();
        (turned, "turned off until it is detached")
    };
    if changed.is_empty() {
        return Ok(());
    }
    set_note(&mut own.map()?, off.bits())?;
    off.names = changed;
    off.remark(what);
    Ok(())
}

fn attach_found(device: &mut FoundDevice<'_>, keep_offloads: bool) -> anyhow::Result<()> {
    let name = device.name;
    // It redirects to a module that is gone. Who may not look at it leaves it, as he does others.
    let old = OwnProgram::of(&device.link);
    match program_of(&device.link) {
        (XdpAttached::None, _) => (),
        _ if old.is_some() => (),
        (XdpAttached::Driver | XdpAttached::Multiple, _) => {
            return device.request(Command::DeviceAttach, None)
        }
        (how, _) => bail!(
            "{name} has an XDP program that its driver doesn't run ({how:?}): take it off, or \
             attach it with `ip link set dev {name} xdpdrv …`"
        ),
    }
    let no_program = || format!("{name}: no XDP program");
    let mut program = Program::load().with_context(no_program)?;
    let mut off = TurnedOff::before(device, old.as_ref())?;
    // Before anything is changed, since that is refused where the device is attached already, with a
    // program in use.
    device.request(
        Command::DeviceAttach,
        Some(program.port_map.as_ptr() as u64),
    )?;
    if let Err(error) = device.start(old.as_ref(), &mut program, &mut off, keep_offloads) {
        let detached = device.request(Command::DeviceDetach, None);
        let undone = detached.and(off.restore());
        return match undone {
            Ok(()) => Err(error),
            Err(other) => Err(error.context(format!("besides, that can't be undone: {other:#}"))),
        }
        .with_context(no_program);
    }
    off.remark("turned off until it is detached");
    Ok(())
}

/// Detaches a device, and takes the program away if it is kopictl's: also one that outlived the module.
pub(crate) fn detach(which: &DeviceArg) -> anyhow::Result<()> {
    let _undisturbed = Undisturbed::begin();
    let connection = match Connection::open() {
        Err(Error::NoKopi) => None,
        connection => Some(connection?),
    };
    let mut device = FoundDevice::find(&which.device, connection)?;
    let own = OwnProgram::of(&device.link);
    match device.ask(Command::DeviceDetach, None) {
        // There was nothing of the module's to detach.
        Err(Error::NoKopi) if own.is_some() => (),
        Err(error) if own.is_some() && error.is(Errno::ENODEV) => (),
        answer => answer.with_context(|| device.name.to_owned())?,
    }
    let Some(own) = own else {
        return Ok(());
    };
    let mut off = TurnedOff::before(&device, Some(&own))?;
    if !device.take_off(&own)? {
        remark(format!(
            "{}: its XDP program was replaced or taken off by somebody meanwhile: that stays so",
            device.name
        ));
        off.remark("stay off");
        return Ok(());
    }
    off.restore()?;
    off.remark("turned on again");
    Ok(())
}

/// A device that there is, and those that know of it: the module, if it is loaded, and the stack.
struct FoundDevice<'a> {
    name: &'a str,
    link: LinkMessage,
    connection: Option<Connection>,
    socket: Socket,
}

impl<'a> FoundDevice<'a> {
    fn find(name: &'a str, connection: Option<Connection>) -> anyhow::Result<Self> {
        Self::find_if_there(name, connection)?.with_context(|| format!("there is no device {name}"))
    }

    fn find_if_there(
        name: &'a str,
        connection: Option<Connection>,
    ) -> anyhow::Result<Option<Self>> {
        let socket = connect()?;
        let found = link::find_if_there(&socket, name)?;
        Ok(found.map(|link| Self {
            name,
            link,
            connection,
            socket,
        }))
    }

    /// Whether the module has it attached.
    fn is_attached(&mut self) -> anyhow::Result<bool> {
        let connection = self.connection.as_mut().ok_or(Error::NoKopi)?;
        let index = Some(self.link.header.index);
        let devices = attached(connection)?;
        Ok(devices.iter().any(|device| device.ifindex == index))
    }

    /// Whether the module has it attached, and it has an XDP program by now.
    fn is_attached_with_program(&mut self) -> anyhow::Result<bool> {
        let link = link::find_if_there(&self.socket, self.name)?;
        let has_program = |link: &LinkMessage| program_of(link).0 != XdpAttached::None;
        Ok(link.as_ref().is_some_and(has_program) && self.is_attached()?)
    }

    /// Asks the module to attach or detach it.
    fn request(&mut self, command: Command, port_map: Option<u64>) -> anyhow::Result<()> {
        let answer = self.ask(command, port_map);
        answer.with_context(|| self.name.to_owned())
    }

    fn ask(&mut self, command: Command, port_map: Option<u64>) -> Result<(), Error> {
        let connection = self.connection.as_mut().ok_or(Error::NoKopi)?;
        let device = Device {
            ifindex: Some(self.link.header.index),
            port_map,
            ..Device::default()
        };
        connection.request::<_, Device>(command, &device).map(drop)
    }

    /// Has the driver run a program of kopictl's no more; says whether it still did, since somebody may have put
    /// another in its place meanwhile.
    fn take_off(&self, own: &OwnProgram) -> Result<bool, Error> {
        take_off_program(&self.socket, self.link.header.index, own.fd.as_fd())
    }

    /// Has the driver run the program, in place of an old one, with the offloads that it and the program
    /// need.
    fn start(
        &self,
        old: Option<&OwnProgram>,
        program: &mut Program,
        off: &mut TurnedOff,
        keep_offloads: bool,
    ) -> anyhow::Result<()> {
        let index = self.link.header.index;
        // What is in the place of an old one by now isn't replaced.
        old.map(|old| self.take_off(old)).transpose()?;
        let run = |program: &Program| set_program(&self.socket, index, program.fd.as_fd());
        if !keep_offloads {
            off.turn_off(STRIP)?;
        }
        program.note(off)?;
        match run(program) {
            Ok(()) => Ok(()),
            Err(error) if error.is(Errno::EOPNOTSUPP) => {
                Err(error).context("the driver runs no XDP programs, so it can't send frames")
            }
            Err(error) if keep_offloads || !off.turn_off(COALESCE)? => Err(error.into()),
            Err(_) => {
                program.note(off)?;
                Ok(run(program)?)
            }
        }
    }
}

/// Offloads that strip VLAN tags, which the program has to see: their names in the kernel.
const STRIP: &[&str] = &["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"];
/// Offloads that coalesce what the NIC receives: with them, some drivers take no program.
const COALESCE: &[&str] = &["rx-lro", "rx-gro-hw"];

/// The name of an offload in `ethtool -k`.
fn shown(offload: &str) -> &str {
    match offload {
        "rx-vlan-hw-parse" => "rx-vlan-offload",
        "rx-lro" => "large-receive-offload",
        other => other,
    }
}

/// Offloads of an attached device that were turned off.
struct TurnedOff {
    device: String,
    offloads: Offloads,
    names: BTreeSet<&'static str>,
}

impl TurnedOff {
    /// Those that the note of a program has.
    fn before(device: &FoundDevice<'_>, program: Option<&OwnProgram>) -> anyhow::Result<Self> {
        let note = program.and_then(|own| own.note().ok());
        let bits = note.unwrap_or_default();
        let known = STRIP.iter().chain(COALESCE).copied().enumerate();
        Ok(Self {
            device: device.name.to_owned(),
            offloads: Offloads::of(device.link.header.index)?,
            names: known
                .filter(|(bit, _)| (bits >> bit) & 1 != 0)
                .map(|(_, name)| name)
                .collect(),
        })
    }

    /// As bits, for a program's note.
    fn bits(&self) -> u64 {
        let known = STRIP.iter().chain(COALESCE).enumerate();
        known
            .filter(|(_, name)| self.names.contains(*name))
            .fold(0, |bits, (bit, _)| bits | (1 << bit))
    }

    /// Turns off those that are on; says whether there were any.
    fn turn_off(&mut self, names: &[&'static str]) -> anyhow::Result<bool> {
        let turned = self.offloads.turn(names.iter().copied(), false)?;
        self.names.extend(&turned);
        Ok(!turned.is_empty())
    }

    /// Turns them on again.
    fn restore(&mut self) -> anyhow::Result<()> {
        let turned = self.offloads.turn(self.names.iter().copied(), true)?;
        self.names = BTreeSet::from_iter(turned);
        Ok(())
    }

    fn remark(&self, what: &str) {
        let names: Vec<_> = self.names.iter().map(|name| shown(name)).collect();
        if !names.is_empty() {
            remark(format!("{}: {} {what}", self.device, names.join(", ")));
        }
    }
}

/// An entry of the program's map, which is a `struct kopi_port_map`, or kopictl's note.
type Entry = [u64; ENTRY];
const ENTRY: usize = 1025;
/// The place of the note.
const NOTE: u32 = 1;

/// The program that redirects, and its map.
struct Program {
    loaded: Ebpf,
    fd: ProgramFd,
    /// For the module, which keeps the memory when kopictl has ended.
    port_map: MmapRaw,
}

impl Program {
    fn load() -> anyhow::Result<Self> {
        let object = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/redirect.bpf.o"));
        let mut loaded = Ebpf::load(object)?;
        let Some(Map::Array(port_map)) = loaded.map(PORT_MAP) else {
            bail!("no map in the object");
        };
        let port_map = MmapOptions::new()
            .len(size_of::<Entry>())
            .map_raw(&port_map.fd().as_fd())
            .context("its map")?;
        let program = loaded.program_mut(PROGRAM).context("not in the object")?;
        let program: &mut Xdp = program.try_into()?;
        program.load()?;
        let fd = program.fd()?.try_clone()?;
        Ok(Self {
            loaded,
            fd,
            port_map,
        })
    }

    /// Notes which offloads are turned off.
    fn note(&mut self, off: &TurnedOff) -> anyhow::Result<()> {
        set_note(self.loaded.map_mut(PORT_MAP).context("no map")?, off.bits())
    }
}

/// A program of kopictl's that a driver ran. It is kept open, so that no other can have its number.
struct OwnProgram {
    info: ProgramInfo,
    fd: ProgramFd,
}

impl OwnProgram {
    /// That of a device, if it is known to be kopictl's.
    fn of(link: &LinkMessage) -> Option<Self> {
        let (XdpAttached::Driver, Some(number)) = program_of(link) else {
            return None;
        };
        let is_it = |info: &ProgramInfo| info.id() == number && info.name_as_str() == Some(PROGRAM);
        let info = loaded_programs().filter_map(Result::ok).find(is_it)?;
        let fd = info.fd().ok()?;
        Some(Self { info, fd })
    }

    /// Its map.
    fn map(&self) -> anyhow::Result<Map> {
        let maps = self.info.map_ids()?.unwrap_or_default();
        let map = MapData::from_id(*maps.first().context("no map")?)?;
        Ok(Map::Array(map))
    }

    /// Its note; an error if it is an older one, which has none.
    fn note(&self) -> anyhow::Result<u64> {
        Ok(Array::<_, Entry>::try_from(&self.map()?)?.get(&NOTE, 0)?[0])
    }
}

fn set_note(map: &mut Map, bits: u64) -> anyhow::Result<()> {
    let mut entry = [0; ENTRY];
    entry[0] = bits;
    Ok(Array::<_, Entry>::try_from(map)?.set(NOTE, entry, 0)?)
}

/// Whether a program is kopictl's, if it is permitted to ask.
pub(super) fn whether_own(number: u32) -> Option<bool> {
    let is_it = |(program, name): &(u32, String)| *program == number && name == PROGRAM;
    Some(programs::loaded()?.iter().any(is_it))
}

/// The devices that are attached; none if one may not see them, or if the module knows of none.
pub(crate) fn attached(connection: &mut Connection) -> Result<Vec<Device>, Error> {
    Ok(whichever_attached(connection)?.unwrap_or_default())
}

/// The devices that are attached, if one may see them.
pub(crate) fn whichever_attached(
    connection: &mut Connection,
) -> Result<Option<Vec<Device>>, Error> {
    match connection.dump(Command::DeviceGet) {
        Err(error) if error.is_permission() => Ok(None),
        Err(error) if error.is(Errno::EOPNOTSUPP) => Ok(Some(Vec::new())),
        devices => devices.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_signal_ends_what_is_begun() {
        let is_blocked = || SigSet::thread_get_mask().unwrap().contains(Signal::SIGTERM);
        assert!(!is_blocked());
        let undisturbed = Undisturbed::with(None);
        assert!(is_blocked());
        drop(undisturbed);
        assert!(!is_blocked());
    }
}
