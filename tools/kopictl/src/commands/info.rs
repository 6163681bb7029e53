// SPDX-License-Identifier: GPL-2.0

//! `kopictl info`

use super::direct::attached;
use crate::{
    kernel::release,
    message::{device::Device, info::Info, Command},
    netlink::Connection,
    output::{clean, json, or_dash},
};
use nix::net::if_::if_indextoname;
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    info: Info,
    kernel: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    devices: Vec<Attached>,
}

/// A device that is attached, with its name.
#[derive(Serialize)]
struct Attached {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(flatten)]
    device: Device,
}

impl From<Device> for Attached {
    fn from(device: Device) -> Self {
        let name = device.ifindex.and_then(|index| if_indextoname(index).ok());
        Self {
            name: name.map(|name| name.to_string_lossy().into_owned()),
            device,
        }
    }
}

/// Shows the module.
pub(crate) fn run(as_json: bool) -> anyhow::Result<()> {
    let mut connection = Connection::open()?;
    let info: Info = connection.get(Command::InfoGet, &Info::default())?;
    let devices = attached(&mut connection)?;
    let devices: Vec<_> = devices.into_iter().map(Attached::from).collect();
    let kernel = release()?;
    if as_json {
        return json(&Shown {
            info,
            kernel,
            devices,
        });
    }
    let lines = [
        ("ABI version", or_dash(info.abi_version)),
        ("address family", or_dash(info.address_family)),
        ("kernel", kernel),
        ("flows", or_dash(info.flows)),
        ("channels", or_dash(info.channels)),
        ("monitors", or_dash(info.monitors)),
        ("rules", or_dash(info.rules)),
        ("generation of rules", or_dash(info.generation)),
    ];
    let mut out = anstream::stdout().lock();
    for (what, value) in lines {
        writeln!(out, "{what:<20}{value}")?;
    }
    for Attached { name, device } in devices {
        let what = clean(&or_dash(name));
        let path = or_dash(device.tx_path);
        let (packets, gso) = (or_dash(device.packets), or_dash(device.gso_packets));
        let (passed, dropped) = (or_dash(device.passed), or_dash(device.dropped));
        writeln!(out, "{what:<20}TX: {path}; {packets} datagrams sent; GSO packets: {gso} segmented, {passed} through the stack; {dropped} datagrams dropped")?;
        let path = or_dash(device.rx_path);
        let (received, gro) = (or_dash(device.received), or_dash(device.gro_packets));
        let directly = or_dash(device.received_direct);
        let dropped = or_dash(device.receive_dropped);
        writeln!(out, "{:<20}RX: {path}; {received} datagrams redirected: {directly} delivered directly, the rest through the stack; {gro} GRO packets; {dropped} dropped", "")?;
    }
    Ok(())
}
