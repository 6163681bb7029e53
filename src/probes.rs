// SPDX-License-Identifier: GPL-2.0

//! Finds the flow of a packet that a tracepoint shows as given to a driver, or as dropped.

use crate::flow::Flow;
use crate::limits;
use crate::monitor::{self, PacketFate};
use crate::netns::Net;
use crate::pure::ip;
use crate::sys::{
    monitor::{DroppedFor, Packet, ProbedSkb, Probes, ReceivedBy},
    pernet::NetRef,
    sock::{Sock, SockRef}, //
};
use core::ptr;
use kernel::{prelude::*, sync::rcu};

/// The probes that show the packets of flows on monitor devices.
pub(crate) struct OfFlows;

crate::sys::monitor::serve!(OfFlows);

impl Probes for OfFlows {
    type Namespace = Net;

    fn user() -> u32 {
        limits::charged_uid()
    }

    fn on_transmit(packet: ProbedSkb<'_>, net: &NetRef, ifindex: u32, rcu: &rcu::Guard) {
        // A packet keeps its sock on its way through other namespaces, until IP receives it.
        let of_net = |(sk, _): &(&Sock, &Flow)| ptr::eq(sk.net(), net);
        if let Some((sk, flow)) = packet.flow(rcu).filter(of_net) {
            let fate = PacketFate::transmitted(ifindex, packet.gso_size());
            monitor::show(flow, sk, fate, &Packet::Skb(packet));
        }
    }

    fn on_receive(packet: ProbedSkb<'_>, by: ReceivedBy<'_>, rcu: &rcu::Guard) {
        if let Some((sk, flow)) = by.flow::<Flow>(rcu) {
            let fate = PacketFate::received(None, packet.iif(), packet.gso_size());
            monitor::show(flow, sk, fate, &Packet::Skb(packet));
        }
    }

    fn on_drop(packet: ProbedSkb<'_>, reason: u32, receiver: DroppedFor<'_>, rcu: &rcu::Guard) {
        let iif = packet.iif();
        let show = |sk: &Sock, flow: &Flow, ifindex: u32| {
            // KOPI drops this packet itself, and shows it with its own reason.
            if flow.is_dropping(packet.id()) {
                return;
            }
            let fate = PacketFate::dropped(iif != 0, reason, ifindex, packet.gso_size());
            monitor::show(flow, sk, fate, &Packet::Skb(packet));
        };
        if let Some((sk, flow, ifindex)) = own_flow(packet, rcu) {
            show(sk, flow, ifindex);
        } else if receiver.is_known() {
            // With a known receiver that is no flow, the packet isn't a flow's: a packet socket,
            // for instance, drops its own copy.
            if let Some((sk, flow)) = receiver.flow(rcu).filter(|(sk, _)| packet.is_for(sk, rcu)) {
                show(sk, flow, iif);
            }
        } else if iif != 0 {
            with_receiver(packet, rcu, |sk, flow| show(sk, flow, iif));
        }
    }
}

/// The flow to whose sock a packet belongs, and the index of the device that the packet is at, or 0
/// if it has none yet. `None` if the flow's namespace has no monitor, the packet is in another one,
/// or holds bytes that nobody wrote.
fn own_flow<'a>(packet: ProbedSkb<'_>, rcu: &'a rcu::Guard) -> Option<(&'a Sock, &'a Flow, u32)> {
    let (sk, flow) = packet.flow::<Flow>(rcu)?;
    if !monitor::is_watched(flow) || !packet.is_complete(rcu) {
        return None;
    }
    Some((sk, flow, packet.ifindex_in(sk.net(), rcu)?))
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
