// SPDX-License-Identifier: GPL-2.0

//! The header that monitor devices show with a packet: its flow and process, its direction, its
//! fate.

use crate::pure::{
    abi::{
        MonHdr, MON_DROPPED, MON_IN, MON_OUT, MON_PASSED, MON_REASON_RATE, MON_REASON_RULE,
        MON_REFUSED, MON_VERSION,
    },
    ip::{self, FourTuple},
    peer::Peer,
    rule::Direction, //
};
use crate::rules::{Outcome, Policy};
use crate::subject::Subject;
use crate::sys::{
    cgroup,
    monitor::{Packet, QueuedSkb},
    sock::Sock, //
};

/// The reason why KOPI refused a packet.
#[derive(Clone, Copy)]
pub(crate) struct Refusal {
    /// `MON_REASON_*`.
    pub(crate) reason: u32,
    /// The rule's handle, if a rule refused it.
    pub(crate) rule: u32,
}

impl Refusal {
    /// The refusal for the rules' outcome, by the rule of this handle; `None` if the packet passed.
    pub(crate) fn of(outcome: Outcome, rule: u32) -> Option<Self> {
        let reason = match outcome {
            Outcome::Pass => return None,
            Outcome::Denied => MON_REASON_RULE,
            Outcome::TooFast => MON_REASON_RATE,
        };
        Some(Self { reason, rule })
    }
}

/// The fate of a packet, and the device.
pub(crate) struct PacketFate {
    direction: u8,
    verdict: u8,
    reason: u32,
    rule: u32,
    ifindex: u32,
    gso_size: u32,
}

impl PacketFate {
    /// The packet was given to a device's driver.
    pub(crate) fn transmitted(ifindex: u32, gso_size: u32) -> Self {
        Self {
            direction: MON_OUT,
            verdict: MON_PASSED,
            reason: 0,
            rule: 0,
            ifindex,
            gso_size,
        }
    }

    /// The stack dropped the packet, which was incoming if `is_in`.
    pub(crate) fn dropped(is_in: bool, reason: u32, ifindex: u32, gso_size: u32) -> Self {
        Self {
            direction: if is_in { MON_IN } else { MON_OUT },
            verdict: MON_DROPPED,
            reason,
            rule: 0,
            ifindex,
            gso_size,
        }
    }

    /// The packet was put into the RX ring, read without a ring, or refused.
    pub(crate) fn received(refusal: Option<Refusal>, ifindex: u32, gso_size: u32) -> Self {
        Self::by_kopi(MON_IN, refusal, ifindex, gso_size)
    }

    /// KOPI let the packet pass, or refused it.
    fn by_kopi(direction: u8, refusal: Option<Refusal>, ifindex: u32, gso_size: u32) -> Self {
        Self {
            direction,
            verdict: if refusal.is_some() {
                MON_REFUSED
            } else {
                MON_PASSED
            },
            reason: refusal.map_or(0, |refusal| refusal.reason),
            rule: refusal.map_or(0, |refusal| refusal.rule),
            ifindex,
            gso_size,
        }
    }
}

/// The monitor header of a packet of a flow.
fn header(policy: &Policy, flow: &impl Subject, sk: &Sock, fate: PacketFate) -> MonHdr {
    let identity = policy.identity();
    let program = identity.program.as_ref();
    let net = sk.net();
    MonHdr {
        version: MON_VERSION,
        len: MonHdr::LEN as u8,
        direction: fate.direction,
        verdict: fate.verdict,
        reason: fate.reason,
        rule: fate.rule,
        ifindex: fate.ifindex,
        flow: flow.id(),
        pid: identity.process.pid().shown_in(net),
        uid: net.show_uid(identity.uid),
        gid: net.show_gid(identity.gid),
        cgroup: cgroup::of(sk).unwrap_or(0),
        exe_inode: program.map_or(0, |program| program.id.inode),
        exe_device: program.map_or(0, |program| program.id.device),
        gso_size: fate.gso_size,
        command: identity.command,
        reserved: [0; 2],
    }
}

/// Whether a monitor device is up in the flow's namespace. Any context.
pub(crate) fn is_watched(flow: &impl Subject) -> bool {
    flow.policy().net().monitors.is_any_up()
}

/// Shows a packet of a flow, if a monitor device is up in its namespace. Any context but hard
/// interrupts, with interrupts on.
pub(crate) fn show(flow: &impl Subject, sk: &Sock, fate: PacketFate, packet: &Packet<'_>) {
    let policy = flow.policy();
    let monitors = &policy.net().monitors;
    if monitors.is_any_up() {
        monitors.show(header(policy, flow, sk, fate), packet);
    }
}

/// Shows the first packet in the queue of a flow without a channel, which is about to be read or
/// refused. Process context.
pub(crate) fn show_first(flow: &impl Subject, sk: &Sock, outcome: Outcome, peer: &Peer) {
    let Some(first) = QueuedSkb::of(sk) else {
        return;
    };
    let rule = flow.policy().rule_for(sk, Direction::In, peer);
    let fate = PacketFate::received(Refusal::of(outcome, rule), first.iif(), first.gso_size());
    show(flow, sk, fate, &Packet::first(&first));
}

/// A datagram, or a GSO packet, that rules refused before it became an skb.
pub(crate) struct Unsent<'a> {
    pub(crate) peer: Peer,
    /// The first bytes of its payload.
    pub(crate) begins: &'a [u8],
    /// Bytes of payload in total.
    pub(crate) len: u32,
    /// Bytes of payload of each datagram of a GSO packet; 0 for a non-GSO datagram.
    pub(crate) gso_size: u32,
}

/// Shows a datagram that rules refused before it became an skb. Process context.
pub(crate) fn show_unsent(flow: &impl Subject, sk: &Sock, outcome: Outcome, unsent: &Unsent<'_>) {
    let rule = flow.policy().rule_for(sk, Direction::Out, &unsent.peer);
    let Some(refusal) = Refusal::of(outcome, rule) else {
        return;
    };
    let ends = FourTuple {
        source: sk.local_end(),
        destination: unsent.peer,
    };
    let header = ip::header(&ends, unsent.len);
    let fate = PacketFate::by_kopi(
        MON_OUT,
        Some(refusal),
        sk.bound_device() as u32,
        unsent.gso_size,
    );
    let packet = Packet::Bytes(header.bytes(), unsent.begins, header.is_ipv6());
    show(flow, sk, fate, &packet);
}
