// SPDX-License-Identifier: GPL-2.0

//! Corked sockets and channels: a flow is corked, or on a channel, and both only if the channel only
//! sends. Then no ring sends for the flow any more.
//!
//! A ring's packets are sent under locks of the module. On a corked socket they would have to wait for the
//! sock's lock, which processes hold while they sleep; and they would become a part of the corked message.

use super::Flow;
use crate::sys::{
    context::smp_mb,
    errno::eopnotsupp,
    family::Cork, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{Full, Relaxed, Release},
        Atomic, //
    },
};

/// UDP_CORK was set once, and may be on now.
const CORKED: u32 = 1 << 30;
/// With [`TX_ONLY`]: a message was sent with MSG_MORE since.
const CORKED_BY_MESSAGE: u32 = 1 << 28;
/// With [`ON_CHANNEL`]: the channel only sends. The flow can be corked, and sends by no ring then.
const TX_ONLY: u32 = 1 << 29;
/// The flow is on a channel, or about to be. Without [`TX_ONLY`] it can't be corked.
const ON_CHANNEL: u32 = 1 << 31;

/// Whether a flow is corked, and whether it is on a channel.
///
/// The value is the number of messages being sent that may cork the socket, with the bits above.
pub(super) struct Corking(Atomic<u32>);

impl Corking {
    /// Neither corked nor on a channel.
    pub(super) fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Whether the socket was corked for good. Any context.
    pub(super) fn is_corked(&self) -> bool {
        self.0.load(Relaxed) & (CORKED | CORKED_BY_MESSAGE) != 0
    }

    /// The socket is about to be corked: `EOPNOTSUPP` on a channel that also receives. On one that only sends,
    /// a message corks it for good.
    fn begin(&self, by: Cork) -> Result {
        let mut now = self.0.load(Relaxed);
        while now & (ON_CHANNEL | TX_ONLY) != ON_CHANNEL {
            let next = match by {
                Cork::Option => now | CORKED,
                Cork::Message if now & TX_ONLY != 0 => now.wrapping_add(1) | CORKED_BY_MESSAGE,
                Cork::Message => now.wrapping_add(1),
            };
            match self.0.cmpxchg(now, next, Full) {
                Ok(_) => return Ok(()),
                Err(changed) => now = changed,
            }
        }
        Err(eopnotsupp())
    }

    /// A message that was begun has been sent.
    pub(super) fn end_message(&self) {
        self.0.fetch_sub(1, Release);
    }

    /// The flow is about to come to a channel: `EBUSY` if it is corked, or on a channel.
    pub(super) fn enter_channel(&self, tx_only: bool) -> Result {
        let entered = self.0.cmpxchg(0, on_channel(tx_only), Full);
        entered.map(|_| ()).map_err(|_| EBUSY)
    }

    /// The flow didn't come to the channel. Messages that cork may be under way, if the channel only sends; once they
    /// are sent, the flow can come to one.
    pub(super) fn leave_channel(&self) {
        let mut now = self.0.load(Relaxed);
        let left = ON_CHANNEL | TX_ONLY | CORKED_BY_MESSAGE;
        while let Err(changed) = self.0.cmpxchg(now, now & !left, Full) {
            now = changed;
        }
    }
}

/// The bits of a flow on a channel.
fn on_channel(tx_only: bool) -> u32 {
    if tx_only {
        ON_CHANNEL | TX_ONLY
    } else {
        ON_CHANNEL
    }
}

impl Flow {
    /// Corks the socket, and waits for what a ring sends for the flow; later packets find that it is corked.
    /// `EOPNOTSUPP` as of [`Corking::begin`]. Process context.
    pub(super) fn cork(&self, by: Cork) -> Result {
        self.corking.begin(by)?;
        if let Some(channel) = self.channel().filter(|channel| channel.is_tx_only()) {
            drop(channel.interrupt_sender());
        }
        Ok(())
    }

    /// Whether a packet of a ring may be sent: not if the flow was corked after it came to the channel. Under the
    /// channel's sender.
    pub(crate) fn sends_by_ring(&self) -> bool {
        if self.place.as_ref().is_none() {
            // Not before cork() can find the channel.
            return false;
        }
        // Pairs with the full order of Corking::begin().
        smp_mb();
        !self.corking.is_corked()
    }
}
