// SPDX-License-Identifier: GPL-2.0

//! `kopictl info`

use crate::{
    message::{Command, Info},
    netlink::Connection,
    output::{json, or_dash},
};
use nix::sys::utsname::uname;
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    info: Info,
    kernel: String,
}

/// Shows the module.
pub(crate) fn run(as_json: bool) -> anyhow::Result<()> {
    let info: Info = Connection::open()?.get(Command::InfoGet, &Info::default())?;
    let kernel = uname()?.release().to_string_lossy().into_owned();
    if as_json {
        return json(&Shown { info, kernel });
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
    Ok(())
}
