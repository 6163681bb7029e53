// SPDX-License-Identifier: GPL-2.0

//! The packet that is being sent: its descriptors, copied from the ring and checked, and those of the datagrams
//! that can go in one GSO packet with it.

use super::Sender;
use crate::channel::Channel;
use crate::pure::{
    abi::{Desc, Meta, CHAIN_MAX, DESC_META, DESC_MORE},
    descriptor::{self, Bad},
    gso,
    gso_batch::GsoBatch, //
};
use kernel::prelude::*;

/// The descriptors of the packet that is being sent.
pub(super) struct TxPacket {
    descs: KVec<Desc>,
    /// Of payload.
    bytes: u32,
}

impl TxPacket {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            descs: KVec::with_capacity(CHAIN_MAX as usize, GFP_KERNEL_ACCOUNT)?,
            bytes: 0,
        })
    }

    pub(super) fn clear(&mut self) {
        self.descs.clear();
        self.bytes = 0;
    }

    /// Appends one, of no more than CHAIN_MAX.
    pub(super) fn push(&mut self, desc: Desc) {
        if self.descs.push_within_capacity(desc).is_ok() {
            self.bytes = self.bytes.saturating_add(desc.len);
        }
    }

    /// Takes the last one of several out again, if it is shorter than `segment` bytes.
    pub(super) fn drop_shorter(&mut self, segment: u32) {
        let is_shorter = self.descs.last().is_some_and(|last| last.len < segment);
        if self.descs.len() > 1 && is_shorter {
            let last = self.descs.pop().unwrap_or_default();
            self.bytes = self.bytes.saturating_sub(last.len);
        }
    }

    pub(super) fn descs(&self) -> &[Desc] {
        &self.descs
    }

    /// Bytes of payload.
    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Number of descriptors.
    pub(super) fn count(&self) -> u32 {
        self.descs.len() as u32
    }

    /// The first one; if there is none, an empty one.
    pub(super) fn first(&self) -> Desc {
        self.descs.first().copied().unwrap_or_default()
    }

    /// Number of datagrams, if a GSO packet has them of `segment` bytes.
    pub(super) fn datagrams(&self, segment: u32) -> u64 {
        gso::datagrams(self.bytes, segment).into()
    }

    /// Checks the packet, and reads its metadata if it has any.
    fn check(&self, channel: &Channel, meta: &mut Meta) -> core::result::Result<(), Bad> {
        let (first, rest) = self.descs.split_first().ok_or(Bad::Chain)?;
        let frame = descriptor::check(first, channel.geometry())?;
        if first.flags & DESC_META != 0 {
            *meta = channel.region().read_meta(frame).map_err(|_| Bad::Range)?;
            descriptor::check_meta(meta)?;
        }
        for desc in rest {
            descriptor::check(desc, channel.geometry())?;
            if desc.flow != first.flow || desc.flags & DESC_META != 0 {
                return Err(Bad::Field);
            }
        }
        if meta.gso_size != 0 && !channel.has_gso() {
            return Err(Bad::Field);
        }
        Ok(())
    }
}

/// What the first descriptors of the ring are.
pub(super) enum Found {
    /// A valid packet, or several that go as a GSO packet of datagrams of that size; 0 for one
    /// datagram.
    Packet(u32),
    /// A packet that is invalid, or the rest of one.
    Invalid(Bad),
    /// The start of a packet of which the program hasn't submitted the end.
    Incomplete,
    /// A packet for whose completions there is no room.
    NoRoom,
}

impl Sender {
    /// Copies into `packet` the first of `available` descriptors, with all that go together, and
    /// checks them.
    pub(super) fn validate(&mut self, channel: &Channel, available: u32, meta: &mut Meta) -> Found {
        if !self.gather(available) {
            return Found::Incomplete;
        }
        if self.packet.count() > self.room {
            self.skipping = false;
            return Found::NoRoom;
        }
        if self.skipping {
            return Found::Invalid(Bad::Chain);
        }
        match self.packet.check(channel, meta) {
            Ok(()) => Found::Packet(self.extend(channel, meta, available.min(self.room))),
            Err(bad) => Found::Invalid(bad),
        }
    }

    /// Copies the next descriptor, which belongs to a packet that is too long.
    pub(super) fn skip(&mut self) {
        let desc = self.ring.peek(0);
        self.skipping = desc.flags & DESC_MORE != 0;
        self.packet.clear();
        self.packet.push(desc);
    }

    /// Copies the descriptors of the next packet; says whether all of it is there.
    ///
    /// Of one that is too long, copies as many as it may have, and leaves `skipping` set.
    fn gather(&mut self, available: u32) -> bool {
        self.packet.clear();
        for ahead in 0..self.longest {
            if ahead >= available {
                return false;
            }
            let desc = self.ring.peek(ahead);
            self.packet.push(desc);
            if desc.flags & DESC_MORE == 0 {
                return true;
            }
        }
        self.skipping = true;
        true
    }

    /// Appends the datagrams in the ring that can go in one GSO packet with this one.
    ///
    /// Gives the size of the GSO packet's datagrams, or 0 if it is none.
    #[inline(never)]
    fn extend(&mut self, channel: &Channel, meta: &Meta, limit: u32) -> u32 {
        if meta.gso_size != 0 {
            return u32::from(meta.gso_size);
        }
        if self.retry.spend_alone() || !channel.has_gso() || self.packet.count() > 1 {
            return 0;
        }
        let first = self.packet.first();
        let mut gso = GsoBatch::new(first.len);
        for ahead in 1..limit.min(CHAIN_MAX) {
            let desc = self.ring.peek(ahead);
            if desc.flow != first.flow || desc.flags != first.flags {
                break;
            }
            let Ok(frame) = descriptor::check(&desc, channel.geometry()) else {
                break;
            };
            if desc.flags & DESC_META != 0
                && channel.region().read_meta(frame).ok().as_ref() != Some(meta)
            {
                break;
            }
            if !gso.push(desc.len) {
                break;
            }
            self.packet.push(desc);
        }
        if gso.count() > 1 {
            gso.segment()
        } else {
            0
        }
    }
}
