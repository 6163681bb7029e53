// SPDX-License-Identifier: GPL-2.0

//! The messages of KOPI's netlink family, as uapi/kopi.yaml specifies them.

use crate::attributes::{attributes, Port, Row, Set, Value};
use clap::ValueEnum;
use netlink_packet_core::{parse_u32, DecodeError, Emitable, ParseableParametrized};
use netlink_packet_generic::{GenlFamily, GenlHeader};
use serde::{Serialize, Serializer};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

/// The family's name.
pub(crate) const FAMILY: &str = "kopi";
/// The family's version, which is the specification's, and the group that events come from.
pub(crate) const VERSION: u8 = 1;
/// The multicast group of events.
pub(crate) const EVENTS: &str = "events";
/// Longest path, in bytes.
pub(crate) const PATH_MAX: usize = 4095;
/// Longest name of a device, in bytes.
pub(crate) const DEVICE_MAX: usize = 15;
/// Longest comment of a rule, in bytes.
pub(crate) const COMMENT_MAX: usize = 255;

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
#[repr(u8)]
pub(crate) enum Command {
    /// Asks about the module.
    InfoGet = 1,
    /// Shows flows.
    FlowGet,
    /// Shows channels.
    ChannelGet,
    /// Shows the sums of all flows.
    TotalsGet,
    /// Shows the rules.
    RuleGet,
    /// Adds a rule.
    RuleAdd,
    /// Takes a rule away.
    RuleDel,
    /// Shows what holds for all rules.
    RulesetGet,
    /// Replaces all rules.
    RulesetSet,
    /// Shows the engines.
    EngineGet = 17,
    /// Replaces all engines.
    EngineSet,
    /// Shows the devices that are attached.
    DeviceGet,
    /// Has GSO packets of flows leave by a device's driver.
    DeviceAttach,
    /// Ends that.
    DeviceDetach,
}

/// What the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
#[repr(u8)]
pub(crate) enum Event {
    /// A flow was made.
    FlowOpened = 10,
    /// A flow was bound.
    FlowBound,
    /// A flow was connected.
    FlowConnected,
    /// A flow was closed.
    FlowClosed,
    /// A rule refused bind() or connect(), or stopped a live flow.
    FlowDenied,
    /// A limit refused a flow or a channel.
    Limit,
    /// A flow's RX ring or FILL ring ran out.
    Overrun,
}

impl Event {
    /// The event of a message, if it is one.
    pub(crate) fn of(command: u8) -> Option<Self> {
        Self::value_variants()
            .iter()
            .copied()
            .find(|&event| event as u8 == command)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(
            self.to_possible_value()
                .as_ref()
                .map_or("", |value| value.get_name()),
        )
    }
}

/// The payload of a message: a command, and the bytes of a [`Set`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kopi {
    /// A [`Command`] or an [`Event`].
    pub(crate) command: u8,
    /// Its attributes.
    pub(crate) attributes: Vec<u8>,
}

impl GenlFamily for Kopi {
    fn family_name() -> &'static str {
        FAMILY
    }
    fn command(&self) -> u8 {
        self.command
    }
    fn version(&self) -> u8 {
        VERSION
    }
}

