// SPDX-License-Identifier: GPL-2.0

//! What was to be reached, and whether it was.

use super::{bytes_of_one, ends, is_plain};
use crate::row::Row;
use std::fmt::Write as _;

/// What a row is of, besides 64 bytes.
struct Case {
    mode: &'static str,
    policy: &'static str,
    offloads: bool,
    many: bool,
}

const fn case(mode: &'static str, policy: &'static str) -> Case {
    Case {
        mode,
        policy,
        offloads: false,
        many: false,
    }
}

const fn to_many(mode: &'static str, policy: &'static str) -> Case {
    Case {
        many: true,
        ..case(mode, policy)
    }
}

const fn offloaded(mode: &'static str, policy: &'static str) -> Case {
    Case {
        offloads: true,
        ..case(mode, policy)
    }
}

/// Goals: what of, which way, and at most so much of what a rival costs.
#[rustfmt::skip]
const GOALS: &[(&str, &str, Case, Case, f64)] = &[
    ("in bulk to one peer", "send", case("kopi_gso_descs", "nft10"), case("sendmmsg", "nft10"), 0.3),
    ("to random peers", "send", to_many("kopi_doorbell", "nft10"), to_many("sendmmsg", "nft10"), 0.85),
    ("in bulk, NIC with segmentation offload", "send", offloaded("kopi_gso", "nft10"), offloaded("udp_segment", "nft10"), 1.2),
    ("in GSO packets", "recv", case("kopi_merged", "nft10"), case("recvmmsg", "nft10"), 0.55),
    ("directly", "send", case("kopi_direct_gso", "nft10_conntrack"), case("sendmmsg", "nft10_conntrack"), 0.2),
    ("directly", "send", case("kopi_direct_gso", "nft10_conntrack"), case("af_xdp_zero_copy", "none"), 1.3),
    ("directly", "send", case("kopi_direct_gso", "none"), case("af_xdp_zero_copy", "none"), 1.2),
    ("directly", "recv", case("kopi_direct_merged", "nft10"), case("recvmmsg", "nft10"), 0.2),
    ("directly", "recv", case("kopi_direct_merged", "nft10"), case("xdp_drop", "none"), 1.6),
    ("directly", "recv", case("kopi_direct_merged", "nft10"), case("af_xdp_copy", "none"), 1.1),
    ("directly", "recv", case("kopi_direct_merged", "none"), case("xdp_drop", "none"), 1.4),
    ("to random peers", "send", to_many("kopi_direct_datagrams", "none"), to_many("sendmmsg", "none"), 0.42),
    ("to random peers", "send", to_many("kopi_direct_datagrams", "none"), to_many("af_xdp_copy", "none"), 1.0),
    ("to random peers", "send", to_many("kopi_direct_datagrams", "nft10"), to_many("sendmmsg", "nft10"), 0.58),
    ("from random peers", "recv", to_many("kopi_direct_datagrams", "none"), to_many("recvmmsg", "none"), 0.4),
    ("from random peers", "recv", to_many("kopi_direct_datagrams", "none"), to_many("af_xdp_copy", "none"), 1.4),
    ("from random peers", "recv", to_many("kopi_direct_datagrams", "nft10"), to_many("recvmmsg", "nft10"), 0.6),
    ("of random clients", "serve", to_many("serve_kopi_direct", "none"), to_many("serve_mmsg", "none"), 0.42),
    ("of random clients", "serve", to_many("serve_kopi_direct", "nft10"), to_many("serve_mmsg", "nft10"), 0.6),
    ("of random clients", "serve", to_many("serve_kopi_direct", "bpf_netfilter"), to_many("serve_mmsg", "bpf_netfilter"), 0.48),
];

