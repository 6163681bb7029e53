// SPDX-License-Identifier: GPL-2.0

//! The direct path: packets of flows go to and come from an attached device's driver as frames.
//!
//! - GSO packets leave by the driver's `ndo_xdp_xmit`, datagram by datagram. An attached device is the
//!   last egress hook of its device (`device`). Its packets have met LOCAL_OUT and POSTROUTING, the
//!   cgroup's programs, the neighbour table and nft's egress hook; a GSO packet has met each of them as
//!   one packet. If no other observer is left (tc, a qdisc that isn't empty, a tap, a monitor), the GSO
//!   packet is segmented here; otherwise it passes to the stack.
//! - Non-GSO datagrams leave as frames, without an skb for each (`sender`).
//! - Frames that the XDP program of an attached device redirects are received here (`receive`,
//!   `receive_datagrams`).
//!
//! Packets of a flow never overtake each other: while some are with the driver, the stack gets none, and
//! vice versa. There is no order between devices.

mod attach;
mod counters;
mod device;
mod flow;
mod gro_table;
mod path;
mod queue;
mod receive;
mod receive_datagrams;
mod redirected_ports;
mod sender;
mod waiting;

pub(crate) use attach::{attach, detach, each, AttachError, Attached, Attaching};
pub(crate) use device::AttachedDevice;
pub(crate) use flow::Direct;
pub(crate) use path::TxPath;
pub(crate) use redirected_ports::{PortReservation, RedirectedPorts};
pub(crate) use sender::DatagramSender;

/// Maximum number of attached devices, in all network namespaces together.
pub(crate) const ATTACHED_MAX: usize = 64;
