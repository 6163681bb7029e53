// SPDX-License-Identifier: GPL-2.0

//! `kopictl attach`, `kopictl detach`

use crate::{
    link::{connect, find, program_of, set_program},
    message::{Command, Device},
    netlink::{Connection, Error},
};
use anyhow::{bail, Context};
use aya::{
    include_bytes_aligned,
    maps::Map,
    programs::{loaded_programs, ProgramFd, Xdp},
    Ebpf,
};
use clap::Args;
use memmap2::{MmapOptions, MmapRaw};
use netlink_packet_route::link::{LinkMessage, XdpAttached};
use netlink_sys::Socket;
use nix::errno::Errno;
use std::os::fd::AsFd;

/// What is attached where there is no program, and taken away again.
const PROGRAM: &str = "kopi_redirect";
/// Its map.
const PORT_MAP: &str = "port_map";

/// A device.
#[derive(Args)]
pub(crate) struct Which {
    /// The device's name
    #[arg(value_name = "DEV")]
    device: String,
}

/// Attaches a device, with a program of XDP if it has none but an old one of kopictl's.
pub(crate) fn attach(which: &Which) -> anyhow::Result<()> {
    attach_found(Found::find(&which.device)?)
}

/// Attaches the device of that name, if it is there and isn't attached; says whether it is there.
pub(crate) fn attach_if_there(name: &str) -> anyhow::Result<bool> {
    let Some(mut device) = Found::find_if_there(name)? else {
        return Ok(false);
    };
    let index = Some(device.link.header.index);
    let devices = attached(&mut device.connection)?;
    if !devices.iter().any(|device| device.ifindex == index) {
        attach_found(device)?;
    }
    Ok(true)
}

fn attach_found(mut device: Found<'_>) -> anyhow::Result<()> {
    let name = device.name;
    let old = match program_of(&device.link) {
        (XdpAttached::None, _) => false,
        // It redirects to a module that is gone. Who may not look at it leaves it, as he does others.
        (XdpAttached::Driver, Some(number)) if is_own(number).unwrap_or(false) => true,
        (XdpAttached::Driver | XdpAttached::Multiple, _) => {
            return device.request(Command::DeviceAttach, None)
        }
        (how, _) => bail!(
            "{name} has an XDP program that its driver doesn't run ({how:?}): take it off, or \
             attach it with `ip link set dev {name} xdpdrv …`"
        ),
    };
    let no_program = || format!("{name}: no XDP program");
    let (program, port_map) = load().with_context(no_program)?;
    // First, since that is refused where the device is attached already, with a program in use.
    device.request(Command::DeviceAttach, Some(port_map.as_ptr() as u64))?;
    if let Err(error) = device.redirect(old, &program) {
        device.request(Command::DeviceDetach, None)?;
        return Err(error).with_context(no_program);
    }
    Ok(())
}

/// Detaches a device, and takes the program away if it is kopictl's.
pub(crate) fn detach(which: &Which) -> anyhow::Result<()> {
    let mut device = Found::find(&which.device)?;
    device.request(Command::DeviceDetach, None)?;
    if let (XdpAttached::Driver, Some(number)) = program_of(&device.link) {
        if is_own(number)? {
            set_program(&device.socket, device.link.header.index, None)?;
        }
    }
    Ok(())
}

/// A device that there is, and those that know of it: the module and the stack.
struct Found<'a> {
    name: &'a str,
    link: LinkMessage,
    connection: Connection,
    socket: Socket,
}

impl<'a> Found<'a> {
    fn find(name: &'a str) -> anyhow::Result<Self> {
        Self::find_if_there(name)?.with_context(|| format!("there is no device {name}"))
    }

    fn find_if_there(name: &'a str) -> anyhow::Result<Option<Self>> {
        let connection = Connection::open()?;
        let socket = connect()?;
        let link = match find(&socket, name) {
            Ok(Some(link)) => link,
            Err(error) if !error.is(Errno::ENODEV) => return Err(error.into()),
            _ => return Ok(None),
        };
        Ok(Some(Self {
            name,
            link,
            connection,
            socket,
        }))
    }

    /// Asks the module to attach or detach it.
    fn request(&mut self, command: Command, port_map: Option<u64>) -> anyhow::Result<()> {
        let device = Device {
            ifindex: Some(self.link.header.index),
            port_map,
            ..Device::default()
        };
        let answers = self.connection.request::<_, Device>(command, &device);
        answers.map(drop).with_context(|| self.name.to_owned())
    }

    /// Has the driver run the program, in place of an old one.
    fn redirect(&self, old: bool, program: &ProgramFd) -> anyhow::Result<()> {
        let index = self.link.header.index;
        if old {
            set_program(&self.socket, index, None)?;
        }
        match set_program(&self.socket, index, Some(program.as_fd())) {
            Err(error) if error.is(Errno::EOPNOTSUPP) => {
                Err(error).context("the driver runs no programs of XDP, so it can't send frames")
            }
            set => Ok(set?),
        }
    }
}

/// Loads the program, and maps what the module tells it. The mapping is for the module, which keeps
/// the memory when kopictl has ended.
fn load() -> anyhow::Result<(ProgramFd, MmapRaw)> {
    let object = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/redirect.bpf.o"));
    let mut loaded = Ebpf::load(object)?;
    let Some(Map::Array(port_map)) = loaded.map(PORT_MAP) else {
        bail!("no map in the object");
    };
    let len = usize::try_from(port_map.info()?.value_size())?;
    let port_map = MmapOptions::new()
        .len(len)
        .map_raw(&port_map.fd().as_fd())
        .context("its map")?;
    let program = loaded.program_mut(PROGRAM).context("not in the object")?;
    let program: &mut Xdp = program.try_into()?;
    program.load()?;
    Ok((program.fd()?.try_clone()?, port_map))
}

/// Whether a program is kopictl's.
fn is_own(number: u32) -> anyhow::Result<bool> {
    for program in loaded_programs() {
        let program = program?;
        if program.id() == number {
            return Ok(program.name_as_str() == Some(PROGRAM));
        }
    }
    Ok(false)
}

/// The devices that are attached; none if one may not see them, or if the module knows of none.
pub(crate) fn attached(connection: &mut Connection) -> Result<Vec<Device>, Error> {
    match connection.dump(Command::DeviceGet) {
        Err(error) if error.is_permission() || error.is(Errno::EOPNOTSUPP) => Ok(Vec::new()),
        devices => devices,
    }
}