/// What a packet of the most flows on one channel may cost, of what one of a single flow does.
const MANY_AT_MOST: f64 = 1.15;
/// What a round trip between polling ends may take of what one by busy-polled UDP does, without what the devices
/// hold packets for (`--nic joined` of qemu/vm).
const TRIP_AT_MOST: f64 = 0.5;
const HELD_NS: f64 = 1e6;
/// Kernel memory that a flow may take beyond what a UDP socket does.
const BYTES_AT_MOST: f64 = 512.0;

/// What was to be reached, and what was.
pub(super) fn goals(rows: &[Row]) -> String {
    let mut text = String::new();
    for (what, direction, ours, theirs, at_most) in GOALS {
        let cost = |case: &Case| {
            rows.iter()
                .find(|row| {
                    row.mode == case.mode
                        && row.direction == *direction
                        && row.offloads == case.offloads
                        && row.queues.is_none()
                        && row.policy == case.policy
                        && row.payload == 64
                        && (row.peers > 1) == case.many
                        && is_plain(row)
                })?
                .insn_per_packet
        };
        let (Some(cost_ours), Some(cost_theirs)) = (cost(ours), cost(theirs)) else {
            continue;
        };
        let ratio = cost_ours / cost_theirs;
        let verdict = verdict(ratio <= *at_most);
        let _ = writeln!(
            text,
            "{direction} 64 bytes {what}: {} ({}) / {} ({}): {cost_ours:.0} / {cost_theirs:.0} = {ratio:.2}, \
             goal {at_most}: {verdict}",
            ours.mode, ours.policy, theirs.mode, theirs.policy
        );
    }
    text
}

/// Whether a goal was.
fn verdict(reached: bool) -> &'static str {
    match reached {
        true => "reached",
        false => "not reached",
    }
}

/// The goals of round trips.
pub(super) fn goals_of_trips(rows: &[Row]) -> String {
    let of = |mode: &str| rows.iter().find(|row| row.mode == mode);
    let (Some(ours), Some(theirs)) = (of("kopi_spin_both"), of("udp_busy_poll_both")) else {
        return String::new();
    };
    let median = |row: &Row| row.median_ns.map(|time| time as f64);
    let mut text = String::new();
    for (what, ours, theirs) in [
        ("instructions", ours.insn_per_packet, theirs.insn_per_packet),
        ("nanoseconds", median(ours), median(theirs)),
    ] {
        let (Some(ours), Some(theirs)) = (ours, theirs) else {
            continue;
        };
        let (ours, theirs) = (ours - HELD_NS, theirs - HELD_NS);
        let ratio = ours / theirs;
        let _ = writeln!(
            text,
            "round trip, both ends polling, {what}: {ours:.0} / {theirs:.0} = {ratio:.2}, goal \
             {TRIP_AT_MOST}: {}",
            verdict(ratio <= TRIP_AT_MOST)
        );
    }
    text
}

/// The goals of many flows on one channel.
pub(super) fn goals_of_many(rows: &[Row]) -> String {
    let mut text = String::new();
    for mode in ["kopi_doorbell", "kopi_direct_datagrams"] {
        let Some((first, last)) = ends(rows, mode) else {
            continue;
        };
        if let (Some(one), Some(many)) = (first.insn_per_packet, last.insn_per_packet) {
            let ratio = many / one;
            let _ = writeln!(
                text,
                "{mode}, a packet of {} flows on one channel, of one of {}: {many:.0} / {one:.0} = \
                 {ratio:.2}, goal {MANY_AT_MOST}: {}",
                last.flows,
                first.flows,
                verdict(ratio <= MANY_AT_MOST)
            );
        }
    }
    if let (Some(flow), Some(socket)) = (
        bytes_of_one(rows, "kopi_doorbell"),
        bytes_of_one(rows, "send"),
    ) {
        let own = flow - socket;
        let _ = writeln!(
            text,
            "kernel memory of an idle flow beyond a UDP socket's: {flow:.0} - {socket:.0} = {own:.0} \
             bytes, goal {BYTES_AT_MOST}: {}",
            verdict(own <= BYTES_AT_MOST)
        );
    }
    text
}