impl Emitable for Kopi {
    fn buffer_len(&self) -> usize {
        self.attributes.len()
    }
    fn emit(&self, buffer: &mut [u8]) {
        buffer[..self.attributes.len()].copy_from_slice(&self.attributes);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Kopi {
    fn parse_with_param(bytes: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        Ok(Self {
            command: header.cmd,
            attributes: bytes.to_vec(),
        })
    }
}

/// What becomes of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// They pass.
    #[default]
    Allow,
    /// They don't; bind() and connect() give EACCES.
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

    fn words(self) -> impl Iterator<Item = &'static str> {
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

attributes! {
    /// The module, and what there is of it in the network namespace.
    Info {
        /// KOPI_ABI_VERSION of the module's uapi/kopi.h.
        1 abi_version: Option<u32>,
        /// The number to give to socket().
        2 address_family: Option<u32>,
        /// Open KOPI sockets.
        3 flows: Option<u32>,
        /// Number of rules.
        4 rules: Option<u32>,
        /// Rises with each change of the rules.
        5 generation: Option<u64>,
        /// Channels that flows use.
        6 channels: Option<u32>,
        /// Devices of type kopimon that are up.
        7 monitors: Option<u32>,
    }
}

attributes! {
    /// Counters of a flow, in datagrams and bytes of payload. Sent are those of a TX ring,
    /// received those of an RX ring; tx-taken is tx-packets and all tx-drop-*, rx-taken is rx-
    /// packets and all rx-drop-*.
    Stats {
        /// Datagrams that the stack took.
        1 tx_packets: Option<u64>,
        /// Their payload.
        2 tx_bytes: Option<u64>,
        /// Of tx-packets, those that were still held by reference when sent.
        3 tx_zerocopy: Option<u64>,
        /// Datagrams taken from the TX ring.
        4 tx_taken: Option<u64>,
        /// EPERM or EACCES by a filter, a cgroup's program or a security module.
        5 tx_drop_denied: Option<u64>,
        /// Denied by a rule of KOPI's.
        6 tx_drop_rule: Option<u64>,
        /// Over the rate that a rule of KOPI's allows.
        7 tx_drop_rate: Option<u64>,
        /// No route to the peer, or its host had reported the port unreachable.
        8 tx_drop_unreachable: Option<u64>,
        /// Longer than a datagram or the path's MTU may be.
        9 tx_drop_too_long: Option<u64>,
        /// No memory, or a queue was full.
        10 tx_drop_no_buffer: Option<u64>,
        /// Descriptors or metadata that make no sense.
        11 tx_drop_invalid: Option<u64>,
        /// Any other error of the stack.
        12 tx_drop_other: Option<u64>,
        /// Datagrams delivered to the RX ring.
        13 rx_packets: Option<u64>,
        /// Their payload.
        14 rx_bytes: Option<u64>,
        /// Datagrams that reached the flow.
        15 rx_taken: Option<u64>,
        /// The RX ring had no room.
        16 rx_drop_ring_full: Option<u64>,
        /// The FILL ring had too few frames.
        17 rx_drop_no_frame: Option<u64>,
        /// More frames than a packet can have.
        18 rx_drop_too_long: Option<u64>,
        /// Denied by a rule of KOPI's.
        19 rx_drop_rule: Option<u64>,
        /// Over the rate that a rule of KOPI's allows.
        20 rx_drop_rate: Option<u64>,
    }
}

attributes! {
    /// One of the four rings of a channel.
    Ring {
        /// Number of entries.
        1 size: Option<u32>,
        /// Free-running index of the next entry to be written.
        2 producer: Option<u32>,
        /// Free-running index of the next entry to be read.
        3 consumer: Option<u32>,
    }
}

attributes! {
    /// Memory that is mapped into a process, and the flows that use it.
    Channel {
        /// The channel's number in this network namespace.
        1 id: Option<u32>,
        /// Number of flows on it.
        2 flows: Option<u32>,
        /// Bytes of a frame, its headroom included.
        3 frame_size: Option<u32>,
        /// Number of frames.
        4 frame_count: Option<u32>,
        /// Bytes of the region that is mapped.
        5 region_size: Option<u64>,
        /// KOPI_CHANNEL_* of uapi/kopi.h.
        6 flags: Option<u32>,
        /// The TX ring.
        7 tx: Option<Ring>,
        /// The COMPLETION ring.
        8 completion: Option<Ring>,
        /// The FILL ring.
        9 fill: Option<Ring>,
        /// The RX ring.
        10 rx: Option<Ring>,
        /// Descriptors that the stack has not released.
        11 tx_pending: Option<u32>,
        /// TX descriptors that were refused.
        12 tx_invalid: Option<u64>,
        /// FILL entries that are no frame.
        13 fill_invalid: Option<u64>,
        /// Times that an index of the program made no sense.
        14 ring_broken: Option<u64>,
        /// Owner of the flow that it was made for.
        15 uid: Option<u32>,
        /// Nanoseconds that engines have worked for it.
        16 engine_time: Option<u64>,
    }
}

attributes! {
    /// A KOPI socket, and the process that it is of.
    Flow {
        /// The flow's number in this network namespace; not used again soon.
        1 id: Option<u32>,
        /// Local address, of 4 or 16 bytes; zeroes while it isn't bound.
        2 local_address: Option<IpAddr>,
        /// Local port; 0 while it isn't bound.
        3 local_port: Option<Port>,
        /// Peer's address, if it is connected.
        4 remote_address: Option<IpAddr>,
        /// Peer's port, if it is connected.
        5 remote_port: Option<Port>,
        /// Device that it is bound to, or 0.
        6 ifindex: Option<u32>,
        /// User of the process, as of the reader's user namespace; in an event as of that of the
        /// network namespace.
        7 uid: Option<u32>,
        /// Group of the process, as its user is.
        8 gid: Option<u32>,
        /// The process, as of the reader's pid namespace; 0 if it isn't there. In an event as of the
        /// initial one, or of its own where the network namespace isn't of the initial user namespace.
        9 pid: Option<u32>,
        /// The name that the process gives itself.
        10 command: Option<String>,
        /// Path of the program's file when the process was seen; empty where it is too long.
        11 exe: Option<String>,
        /// Number of the device that the program's file is on.
        12 exe_device: Option<u32>,
        /// Inode of the program's file.
        13 exe_inode: Option<u64>,
        /// Number of the socket's cgroup, that of its folder's inode.
        14 cgroup: Option<u64>,
        /// Path of the socket's cgroup, as the reader sees it; empty where it is too long.
        15 cgroup_path: Option<String>,
        /// Number of its channel; not there without one.
        16 channel: Option<u32>,
        /// The flow's number on its channel.
        17 number: Option<u32>,
        /// What became of its packets.
        18 stats: Option<Stats>,
        /// Handle of the rule that says what becomes of what it sends, if one does.
        19 rule_out: Option<u32>,
        /// Handle of the rule that says what becomes of what it receives, if one does.
        20 rule_in: Option<u32>,
        /// Directions in which nothing of it passes.
        21 denied: Option<Directions>,
        /// In an event, handle of the rule that did it; 0 for the default.
        22 rule: Option<u32>,
        /// In an event, the sysctl below net.kopi whose limit refused something.
        23 limit: Option<String>,
        /// The direction, in an event.
        24 direction: Option<Directions>,
        /// The TX path of its last packet by an attached device; absent if there was none.
        25 path: Option<Path>,
        /// Number of that device.
        26 path_ifindex: Option<u32>,
        /// The RX path of its packets; of several attached devices that of the best, or of the
        /// one that it is bound to, and not there without any.
        27 receive_path: Option<ReceivePath>,
    }
}

attributes! {
    /// All that happened in the network namespace.
    Totals {
        /// Sum of all flows, closed ones included.
        1 stats: Option<Stats>,
        /// Flows that were ever opened.
        2 flows_opened: Option<u64>,
        /// Calls of bind() and connect(), and live flows, that a rule stopped.
        3 flows_denied: Option<u64>,
    }
}

attributes! {
    /// Says what becomes of the packets of flows that match all that it names. The first that
    /// matches decides.
    Rule {
        /// Its number, by which it is named; the kernel chooses one that was not used before.
        1 handle: Option<u32>,
        /// On adding, the handle of the rule that it is put before; else it is the last.
        2 before: Option<u32>,
        /// First of the users; alone it is the only one.
        3 uid_min: Option<u32>,
        /// Last of the users.
        4 uid_max: Option<u32>,
        /// The process's group.
        5 gid: Option<u32>,
        /// A cgroup, by its path in the hierarchy of the requester; its subtree
        /// matches, too.
        6 cgroup_path: Option<String>,
        /// Number of the cgroup, when it is shown.
        7 cgroup: Option<u64>,
        /// The program's file, by an absolute path that is looked up when the rule is added. A
        /// process that renames itself, and a file that is moved, match still; a file that comes
        /// in its place doesn't.
        8 exe: Option<String>,
        /// Number of the device that the file is on, when it is shown.
        9 exe_device: Option<u32>,
        /// Inode of the file, when it is shown.
        10 exe_inode: Option<u64>,
        /// When it is shown, there is another file in its place, or none.
        11 exe_stale: bool,
        /// IPPROTO_*; flows are of IPPROTO_UDP.
        12 protocol: Option<u8>,
        /// First of the local ports; alone it is the only one.
        13 local_port_min: Option<u16>,
        /// Last of the local ports.
        14 local_port_max: Option<u16>,
        /// Address of the peer, of 4 or 16 bytes; IPv4 matches mapped addresses, too.
        15 remote_address: Option<IpAddr>,
        /// How many bits of the address count; all, if it isn't there.
        16 remote_prefix: Option<u8>,
        /// First of the peer's ports; alone it is the only one.
        17 remote_port_min: Option<u16>,
        /// Last of the peer's ports.
        18 remote_port_max: Option<u16>,
        /// Name of the device that the flow is bound to.
        19 device: Option<String>,
        /// Directions that it is about; both, if it isn't there.
        20 direction: Option<Directions>,
        /// Whether packets pass; they do, if it is not there.
        21 verdict: Option<Verdict>,
        /// Mark of what is sent, as by SO_MARK.
        22 mark: Option<u32>,
        /// Priority, or class of a qdisc, of what is sent, as by SO_PRIORITY.
        23 priority: Option<u32>,
        /// Bytes of payload a second that pass.
        24 rate_bytes: Option<u64>,
        /// Datagrams a second that pass.
        25 rate_packets: Option<u64>,
        /// Bytes or datagrams that may pass at once; a tenth of a second's, if it isn't there.
        26 burst: Option<u64>,
        /// The rate is for all flows together, and not for each.
        27 shared: bool,
        /// A comment of the requester's.
        28 comment: Option<String>,
        /// Datagrams that it decided about.
        29 packets: Option<u64>,
        /// Their payload.
        30 bytes: Option<u64>,
        /// Calls of bind() and connect() that it refused, and live flows that it stopped.
        31 denied: Option<u64>,
        /// How many times an engine's budget a channel has, for what this rule decides about; 1, if it
        /// isn't there.
        32 weight: Option<u32>,
    }
}

attributes! {
    /// All rules of the network namespace.
    Ruleset {
        /// What becomes of flows that no rule matches.
        1 default: Option<Verdict>,
        /// The rules, in their order.
        2 rule: Vec<Rule>,
        /// Rises with each change. In a request it must be the present one, or nothing is changed
        /// and the error is EAGAIN.
        3 generation: Option<u64>,
        /// The rules are checked, and not put in force.
        4 check: bool,
        /// Handle of the rule that was added.
        5 handle: Option<u32>,
    }
}

attributes! {
    /// A kernel thread that polls the TX rings of busy channels, of all network namespaces.
    Engine {
        /// Number of the CPU that it runs on.
        1 cpu: Option<u32>,
        /// Microseconds for which it polls an empty ring before the doorbell is needed.
        2 idle: Option<u64>,
        /// Bytes that it sends for one channel before it turns to the next.
        3 budget: Option<u32>,
        /// Channels that it polls now.
        4 channels: Option<u32>,
        /// Visits of channels that had something to send.
        5 visits: Option<u64>,
        /// Times that it was woken, having had no channel.
        6 wakeups: Option<u64>,
        /// Nanoseconds that it worked for channels.
        7 busy: Option<u64>,
        /// Nanoseconds that it did not sleep.
        8 awake: Option<u64>,
    }
}

attributes! {
    /// All engines of the machine.
    Engines {
        /// Number of a CPU that is to have one; without any there are none.
        1 cpu: Vec<u32>,
        /// As of each engine; 1000, if it isn't there.
        2 idle: Option<u64>,
        /// As of each engine; 65536, if it isn't there.
        3 budget: Option<u32>,
    }
}

/// The TX path of flows' packets by a device, and why. Values from datagram on are of flows only.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub(crate) enum Path {
    /// Cut up, and given to the driver.
    Direct,
    /// By the stack, since no XDP program has the driver take frames.
    NoProgram,
    /// By the stack, since tc has filters or programs at the device's egress.
    Tc,
    /// By the stack, since another hook of netfilter's egress comes later.
    Hook,
    /// By the stack, since a packet socket is to see the packets.
    Tap,
    /// By the stack, since a device of type kopimon is up.
    Monitor,
    /// By the stack, since a qdisc holds packets, or lets none pass it by.
    Qdisc,
    /// By the stack, since the device is down, has no carrier, or is not there, as while the machine is suspended.
    Down,
    /// By the stack, since the driver took no frames for a second; a minute later it is tried again.
    Refused,
    /// By the stack, since the last one was no GSO packet.
    Datagram,
    /// By the stack, since it was not UDP any more, but IPsec's or a tunnel's.
    Transformed,
    /// By the stack, since it had options or the tag of a VLAN, or its time was to be taken or kept.
    Extras,
    /// By the stack, which had earlier ones of the flow for too long; a second later it is tried again.
    Behind,
}

impl fmt::Display for Path {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Direct => "direct",
            Self::NoProgram => "by the stack: no XDP program",
            Self::Tc => "by the stack: tc at its egress",
            Self::Hook => "by the stack: a later egress hook of netfilter",
            Self::Tap => "by the stack: a packet socket looks",
            Self::Monitor => "by the stack: a monitor is up",
            Self::Qdisc => "by the stack: a qdisc holds packets, or lets none pass",
            Self::Down => "by the stack: the device is down",
            Self::Refused => "by the stack: the driver took no frames",
            Self::Datagram => "by the stack: no GSO packet",
            Self::Transformed => "by the stack: IPsec, or a tunnel",
            Self::Extras => "by the stack: options, a VLAN, or time stamps",
            Self::Behind => "by the stack: earlier packets are on their way",
        })
    }
}

