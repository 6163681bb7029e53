// SPDX-License-Identifier: GPL-2.0

//! Finds the flow of a packet that a tracepoint shows as given to a driver, or as dropped.

use crate::flow::Flow;
use crate::monitor::{self, PacketFate};
use crate::netns::Net;
use crate::pure::ip;
use crate::sys::{
    monitor::{DroppedFor, Packet, ProbedSkb, Probes},
    sock::{Sock, SockRef}, //
};
use kernel::{prelude::*, sync::rcu};

/// The probes that show the packets of flows on monitor devices.
pub(crate) struct OfFlows;

crate::sys::monitor::serve!(OfFlows);

impl Probes for OfFlows {
    type Namespace = Net;

    fn transmitted(packet: ProbedSkb<'_>, ifindex: u32, rcu: &rcu::Guard) {
        if let Some((sk, flow)) = packet.flow::<Flow>(rcu) {
            let fate = PacketFate::transmitted(ifindex, packet.gso_size());
            monitor::show(flow, sk, fate, &Packet::Skb(packet));
        }
    }

    fn dropped(packet: ProbedSkb<'_>, reason: u32, receiver: DroppedFor<'_>, rcu: &rcu::Guard) {
        let iif = packet.iif();
        let show = |sk: &Sock, flow: &Flow| {
            // KOPI drops this packet itself, and shows it with its own reason.
            if flow.is_refusing(packet.id()) {
                return;
            }
            let ifindex = match iif {
                0 if monitor::is_watched(flow) => packet.ifindex_in(sk.net(), rcu),
                ifindex => ifindex,
            };
            let fate = PacketFate::dropped(iif != 0, reason, ifindex, packet.gso_size());
            monitor::show(flow, sk, fate, &Packet::Skb(packet));
        };
        match packet.flow(rcu).or_else(|| receiver.flow(rcu)) {
            Some((sk, flow)) => show(sk, flow),
            // With a known receiver that is no flow, the packet isn't a flow's: a packet socket,
            // for instance, drops its own copy.
            None if iif != 0 && !receiver.is_known() => with_receiver(packet, rcu, show),
            None => {}
        }
    }
}

/// Calls `act` with the flow to which a packet was addressed, if its namespace is watched.
fn with_receiver(packet: ProbedSkb<'_>, rcu: &rcu::Guard, act: impl FnOnce(&Sock, &Flow)) {
    let Some(net) = packet.watched_net(rcu) else {
        return;
    };
    let Some(ends) = packet.first_bytes().and_then(|bytes| ip::ends(&bytes)) else {
        return;
    };
    let Some(found) = SockRef::find(net, &ends, packet.iif()) else {
        return;
    };
    if let Some((sk, flow)) = found.flow(rcu) {
        act(sk, flow);
    }
}
