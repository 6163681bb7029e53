// SPDX-License-Identifier: GPL-2.0

//! A flow: what a KOPI socket is beyond the UDP or TCP socket that it is.
//!
//! `protocol.rs` has the calls of its socket, `place.rs` its place on a channel, `corking.rs` which of
//! a channel and corking excludes the other, `busy.rs` the calls about its options, `judge.rs` what rules
//! decide about it, `stream.rs` what is different if it is TCP's, `port.rs` what XDP programs redirect to
//! it, `counters.rs` its counters.

mod busy;
mod corking;
mod counters;
mod judge;
mod place;
mod port;
mod protocol;
mod stream;

use crate::channel::Channel;
use crate::direct::Direct;
use crate::limits::{Charge, OneFlow};
use crate::pure::abi;
use crate::rules::Policy;
use crate::subject::Subject;
use crate::sys::{
    cred::AllowedCreds,
    family,
    sock::Sock, //
};
use corking::Corking;
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
        SetOnce, //
    }, //
};
use place::Place;

pub(crate) use counters::FlowCounters;
pub(crate) use judge::OutPacket;

/// A KOPI socket.
pub(crate) struct Flow {
    /// Its owner, and the rules' verdicts on it.
    policy: Pin<KBox<Policy>>,
    /// Its number in its network namespace; 0 until it is open.
    id: Atomic<u32>,
    /// Set once: a flow stays on its channel until it is closed.
    place: SetOnce<Place>,
    pub(crate) counters: FlowCounters,
    /// What the direct path knows of it.
    pub(crate) direct: Direct,
    /// The local port that XDP programs redirect for it; 0 for none.
    redirected: Atomic<u32>,
    corking: Corking,
    /// Calls under way during which no ring sends for the flow: see [`Flow::is_busy`].
    busy: Atomic<u32>,
    /// The errno of the last request for a channel; 0 if it succeeded, or there was none.
    channel_errno: Atomic<i16>,
    /// Somebody may have begun to wait for the socket before it had a channel, as epoll does once
    /// and for all.
    polled_early: Atomic<bool>,
    /// The credentials that may map the rings: those that last got the layout.
    may_map: AllowedCreds,
    /// What waits in its queue may have come to another port or device than it has.
    moved: Atomic<bool>,
    charge: Charge<OneFlow>,
}

impl Flow {
    pub(crate) fn channel(&self) -> Option<&Arc<Channel>> {
        Some(&self.place.as_ref()?.channel)
    }

    /// The channel into whose RX ring it receives.
    pub(crate) fn ring_receiver(&self) -> Option<&Arc<Channel>> {
        self.channel().filter(|channel| !channel.is_tx_only())
    }

    /// Its owner, and the rules' verdicts on it.
    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The policy, if there are rules, or if a rule has marked the sock. Any context.
    pub(crate) fn policy_in_force(&self) -> Option<&Policy> {
        Some(self.policy()).filter(|policy| policy.is_in_force())
    }

    /// Whether rules can't judge a datagram that comes, which is refused then: one by IPv6 from an address that
    /// stands for an IPv4 host, or one that came to a port or device that the flow had before. Any context.
    #[inline]
    pub(crate) fn cant_judge(&self, is_mapped: bool, is_of_old_end: impl FnOnce() -> bool) -> bool {
        is_mapped || self.moved.load(Relaxed) && is_of_old_end()
    }

    /// The flow's number on its channel; 0 without one.
    pub(crate) fn number(&self) -> u32 {
        self.place.as_ref().map_or(0, |place| place.number)
    }

    /// The flow's number in its network namespace.
    pub(crate) fn id(&self) -> u32 {
        self.id.load(Relaxed)
    }

    /// The user who is charged for it, by the number in the initial user namespace.
    pub(crate) fn charged_user(&self) -> u32 {
        self.charge.user()
    }

    /// Whether somebody may wait on the socket's own queue, and not on the channel's. To be asked
    /// after a full fence.
    pub(crate) fn was_polled_early(&self) -> bool {
        self.polled_early.load(Relaxed)
    }

    /// Whether its channel's receiver is dropping this packet. On the CPU where it does.
    pub(crate) fn is_dropping(&self, packet: usize) -> bool {
        self.channel()
            .is_some_and(|channel| channel.is_dropping(packet))
    }

    pub(super) fn info(&self) -> abi::Info {
        abi::Info {
            abi_version: abi::ABI_VERSION,
            family: u32::try_from(family::family_parameter()).unwrap_or(0),
            flow: self.number(),
            has_channel: u32::from(self.channel().is_some()),
            frame_headroom: abi::FRAME_HEADROOM,
            frame_size_min: abi::FRAME_SIZE_MIN,
            frame_size_max: abi::FRAME_SIZE_MAX,
            frames_max: abi::FRAMES_MAX,
            ring_entries_max: abi::RING_ENTRIES_MAX,
            region_size_max: abi::REGION_SIZE_MAX,
            chain_max: abi::CHAIN_MAX,
            copybreak: family::copybreak(),
            reserved: [0; 4],
        }
    }

    /// The flow's counters, and its channel's. Process context.
    pub(crate) fn stats(&self, sk: &Sock) -> abi::Stats {
        let mut stats = abi::Stats::default();
        if sk.is_stream() {
            stream::fill_stats(sk, &mut stats);
            return stats;
        }
        match self.channel() {
            Some(channel) => channel.fill_stats(&self.counters, &mut stats),
            None => self.counters.fill_received(&mut stats),
        }
        stats
    }
}

impl Subject for Flow {
    fn id(&self) -> u32 {
        self.id()
    }

    fn policy(&self) -> &Policy {
        self.policy()
    }

    fn place(&self) -> Option<(u32, u32)> {
        Some((self.channel()?.id(), self.number()))
    }

    fn stats(&self, sk: &Sock) -> abi::Stats {
        self.stats(sk)
    }
}
