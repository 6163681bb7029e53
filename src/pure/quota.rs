// SPDX-License-Identifier: GPL-2.0

//! Quotas: the number of things that a user or a network namespace holds, and may hold.

/// A number of each thing that is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Open KOPI sockets.
    pub flows: u32,
    /// Channels that something still uses: a flow, a mapping, a packet in flight.
    pub channels: u32,
    /// Frames of these channels.
    pub frames: u32,
}

/// The kind of thing that would be over its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Flows.
    Flows,
    /// Channels.
    Channels,
    /// Frames.
    Frames,
}

fn plus(held: u32, more: u32, limit: u32, over: Over) -> Result<u32, Over> {
    match held.checked_add(more) {
        Some(sum) if sum <= limit || more == 0 => Ok(sum),
        _ => Err(over),
    }
}

impl Holding {
    /// With `more`, if that is within the limit. A kind of which `more` has none isn't refused: its
    /// limit may have become lower than what is held.
    pub fn plus(self, more: Self, limit: Self) -> Result<Self, Over> {
        Ok(Self {
            flows: plus(self.flows, more.flows, limit.flows, Over::Flows)?,
            channels: plus(self.channels, more.channels, limit.channels, Over::Channels)?,
            frames: plus(self.frames, more.frames, limit.frames, Over::Frames)?,
        })
    }

    /// Without `less`, which was a part of it.
    pub fn minus(self, less: Self) -> Self {
        Self {
            flows: self.flows.saturating_sub(less.flows),
            channels: self.channels.saturating_sub(less.channels),
            frames: self.frames.saturating_sub(less.frames),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LIMIT: Holding = Holding {
        flows: 2,
        channels: 1,
        frames: 64,
    };

    fn holding(flows: u32, channels: u32, frames: u32) -> Holding {
        Holding {
            flows,
            channels,
            frames,
        }
    }

    #[test]
    fn up_to_the_limit_and_no_further() {
        let held = Holding::default().plus(holding(1, 1, 64), LIMIT).unwrap();
        assert_eq!(held.plus(holding(1, 0, 0), LIMIT), Ok(holding(2, 1, 64)));
        assert_eq!(held.plus(holding(2, 0, 0), LIMIT), Err(Over::Flows));
        assert_eq!(held.plus(holding(0, 1, 0), LIMIT), Err(Over::Channels));
        assert_eq!(held.plus(holding(0, 0, 1), LIMIT), Err(Over::Frames));
        assert_eq!(held.minus(holding(0, 1, 64)), holding(1, 0, 0));
        assert!(held.minus(held).is_empty());
    }

    #[test]
    fn sums_that_overflow_are_too_many() {
        let all = holding(u32::MAX, u32::MAX, u32::MAX);
        assert_eq!(all.plus(holding(0, 0, 1), all), Err(Over::Frames));
    }

    #[test]
    fn a_lowered_limit_refuses_only_what_is_asked_for() {
        let held = holding(9, 0, 0);
        assert_eq!(held.plus(holding(0, 1, 1), LIMIT), Ok(holding(9, 1, 1)));
        assert_eq!(held.plus(holding(1, 0, 0), LIMIT), Err(Over::Flows));
    }
}
