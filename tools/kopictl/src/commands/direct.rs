// SPDX-License-Identifier: GPL-2.0

//! `kopictl attach`, `kopictl detach`

use crate::{
    link::{connect, find, program_of, set_program},
    message::{Command, Device},
    netlink::{Connection, Error},
};
use anyhow::{anyhow, bail, Context};
use aya::{
    include_bytes_aligned,
    programs::{loaded_programs, Xdp},
    Ebpf,
};
use clap::Args;
use netlink_packet_route::link::XdpAttached;
use netlink_sys::Socket;
use nix::errno::Errno;
use std::os::fd::AsFd;

/// What is attached where there is no program, and taken away again.
const PASS: &str = "kopi_pass";

/// A device.
#[derive(Args)]
pub(crate) struct Which {
    /// The device's name
    #[arg(value_name = "DEV")]
    device: String,
}

/// Attaches a device, with a program of XDP if it has none.
pub(crate) fn attach(which: &Which) -> anyhow::Result<()> {
    let name = &which.device;
    let mut connection = Connection::open()?;
    let socket = connect()?;
    let link = find_named(&socket, name)?;
    let index = link.header.index;
    let new = match program_of(&link).0 {
        XdpAttached::None => true,
        XdpAttached::Driver | XdpAttached::Multiple => false,
        how => bail!(
            "{name} has an XDP program that its driver doesn't run ({how:?}): take it off, or \
             attach it with `ip link set dev {name} xdpdrv …`"
        ),
    };
    if new {
        pass_all(&socket, index).with_context(|| format!("{name}: no XDP program"))?;
    }
    let device = Device {
        ifindex: Some(index),
        ..Device::default()
    };
    let attached = connection.request::<_, Device>(Command::DeviceAttach, &device);
    if let Err(error) = attached {
        if new {
            set_program(&socket, index, None)?;
        }
        return Err(error).with_context(|| name.clone());
    }
    Ok(())
}

/// Detaches a device, and takes the program away if it is kopictl's.
pub(crate) fn detach(which: &Which) -> anyhow::Result<()> {
    let name = &which.device;
    let mut connection = Connection::open()?;
    let socket = connect()?;
    let link = find_named(&socket, name)?;
    let device = Device {
        ifindex: Some(link.header.index),
        ..Device::default()
    };
    connection
        .request::<_, Device>(Command::DeviceDetach, &device)
        .with_context(|| name.clone())?;
    if let (XdpAttached::Driver, Some(number)) = program_of(&link) {
        if is_pass(number)? {
            set_program(&socket, link.header.index, None)?;
        }
    }
    Ok(())
}

fn find_named(
    socket: &Socket,
    name: &str,
) -> anyhow::Result<netlink_packet_route::link::LinkMessage> {
    match find(socket, name) {
        Ok(Some(link)) => Ok(link),
        Ok(None) => Err(anyhow!("there is no device {name}")),
        Err(error) if error.is(Errno::ENODEV) => Err(anyhow!("there is no device {name}")),
        Err(error) => Err(error.into()),
    }
}

/// Has the driver run a program that passes all.
fn pass_all(socket: &Socket, index: u32) -> anyhow::Result<()> {
    let object = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/pass.bpf.o"));
    let mut loaded = Ebpf::load(object)?;
    let program = loaded.program_mut(PASS).context("not in the object")?;
    let program: &mut Xdp = program.try_into()?;
    program.load()?;
    match set_program(socket, index, Some(program.fd()?.as_fd())) {
        Err(error) if error.is(Errno::EOPNOTSUPP) => {
            Err(error).context("the driver runs no programs of XDP, so it can't send frames")
        }
        set => Ok(set?),
    }
}

/// Whether a program is kopictl's.
fn is_pass(number: u32) -> anyhow::Result<bool> {
    for program in loaded_programs() {
        let program = program?;
        if program.id() == number {
            return Ok(program.name_as_str() == Some(PASS));
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
