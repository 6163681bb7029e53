// SPDX-License-Identifier: GPL-2.0

//! Showing flows, channels and sums.

use crate::channel::Channel;
use crate::describe::{put_socket, put_stats};
use crate::direct::Attached;
use crate::flow::Flow;
use crate::netns::{Net, FLOWS_AT_ONCE};
use crate::pure::abi::{self, Stats};
use crate::sys::{
    cgroup,
    context::cond_resched,
    family,
    genl::{Dump, Message, Request, Requester},
    socket::Socket,
    uapi, //
};
use kernel::prelude::*;

/// Puts what is known of a flow, with its path of cgroups at the end: `ENOENT` if it was closed, or
/// became another user's.
///
/// The path takes memory that is charged to the requester's cgroup, and a mutex of the kernel's
/// that others can hold for long. So it is found without the lock.
fn put_flow(
    message: &mut Message,
    requester: &Requester<'_>,
    attached: &Attached,
    net: &Net,
    number: u32,
) -> Result {
    let cgroup = {
        let flows = net.flows.lock();
        let socket = flows.open.get(number).ok_or(ENOENT)?;
        if !owner(socket).is_some_and(|uid| may_see(requester, uid)) {
            return Err(ENOENT);
        }
        put_facts(message, requester, attached, number, socket)?;
        socket.sk().cgroup()
    };
    let path = cgroup.map(|cgroup| cgroup.path()).transpose()?;
    message.string(
        uapi::KOPI_A_FLOW_CGROUP_PATH,
        path.as_deref().unwrap_or(&[]),
    )
}

fn put_facts(
    message: &mut Message,
    requester: &Requester<'_>,
    attached: &Attached,
    number: u32,
    socket: &Socket,
) -> Result {
    let flow = family::protocol::<Flow>(socket).ok_or(ENOENT)?;
    let policy = flow.policy();
    let identity = policy.identity();
    message.u32(uapi::KOPI_A_FLOW_ID, number)?;
    let cgroup = cgroup::of(socket.sk());
    let ends = socket.sk().ends();
    put_socket(message, &ends, &identity, cgroup)?;
    message.u32(uapi::KOPI_A_FLOW_UID, requester.show_uid(identity.uid))?;
    message.u32(uapi::KOPI_A_FLOW_GID, requester.show_gid(identity.gid))?;
    message.u32(uapi::KOPI_A_FLOW_PID, identity.process.pid().here())?;
    if let Some(channel) = flow.channel() {
        message.u32(uapi::KOPI_A_FLOW_CHANNEL, channel.id())?;
        message.u32(uapi::KOPI_A_FLOW_NUMBER, flow.number())?;
    }
    let (channel_use, errno) = flow.channel_use(socket.sk());
    message.u32(uapi::KOPI_A_FLOW_CHANNEL_USE, channel_use)?;
    if let Some(errno) = errno {
        message.u32(uapi::KOPI_A_FLOW_CHANNEL_ERROR, errno)?;
    }
    put_stats(message, uapi::KOPI_A_FLOW_STATS, &flow.stats(socket.sk()))?;
    let (handles, denied) = policy.deciding_rules(None, socket.sk())?;
    for (kind, handle) in [uapi::KOPI_A_FLOW_RULE_OUT, uapi::KOPI_A_FLOW_RULE_IN]
        .into_iter()
        .zip(handles)
    {
        if let Some(handle) = handle {
            message.u32(kind, handle)?;
        }
    }
    message.u32(uapi::KOPI_A_FLOW_DENIED, denied)?;
    if let Some((path, ifindex)) = attached.tx_path(flow) {
        message.u32(uapi::KOPI_A_FLOW_TX_PATH, path)?;
        message.u32(uapi::KOPI_A_FLOW_TX_PATH_IFINDEX, ifindex)?;
    }
    if let Some(path) = attached.rx_path(flow, ends.ifindex as u32) {
        message.u32(uapi::KOPI_A_FLOW_RX_PATH, path as u32)?;
    }
    Ok(())
}

/// Whether the requester may see what is another user's.
fn may_see(requester: &Requester<'_>, uid: u32) -> bool {
    requester.is_net_admin() || requester.uid() == uid
}

