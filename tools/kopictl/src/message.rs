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
    /// Shows the module.
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
    /// Shows the default, and the generation of the rules.
    RulesetGet,
    /// Replaces all rules.
    RulesetSet,
    /// Shows the engines.
    EngineGet = 17,
    /// Replaces all engines.
    EngineSet,
    /// Shows the attached devices.
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
    /// A flow was opened.
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
    /// A rule that is enforced refused an ordinary socket a call or packets.
    SocketDenied = 22,
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
    /// The module, and its objects in the network namespace.
    Info {
        /// KOPI_ABI_VERSION of the module's uapi/kopi.h.
        1 abi_version: Option<u32>,
        /// The address family's number, for socket().
        2 address_family: Option<u32>,
        /// Number of open KOPI sockets.
        3 flows: Option<u32>,
        /// Number of rules.
        4 rules: Option<u32>,
        /// A number that grows with each change of the rules.
        5 generation: Option<u64>,
        /// Number of channels that flows use.
        6 channels: Option<u32>,
        /// Number of devices of type kopimon that are up.
        7 monitors: Option<u32>,
    }
}

attributes! {
    /// Counters of a flow, in datagrams and bytes of payload. Sent are those of a TX ring,
    /// received those of an RX ring; tx-taken is tx-packets and all tx-drop-*, rx-taken is rx-
    /// packets and all rx-drop-*.
    Stats {
        /// Datagrams that the stack accepted.
        1 tx_packets: Option<u64>,
        /// Their payload, in bytes.
        2 tx_bytes: Option<u64>,
        /// Those of tx-packets whose pages the stack still referenced after sending.
        3 tx_zerocopy: Option<u64>,
        /// Datagrams taken from the TX ring; of a channel that only sends, also those that sendmsg()
        /// sent by the channel's routes.
        4 tx_taken: Option<u64>,
        /// Dropped: EPERM or EACCES of a filter, a cgroup's program or a security module.
        5 tx_drop_denied: Option<u64>,
        /// Dropped: a rule of KOPI denied them.
        6 tx_drop_rule: Option<u64>,
        /// Dropped: they exceeded the rate that a rule of KOPI allows.
        7 tx_drop_rate: Option<u64>,
        /// Dropped: no route to the peer, or its host had reported the port as unreachable.
        8 tx_drop_unreachable: Option<u64>,
        /// Dropped: longer than a datagram can be, or than the path's MTU allows.
        9 tx_drop_too_long: Option<u64>,
        /// Dropped: memory was short, or a queue was full.
        10 tx_drop_no_buffer: Option<u64>,
        /// Dropped: the descriptors or metadata were invalid.
        11 tx_drop_invalid: Option<u64>,
        /// Dropped: any other error of the stack.
        12 tx_drop_other: Option<u64>,
        /// Datagrams delivered to the RX ring.
        13 rx_packets: Option<u64>,
        /// Their payload, in bytes.
        14 rx_bytes: Option<u64>,
        /// Datagrams that reached the flow.
        15 rx_taken: Option<u64>,
        /// Dropped: the RX ring had no room.
        16 rx_drop_ring_full: Option<u64>,
        /// Dropped: the FILL ring had too few frames.
        17 rx_drop_no_frame: Option<u64>,
        /// Dropped: they needed more frames than a packet can have.
        18 rx_drop_too_long: Option<u64>,
        /// Dropped: a rule of KOPI denied them.
        19 rx_drop_rule: Option<u64>,
        /// Dropped: they exceeded the rate that a rule of KOPI allows.
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
        /// Number of flows on the channel.
        2 flows: Option<u32>,
        /// Size of a frame in bytes, including its headroom.
        3 frame_size: Option<u32>,
        /// Number of frames.
        4 frame_count: Option<u32>,
        /// Size of the mapped region in bytes.
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
        /// FILL entries that named no frame.
        13 fill_invalid: Option<u64>,
        /// Number of times that an index of the program was invalid.
        14 ring_broken: Option<u64>,
        /// User that owned the flow for which the channel was made.
        15 uid: Option<u32>,
        /// Nanoseconds that engines have spent on the channel.
        16 engine_time: Option<u64>,
    }
}

