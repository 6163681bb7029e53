// SPDX-License-Identifier: GPL-2.0

//! Rules, and what they decide about packets.

use crate::attributes::{attributes, Value};
use clap::ValueEnum;
use netlink_packet_core::{parse_u32, DecodeError};
use serde::{Serialize, Serializer};
use std::{fmt, net::IpAddr};

/// Longest path, in bytes.
pub(crate) const PATH_MAX: usize = 4095;
/// Longest name of a device, in bytes.
pub(crate) const DEVICE_MAX: usize = 15;
/// Longest comment of a rule, in bytes.
pub(crate) const COMMENT_MAX: usize = 255;

attributes! {
    /// A rule decides about the packets of flows that match all its conditions. The first matching
    /// rule decides.
    Rule {
        /// Number of the rule, by which requests name it; the kernel chooses one that was not used
        /// before.
        1 handle: Option<u32>,
        /// In a request to add a rule, handle of the rule before which it is inserted; by default
        /// it becomes the last.
        2 before: Option<u32>,
        /// First user of a range; without uid-max the only one.
        3 uid_min: Option<u32>,
        /// Last user of the range.
        4 uid_max: Option<u32>,
        /// The process's group.
        5 gid: Option<u32>,
        /// Path of a cgroup in the requester's cgroup namespace; cgroups below it match, too.
        6 cgroup_path: Option<String>,
        /// In an answer, id of the cgroup.
        7 cgroup: Option<u64>,
        /// Absolute path of the program's file, which is looked up when the rule is added. A
        /// process that changes its name still matches, and so does a file that is moved. A file
        /// that replaces it doesn't match.
        8 exe: Option<String>,
        /// In an answer, number of the device with the file.
        9 exe_device: Option<u32>,
        /// In an answer, inode of the file.
        10 exe_inode: Option<u64>,
        /// In an answer: the path leads to another file now, or to none.
        11 exe_stale: bool,
        /// IPPROTO_*; flows have IPPROTO_UDP or IPPROTO_TCP.
        12 protocol: Option<u8>,
        /// First local port of a range; without local-port-max the only one.
        13 local_port_min: Option<u16>,
        /// Last local port of the range.
        14 local_port_max: Option<u16>,
        /// The peer's address, of 4 or 16 bytes; an IPv4 address matches the IPv4-mapped address,
        /// too.
        15 remote_address: Option<IpAddr>,
        /// Length of the address's prefix in bits; by default all bits.
        16 remote_prefix: Option<u8>,
        /// First remote port of a range; without remote-port-max the only one.
        17 remote_port_min: Option<u16>,
        /// Last remote port of the range.
        18 remote_port_max: Option<u16>,
        /// Name of the device to which the flow is bound.
        19 device: Option<String>,
        /// Directions to which the rule applies; by default both.
        20 direction: Option<Directions>,
        /// Whether packets pass; by default they do.
        21 verdict: Option<Verdict>,
        /// Mark of outgoing packets, as SO_MARK sets it.
        22 mark: Option<u32>,
        /// Priority or qdisc class of outgoing packets, as SO_PRIORITY sets it.
        23 priority: Option<u32>,
        /// Bytes of payload that pass per second.
        24 rate_bytes: Option<u64>,
        /// Datagrams that pass per second.
        25 rate_packets: Option<u64>,
        /// Bytes or datagrams that may pass at once; by default the amount of a tenth of a second.
        26 burst: Option<u64>,
        /// The rate applies to all flows together, and not to each one.
        27 shared: bool,
        /// A comment of the requester's.
        28 comment: Option<String>,
        /// Number of datagrams about which the rule decided.
        29 packets: Option<u64>,
        /// Their payload, in bytes.
        30 bytes: Option<u64>,
        /// Number of calls that the rule refused, of flows that it stopped, once for each direction, and
        /// of a few packets, as those of which no process is known.
        31 denied: Option<u64>,
        /// Multiple of an engine's budget that a channel gets for packets about which this rule
        /// decides; by default 1.
        32 weight: Option<u32>,
        /// In an answer: the path leads to another cgroup now, or to none.
        33 cgroup_stale: bool,
    }
}

attributes! {
    /// All rules of the network namespace.
    Ruleset {
        /// The decision about flows that match no rule.
        1 default: Option<Verdict>,
        /// The rules, in their order.
        2 rule: Vec<Rule>,
        /// A number that grows with each change. In a request it must be the current one; otherwise
        /// nothing is changed, and the error is EAGAIN.
        3 generation: Option<u64>,
        /// The rules are only checked, and don't take effect. The answer has the generation that they would
        /// make: the current one if they are in force already.
        4 check: bool,
        /// Handle of the rule that was added.
        5 handle: Option<u32>,
        /// 1 if the rules judge ordinary sockets of UDP and TCP, too; else 0. Without it, a request
        /// leaves that as it is. Turning it on or off takes CAP_NET_ADMIN in the initial user
        /// namespace; on is refused with EOPNOTSUPP as long as the hooks aren't loaded, which
        /// `kopictl rule enforce on` does.
        6 enforce: Option<u32>,
        /// Number of network namespaces whose rules judge ordinary sockets. Only shown to root of
        /// the initial user namespace.
        7 enforcing: Option<u32>,
        /// The request has no rules: those in force stay, and so does the default, if the request
        /// has none.
        8 keep: bool,
    }
}

impl Rule {
    /// What became of what it names, if that isn't what its path leads to any more.
    pub(crate) fn stale(&self) -> Option<&'static str> {
        match (self.exe_stale, self.cgroup_stale) {
            (true, false) => Some("the program's file was replaced"),
            (false, true) => Some("the cgroup was removed"),
            (true, true) => Some("the program's file was replaced, and the cgroup was removed"),
            (false, false) => None,
        }
    }
}

/// What becomes of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// They pass.
    #[default]
    Allow,
    /// They don't pass; bind() and connect() fail with EACCES.
    Deny,
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        })
    }
}

impl Value for Verdict {
    fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        match parse_u32(bytes)? {
            0 => Ok(Self::Allow),
            1 => Ok(Self::Deny),
            other => Err(format!("{other} is no verdict that this program knows").into()),
        }
    }
    fn write(&self) -> Vec<u8> {
        (*self as u32).write()
    }
    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// Ways of a packet, seen from the flow: a set of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Directions(pub(crate) u32);

impl Directions {
    /// Sent by the flow.
    pub(crate) const OUT: Self = Self(1);
    /// Received by the flow.
    pub(crate) const IN: Self = Self(2);
    /// Both.
    pub(crate) const BOTH: Self = Self(3);

    pub(super) fn words(self) -> impl Iterator<Item = &'static str> {
        [(Self::OUT, "out"), (Self::IN, "in")]
            .into_iter()
            .filter(move |(way, _)| self.0 & way.0 != 0)
            .map(|(_, word)| word)
    }
}

impl fmt::Display for Directions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return out.write_str("none");
        }
        out.write_str(&self.words().collect::<Vec<_>>().join("+"))
    }
}

impl Serialize for Directions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.words())
    }
}

impl Value for Directions {
    fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        parse_u32(bytes).map(Self)
    }
    fn write(&self) -> Vec<u8> {
        self.0.write()
    }
    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }
}
