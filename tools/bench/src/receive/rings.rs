// SPDX-License-Identifier: GPL-2.0

//! KOPI's rings.

use super::{Receiver, Tally};
use kopi::{Channel, Flow, Interest};
use std::{io, time::Duration};

/// Nothing takes so long, but for an error.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is in the RX ring.
pub(super) struct Rings {
    channel: Channel,
    _flow: Flow,
}

impl Rings {
    pub(super) fn new(flow: Flow, gro: bool, merged: bool) -> io::Result<Self> {
        let channel = Channel::builder().gro(gro).gro_merged(merged).open(&flow)?;
        Ok(Self {
            channel,
            _flow: flow,
        })
    }
}

impl Receiver for Rings {
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        let mut any = false;
        while let Some(packet) = self.channel.recv()? {
            any = true;
            let Some(segment) = packet.segment_size() else {
                tally.add(packet.len(), packet.chunks().next().unwrap_or_default());
                continue;
            };
            // A GRO packet's datagrams go on from frame to frame.
            let (mut at, mut left) = (0, packet.len());
            for chunk in packet.chunks() {
                while at < chunk.len() {
                    tally.add(segment.min(left), &chunk[at..]);
                    left = left.saturating_sub(segment);
                    at += segment;
                }
                at -= chunk.len();
            }
        }
        if !any
            && !self
                .channel
                .wait(Interest::READABLE, Some(PATIENCE))?
                .readable
        {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}