/// The RX path of flows' packets from a device, and why; no-gro is of flows only.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub(crate) enum ReceivePath {
    /// By its XDP program, which redirects them to be coalesced to GRO packets.
    Direct,
    /// By the stack, since its XDP program is not one that redirects them.
    NoProgram,
    /// By the stack, since the device that they are redirected to is down.
    Down,
    /// By the stack, since the device takes the tags of VLANs off, which its program can't see then.
    Vlan,
    /// By the stack, since the flow didn't ask for GSO packets, or has no port.
    NoGro,
}

impl fmt::Display for ReceivePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Direct => "direct",
            Self::NoProgram => "by the stack: no XDP program that redirects",
            Self::Down => "by the stack: the device that is redirected to is down",
            Self::Vlan => {
                "by the stack: the device takes VLANs' tags off (ethtool -K … rxvlan off)"
            }
            Self::NoGro => "by the stack: the flow takes no GRO packets",
        })
    }
}

/// Ways are their numbers on the wire.
macro_rules! way {
    ($type:ty) => {
        impl Value for $type {
            fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
                let number = parse_u32(bytes)?;
                let mut known = Self::value_variants().iter().copied();
                known
                    .find(|&way| way as u32 == number)
                    .ok_or_else(|| format!("{number} is no path that this program knows").into())
            }
            fn write(&self) -> Vec<u8> {
                (*self as u32).write()
            }
            fn text(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    };
}
way!(Path);
way!(ReceivePath);

attributes! {
    /// A network device whose driver is given the datagrams of GSO packets.
    Device {
        /// Number of the device.
        1 ifindex: Option<u32>,
        /// The TX path of GSO packets by it now, and why.
        2 path: Option<Path>,
        /// Datagrams that the driver took.
        3 packets: Option<u64>,
        /// GSO packets of them.
        4 gso_packets: Option<u64>,
        /// GSO packets that left by the stack.
        5 passed: Option<u64>,
        /// Datagrams that were dropped; too many waited, or the device went down.
        6 dropped: Option<u64>,
        /// In a request, the address of struct kopi_port_map in the asking process: shared memory that
        /// the device's XDP program has, too, which redirects what that names. Without it the
        /// device's packets come by the stack.
        7 port_map: Option<u64>,
        /// The RX path of flows' packets from it now, and why.
        8 receive_path: Option<ReceivePath>,
        /// Datagrams that were redirected.
        9 received: Option<u64>,
        /// GSO packets that were made of them.
        10 gro_packets: Option<u64>,
        /// Datagrams that were redirected and dropped, since there was no memory.
        11 receive_dropped: Option<u64>,
    }
}

impl Stats {
    /// Drops by direction and reason, those of zero included.
    pub(crate) fn drops(&self) -> impl Iterator<Item = (&'static str, String, u64)> {
        self.rows().into_iter().filter_map(
            |Row {
                 attribute, number, ..
             }| {
                let (way, reason) = attribute.name.split_once("_drop_")?;
                let direction = if way == "tx" { "out" } else { "in" };
                Some((direction, reason.replace('_', "-"), number?))
            },
        )
    }
}

impl Rule {
    /// Without what only the kernel says of it.
    pub(crate) fn input(&self) -> Self {
        Self {
            handle: None,
            cgroup: None,
            exe_device: None,
            exe_inode: None,
            exe_stale: false,
            packets: None,
            bytes: None,
            denied: None,
            ..self.clone()
        }
    }
}

impl Ring {
    /// How many entries wait for their reader.
    pub(crate) fn filled(&self) -> u32 {
        self.producer
            .unwrap_or(0)
            .wrapping_sub(self.consumer.unwrap_or(0))
    }
}

impl Flow {
    /// Its own address, once it is bound.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        let port = self.local_port?.0;
        (port != 0).then_some(SocketAddr::new(self.local_address?.to_canonical(), port))
    }

    /// Its peer's address, if it is connected.
    pub(crate) fn remote(&self) -> Option<SocketAddr> {
        let port = self.remote_port?.0;
        (port != 0).then_some(SocketAddr::new(self.remote_address?.to_canonical(), port))
    }

    /// The name of its program, without the folder.
    pub(crate) fn program(&self) -> Option<&str> {
        let exe = self.exe.as_deref().filter(|exe| !exe.is_empty());
        exe.map(|exe| exe.rsplit('/').next().unwrap_or(exe))
            .or(self.command.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Attribute;
    use netlink_packet_core::{DefaultNla, Parseable};
    use proptest::prelude::*;
    use serde_norway::Value as Yaml;

    fn specification() -> Yaml {
        let text = include_str!("../../../uapi/kopi.yaml");
        serde_norway::from_str(text).unwrap()
    }

    fn entries(yaml: &Yaml) -> impl Iterator<Item = &Yaml> {
        yaml.as_sequence().unwrap().iter()
    }

    fn text<'a>(yaml: &'a Yaml, key: &str) -> &'a str {
        yaml.get(key).and_then(Yaml::as_str).unwrap_or_default()
    }

    fn names(yaml: &Yaml) -> Vec<String> {
        let name = |entry: &Yaml| {
            entry
                .as_str()
                .map_or_else(|| text(entry, "name").to_owned(), str::to_owned)
        };
        entries(yaml).map(name).collect()
    }

    fn words(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Compares a set with the specification's: numbers, names, words, and how values are written.
    fn compare<S: Set>(name: &str) {
        let specification = specification();
        let set = entries(&specification["attribute-sets"])
            .find(|set| text(set, "name") == name)
            .unwrap();
        assert_eq!(
            names(&set["attributes"]).len(),
            S::ATTRIBUTES.len(),
            "{name}"
        );
        for ((number, spec), attribute) in (1..).zip(entries(&set["attributes"])).zip(S::ATTRIBUTES)
        {
            let what = format!("{name} {}", text(spec, "name"));
            assert_eq!(
                (attribute.number, &*attribute.spec_name()),
                (number, text(spec, "name")),
                "{what}"
            );
            assert_eq!(words(attribute.doc), words(text(spec, "doc")), "{what}");
            let nested = text(spec, "nested-attributes");
            let inner =
                entries(&specification["attribute-sets"]).find(|set| text(set, "name") == nested);
            let inner = inner.map_or_else(Vec::new, |set| names(&set["attributes"]));
            assert_eq!(
                attribute
                    .set
                    .iter()
                    .map(Attribute::spec_name)
                    .collect::<Vec<_>>(),
                inner,
                "{what}"
            );

            let (values, shown): (Vec<Vec<u8>>, &str) = match text(spec, "type") {
                "nest" => continue,
                "flag" => (vec![vec![]], "yes"),
                "string" => (vec![b"x y\0".to_vec()], "x y"),
                "binary" => (vec![vec![192, 0, 2, 1]], "192.0.2.1"),
                "u8" => (vec![vec![1]], "1"),
                "u16" if text(spec, "byte-order") == "big-endian" => (vec![vec![0, 1]], "1"),
                "u16" => (vec![1_u16.to_ne_bytes().to_vec()], "1"),
                "u32" => {
                    let shown = match text(spec, "enum") {
                        "direction" => "out",
                        "verdict" => "deny",
                        "path" => "by the stack: no XDP program",
                        "receive-path" => "by the stack: no XDP program that redirects",
                        _ => "1",
                    };
                    (vec![1_u32.to_ne_bytes().to_vec()], shown)
                }
                "uint" => (
                    vec![1_u32.to_ne_bytes().to_vec(), 1_u64.to_ne_bytes().to_vec()],
                    "1",
                ),
                other => panic!("{what} is of type {other}"),
            };
            for value in &values {
                let parsed = S::parse(&bytes(&[DefaultNla::new(number, value.clone())])).unwrap();
                let rows = parsed.rows();
                // What can be there many times has no line of its own.
                let lines = usize::from(spec.get("multi-attr").is_none());
                assert_eq!(
                    rows.iter().map(|row| &*row.text).collect::<Vec<_>>(),
                    [shown][..lines],
                    "{what}"
                );
                assert_eq!(
                    parsed.to_bytes(),
                    bytes(&[DefaultNla::new(number, values[0].clone())]),
                    "{what}"
                );
            }
            if !matches!(text(spec, "type"), "flag" | "string") {
                assert!(
                    S::parse(&bytes(&[DefaultNla::new(number, vec![0; 3])])).is_err(),
                    "{what}"
                );
            }
        }
    }

    fn bytes(attributes: &[DefaultNla]) -> Vec<u8> {
        let mut bytes = vec![0; attributes.buffer_len()];
        attributes.emit(&mut bytes);
        bytes
    }

    #[test]
    fn attributes_are_those_of_the_specification() {
        compare::<Info>("info");
        compare::<Stats>("stats");
        compare::<Ring>("ring");
        compare::<Channel>("channel");
        compare::<Flow>("flow");
        compare::<Totals>("totals");
        compare::<Rule>("rule");
        compare::<Ruleset>("ruleset");
        compare::<Engine>("engine");
        compare::<Engines>("engines");
        compare::<Device>("device");
        let specification = specification();
        let sets =
            entries(&specification["attribute-sets"]).filter(|set| set.get("subset-of").is_none());
        assert_eq!(sets.count(), 11);
    }

    fn named<E: ValueEnum>(entry: &E) -> String {
        entry.to_possible_value().unwrap().get_name().to_owned()
    }

    #[test]
    fn commands_and_events_are_those_of_the_specification() {
        let specification = specification();
        let commands = Command::value_variants()
            .iter()
            .map(|command| (*command as u8, named(command)));
        let events = Event::value_variants()
            .iter()
            .map(|event| (*event as u8, named(event) + "-ntf"));
        let mut all = commands.chain(events).collect::<Vec<_>>();
        all.sort();
        let specified = names(&specification["operations"]["list"]);
        assert_eq!(all, (1..).zip(specified).collect::<Vec<_>>());
        assert_eq!(names(&specification["mcast-groups"]["list"]), [EVENTS]);
        assert_eq!(text(&specification, "name"), FAMILY);
        assert!(specification.get("version").is_none() && VERSION == 1);
    }

    #[test]
    fn definitions_are_those_of_the_specification() {
        let specification = specification();
        let of = |name: &str| {
            entries(&specification["definitions"]).find(|entry| text(entry, "name") == name)
        };
        assert_eq!(of("file-path-max").unwrap()["value"], Yaml::from(PATH_MAX));
        assert_eq!(of("device-max").unwrap()["value"], Yaml::from(DEVICE_MAX));
        assert_eq!(
            names(&of("direction").unwrap()["entries"]),
            Directions::BOTH.words().collect::<Vec<_>>()
        );
        assert_eq!(
            names(&of("verdict").unwrap()["entries"]),
            [Verdict::Allow, Verdict::Deny].map(|verdict| verdict.to_string())
        );
        assert_eq!(
            names(&of("path").unwrap()["entries"]),
            Path::value_variants().iter().map(named).collect::<Vec<_>>()
        );
        assert_eq!(
            names(&of("receive-path").unwrap()["entries"]),
            ReceivePath::value_variants()
                .iter()
                .map(named)
                .collect::<Vec<_>>()
        );
        let rule = entries(&specification["attribute-sets"])
            .find(|set| text(set, "name") == "rule")
            .unwrap();
        let comment = entries(&rule["attributes"])
            .find(|entry| text(entry, "name") == "comment")
            .unwrap();
        assert_eq!(comment["checks"]["max-len"], Yaml::from(COMMENT_MAX));
    }

    fn flow() -> Flow {
        Flow {
            id: Some(7),
            local_address: Some(IpAddr::from([0; 16])),
            local_port: Some(Port(5432)),
            exe: Some("/usr/bin/postgres".to_owned()),
            cgroup: Some(1 << 40),
            stats: Some(Stats {
                tx_packets: Some(1 << 33),
                rx_drop_no_frame: Some(4),
                ..Stats::default()
            }),
            denied: Some(Directions::IN),
            ..Flow::default()
        }
    }

    #[test]
    fn nests_and_long_numbers_come_back() {
        assert_eq!(Flow::parse(&flow().to_bytes()).unwrap(), flow());
        let rules = Ruleset {
            rule: vec![
                Rule::default(),
                Rule {
                    shared: true,
                    ..Rule::default()
                },
            ],
            ..Ruleset::default()
        };
        assert_eq!(Ruleset::parse(&rules.to_bytes()).unwrap(), rules);
    }

    #[test]
    fn what_is_not_known_is_passed_over() {
        let with_more = [
            bytes(&[DefaultNla::new(999, vec![1, 2, 3])]),
            flow().to_bytes(),
        ]
        .concat();
        assert_eq!(Flow::parse(&with_more).unwrap(), flow());
    }

    #[test]
    fn a_part_of_a_message_is_an_error_or_less() {
        let all = flow().to_bytes();
        for end in 0..all.len() {
            if let Ok(part) = Flow::parse(&all[..end]) {
                assert_ne!(part, flow());
            }
        }
    }

    #[test]
    fn rings_go_round() {
        let ring = Ring {
            size: Some(8),
            producer: Some(3),
            consumer: Some(u32::MAX),
        };
        assert_eq!(ring.filled(), 4);
    }

    #[test]
    fn drops_have_reasons() {
        let drops = flow().stats.unwrap().drops().collect::<Vec<_>>();
        assert_eq!(drops, [("in", "no-frame".to_owned(), 4)]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_understood_or_not(bytes: Vec<u8>) {
            let _ = Flow::parse(&bytes);
            let _ = Ruleset::parse(&bytes);
            let _ = Channel::parse(&bytes);
        }

        #[test]
        fn any_change_of_a_message_is_understood_or_not(place in 0..200_usize, byte: u8) {
            let mut bytes = flow().to_bytes();
            let length = bytes.len();
            bytes[place % length] = byte;
            let _ = Flow::parse(&bytes).map(|flow| flow.rows().len());
        }
    }
}