fn owner(socket: &Socket) -> Option<u32> {
    Some(family::protocol::<Flow>(socket)?.policy().identity().uid)
}

/// `flow-get` of one: `ENOENT`, `EPERM`.
pub(crate) fn flow(request: &Request<'_>) -> Result {
    let id = request
        .get(uapi::KOPI_A_FLOW_ID)
        .ok_or_else(|| request.refuse(EINVAL, c"say which flow: id", None))?;
    let requester = request.requester();
    let attached = Attached::now(requester.net())?;
    let net = requester.net().state();
    let owner = {
        let flows = net.flows.lock();
        let socket = flows.open.get(id.u32());
        socket.map(owner)
    };
    let gone = || request.refuse(ENOENT, c"no such flow", Some(&id));
    if !owner
        .ok_or_else(gone)?
        .is_some_and(|uid| may_see(&requester, uid))
    {
        return Err(request.refuse(EPERM, c"the flow is another user's", Some(&id)));
    }
    request.reply(uapi::KOPI_CMD_FLOW_GET, |message| {
        put_flow(message, &requester, &attached, &net, id.u32())
    })
}

/// `flow-get` of all.
pub(crate) fn flows(dump: &mut Dump<'_>) -> Result {
    let requester = dump.requester();
    let attached = Attached::now(requester.net())?;
    let net = requester.net().state();
    let end = dump.end(|| net.flows.lock().open.end());
    while let Ok(start) = u32::try_from(dump.position()) {
        let (mut next, mut found) = (None, None);
        for (number, socket) in net
            .flows
            .lock()
            .open
            .within(start..=end)
            .take(FLOWS_AT_ONCE)
        {
            next = Some(u64::from(number).saturating_add(1));
            if owner(socket).is_some_and(|uid| may_see(&requester, uid)) {
                found = Some(number);
                break;
            }
        }
        let Some(next) = next else {
            break;
        };
        if let Some(number) = found {
            let added = dump.add(uapi::KOPI_CMD_FLOW_GET, |message| {
                put_flow(message, &requester, &attached, &net, number)
            });
            match added {
                Ok(true) => {}
                Ok(false) => break,
                // Closed meanwhile.
                Err(error) if error == ENOENT => {}
                Err(error) => return Err(error),
            }
        }
        dump.go_on_at(next);
        cond_resched();
    }
    Ok(())
}

fn put_ring(
    message: &mut Message,
    kind: u32,
    size: u32,
    (producer, consumer): (u32, u32),
) -> Result {
    message.nest(kind, |message| {
        message.u32(uapi::KOPI_A_RING_SIZE, size)?;
        message.u32(uapi::KOPI_A_RING_PRODUCER, producer)?;
        message.u32(uapi::KOPI_A_RING_CONSUMER, consumer)
    })
}

fn put_channel(message: &mut Message, requester: &Requester<'_>, channel: &Channel) -> Result {
    let layout = channel.layout();
    let mut stats = Stats::default();
    let rings = channel.fill_own_stats(&mut stats);
    message.u32(uapi::KOPI_A_CHANNEL_ID, channel.id())?;
    message.u32(uapi::KOPI_A_CHANNEL_FLOWS, stats.flows as u32)?;
    message.u32(uapi::KOPI_A_CHANNEL_FRAME_SIZE, layout.frame_size)?;
    message.u32(uapi::KOPI_A_CHANNEL_FRAME_COUNT, layout.frame_count)?;
    message.uint(uapi::KOPI_A_CHANNEL_REGION_SIZE, layout.region_size)?;
    message.u32(uapi::KOPI_A_CHANNEL_FLAGS, layout.flags)?;
    put_ring(message, uapi::KOPI_A_CHANNEL_TX, layout.tx.size, rings.tx)?;
    put_ring(
        message,
        uapi::KOPI_A_CHANNEL_COMPLETION,
        layout.completion.size,
        rings.completion,
    )?;
    put_ring(
        message,
        uapi::KOPI_A_CHANNEL_FILL,
        layout.fill.size,
        rings.fill,
    )?;
    put_ring(message, uapi::KOPI_A_CHANNEL_RX, layout.rx.size, rings.rx)?;
    message.u32(uapi::KOPI_A_CHANNEL_TX_PENDING, stats.tx_pending as u32)?;
    message.uint(uapi::KOPI_A_CHANNEL_TX_INVALID, stats.tx_invalid)?;
    message.uint(uapi::KOPI_A_CHANNEL_FILL_INVALID, stats.fill_invalid)?;
    message.uint(uapi::KOPI_A_CHANNEL_RING_BROKEN, stats.ring_broken)?;
    message.u32(
        uapi::KOPI_A_CHANNEL_UID,
        requester.show_uid(channel.maker_uid()),
    )?;
    message.uint(uapi::KOPI_A_CHANNEL_ENGINE_TIME, stats.engine_time)
}

