// SPDX-License-Identifier: GPL-2.0

//! The doorbell, and waiting for a ring: in it, or by poll().

use super::Channel;
use crate::engine;
use crate::pure::abi;
use crate::sys::{
    sock::Sock,
    socket::Socket,
    wait::{PollTable, POLL_IN, POLL_OUT, POLL_WRBAND}, //
};
use kernel::{
    prelude::*,
    sync::{atomic::ordering::Relaxed, Arc}, //
};

impl Channel {
    /// Carries out the doorbell of the flow of that number. Process context.
    pub(crate) fn doorbell(
        this: &Arc<Self>,
        socket: &Socket,
        number: u32,
        flags: u32,
    ) -> Result<i32> {
        if flags & !abi::BELL_FLAGS != 0
            || flags & (abi::BELL_TX | abi::BELL_SEND) == abi::BELL_SEND
            || (flags & abi::BELL_WAIT_RX != 0 && this.is_tx_only())
            || (flags & abi::BELL_SEND != 0 && this.wants_engine())
        {
            return Err(EINVAL);
        }
        let taken = if flags & abi::BELL_TX != 0 {
            let bell_send = (flags & abi::BELL_SEND != 0).then_some(number);
            let taken = Self::transmit(this, bell_send)?;
            // More may come soon.
            engine::kick(this);
            taken
        } else {
            0
        };
        if flags & (abi::BELL_WAIT_RX | abi::BELL_WAIT_COMPLETION) != 0 {
            this.wait_for(socket, flags)?;
        }
        Ok(i32::try_from(taken)?)
    }

    /// Sleeps as the doorbell's flags say.
    fn wait_for(&self, socket: &Socket, flags: u32) -> Result {
        let sk = socket.sk();
        let ready = || {
            flags & abi::BELL_WAIT_RX != 0 && self.has_received()
                || flags & abi::BELL_WAIT_COMPLETION != 0
                    && (self.has_completed() || self.must_ring())
        };
        let over = || ready() || sk.has_error() || sk.is_receive_shutdown();
        let nonblocking = socket.is_nonblocking();
        if flags & abi::BELL_WAIT_RX != 0 && !over() {
            sk.busy_poll(nonblocking, over);
        }
        let timeout = sk.receive_timeout(nonblocking);
        let mut events = 0;
        if flags & abi::BELL_WAIT_RX != 0 {
            events |= POLL_IN;
        }
        if flags & abi::BELL_WAIT_COMPLETION != 0 {
            events |= POLL_WRBAND;
        }
        self.wait
            .wait(socket, events, timeout, over)
            .map_err(|error| {
                if error == ERESTARTSYS {
                    sk.interrupted(timeout)
                } else {
                    error
                }
            })?;
        if !ready() {
            sk.take_error()?;
        }
        Ok(())
    }

    /// The events to report for a flow of which UDP would report `inner`. Process context.
    pub(crate) fn poll(&self, sk: &Sock, table: &PollTable, inner: u32) -> u32 {
        self.wait.register(table);
        let mut events = inner & !(POLL_IN | POLL_OUT | POLL_WRBAND);
        if self.has_received() || sk.is_receive_shutdown() {
            events |= POLL_IN;
        }
        if self.has_completed() || self.must_ring() {
            events |= POLL_WRBAND;
        }
        if self.can_send() {
            events |= POLL_OUT;
        }
        events
    }

    fn has_received(&self) -> bool {
        self.receiver.lock().has_unread()
    }

    fn has_completed(&self) -> bool {
        self.completions.lock().ring.is_unread()
    }

    /// Whether the doorbell would take more from the TX ring; while an engine polls that, whether
    /// half of it is empty. Process context.
    fn can_send(&self) -> bool {
        if self.is_stalled() {
            return false;
        }
        if !self.polled.load(Relaxed) {
            return true;
        }
        // As the program sees the ring, without the sender's lock: its holder may have much to send.
        let (written, taken) = self.tx.positions();
        written.wrapping_sub(taken) <= self.tx.size() / 2
    }

    /// Whether the program has to ring for what is in the TX ring, from which an engine was to send: none polls it any
    /// more. Nothing completes until then. Any context.
    fn must_ring(&self) -> bool {
        if !self.wants_engine()
            || self.polled.load(Relaxed)
            || self.is_ringing()
            || self.is_stalled()
        {
            return false;
        }
        let (written, taken) = self.tx.positions();
        written != taken && !self.has_part_only(written)
    }

    /// Wakes those that wait for completions if the program has to ring before any comes: no engine polls the TX ring
    /// any more. Any context.
    pub(crate) fn wake_if_must_ring(&self) {
        if self.must_ring() {
            self.wait.wake(POLL_OUT | POLL_WRBAND);
        }
    }

    /// Wakes those that wait for the RX ring. Any context.
    pub(crate) fn wake_readers(&self) {
        self.wait.wake(POLL_IN);
    }

    /// Wakes those that wait for room in the TX ring. Any context.
    pub(crate) fn wake_writers(&self) {
        self.wait.wake(POLL_OUT);
    }
}
