// SPDX-License-Identifier: GPL-2.0

//! Whose packet it is that a tracepoint shows: given to a driver, or dropped.

use crate::flow::Flow;
use crate::monitor::{self, Seen};
use crate::netns::Net;
use crate::pure::ip;
use crate::sys::{
    monitor::{Packet, Probes, Receiver, Seeing},
    sock::{Sock, SockRef}, //
};
use kernel::{prelude::*, sync::rcu};

/// See the module's documentation.
pub(crate) struct OfFlows;

crate::sys::monitor::serve!(OfFlows);

impl Probes for OfFlows {
    type Namespace = Net;

    fn transmitted(packet: Seeing<'_>, ifindex: u32, rcu: &rcu::Guard) {
        if let Some((sk, flow)) = packet.flow::<Flow>(rcu) {
            let seen = Seen::transmitted(ifindex, packet.gso_size());
            monitor::show(flow, sk, seen, &Packet::Skb(packet));
        }
    }

    fn dropped(packet: Seeing<'_>, reason: u32, receiver: Receiver<'_>, rcu: &rcu::Guard) {
        let came_by = packet.came_by();
        let show = |sk: &Sock, flow: &Flow| {
            // KOPI's own refusal, which is shown as such.
            if flow.is_refusing(packet.id()) {
                return;
            }
            let ifindex = match came_by {
                0 if monitor::is_watched(flow) => packet.ifindex_in(sk.net(), rcu),
                ifindex => ifindex,
            };
            let seen = Seen::dropped(came_by != 0, reason, ifindex, packet.gso_size());
            monitor::show(flow, sk, seen, &Packet::Skb(packet));
        };
        match packet.flow(rcu).or_else(|| receiver.flow(rcu)) {
            Some((sk, flow)) => show(sk, flow),
            // What a packet socket drops is its own copy.
            None if came_by != 0 && !receiver.is_known() => with_receiver(packet, rcu, show),
            None => {}
        }
    }
}

/// Does something with the flow that a packet was to go to, if its namespace is watched.
fn with_receiver(packet: Seeing<'_>, rcu: &rcu::Guard, act: impl FnOnce(&Sock, &Flow)) {
    let Some(net) = packet.watched_net(rcu) else {
        return;
    };
    let Some(ends) = packet.first_bytes().and_then(|bytes| ip::ends(&bytes)) else {
        return;
    };
    let Some(found) = SockRef::find(net, &ends, packet.came_by()) else {
        return;
    };
    if let Some((sk, flow)) = found.flow(rcu) {
        act(sk, flow);
    }
}
