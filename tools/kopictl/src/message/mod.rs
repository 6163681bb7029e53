// SPDX-License-Identifier: GPL-2.0

//! The messages of KOPI's netlink family, as uapi/kopi.yaml specifies them: what can be asked and what
//! is told. Their attributes have files of their own.

pub(crate) mod channel;
pub(crate) mod device;
pub(crate) mod engine;
pub(crate) mod flow;
pub(crate) mod info;
pub(crate) mod paths;
pub(crate) mod rule;
#[cfg(test)]
mod specification;
pub(crate) mod stats;
#[cfg(test)]
mod tests;

use clap::ValueEnum;
use netlink_packet_core::{DecodeError, Emitable, ParseableParametrized};
use netlink_packet_generic::{GenlFamily, GenlHeader};
use std::fmt;

/// The family's name.
pub(crate) const FAMILY: &str = "kopi";
/// The family's version, which is the specification's.
pub(crate) const VERSION: u8 = 1;
/// The multicast group of events.
pub(crate) const EVENTS: &str = "events";

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

/// The payload of a message: a command, and the bytes of a [`Set`](crate::attributes::Set).
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