/// `channel-get` of one: `ENOENT`, `EPERM`.
pub(crate) fn channel(request: &Request<'_>) -> Result {
    let id = request
        .get(uapi::KOPI_A_CHANNEL_ID)
        .ok_or_else(|| request.refuse(EINVAL, c"say which channel: id", None))?;
    let requester = request.requester();
    let net = requester.net().state();
    let channels = net.channels.lock();
    let channel = channels
        .get(&id.u32())
        .ok_or_else(|| request.refuse(ENOENT, c"no such channel", Some(&id)))?;
    if !may_see(&requester, channel.maker_uid()) {
        return Err(request.refuse(EPERM, c"the channel is another user's", Some(&id)));
    }
    request.reply(uapi::KOPI_CMD_CHANNEL_GET, |message| {
        put_channel(message, &requester, channel)
    })
}

/// `channel-get` of all.
pub(crate) fn channels(dump: &mut Dump<'_>) -> Result {
    let requester = dump.requester();
    let net = requester.net().state();
    let channels = net.channels.lock();
    let end = dump.end(|| channels.cursor_back().map_or(0, |last| *last.current().0));
    let start = u32::try_from(dump.position()).unwrap_or(u32::MAX);
    let mut next = Some(start);
    while let Some(cursor) = next.and_then(|next| channels.cursor_lower_bound(&next)) {
        let (&number, channel) = cursor.current();
        if number > end {
            break;
        }
        if may_see(&requester, channel.maker_uid())
            && !dump.add(uapi::KOPI_CMD_CHANNEL_GET, |message| {
                put_channel(message, &requester, channel)
            })?
        {
            break;
        }
        dump.go_on_at(u64::from(number).wrapping_add(1));
        next = number.checked_add(1);
    }
    Ok(())
}

/// `info-get`.
pub(crate) fn info(request: &Request<'_>) -> Result {
    let net = request.requester().net().state();
    let flows = net.flows.lock().open.len();
    let (set, generation) = net.policy.rules_and_generation();
    let channels = net.channels.lock().values().count();
    request.reply(uapi::KOPI_CMD_INFO_GET, |message| {
        message.u32(uapi::KOPI_A_INFO_ABI_VERSION, abi::ABI_VERSION)?;
        let number = u32::try_from(family::family_parameter()).unwrap_or(0);
        message.u32(uapi::KOPI_A_INFO_ADDRESS_FAMILY, number)?;
        message.u32(uapi::KOPI_A_INFO_FLOWS, flows as u32)?;
        message.u32(uapi::KOPI_A_INFO_RULES, set.rules.len() as u32)?;
        message.uint(uapi::KOPI_A_INFO_GENERATION, generation)?;
        message.u32(uapi::KOPI_A_INFO_CHANNELS, channels as u32)?;
        message.u32(uapi::KOPI_A_INFO_MONITORS, net.policy.monitors.len() as u32)
    })
}

/// `totals-get`.
pub(crate) fn totals(request: &Request<'_>) -> Result {
    let net = request.requester().net().state();
    let totals = net.totals(|socket| Some(family::protocol::<Flow>(socket)?.stats(socket.sk())));
    request.reply(uapi::KOPI_CMD_TOTALS_GET, |message| {
        put_stats(message, uapi::KOPI_A_TOTALS_STATS, &totals.stats)?;
        message.uint(uapi::KOPI_A_TOTALS_FLOWS_OPENED, totals.opened)?;
        message.uint(uapi::KOPI_A_TOTALS_FLOWS_DENIED, net.policy.denied())
    })
}