attributes! {
    /// A KOPI socket, and the process that uses it.
    Flow {
        /// The flow's number in this network namespace, which is not used again soon.
        1 id: Option<u32>,
        /// Local address of 4 or 16 bytes; zeroes if the flow isn't bound.
        2 local_address: Option<IpAddr>,
        /// Local port; 0 if the flow isn't bound.
        3 local_port: Option<Port>,
        /// The peer's address, if the flow is connected.
        4 remote_address: Option<IpAddr>,
        /// The peer's port, if the flow is connected.
        5 remote_port: Option<Port>,
        /// Index of the device to which the flow is bound, or 0.
        6 ifindex: Option<u32>,
        /// User of the process, in the requester's user namespace; in an event, in the user
        /// namespace that owns the network namespace.
        7 uid: Option<u32>,
        /// Group of the process, in the same user namespace as its user.
        8 gid: Option<u32>,
        /// Pid of the process in the requester's pid namespace; 0 if it has none there. In an event
        /// it is the pid in the initial pid namespace, or in the process's own if the network
        /// namespace doesn't belong to the initial user namespace.
        9 pid: Option<u32>,
        /// Command name of the process.
        10 command: Option<String>,
        /// Path of the program's file when the process was recorded; empty if it is too long.
        11 exe: Option<String>,
        /// Number of the device with the program's file.
        12 exe_device: Option<u32>,
        /// Inode of the program's file.
        13 exe_inode: Option<u64>,
        /// Id of the socket's cgroup, which is the inode number of its directory.
        14 cgroup: Option<u64>,
        /// Path of the socket's cgroup in the requester's cgroup namespace; empty if it is too
        /// long.
        15 cgroup_path: Option<String>,
        /// Number of the flow's channel; absent if it has none.
        16 channel: Option<u32>,
        /// The flow's number on its channel.
        17 number: Option<u32>,
        /// Counters of the flow's packets.
        18 stats: Option<Stats>,
        /// Handle of the rule that decides about outgoing packets, if there is one.
        19 rule_out: Option<u32>,
        /// Handle of the rule that decides about incoming packets, if there is one.
        20 rule_in: Option<u32>,
        /// Directions in which no packet of the flow passes.
        21 denied: Option<Directions>,
        /// In an event, handle of the rule that decided; 0 for the default.
        22 rule: Option<u32>,
        /// In an event, name of the sysctl below net.kopi whose limit was reached.
        23 limit: Option<String>,
        /// In an event, the direction.
        24 direction: Option<Directions>,
        /// TX path of the flow's last packet through an attached device; absent if there was none.
        25 path: Option<Path>,
        /// Index of that device.
        26 path_ifindex: Option<u32>,
        /// RX path of the flow's packets: the best one of the attached devices, or that of the
        /// device to which the flow is bound; absent if no device is attached.
        27 receive_path: Option<ReceivePath>,
        /// IPPROTO_UDP or IPPROTO_TCP.
        28 protocol: Option<u8>,
        /// State of the connection of a TCP socket.
        29 tcp_state: Option<TcpState>,
        /// In an event of an ordinary socket, what the rules refused it.
        30 operation: Option<Operation>,
        /// What the flow does by a channel, or why it does nothing by one.
        31 channel_use: Option<ChannelUse>,
        /// Errno of the flow's last request for a channel; absent unless it was refused.
        32 channel_error: Option<u32>,
    }
}

attributes! {
    /// Totals of the network namespace.
    Totals {
        /// Sums over all flows, including closed ones.
        1 stats: Option<Stats>,
        /// Number of flows that were opened, including closed ones.
        2 flows_opened: Option<u64>,
        /// Number of bind() and connect() calls, and of live flows, that a rule denied.
        3 flows_denied: Option<u64>,
    }
}

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
        /// Number of bind() and connect() calls that the rule refused, and of live flows that it
        /// stopped.
        31 denied: Option<u64>,
        /// Multiple of an engine's budget that a channel gets for packets about which this rule
        /// decides; by default 1.
        32 weight: Option<u32>,
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
        /// The rules are only checked, and don't take effect.
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
    }
}

attributes! {
    /// A kernel thread that polls the TX rings of busy channels, of all network namespaces.
    Engine {
        /// Number of the CPU on which the engine runs.
        1 cpu: Option<u32>,
        /// Microseconds for which the engine polls an empty ring before the doorbell is needed.
        2 idle: Option<u64>,
        /// Bytes that the engine sends for one channel before it turns to the next one.
        3 budget: Option<u32>,
        /// Number of channels that the engine polls now.
        4 channels: Option<u32>,
        /// Number of visits to channels that had packets to send.
        5 visits: Option<u64>,
        /// Number of times that the engine was woken when it had no channel.
        6 wakeups: Option<u64>,
        /// Nanoseconds that the engine worked for channels.
        7 busy: Option<u64>,
        /// Nanoseconds that the engine was awake.
        8 awake: Option<u64>,
    }
}

attributes! {
    /// All engines of the machine.
    Engines {
        /// Number of a CPU that gets an engine. Without this attribute there are no engines.
        1 cpu: Vec<u32>,
        /// The idle attribute of each engine; by default 1000.
        2 idle: Option<u64>,
        /// The budget attribute of each engine; by default 65536.
        3 budget: Option<u32>,
    }
}

