// SPDX-License-Identifier: GPL-2.0

//! The frames of a packet that the stack has made: of a GSO packet one for each datagram.

use super::{
    egress::headers,
    frames::{slot_of, FramePages, Frames, BULK, BULK_BYTES, START},
    taken::TakenSkb,
};
use crate::pure::gso::Headers;
use crate::sys::bindings;
use core::ptr;

/// The payload of a datagram or GSO packet.
pub(super) struct Payload {
    /// Bytes of all.
    pub(super) len: u32,
    /// Bytes of each datagram; the last may have less.
    pub(super) segment: u32,
}

/// What the headers of a packet are for those of its datagrams.
#[derive(Clone, Copy)]
enum HeadersAre {
    /// Those of the one datagram, with what hooks have written there.
    Whole,
    /// The same, but for the checksum, which was left to the device.
    Unsummed,
    /// A model for those of many.
    Model,
}

impl TakenSkb {
    /// The headers of an skb that the stack has made; `None` if they aren't those of a datagram that can leave.
    pub(super) fn headers(&self) -> Option<Headers> {
        // SAFETY: This value owns a valid skb, which begins with the Ethernet header, as at the
        // hook.
        unsafe { headers(self.as_ptr()) }
    }

    /// The payload of an skb that the stack has made, behind these headers.
    pub(super) fn payload(&self, headers: &Headers) -> Payload {
        // SAFETY: This value owns a valid skb, and the call only reads it.
        let (len, gso_size) = unsafe {
            (
                (*self.as_ptr()).len,
                bindings::kopi_skb_gso_size(self.as_ptr()),
            )
        };
        let len = len.saturating_sub(headers.size() as u32);
        let segment = match gso_size {
            0 => len,
            segment => segment,
        };
        Payload { len, segment }
    }

    /// What the headers of its datagrams are.
    fn headers_are(&self) -> HeadersAre {
        // SAFETY: This value owns a valid skb, and the calls only read it.
        let (gso_size, is_partial) = unsafe {
            (
                bindings::kopi_skb_gso_size(self.as_ptr()),
                bindings::kopi_skb_is_partial(self.as_ptr()),
            )
        };
        match (gso_size, is_partial) {
            (0, false) => HeadersAre::Whole,
            (0, true) => HeadersAre::Unsummed,
            _ => HeadersAre::Model,
        }
    }

    /// Bytes of payload that the driver has taken.
    pub(super) fn taken_bytes(&self, segment: u32, payload: u32) -> u32 {
        payload.min((self.datagrams_taken() as u32).saturating_mul(segment))
    }

    /// Makes the next frames, at most [`BULK`]; `None` if memory is short.
    pub(super) fn make_frames(
        &mut self,
        headers: &mut Headers,
        segment: u32,
        payload: u32,
    ) -> Option<Frames> {
        let (taken, number) = (
            self.taken_bytes(segment, payload),
            self.datagrams_taken() as u16,
        );
        let whole = headers.size().checked_add(segment as usize)?;
        let slot = slot_of(whole)?;
        let most = BULK.min(BULK_BYTES.checked_div(slot)?).max(1);
        let count = match payload.saturating_sub(taken).div_ceil(segment.max(1)) {
            // A datagram without payload.
            0 => 1,
            count => most.min(count as usize),
        };
        let pages = FramePages::new(slot.checked_mul(count)?)?;
        let (are, mut frames) = (self.headers_are(), Frames::new());
        let mut at = taken;
        for index in 0..count {
            let bytes = segment.min(payload.saturating_sub(at));
            let memory = pages.start().wrapping_add(index.wrapping_mul(slot));
            let data = memory.wrapping_add(START);
            // SAFETY: A slot has room for the headers and `segment` bytes, and the pages have `count`
            // slots. `bytes` is at most `segment`, and at most the skb's payload behind `at`. The skb
            // is owned, and the pages have no other user yet. The frames' references follow below.
            unsafe {
                let from = (headers.size() as u32).wrapping_add(at);
                let to = data.add(headers.size());
                let sum =
                    bindings::skb_copy_and_csum_bits(self.as_ptr(), from as i32, to, bytes as i32);
                let number = number.wrapping_add(index as u16);
                let header = match are {
                    HeadersAre::Whole => headers.as_they_are(),
                    HeadersAre::Unsummed => headers.complete(sum),
                    HeadersAre::Model => headers.make(number, bytes as u16, sum),
                };
                ptr::copy_nonoverlapping(header.as_ptr(), data, header.len());
                let len = (headers.size() as u32).wrapping_add(bytes);
                frames.push(memory, len, slot);
            }
            at = at.saturating_add(bytes);
        }
        pages.share(frames.len());
        self.set_pages(pages);
        Some(frames)
    }
}
