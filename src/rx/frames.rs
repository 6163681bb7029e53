// SPDX-License-Identifier: GPL-2.0

//! Frames for packets that come: taken from the FILL ring, together with room in the RX ring.

use super::dropped::DropReason;
use super::Receiver;
use crate::pure::{
    abi::CHAIN_MAX,
    geometry::{Frame, Geometry}, //
};

/// Entries of the FILL ring that are no frame, which are passed over for one packet.
pub(super) const INVALID_MAX: u32 = 64;

impl Receiver {
    /// Takes the next frame from the FILL ring.
    #[inline(always)]
    fn next_frame(&mut self, geometry: &Geometry) -> core::result::Result<Frame, DropReason> {
        let Ok(available) = self.fill.available(1) else {
            self.broken = self.broken.wrapping_add(1);
            return Err(DropReason::NoFrame);
        };
        if available == 0 {
            return Err(DropReason::NoFrame);
        }
        match geometry.frame_at(self.fill.peek(0)) {
            Some(frame) => {
                self.fill.release(1);
                Ok(frame)
            }
            None => self.next_valid_frame(available, geometry),
        }
    }

    /// The same where entries of the `available` ones are no frame.
    ///
    /// The producer's index isn't read again, and at most [`INVALID_MAX`] entries a packet are
    /// passed over: the program writes the ring meanwhile, and spinlocks are held.
    #[cold]
    fn next_valid_frame(
        &mut self,
        available: u32,
        geometry: &Geometry,
    ) -> core::result::Result<Frame, DropReason> {
        for _ in 0..available {
            if let Some(frame) = geometry.frame_at(self.fill.peek(0)) {
                self.fill.release(1);
                return Ok(frame);
            }
            if self.left_invalid == 0 {
                break;
            }
            self.left_invalid = self.left_invalid.saturating_sub(1);
            self.fill.release(1);
            self.invalid = self.invalid.wrapping_add(1);
        }
        Err(DropReason::NoFrame)
    }

    /// Takes `count` frames from the FILL ring into `frames`; all or none.
    fn take_frames(
        &mut self,
        count: u32,
        geometry: &Geometry,
    ) -> core::result::Result<(), DropReason> {
        // The common case: the frame needn't be set aside.
        if count == 1 && self.spare.is_empty() {
            let frame = self.next_frame(geometry)?;
            let _ = self.frames.push_within_capacity(frame);
            return Ok(());
        }
        while self.spare.len() < count as usize {
            let frame = self.next_frame(geometry)?;
            // There is room: no packet needs more than CHAIN_MAX.
            let _ = self.spare.push_within_capacity(frame);
        }
        for _ in 0..count {
            if let Some(frame) = self.spare.pop() {
                let _ = self.frames.push_within_capacity(frame);
            }
        }
        Ok(())
    }

    /// As [`Self::make_room`] for one frame, while there is no spare one; `None` if the ring has no room.
    #[inline(always)]
    fn one_frame(
        &mut self,
        geometry: &Geometry,
    ) -> Option<core::result::Result<Frame, DropReason>> {
        let has_room = self.ring.room(1).is_ok_and(|room| room > 0);
        has_room.then(|| self.next_frame(geometry))
    }

    /// Finds room and the frame for a packet of `len` bytes that one frame holds, unless it was set
    /// aside.
    #[inline]
    pub(super) fn take_frame(
        &mut self,
        len: u32,
        geometry: &Geometry,
    ) -> core::result::Result<Frame, DropReason> {
        if let Some(frame) = self.ready.take() {
            return Ok(frame);
        }
        if self.spare.is_empty() {
            if let Some(frame) = self.one_frame(geometry) {
                return frame;
            }
        }
        self.make_room(len, geometry)?;
        self.frames.pop().ok_or(DropReason::NoFrame)
    }

    /// Sets a frame aside for a packet of `len` bytes that one frame holds; says whether there is room
    /// for the packet.
    #[inline]
    pub(super) fn set_aside(&mut self, len: u32, geometry: &Geometry) -> bool {
        if len > geometry.capacity() || !self.spare.is_empty() {
            self.frames.clear();
            let has_room = self.make_room(len, geometry).is_ok();
            self.keep_frames();
            return has_room;
        }
        self.ready = self.one_frame(geometry).and_then(|frame| frame.ok());
        self.ready.is_some()
    }

    /// Keeps frames that were set aside and not used for the next packet.
    #[inline]
    pub(super) fn keep_ready(&mut self) {
        if let Some(frame) = self.ready.take() {
            // There is room: a frame is only set aside while there is no spare one. What `frames`
            // has is the program's since the last delivery.
            let _ = self.spare.push_within_capacity(frame);
        }
    }

    #[cold]
    fn keep_frames(&mut self) {
        while let Some(frame) = self.frames.pop() {
            // There is room: no more were taken than a packet needs.
            let _ = self.spare.push_within_capacity(frame);
        }
    }

    /// Finds room and frames for one packet of `len` bytes.
    #[inline]
    pub(super) fn make_room(
        &mut self,
        len: u32,
        geometry: &Geometry,
    ) -> core::result::Result<(), DropReason> {
        let needed = geometry.frames_for(len);
        if needed > CHAIN_MAX || needed > self.ring.size() {
            return Err(DropReason::TooLong);
        }
        // Frames of packets that are not written yet need room, too.
        let entries = needed.saturating_add(self.frames.len() as u32);
        match self.ring.room(entries) {
            Ok(room) if room >= entries => self.take_frames(needed, geometry),
            Ok(_) => Err(DropReason::RingFull),
            Err(_) => {
                self.broken = self.broken.wrapping_add(1);
                Err(DropReason::RingFull)
            }
        }
    }
}
