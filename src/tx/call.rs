// SPDX-License-Identifier: GPL-2.0

//! A doorbell with BELL_SEND: what is in the TX ring is sent as sendmmsg() would send it.

use super::completion::{errno, DescsFate};
use crate::channel::Channel;
use crate::flow::Flow;
use crate::sys::errno::{ecanceled, eopnotsupp};
use kernel::prelude::*;

/// The doorbell with BELL_SEND that is being carried out, if one is.
#[derive(Default)]
pub(super) struct Call(Option<Sending>);

/// Why a packet isn't sent now.
pub(super) enum Withheld {
    /// Calls about the flow's options are under way.
    Busy,
    /// It is completed with this error.
    WithError(Error),
}

struct Sending {
    /// The flow by whose file descriptor the process rang.
    flow: u32,
    /// A packet has failed: the rest isn't sent.
    failed: bool,
}

impl Call {
    /// A call of the flow of that number; no call without a number.
    pub(super) fn of(flow: Option<u32>) -> Self {
        Self(flow.map(|flow| Sending {
            flow,
            failed: false,
        }))
    }

    /// Whether a call is under way that is about another flow than the one of this number.
    pub(super) fn is_of_another(&self, flow: u32) -> bool {
        self.0.as_ref().is_some_and(|call| call.flow != flow)
    }

    /// Whether a call is under way.
    pub(super) fn is_under_way(&self) -> bool {
        self.0.is_some()
    }

    /// Why a packet of the flow isn't sent now, by this call, or by a channel that only sends.
    #[inline]
    pub(super) fn withholds(&self, channel: &Channel, flow: &Flow) -> Option<Withheld> {
        if self.0.is_none() && !channel.is_tx_only() {
            return flow.is_busy().then_some(Withheld::Busy);
        }
        self.reason(channel, flow)
    }

    // Apart from what all packets go through, as settle_call().
    #[cold]
    #[inline(never)]
    fn reason(&self, channel: &Channel, flow: &Flow) -> Option<Withheld> {
        match &self.0 {
            // Whoever shares the memory has changed it since `Sender::step` looked.
            Some(call) if call.flow != flow.number() => Some(Withheld::WithError(EBADF)),
            _ if flow.is_busy() => Some(Withheld::Busy),
            Some(call) if call.failed => Some(Withheld::WithError(ecanceled())),
            _ if channel.is_tx_only() && !flow.sends_by_ring() => {
                Some(Withheld::WithError(eopnotsupp()))
            }
            _ => None,
        }
    }

    /// A packet has failed.
    pub(super) fn fail(&mut self) {
        if let Some(call) = &mut self.0 {
            call.failed = true;
        }
    }

    /// Learns what became of a packet: what would stay in the ring fails instead.
    #[inline]
    pub(super) fn settle(&mut self, channel: &Channel, fate: DescsFate) -> DescsFate {
        if self.0.is_none() {
            return fate;
        }
        self.settle_call(channel, fate)
    }

    #[cold]
    #[inline(never)]
    fn settle_call(&mut self, channel: &Channel, fate: DescsFate) -> DescsFate {
        match fate {
            DescsFate::Complete(0) | DescsFate::Again => fate,
            DescsFate::Complete(_) => {
                self.fail();
                fate
            }
            DescsFate::Wait => {
                self.fail();
                channel.unstall();
                DescsFate::Complete(errno(EAGAIN))
            }
        }
    }
}
