// SPDX-License-Identifier: GPL-2.0

//! Checks of descriptors and metadata that a program writes for the TX ring.

use super::abi::{Desc, Meta, AF_INET, AF_INET6, DESC_META, DESC_MORE, META_LOCAL, META_TXTIME};
use super::geometry::{Frame, Geometry};

/// The fault of a descriptor or its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// Offset and length are not payload of one frame.
    Range,
    /// An unknown flag, or a field that must be zero is not.
    Field,
    /// No flow of that number is on the channel.
    Flow,
    /// More entries than one packet may have, or not all of one flow.
    Chain,
}

/// Checks one descriptor of a packet by itself; gives the frame that it names.
pub fn check(desc: &Desc, geometry: &Geometry) -> Result<Frame, Bad> {
    if desc.flags & !(DESC_MORE | DESC_META) != 0 || desc.error != 0 {
        return Err(Bad::Field);
    }
    geometry.payload(desc.offset, desc.len).ok_or(Bad::Range)
}

/// Checks metadata that a program wrote for a packet to send.
pub fn check_meta(meta: &Meta) -> Result<(), Bad> {
    let timed = meta.flags & META_TXTIME != 0;
    if meta.flags & !Meta::TX_FLAGS != 0 || meta.len != 0 || (meta.timestamp != 0 && !timed) {
        return Err(Bad::Field);
    }
    // To send to the connected peer is not what was asked for.
    if meta.family != 0 && meta.peer_port == 0 && meta.peer != [0; 16] {
        return Err(Bad::Field);
    }
    let needs_family = meta.flags & META_LOCAL != 0 || meta.peer_port != 0;
    match meta.family {
        AF_INET | AF_INET6 => Ok(()),
        0 if !needs_family => Ok(()),
        _ => Err(Bad::Field),
    }
}