/// The TX path of flows' packets through a device, with the reason. The values from datagram on
/// only apply to flows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub(crate) enum Path {
    /// Directly: segmented, and passed to the driver.
    Direct,
    /// Through the stack, because no XDP program is attached that makes the driver accept frames.
    NoProgram,
    /// Through the stack, because tc has filters or programs at the device's egress.
    Tc,
    /// Through the stack, because another netfilter egress hook runs later.
    Hook,
    /// Through the stack, because a packet socket captures the packets.
    Tap,
    /// Through the stack, because a device of type kopimon is up.
    Monitor,
    /// Through the stack, because a qdisc holds packets, or can't be bypassed.
    Qdisc,
    /// Through the stack, because the device is down, has no carrier, or is not present, for
    /// instance while the machine is suspended.
    Down,
    /// Through the stack, because the driver accepted no frames for a second; it is tried again
    /// after a minute.
    Refused,
    /// Through the stack, because the last packet was not a GSO packet.
    Datagram,
    /// Through the stack, because IPsec or a tunnel had transformed the packet.
    Transformed,
    /// Through the stack, because the packet had IP options, a VLAN tag, a time stamp request, or a
    /// transmission time.
    Extras,
    /// Through the stack, because the stack held earlier packets of the flow for too long; the
    /// direct path is tried again after a second.
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
            Self::Datagram => "by the stack: a single datagram",
            Self::Transformed => "by the stack: IPsec, or a tunnel",
            Self::Extras => "by the stack: options, a VLAN, or time stamps",
            Self::Behind => "by the stack: earlier packets are on their way",
        })
    }
}

/// States of a connection of TCP, with the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub(crate) enum TcpState {
    Established = 1,
    SynSent,
    SynRecv,
    FinWait1,
    FinWait2,
    TimeWait,
    Close,
    CloseWait,
    LastAck,
    Listen,
    Closing,
    NewSynRecv,
}

impl fmt::Display for TcpState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        out.write_str(value.as_ref().map_or("?", |value| value.get_name()))
    }
}

impl Value for TcpState {
    fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        let number = u8::read(bytes)?;
        let mut known = Self::value_variants().iter().copied();
        known
            .find(|&state| state as u8 == number)
            .ok_or_else(|| format!("{number} is no state of TCP").into())
    }
    fn write(&self) -> Vec<u8> {
        (*self as u8).write()
    }
    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// The RX path of flows' packets from a device, with the reason. The value not-redirected only
/// applies to flows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub(crate) enum ReceivePath {
    /// Directly: the XDP program redirects them. Datagrams go to their flows without the stack.
    /// Those of a flow that asked for GRO packets are coalesced, and GRO packets go to the stack.
    Direct,
    /// Through the stack, because the device has no XDP program that redirects them.
    NoProgram,
    /// Through the stack, because the redirect device is down.
    Down,
    /// Through the stack, because the device strips VLAN tags, so that its XDP program can't see
    /// them.
    Vlan,
    /// Through the stack, because the flow has no port, or is of IPv6 and didn't ask for GRO
    /// packets.
    NotRedirected,
    /// Through the stack, because a packet socket sees incoming packets.
    Tap,
    /// Through the stack, because tc has an ingress hook.
    Tc,
    /// Through the stack, because netfilter has an ingress hook.
    Hook,
    /// Through the stack, because the device has a generic XDP program.
    Xdp,
    /// Through the stack, because a raw socket sees incoming UDP.
    Raw,
    /// Through the stack, because the device is below a bridge, a bond, a VRF or the like.
    Upper,
    /// Through the stack, because RPS or RFS choose the CPU.
    Rps,
    /// Through the stack, because the network namespace has policies of IPsec.
    Ipsec,
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
            Self::NotRedirected => "by the stack: no port, or IPv6 without GRO",
            Self::Tap => "by the stack: a packet socket sees them",
            Self::Tc => "by the stack: tc has an ingress hook",
            Self::Hook => "by the stack: netfilter has an ingress hook",
            Self::Xdp => "by the stack: the device has a generic XDP program",
            Self::Raw => "by the stack: a raw socket sees UDP",
            Self::Upper => "by the stack: the device is below a bridge, a bond or a VRF",
            Self::Rps => "by the stack: RPS or RFS is on",
            Self::Ipsec => "by the stack: there are policies of IPsec",
        })
    }
}

