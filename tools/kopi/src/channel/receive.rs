// SPDX-License-Identifier: GPL-2.0

//! Packets out of the RX ring, and free frames for those to come.

use super::{Channel, Rx};
use crate::{
    flow::FlowId,
    frame::{Frame, Payload},
    packet::Packet,
    pure::{
        abi::{Desc, CHAIN_MAX, DESC_MORE},
        ring::Broken,
    },
};
use std::io;

/// Frames go back to the kernel when this many are due, or when no packet is there.
const REFILL_BATCH: u32 = 32;

impl Rx {
    /// Whether there are too few frames for what may come: less than half of them, or than one packet may
    /// need.
    pub(super) fn is_short(&self) -> bool {
        self.posted < (self.target / 2).max(CHAIN_MAX).min(self.target)
    }
}

impl Channel {
    /// Takes the next packet, of whichever flow; `None` while there is none.
    pub fn recv(&self) -> io::Result<Option<Packet<'_>>> {
        let rx = &mut *self.rx.borrow_mut();
        let Some((packet, count)) = self.next(rx)? else {
            return Ok(None);
        };
        self.taken(rx, count)?;
        Ok(Some(packet))
    }

    /// Steps past entries of the RX ring whose frames are the program's now.
    pub(super) fn taken(&self, rx: &mut Rx, count: u32) -> io::Result<()> {
        rx.ring.release(count);
        rx.posted = rx.posted.saturating_sub(count);
        if rx.target.saturating_sub(rx.posted) >= REFILL_BATCH {
            self.refill(rx)?;
        }
        Ok(())
    }

    /// Shows the next packet without taking it.
    pub(crate) fn peek<R>(&self, show: impl FnOnce(&Packet<'_>) -> R) -> io::Result<Option<R>> {
        let rx = &mut *self.rx.borrow_mut();
        let Some((packet, _)) = self.next(rx)? else {
            return Ok(None);
        };
        let shown = show(&packet);
        // The frames stay the RX ring's.
        packet.into_payload().into_kernel();
        Ok(Some(shown))
    }

    /// The next packet, and its number of entries, which are not released yet.
    fn next(&self, rx: &mut Rx) -> io::Result<Option<(Packet<'_>, u32)>> {
        let Some((first, count)) = self.next_entries(rx)? else {
            return Ok(None);
        };
        let mut payload = Payload::from(self.received(first)?);
        for ahead in 1..count {
            match self.received(rx.ring.peek(ahead)) {
                Ok(frame) => payload.push(frame),
                Err(error) => {
                    // What is in the ring still is not the program's.
                    payload.into_kernel();
                    return Err(error);
                }
            }
        }
        Ok(Some((Packet::new(FlowId(first.flow), payload), count)))
    }

    /// The first entry of the next packet, and its number of entries; `None` while the last one isn't
    /// there.
    #[inline]
    pub(super) fn next_entries(&self, rx: &mut Rx) -> io::Result<Option<(Desc, u32)>> {
        if rx.ring.available(1)? == 0 {
            self.refill(rx)?;
            return Ok(None);
        }
        let first = rx.ring.peek(0);
        let mut count = 1;
        let mut last = first;
        while last.flags & DESC_MORE != 0 {
            if rx.ring.available(count + 1)? <= count {
                // The rest isn't there yet.
                return Ok(None);
            }
            last = rx.ring.peek(count);
            count += 1;
        }
        Ok(Some((first, count)))
    }

    /// The frame of an RX entry.
    fn received(&self, desc: Desc) -> io::Result<Frame<'_>> {
        let start = self
            .region
            .frame_of_payload(desc.offset, desc.len)
            .ok_or(Broken)?;
        // SAFETY: A frame that the kernel gives to the program by its RX ring, and the payload in
        // it, as just checked. The kernel had it from the FILL ring, and puts none there twice.
        Ok(unsafe { Frame::new(self, start, desc.offset, desc.len) })
    }

    /// Gives free frames to the kernel for packets to come.
    pub(super) fn refill(&self, rx: &mut Rx) -> io::Result<()> {
        let want = rx.target.saturating_sub(rx.posted);
        if want == 0 {
            return Ok(());
        }
        let room = rx.fill.room(want)?;
        let mut free = self.free.borrow_mut();
        let count = want.min(room).min(free.len() as u32);
        let left = free.len() - count as usize;
        for start in free.drain(left..) {
            rx.fill.write(u64::from(start));
        }
        rx.posted += count;
        rx.fill.submit();
        Ok(())
    }

    /// Gives frames that have become free to the kernel if it has few: the program may sleep next without
    /// having asked for a packet since.
    pub(super) fn refill_if_short(&self) -> io::Result<()> {
        // One that is being received refills by itself.
        match self.rx.try_borrow_mut() {
            Ok(mut rx) if rx.is_short() => self.refill(&mut rx),
            _ => Ok(()),
        }
    }

    /// Whether a call to receive has something to do: there are entries in the RX ring, or nonsense.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_received(&self) -> bool {
        !matches!(self.rx.borrow_mut().ring.available(1), Ok(0))
    }
}
