// SPDX-License-Identifier: GPL-2.0

//! What NICs can do for the direct path.

use super::{guide, Finding};
use crate::{
    commands::direct::{whether_own, whichever_attached},
    link::{address_of, connect, find, mtu_of, program_of},
    message::device::Device,
    netlink::Connection,
};
use netlink_packet_route::link::XdpAttached;
use std::{fs, path::Path};

/// The drivers of Linux 7.3 that send frames (`ndo_xdp_xmit`), as sysfs names them; without those that
/// the module refuses.
#[rustfmt::skip]
const SENDING: &[&str] = &[
    "am65-cpsw-nuss", "bnxt_en", "cpsw", "cpsw-switch", "dwmac-motorcomm", "ena", "fec", "fsl_dpaa2_eth",
    "fsl_dpaa_mac", "fsl_enetc", "gve", "i40e", "icssg-prueth", "igb", "igc", "intel-eth-pci", "ixgbe",
    "mlx5_core", "mlx5_core.sf", "mtk_soc_eth", "mvneta", "mvpp2", "netsec", "sfc", "sfc_siena", "tsnep",
    "virtio_net", "vmxnet3",
];

/// The drivers that take a larger MTU than this while they run an XDP program, and lose the packets that need it.
const LOSING: &[(&str, u32)] = &[("virtio_net", 3506), ("vmxnet3", 3494)];

/// Where the kernel shows NICs: those of the network namespace of who mounted it.
const SHOWN: &str = "/sys/class/net";

