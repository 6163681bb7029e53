// SPDX-License-Identifier: GPL-2.0

//! The devices of the direct path: attaching, detaching and showing them.

use crate::direct::{self, AttachError, AttachedDevice, TxPath};
use crate::sys::{
    direct::port_map::PinnedPortMap,
    errno::eopnotsupp,
    genl::{Attribute, Dump, Message, Request},
    netdev::Egress,
    uapi,
};
use core::sync::atomic::Ordering::Relaxed;
use kernel::{prelude::*, static_assert};

// A message below names the number.
static_assert!(direct::ATTACHED_MAX == 64);

/// The device that a request names: `EINVAL`.
fn named<'a>(request: &Request<'a>) -> Result<Attribute<'a>> {
    request
        .get(uapi::KOPI_A_DEVICE_IFINDEX)
        .ok_or_else(|| request.refuse(EINVAL, c"no device is named", None))
}

/// Refuses all but administrators of the machine: `EPERM`. A device's hardware is the machine's,
/// and KOPI's work for it runs in its softirqs.
fn may(request: &Request<'_>) -> Result {
    if !request.requester().is_admin() {
        let why = c"that takes CAP_NET_ADMIN in the initial user namespace";
        return Err(request.refuse(EPERM, why, None));
    }
    Ok(())
}

/// `device-attach`: `EPERM`, `ENODEV`, `EEXIST` if it is, `EOPNOTSUPP` if it is no NIC, or its
/// driver or this kernel takes no frames, `ENOSPC` if there are too many; `EINVAL`, `EFAULT` if there is
/// no such memory as it says.
pub(crate) fn attach(request: &Request<'_>) -> Result {
    may(request)?;
    let attr = named(request)?;
    let port_map = match request.get(uapi::KOPI_A_DEVICE_PORT_MAP) {
        None => None,
        Some(attr) => Some(PinnedPortMap::pin(attr.uint()).map_err(|error| {
            let why =
                c"there is no memory of a map that can be written to, from the start of a page on";
            request.refuse(error, why, Some(&attr))
        })?),
    };
    direct::attach(request.requester().net(), attr.u32(), port_map).map_err(|refusal| {
        let (error, why) = match refusal {
            AttachError::Absent => (ENODEV, c"there is no such device"),
            AttachError::Attached => (EEXIST, c"the device is attached already"),
            AttachError::NotNic => (
                eopnotsupp(),
                c"the device has no hardware of its own, or is a part of a switch: attach the NICs below it, if there are any",
            ),
            AttachError::NoFrames => (
                eopnotsupp(),
                c"the device's driver can't send frames of XDP",
            ),
            AttachError::UnsoundDriver => (
                eopnotsupp(),
                c"the device's driver loses or frees frames of XDP wrongly after an error",
            ),
            AttachError::Realtime => (
                eopnotsupp(),
                c"this kernel has PREEMPT_RT, with which all packets take the path of the stack",
            ),
            AttachError::TooMany => (ENOSPC, c"64 devices are attached, and no more can be"),
            AttachError::Other(error) if error == ENOMEM => (error, c"not enough memory"),
            AttachError::Other(error) => (error, c"the kernel refused the device"),
        };
        request.refuse(error, why, Some(&attr))
    })
}

/// `device-detach`: `EPERM`, `ENODEV`.
pub(crate) fn detach(request: &Request<'_>) -> Result {
    may(request)?;
    let attr = named(request)?;
    direct::detach(request.requester().net(), attr.u32())
        .map_err(|error| request.refuse(error, c"the device isn't attached", Some(&attr)))
}

fn put(message: &mut Message, device: &AttachedDevice, path: TxPath) -> Result {
    let counters = &device.counters;
    message.u32(uapi::KOPI_A_DEVICE_IFINDEX, device.device().ifindex())?;
    message.u32(uapi::KOPI_A_DEVICE_TX_PATH, path as u32)?;
    message.uint(uapi::KOPI_A_DEVICE_PACKETS, counters.packets.load(Relaxed))?;
    message.uint(
        uapi::KOPI_A_DEVICE_GSO_PACKETS,
        counters.gso_packets.load(Relaxed),
    )?;
    message.uint(uapi::KOPI_A_DEVICE_PASSED, counters.passed.load(Relaxed))?;
    message.uint(uapi::KOPI_A_DEVICE_DROPPED, counters.dropped.load(Relaxed))?;
    let rx_path = device.rx_path() as u32;
    message.u32(uapi::KOPI_A_DEVICE_RX_PATH, rx_path)?;
    message.uint(
        uapi::KOPI_A_DEVICE_RECEIVED,
        counters.received.load(Relaxed),
    )?;
    message.uint(
        uapi::KOPI_A_DEVICE_RECEIVED_DIRECT,
        counters.received_direct.load(Relaxed),
    )?;
    message.uint(
        uapi::KOPI_A_DEVICE_GRO_PACKETS,
        counters.gro_packets.load(Relaxed),
    )?;
    let dropped = counters.receive_dropped.load(Relaxed);
    message.uint(uapi::KOPI_A_DEVICE_RECEIVE_DROPPED, dropped)
}

/// `device-get` of all. It goes on behind the number of the last one, whatever was detached meanwhile.
pub(crate) fn dump(dump: &mut Dump<'_>) -> Result {
    let start = dump.position();
    direct::each(dump.requester().net(), |device, path| {
        let number = u64::from(device.number);
        if number < start {
            return Ok(true);
        }
        let added = dump.add(uapi::KOPI_CMD_DEVICE_GET, |message| {
            put(message, device, path)
        })?;
        if added {
            dump.go_on_at(number.wrapping_add(1));
        }
        Ok(added)
    })
}
