// SPDX-License-Identifier: GPL-2.0

//! Whether a datagram that may leave directly begins a batch: whether enough others in the ring can go with it.
//!
//! For few datagrams the stack costs less than a batch. Datagrams of several flows can go together if the flows have
//! the same device and user, which shows only when they do: so they are taken to, until batches stay short.

/// The fewest datagrams that must follow in the TX ring before a flow with nothing in flight begins the direct
/// path; for fewer the stack costs less.
const OTHERS_MIN: u32 = 2;

/// After so many batches in a row of fewer than three frames, flows that take turns don't begin batches.
const SHORT_MAX: u8 = 4;
/// They don't for this many doorbells, or visits of an engine.
const APART: u8 = 64;

/// What is to be expected of a batch that a datagram begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// Enough datagrams follow that can go with the first one.
    Enough,
    /// Some follow: too few to begin the direct path with, not to go on.
    Few,
    /// The next datagram in the ring can't go with it: a batch would have one frame.
    Alone,
}

/// What a sender knows of the datagrams that follow in its ring.
#[derive(Debug)]
pub struct Lookahead {
    /// Datagrams that may follow, of whichever flow.
    ahead: u32,
    /// The number of the flow that sent last.
    flow: u32,
    prospect: Prospect,
    /// Batches in a row that had too few frames, and that ended because the next datagram couldn't go with them.
    short: u8,
    /// For so many doorbells, flows that take turns aren't expected to have datagrams that can go together.
    apart: u8,
}

impl Default for Lookahead {
    fn default() -> Self {
        Self {
            ahead: 0,
            flow: 0,
            prospect: Prospect::Few,
            short: 0,
            apart: 0,
        }
    }
}

impl Lookahead {
    /// A doorbell rang, or an engine has come.
    pub fn begin(&mut self) {
        self.apart = self.apart.saturating_sub(1);
    }

    /// So many datagrams may follow the one that is sent next.
    #[inline]
    pub fn set_ahead(&mut self, ahead: u32) {
        self.ahead = ahead;
    }

    /// Datagrams that may follow, of whichever flow.
    pub fn ahead(&self) -> u32 {
        self.ahead
    }

    /// What was found by [`Self::look`].
    pub fn prospect(&self) -> Prospect {
        self.prospect
    }

    /// Notes who sends next, and says whether another flow sent last.
    #[inline]
    pub fn is_other(&mut self, flow: u32) -> bool {
        core::mem::replace(&mut self.flow, flow) != flow
    }

    /// Looks at the datagrams behind the first `count`, which the flow sends now. `flow_at` gives the flow of each.
    #[inline]
    pub fn look(&mut self, count: u32, flow_at: impl Fn(u32) -> u32) {
        let flow = self.flow;
        let is_enough = self.ahead >= OTHERS_MIN
            && (self.apart == 0 || (count..=OTHERS_MIN).all(|ahead| flow_at(ahead) == flow));
        let is_alone = || self.apart != 0 && (self.ahead == 0 || flow_at(count) != flow);
        self.prospect = if is_enough {
            Prospect::Enough
        } else if is_alone() {
            Prospect::Alone
        } else {
            Prospect::Few
        };
    }

    /// Expects enough datagrams, until it looks the next time.
    pub fn expect_enough(&mut self) {
        self.prospect = Prospect::Enough;
    }

    /// Notes how many frames a batch had that ended because the next datagram couldn't go with them.
    pub fn note_end(&mut self, frames: usize) {
        if frames > OTHERS_MIN as usize {
            self.short = 0;
            return;
        }
        self.short = self.short.saturating_add(1);
        if self.short >= SHORT_MAX {
            (self.short, self.apart) = (0, APART);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What is found when flow 7 sends one datagram, and those of `next` follow.
    fn look(lookahead: &mut Lookahead, next: &[u32]) -> Prospect {
        lookahead.set_ahead(next.len() as u32);
        lookahead.is_other(7);
        lookahead.look(1, |ahead| {
            next.get(ahead as usize - 1).copied().unwrap_or(0)
        });
        lookahead.prospect()
    }

    fn apart() -> Lookahead {
        let mut lookahead = Lookahead::default();
        (0..SHORT_MAX).for_each(|_| lookahead.note_end(1));
        lookahead
    }

    #[test]
    fn three_datagrams_of_any_flows_are_enough() {
        let mut lookahead = Lookahead::default();
        assert_eq!(look(&mut lookahead, &[8, 9]), Prospect::Enough);
        assert_eq!(look(&mut lookahead, &[7]), Prospect::Few);
        assert_eq!(look(&mut lookahead, &[]), Prospect::Few);
    }

    #[test]
    fn flows_that_stayed_apart_begin_only_by_their_own() {
        let mut lookahead = apart();
        assert_eq!(look(&mut lookahead, &[8, 7, 7]), Prospect::Alone);
        assert_eq!(look(&mut lookahead, &[7, 8, 7]), Prospect::Few);
        assert_eq!(look(&mut lookahead, &[7, 7, 8]), Prospect::Enough);
        assert_eq!(look(&mut lookahead, &[]), Prospect::Alone);
    }

    #[test]
    fn flows_that_stayed_apart_are_tried_anew() {
        let mut lookahead = apart();
        for _ in 0..APART {
            assert_eq!(look(&mut lookahead, &[8, 9]), Prospect::Alone);
            lookahead.begin();
        }
        assert_eq!(look(&mut lookahead, &[8, 9]), Prospect::Enough);
    }

    #[test]
    fn one_long_batch_makes_up_for_short_ones() {
        let mut lookahead = Lookahead::default();
        for frames in [1, 2, 2, 3, 1, 2, 2] {
            lookahead.note_end(frames);
        }
        assert_eq!(look(&mut lookahead, &[8, 9]), Prospect::Enough);
        lookahead.note_end(1);
        assert_eq!(look(&mut lookahead, &[8, 9]), Prospect::Alone);
    }

    #[test]
    fn more_than_fit_in_a_batch_need_no_look() {
        let mut lookahead = apart();
        lookahead.set_ahead(9);
        lookahead.is_other(7);
        lookahead.look(3, |_| unreachable!());
        assert_eq!(lookahead.prospect(), Prospect::Enough);
    }
}