/// A finding for each NIC of this network namespace.
pub(super) fn all(connection: Option<&mut Connection>) -> anyhow::Result<Vec<Finding>> {
    let devices = match connection {
        Some(connection) => whichever_attached(connection)?,
        None => Some(Vec::new()),
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(SHOWN).into_iter().flatten().flatten() {
        if entry.path().join("device").exists() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    names.sort();
    let socket = connect()?;
    let mut findings = Vec::new();
    for name in names {
        let Ok(Some(link)) = find(&socket, &name) else {
            continue;
        };
        let sysfs = Path::new(SHOWN).join(&name);
        if !is_same(&sysfs, link.header.index, address_of(&link)) {
            continue;
        }
        let index = Some(link.header.index);
        let mut attached = devices.iter().flatten();
        let device = attached.find(|device| device.ifindex == index);
        let (driver, (program, number)) = (driver(&sysfs), program_of(&link));
        // Who may not ask whether it is attached doesn't know whose the program is.
        let own = devices
            .as_ref()
            .and(number.map_or(Some(false), whether_own));
        findings.push(
            losing(&name, &driver, mtu_of(&link), program)
                .unwrap_or_else(|| finding(&name, &driver, device, program, own)),
        );
    }
    Ok(findings)
}

/// Whether what sysfs shows is the device of that index and address. Another network namespace's may have
/// the same name, and the same index, too.
fn is_same(shown: &Path, index: u32, address: &[u8]) -> bool {
    let read = |name| fs::read_to_string(shown.join(name)).unwrap_or_default();
    let bytes: Vec<_> = address.iter().map(|byte| format!("{byte:02x}")).collect();
    read("ifindex").trim().parse() == Ok(index) && read("address").trim() == bytes.join(":")
}

/// The name of a NIC's driver.
fn driver(shown: &Path) -> String {
    let path = fs::read_link(shown.join("device/driver")).unwrap_or_default();
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// What is wrong if the driver loses packets, by an XDP program, whosever it is.
fn losing(name: &str, driver: &str, mtu: u32, program: XdpAttached) -> Option<Finding> {
    let (_, most) = LOSING.iter().find(|(losing, _)| *losing == driver)?;
    let runs = matches!(program, XdpAttached::Driver | XdpAttached::Multiple);
    (runs && mtu > *most).then(|| {
        Finding::wrong(
            name,
            format!(
                "its MTU is {mtu}, and it has an XDP program: {driver} loses received packets above {most}"
            ),
            format!("ip link set dev {name} mtu {most}, or kopictl detach {name}"),
        )
    })
}

/// What a NIC can do, or does; `own`: its XDP program is kopictl's, if that is known.
fn finding(
    name: &str,
    driver: &str,
    device: Option<&Device>,
    program: XdpAttached,
    own: Option<bool>,
) -> Finding {
    if let Some(device) = device {
        let path = |path: Option<String>| path.unwrap_or_else(|| "?".to_owned());
        let sends = path(device.tx_path.map(|path| path.to_string()));
        let receives = path(device.rx_path.map(|path| path.to_string()));
        let text = format!("attached ({driver}); sends: {sends}; receives: {receives}");
        if program == XdpAttached::None {
            return Finding::note(
                name,
                format!("{text}; its XDP program was taken off"),
                Some(format!("kopictl detach {name} && kopictl attach {name}")),
            );
        }
        return Finding::ok(name, text);
    }
    if !SENDING.contains(&driver) {
        let text =
            format!("its driver {driver} can't be used directly: packets take the stack's path");
        return Finding::note(name, text, None);
    }
    match program {
        XdpAttached::Driver if own == Some(true) => Finding::note(
            name,
            "has an XDP program of kopictl's, and isn't attached: the module for which it was is gone",
            Some(format!("kopictl attach {name}, or kopictl detach {name}")),
        ),
        XdpAttached::None => Finding::note(
            name,
            format!("its driver {driver} can send and receive directly"),
            Some(format!(
                "kopictl attach {name}; what that does to traffic: {}",
                guide()
            )),
        ),
        XdpAttached::Driver | XdpAttached::Multiple if own.is_none() => {
            Finding::note(name, "has an XDP program; root sees whose", None)
        }
        XdpAttached::Driver | XdpAttached::Multiple => Finding::note(
            name,
            format!("has an XDP program of somebody else's: {driver} can only send directly"),
            Some(format!("kopictl attach {name}")),
        ),
        _ => Finding::note(
            name,
            "has an XDP program that its driver doesn't run",
            Some(format!(
                "take it off: ip link set dev {name} xdpgeneric off"
            )),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::State;

    #[test]
    fn what_the_module_refuses_is_not_offered() {
        let module = include_str!("../../../../../src/direct/attach.rs");
        let (_, list) = module.split_once("const UNSOUND: ").unwrap();
        let (_, list) = list.split_once(" = [").unwrap();
        let (list, _) = list.split_once("];").unwrap();
        let names: Vec<_> = list.split('"').skip(1).step_by(2).collect();
        assert!(names.contains(&"atlantic"), "{names:?}");
        for name in names {
            assert!(!SENDING.contains(&name), "{name}");
        }
    }

    #[test]
    fn another_network_namespaces_nics_are_not_taken_for_this_ones() {
        let folder = std::env::temp_dir().join(format!("kopictl-nics-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("ifindex"), "2\n").unwrap();
        fs::write(folder.join("address"), "52:54:00:0a:00:01\n").unwrap();
        let address = [0x52, 0x54, 0, 10, 0, 1];
        assert!(is_same(&folder, 2, &address));
        assert!(!is_same(&folder, 3, &address) && !is_same(&folder, 2, &[2, 0, 0, 0, 0, 1]));
        assert!(!is_same(&folder.join("nowhere"), 2, &address));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_mtu_at_which_packets_are_lost_is_wrong() {
        let at = |driver, mtu, program| losing("eth0", driver, mtu, program);
        let wrong = at("virtio_net", 9000, XdpAttached::Driver).unwrap();
        assert_eq!(wrong.state, State::Wrong);
        assert!(wrong.fix.unwrap().contains("mtu 3506"));
        assert!(at("virtio_net", 3506, XdpAttached::Driver).is_none());
        assert!(at("virtio_net", 9000, XdpAttached::None).is_none());
        assert!(at("igb", 9000, XdpAttached::Driver).is_none());
    }

    #[test]
    fn nics_are_told_apart() {
        let text = |driver: &str, program| finding("eth0", driver, None, program, Some(false));
        let free = text("virtio_net", XdpAttached::None);
        assert!(free.fix.unwrap().starts_with("kopictl attach eth0"));
        assert!(text("e1000e", XdpAttached::None).text.contains("can't"));
        let others = text("virtio_net", XdpAttached::Driver).text;
        assert!(others.contains("only send"), "{others}");
        assert_eq!(
            text("virtio_net", XdpAttached::SocketBuffer).state,
            State::Note
        );
        let unknown = finding("eth0", "virtio_net", None, XdpAttached::Driver, None);
        assert!(
            unknown.text.ends_with("root sees whose"),
            "{}",
            unknown.text
        );
        let left = finding("eth0", "virtio_net", None, XdpAttached::Driver, Some(true));
        assert!(left.text.contains("of kopictl's"), "{}", left.text);
        assert!(left.fix.unwrap().ends_with("kopictl detach eth0"));
        let device = Device::default();
        let attached = finding(
            "eth0",
            "virtio_net",
            Some(&device),
            XdpAttached::Driver,
            Some(true),
        );
        assert_eq!(attached.state, State::Ok);
        let without = finding(
            "eth0",
            "virtio_net",
            Some(&device),
            XdpAttached::None,
            Some(false),
        );
        assert_eq!(without.state, State::Note);
        assert!(without.text.ends_with("taken off"), "{}", without.text);
    }
}