/// What the enforced rules refused an ordinary socket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub(crate) enum Operation {
    /// A call of bind().
    Bind,
    /// A call of connect().
    Connect,
    /// A call of listen().
    Listen,
    /// A call of accept().
    Accept,
    /// A call that sends.
    Send,
    /// A call that receives.
    Receive,
    /// A packet that it would have sent or received.
    Packet,
}

impl fmt::Display for Operation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        out.write_str(value.as_ref().map_or("?", |value| value.get_name()))
    }
}

/// What a flow does by a channel, or why it does nothing by one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub(crate) enum ChannelUse {
    /// It is on a channel, and sends and receives by its rings.
    BothWays,
    /// It is on a channel that only sends, as programs of kopi run are. It receives by system calls.
    SendOnly,
    /// It sends by system calls only, because it has been corked (UDP_CORK, MSG_MORE).
    Corked,
    /// It has no channel, because the last request for one was refused; channel-error says why.
    Refused,
    /// It has no channel, because its program has requested none; kopi run does when the flow has
    /// sent some datagrams.
    NotRequested,
    /// It is of TCP, which has no channels.
    Stream,
}

impl fmt::Display for ChannelUse {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::BothWays => "sends and receives by rings",
            Self::SendOnly => "sends by a channel, receives by system calls",
            Self::Corked => "by system calls: it has been corked",
            Self::Refused => "by system calls: a channel was refused",
            Self::NotRequested => "by system calls: no channel was requested",
            Self::Stream => "by system calls: TCP has no channels",
        })
    }
}

/// These are their numbers on the wire.
macro_rules! numbered {
    ($type:ty, $what:literal) => {
        impl Value for $type {
            fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
                let number = parse_u32(bytes)?;
                let mut known = Self::value_variants().iter().copied();
                known.find(|&each| each as u32 == number).ok_or_else(|| {
                    format!("{number} is no {} that this program knows", $what).into()
                })
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
numbered!(Path, "path");
numbered!(ReceivePath, "path");
numbered!(Operation, "operation");
numbered!(ChannelUse, "use of a channel");

attributes! {
    /// An attached network device, whose driver gets the datagrams of GSO packets.
    Device {
        /// Index of the device.
        1 ifindex: Option<u32>,
        /// The current TX path of GSO packets through the device, with the reason.
        2 path: Option<Path>,
        /// Datagrams that the driver accepted.
        3 packets: Option<u64>,
        /// GSO packets from which these were segmented.
        4 gso_packets: Option<u64>,
        /// GSO packets that left through the stack.
        5 passed: Option<u64>,
        /// Datagrams that were dropped because too many waited, or because the device went down.
        6 dropped: Option<u64>,
        /// In a request, the address of a struct kopi_port_map in the requesting process. The
        /// device's XDP program shares this memory, and redirects the datagrams for the ports that
        /// it names. Without this attribute the device's packets arrive through the stack.
        7 port_map: Option<u64>,
        /// The current RX path of flows' packets from the device, with the reason.
        8 receive_path: Option<ReceivePath>,
        /// Datagrams that were redirected.
        9 received: Option<u64>,
        /// GRO packets that were made of these.
        10 gro_packets: Option<u64>,
        /// Redirected datagrams that were dropped because memory was short.
        11 receive_dropped: Option<u64>,
        /// Redirected datagrams that went to their flows without the stack, or were dropped on that
        /// way, where the flow counts them.
        12 received_direct: Option<u64>,
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
    /// What it is: udp, udp6, tcp or tcp6.
    pub(crate) fn kind(&self) -> Option<&'static str> {
        let is_ipv6 = self.local_address?.is_ipv6();
        Some(match (self.protocol?, is_ipv6) {
            (17, false) => "udp",
            (17, true) => "udp6",
            (6, false) => "tcp",
            (6, true) => "tcp6",
            _ => return None,
        })
    }

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
                "u8" if text(spec, "enum") == "tcp-state" => (vec![vec![1]], "established"),
                "u8" => (vec![vec![1]], "1"),
                "u16" if text(spec, "byte-order") == "big-endian" => (vec![vec![0, 1]], "1"),
                "u16" => (vec![1_u16.to_ne_bytes().to_vec()], "1"),
                "u32" => {
                    let shown = match text(spec, "enum") {
                        "direction" => "out",
                        "verdict" => "deny",
                        "path" => "by the stack: no XDP program",
                        "receive-path" => "by the stack: no XDP program that redirects",
                        "operation" => "connect",
                        "channel-use" => "sends by a channel, receives by system calls",
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
        assert_eq!(
            names(&of("operation").unwrap()["entries"]),
            Operation::value_variants()
                .iter()
                .map(named)
                .collect::<Vec<_>>()
        );
        assert_eq!(
            names(&of("channel-use").unwrap()["entries"]),
            ChannelUse::value_variants()
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
