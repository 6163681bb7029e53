// SPDX-License-Identifier: GPL-2.0

//! Flows in messages of netlink: their ends, their process, their counters.

use crate::pure::{abi::Stats, counters::with_counters};
use crate::sys::{
    genl::Message,
    sock::Ends,
    task::Identity,
    uapi, //
};
use kernel::prelude::*;

macro_rules! put_stats {
    ($($(#[$doc:meta])* $of:ident $name:ident $(= $attribute:ident)?;)*) => {
        /// Puts a flow's counters.
        pub(crate) fn put_stats(message: &mut Message, kind: u32, stats: &Stats) -> Result {
            message.nest(kind, |message| {
                for (kind, value) in [$($((uapi::$attribute, stats.$name),)?)*] {
                    message.uint(kind, value)?;
                }
                Ok(())
            })
        }
    };
}

with_counters!(put_stats);

/// Puts the ends of a flow's socket, and its process.
pub(crate) fn put_socket(
    message: &mut Message,
    ends: &Ends,
    identity: &Identity,
    cgroup: Option<u64>,
) -> Result {
    let len = if ends.is_ipv6 { 16 } else { 4 };
    message.bytes(
        uapi::KOPI_A_FLOW_LOCAL_ADDRESS,
        ends.local.get(..len).unwrap_or(&[]),
    )?;
    message.u16(uapi::KOPI_A_FLOW_LOCAL_PORT, ends.local_port)?;
    if ends.remote_port != 0 {
        message.bytes(
            uapi::KOPI_A_FLOW_REMOTE_ADDRESS,
            ends.remote.get(..len).unwrap_or(&[]),
        )?;
        message.u16(uapi::KOPI_A_FLOW_REMOTE_PORT, ends.remote_port)?;
    }
    message.u32(uapi::KOPI_A_FLOW_IFINDEX, ends.ifindex as u32)?;
    message.u8(uapi::KOPI_A_FLOW_PROTOCOL, ends.protocol)?;
    if let Some(state) = ends.state {
        message.u8(uapi::KOPI_A_FLOW_TCP_STATE, state)?;
    }
    message.string(uapi::KOPI_A_FLOW_COMMAND, &identity.command)?;
    if let Some(program) = &identity.program {
        message.string(uapi::KOPI_A_FLOW_EXE, &program.path)?;
        message.u32(uapi::KOPI_A_FLOW_EXE_DEVICE, program.id.device)?;
        message.uint(uapi::KOPI_A_FLOW_EXE_INODE, program.id.inode)?;
    }
    if let Some(cgroup) = cgroup {
        message.uint(uapi::KOPI_A_FLOW_CGROUP, cgroup)?;
    }
    Ok(())
}
