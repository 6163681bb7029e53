// SPDX-License-Identifier: GPL-2.0

//! Stalls of sending: the COMPLETION ring or a send buffer is full, or a flow's options are being set.

use super::Channel;
use crate::engine;
use crate::sys::{socket::Socket, wait};
use kernel::sync::{
    atomic::ordering::{Full, Relaxed},
    Arc, //
};

/// Sending goes on as soon as the doorbell rings.
pub(super) const STALL_NONE: u32 = 0;
/// A flow can't send now: its send buffer is full, and `room_entry` tells of room there, or a call about its options is
/// under way, whose end `Flow::end_busy` tells.
const STALL_FLOW: u32 = 1;
/// The COMPLETION ring has no room for what is in flight.
const STALL_COMPLETION: u32 = 2;
/// Sending goes on as soon as the doorbell rings, but changes nothing before the rest of a packet is in the TX ring.
const STALL_CHAIN: u32 = 3;

impl Channel {
    /// Whether sending stopped, and can't go on yet.
    pub(crate) fn is_stalled(&self) -> bool {
        match self.stall.load(Relaxed) {
            STALL_NONE | STALL_CHAIN => false,
            STALL_COMPLETION => self.completion_room() < self.needed.load(Relaxed),
            _ => true,
        }
    }

    /// Whether sending goes on when [`wait::WriteSpaceWaiter::on_write_space`] is called.
    pub(crate) fn is_stalled_by_flow(&self) -> bool {
        self.stall.load(Relaxed) == STALL_FLOW
    }

    /// Whether all that was written to the TX ring, up to this index, is a part of a packet.
    pub(super) fn has_part_only(&self, written: u32) -> bool {
        self.stall.load(Relaxed) == STALL_CHAIN && self.needed.load(Relaxed) == written
    }

    /// The sender, which calls this, finds only a part of a packet in the TX ring, which it has read up to this index.
    pub(crate) fn stall_chain(&self, written: u32) {
        self.needed.store(written, Relaxed);
        self.stall.store(STALL_CHAIN, Relaxed);
    }

    /// Begins to note whether a full send buffer got room.
    pub(crate) fn clear_got_room(&self) {
        // Full order: room that comes before lets sending go on, which is tried after this.
        self.got_room.xchg(false, Full);
    }

    /// Whether a full send buffer got room since.
    pub(crate) fn got_room(&self) -> bool {
        self.got_room.load(Relaxed)
    }

    /// The sender stops until the COMPLETION ring has room for `needed` entries.
    pub(crate) fn stall_completion(&self, needed: u32) {
        self.needed.store(needed, Relaxed);
        self.stall.store(STALL_COMPLETION, Relaxed);
    }

    /// The sender, which calls this, stops if the send buffer of a flow's socket is full; says
    /// whether it is.
    #[expect(unsafe_code, reason = "the entry trusts its owner to leave")]
    pub(crate) fn stall_buffer(this: &Arc<Self>, socket: &Socket) -> bool {
        this.stall.store(STALL_FLOW, Relaxed);
        // SAFETY: Only the holder of the sender uses `room_entry`. remove_flow() leaves before the socket
        // is released, and before its flow drops the channel.
        unsafe { this.room_entry.join(socket, this) };
        if socket.sk().is_writeable() {
            this.unstall();
            return false;
        }
        true
    }

    /// The sender, which calls this, stops while `is_busy` is true, until
    /// [`wait::WriteSpaceWaiter::on_write_space`] is called; says whether it does.
    pub(crate) fn stall_while(&self, is_busy: impl FnOnce() -> bool) -> bool {
        // Full order: either this sees that the flow is busy no more, or end_busy() sees the stall.
        self.stall.xchg(STALL_FLOW, Full);
        if !is_busy() {
            self.unstall();
            return false;
        }
        true
    }

    /// The sender, which calls this, isn't stalled any more.
    pub(crate) fn unstall(&self) {
        self.room_entry.leave();
        self.stall.store(STALL_NONE, Relaxed);
    }
}

impl wait::WriteSpaceWaiter for Channel {
    /// The send buffer has room for which [`Channel::stall_buffer`] stopped. Any context but hard
    /// interrupts.
    fn on_write_space(this: &Arc<Self>) {
        this.stall.store(STALL_NONE, Relaxed);
        this.got_room.store(true, Relaxed);
        if !engine::kick(this) {
            this.wake_if_must_ring();
        }
        this.wake_writers();
    }
}
