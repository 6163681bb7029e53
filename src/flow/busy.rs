// SPDX-License-Identifier: GPL-2.0

//! Calls about a flow's options, during which no ring sends for it.
//!
//! setsockopt() and getsockopt() hold the sock's lock while they read or write the program's memory,
//! which a process can make last for as long as it likes (a page of FUSE, userfaultfd). A security
//! module may wait for that lock when it is asked about a packet, as Landlock and AppArmor do. An
//! engine would wait with it, and with the engine all that others send by it.

use super::Flow;
use crate::sys::wait::WriteSpaceWaiter;
use kernel::sync::atomic::ordering::{Full, Relaxed};

impl Flow {
    /// Whether a call about the flow's options is under way. Under the sender of its channel.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Relaxed) != 0
    }

    /// Begins a call about the flow's options: no packet of a ring is being sent for the flow from now on. Process
    /// context.
    pub(super) fn begin_busy(&self) {
        // Full order: either this finds the channel, or the flow comes to it later than this.
        self.busy.fetch_add(1, Full);
        self.interrupt_ring();
    }

    /// Makes a running doorbell or engine, which read the flow's options once for its whole run, read them again.
    /// Process context.
    pub(super) fn interrupt_ring(&self) {
        if let Some(channel) = self.channel() {
            drop(channel.interrupt_sender());
        }
    }

    /// Ends a call about the flow's options. Packets that the ring held back are sent, as when the send buffer
    /// gets room. Process context.
    pub(super) fn end_busy(&self) {
        if self.busy.fetch_sub(1, Full) != 1 {
            return;
        }
        if let Some(channel) = self
            .channel()
            .filter(|channel| channel.is_stalled_by_flow())
        {
            WriteSpaceWaiter::on_write_space(channel);
        }
    }
}
