// SPDX-License-Identifier: GPL-2.0

//! The direct path: GSO packets leave by the driver's `ndo_xdp_xmit`, datagram by datagram, instead of as skbs.
//!
//! A port is the last hook of all that leaves by a device. What it is asked about has met LOCAL_OUT and
//! POSTROUTING, the cgroup's programs, the neighbour table and nft's egress hook, a GSO packet as one packet. Where
//! nothing is left that would look at it (tc, a qdisc that isn't empty, a tap, a monitor), it is cut
//! up here; else it goes on. Packets of a flow never overtake each other: while some are with the driver
//! the stack gets none, and the other way round.

mod attach;
mod counters;
mod device;
mod flow;
mod path;
mod queue;
mod receive;
mod redirected_ports;

pub(crate) use attach::{attach, detach, each, Attached, Attaching, Refusal};
pub(crate) use device::AttachedDevice;
pub(crate) use flow::Direct;
pub(crate) use path::TxPath;
pub(crate) use redirected_ports::{RedirectedPorts, Room};
