// SPDX-License-Identifier: GPL-2.0

//! What becomes of descriptors that were taken: they complete with an errno or 0, at once or when
//! the stack has released their frames, or they stay in the ring for another try.

use crate::channel::Channel;
use crate::pure::abi::{Desc, CHAIN_MAX};
use crate::sys::{
    errno::eopnotsupp,
    socket::Socket,
    ubuf::{Notification, Released, REFERENCES_MAX}, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc, //
    }, //
};

/// How often a full send buffer that has room again is tried at once.
const FULL_MAX: u32 = 4;

/// The answer of the stack to a packet.
#[derive(Clone, Copy)]
pub(super) struct StackAnswer {
    pub(super) result: Result,
    /// UDP has said `EAGAIN`, and no hook or security module.
    pub(super) was_full: bool,
}

/// What becomes of descriptors that the stack was given.
#[derive(Clone, Copy)]
pub(super) enum DescsFate {
    /// They complete, with an errno or 0.
    Complete(u16),
    /// They stay in the TX ring, and are tried again at once.
    Again,
    /// They stay in the TX ring, until something has room or ends.
    Wait,
}

/// What a sender remembers of packets that the stack didn't take.
#[derive(Default)]
pub(super) struct Retry {
    /// The next packets go without others, since they can't go as a GSO packet.
    alone: u32,
    /// Times in a row that the send buffer was full, and yet had room right after.
    full: u32,
}

impl Retry {
    /// Takes one off the packets that go without others. Returns whether the next packet is such a one.
    pub(super) fn spend_alone(&mut self) -> bool {
        let alone = self.alone > 0;
        self.alone = self.alone.saturating_sub(1);
        alone
    }

    /// Decides about `count` descriptors by the stack's answer.
    pub(super) fn decide(
        &mut self,
        channel: &Arc<Channel>,
        socket: &Socket,
        answer: StackAnswer,
        (count, made_gso): (u32, MadeGso),
    ) -> DescsFate {
        let Err(error) = answer.result else {
            self.full = 0;
            return DescsFate::Complete(0);
        };
        if answer.was_full && Channel::stall_buffer(channel, socket) {
            return DescsFate::Wait;
        }
        // The send buffer has drained meanwhile. The number of attempts is limited, because a cgroup's program that
        // UDP asks may say EAGAIN, too, each time.
        if answer.was_full && self.full < FULL_MAX {
            self.full = self.full.wrapping_add(1);
            return DescsFate::Again;
        }
        if made_gso.can_split(error) {
            self.alone = count;
            return DescsFate::Again;
        }
        self.full = 0;
        DescsFate::Complete(errno(error))
    }
}

/// Whether KOPI made a GSO packet of several packets.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum MadeGso {
    No,
    Yes,
    /// Each of which fits the route that UDP sees, in IPv6.
    Fitting,
}

impl MadeGso {
    /// Whether it depends on the route that KOPI makes a GSO packet.
    pub(super) fn is_by_route(self) -> bool {
        self == Self::Fitting
    }

    /// Whether an error may be one of the GSO packet, not of the packets in it: then they go one by one.
    fn can_split(self, error: Error) -> bool {
        match self {
            Self::No => false,
            Self::Yes => [EMSGSIZE, EINVAL, EIO, eopnotsupp()].contains(&error),
            // One at the end has left, if it is shorter: see `Output::made_gso`.
            Self::Fitting => error != EMSGSIZE && Self::Yes.can_split(error),
        }
    }
}

/// The errno of a completion.
pub(super) fn errno(error: Error) -> u16 {
    u16::try_from(error.to_errno().unsigned_abs()).unwrap_or(0)
}

/// Completions of what was copied, written together: the ring's lock, with interrupts off, is taken
/// once for all of them.
pub(super) struct CompletionBatch(KVec<Desc>);

impl CompletionBatch {
    pub(super) fn new() -> Result<Self> {
        Ok(Self(KVec::with_capacity(
            CHAIN_MAX as usize,
            GFP_KERNEL_ACCOUNT,
        )?))
    }

    /// Completes descriptors, with an errno or 0, at the next [`CompletionBatch::flush`] at the
    /// latest.
    pub(super) fn add(&mut self, channel: &Channel, descs: &[Desc], error: u16) {
        if self.0.spare_capacity_mut().len() < descs.len() {
            self.flush(channel);
        }
        for desc in descs {
            // There is room: a packet has no more than CHAIN_MAX.
            let _ = self.0.push_within_capacity(Desc { error, ..*desc });
        }
    }

    /// Writes all that were added.
    pub(super) fn flush(&mut self, channel: &Channel) {
        if !self.0.is_empty() {
            channel.complete(self.0.iter().copied(), 0);
            self.0.clear();
        }
    }

    /// Does what was decided about descriptors that the stack was given; says whether it still holds
    /// their frames.
    pub(super) fn carry_out(
        &mut self,
        channel: &Channel,
        descs: &[Desc],
        fate: DescsFate,
        notification: Option<Notification<InFlight>>,
    ) -> bool {
        if let Some(notification) = notification {
            let outcome = match fate {
                DescsFate::Complete(error) => u32::from(error),
                DescsFate::Again | DescsFate::Wait => InFlight::CANCELLED,
            };
            notification.value().outcome.store(outcome, Relaxed);
            return !notification.put();
        }
        if let DescsFate::Complete(error) = fate {
            self.add(channel, descs, error);
        }
        false
    }
}

/// Descriptors that went by reference: they complete when the stack has released their frames.
pub(super) struct InFlight {
    channel: Arc<Channel>,
    descs: [Desc; REFERENCES_MAX],
    count: usize,
    /// What to complete them with: an errno, 0, or [`InFlight::CANCELLED`].
    outcome: Atomic<u32>,
}

impl InFlight {
    /// They were not sent and stay in the TX ring.
    const CANCELLED: u32 = u32::MAX;
}

impl Released for InFlight {
    fn on_released(&self) {
        let descs = self.descs.get(..self.count).unwrap_or(&[]);
        match self.outcome.load(Relaxed) {
            Self::CANCELLED => self.channel.cancel_completions(self.count as u32),
            outcome => {
                let error = outcome as u16;
                let done = descs.iter().map(|desc| Desc { error, ..*desc });
                self.channel.complete(done, self.count as u32);
            }
        }
    }
}

/// Prepares descriptors to go by reference; `None` if there is no memory, and they must be copied.
pub(super) fn in_flight(channel: &Arc<Channel>, taken: &[Desc]) -> Option<Notification<InFlight>> {
    channel.reserve_completions(taken.len() as u32);
    // Not called `descs`: within `init!` that is the array, once it is there, which is longer.
    let in_flight = init!(InFlight {
        channel: channel.clone(),
        descs <- pin_init::init_array_from_fn(|at| taken.get(at).copied().unwrap_or_default()),
        count: taken.len(),
        outcome: Atomic::new(0),
    });
    match Notification::new(in_flight) {
        Ok(notification) => Some(notification),
        Err(_) => {
            channel.cancel_completions(taken.len() as u32);
            None
        }
    }
}
