// SPDX-License-Identifier: GPL-2.0

//! Telling who listens what happens to flows.

use super::show;
use crate::flow::Flow;
use crate::rules::Stopped;
use crate::sys::{
    family,
    genl,
    socket::Socket, //
    uapi,
};
use kernel::prelude::*;

/// What happened.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    Opened,
    Bound,
    Connected,
    Closed,
    Denied(Stopped),
}

impl Event {
    fn command(self) -> u32 {
        match self {
            Self::Opened => uapi::KOPI_CMD_FLOW_OPENED_NTF,
            Self::Bound => uapi::KOPI_CMD_FLOW_BOUND_NTF,
            Self::Connected => uapi::KOPI_CMD_FLOW_CONNECTED_NTF,
            Self::Closed => uapi::KOPI_CMD_FLOW_CLOSED_NTF,
            Self::Denied(_) => uapi::KOPI_CMD_FLOW_DENIED_NTF,
        }
    }
}

/// Tells who listens. Process context. An event that finds no memory is lost, as netlink's are.
pub(crate) fn tell(socket: &Socket, event: Event) {
    let net = socket.sk().net();
    if !genl::has_listeners(net) {
        return;
    }
    let told = (|| {
        let flow = family::protocol::<Flow>(socket).ok_or(ENOENT)?;
        let identity = flow.policy().ok_or(ENOENT)?.identity();
        genl::send_event(net, event.command(), true, |message| {
            message.u32(uapi::KOPI_A_FLOW_ID, flow.id())?;
            show::put_ends(message, socket, &identity)?;
            message.u32(uapi::KOPI_A_FLOW_UID, identity.uid)?;
            message.u32(uapi::KOPI_A_FLOW_GID, identity.gid)?;
            message.u32(uapi::KOPI_A_FLOW_PID, identity.pid.here())?;
            if let Some(channel) = flow.channel() {
                message.u32(uapi::KOPI_A_FLOW_CHANNEL, channel.id())?;
                message.u32(uapi::KOPI_A_FLOW_NUMBER, flow.number())?;
            }
            match event {
                Event::Closed => {
                    show::put_stats(message, uapi::KOPI_A_FLOW_STATS, &flow.stats())?;
                }
                Event::Denied(stopped) => {
                    message.u32(uapi::KOPI_A_FLOW_RULE, stopped.rule)?;
                    message.u32(uapi::KOPI_A_FLOW_DIRECTION, stopped.direction as u32)?;
                }
                _ => {}
            }
            Ok(())
        })
    })();
    if let Err(error) = told {
        pr_debug!("an event is lost: {}\n", error.to_errno());
    }
}
