// SPDX-License-Identifier: GPL-2.0

//! Flows: KOPI sockets, and the processes that use them.

use super::{
    paths::{RxPath, TxPath},
    rule::Directions,
    stats::Stats,
};
use crate::attributes::{attributes, numbered, Port, Value};
use clap::ValueEnum;
use netlink_packet_core::DecodeError;
use serde::Serialize;
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

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
        25 tx_path: Option<TxPath>,
        /// Index of that device.
        26 tx_path_ifindex: Option<u32>,
        /// RX path of the flow's packets: the best one of the attached devices, or that of the
        /// device to which the flow is bound; absent if no device is attached.
        27 rx_path: Option<RxPath>,
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

numbered!(Operation, "operation");

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

numbered!(ChannelUse, "use of a channel");
