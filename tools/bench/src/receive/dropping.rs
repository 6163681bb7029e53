// SPDX-License-Identifier: GPL-2.0

//! The least that a packet can cost: an XDP program drops it.

use super::{Receiver, Tally, NAP, PATIENCE};
use crate::bpf::Dropping;
use std::{io, thread};

/// What drops all.
pub(super) struct Drops(Dropping);

impl Drops {
    pub(super) fn new(device: u32) -> io::Result<Self> {
        Ok(Self(Dropping::new(device)?))
    }
}

impl Receiver for Drops {
    /// Naps, most often once, and counts what was dropped meanwhile.
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        for _ in 0..PATIENCE.as_millis() / NAP.as_millis() {
            thread::sleep(NAP);
            let before = std::mem::replace(&mut tally.packets, self.0.count()?);
            if tally.packets != before {
                return Ok(());
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}
