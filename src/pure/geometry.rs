// SPDX-License-Identifier: GPL-2.0

//! From what a program asks for to where everything lies in a channel's region.

use super::abi::{
    ChannelReq, Layout, RingLayout, CHANNEL_FLAGS, CHANNEL_GRO, CHANNEL_GRO_MERGED,
    CHANNEL_TX_ONLY, FRAMES_MAX, FRAME_HEADROOM, FRAME_SIZE_MAX, FRAME_SIZE_MIN, REGION_SIZE_MAX,
    RING_ENTRIES_MAX,
};

/// Bytes of a page.
pub const PAGE_SIZE: u64 = 4096;
/// Indices and flags lie on lines of their own.
const CACHE_LINE: u64 = 64;

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// An unknown flag, a reserved field that isn't zero, or flags that don't go together.
    Flags,
    /// A ring's size is zero, no power of two, or over the limit.
    Ring,
    /// The frame size is no power of two or out of range.
    FrameSize,
    /// The number of frames is zero or out of range.
    FrameCount,
    /// The region would be larger than allowed.
    Region,
}

/// Sizes of a channel that were found good.
///
/// # Invariants
///
/// `frame_size` is a power of two of at least [`FRAME_SIZE_MIN`], `frames` a multiple of it, all
/// frames and rings lie within `region_size` of the layout, which is at most [`REGION_SIZE_MAX`].
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    layout: Layout,
}

/// A frame of a channel: the offset of its first byte, known to be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame(u32);

impl Frame {
    /// Offset of the frame's first byte, where its metadata lies.
    pub fn start(self) -> u32 {
        self.0
    }

    /// Offset of the payload that follows the headroom.
    pub fn payload(self) -> u32 {
        // Frames are at least FRAME_SIZE_MIN long and end below 2^30.
        self.0.wrapping_add(FRAME_HEADROOM)
    }
}

/// Lays out one ring of `size` entries at `at`, and returns where it ends.
fn ring(at: u64, size: u32, entry_size: u32) -> (RingLayout, u64) {
    // At most a few megabytes: none of this overflows 32 bits.
    let entries = at + 3 * CACHE_LINE;
    let end = entries + u64::from(size) * u64::from(entry_size);
    let layout = RingLayout {
        producer: at as u32,
        consumer: (at + CACHE_LINE) as u32,
        flags: (at + 2 * CACHE_LINE) as u32,
        entries: entries as u32,
        size,
        entry_size,
        reserved: [0; 2],
    };
    (layout, end.next_multiple_of(CACHE_LINE))
}

impl Geometry {
    /// Checks a request and lays out its region.
    pub fn new(req: &ChannelReq) -> Result<Self, Invalid> {
        if req.flags & !CHANNEL_FLAGS != 0 || req.reserved.iter().any(|&word| word != 0) {
            return Err(Invalid::Flags);
        }
        if req.flags & CHANNEL_GRO_MERGED != 0 && req.flags & CHANNEL_GRO == 0 {
            return Err(Invalid::Flags);
        }
        // There is nothing to coalesce in a ring.
        if req.flags & CHANNEL_TX_ONLY != 0 && req.flags & CHANNEL_GRO != 0 {
            return Err(Invalid::Flags);
        }
        for size in [
            req.tx_entries,
            req.completion_entries,
            req.fill_entries,
            req.rx_entries,
        ] {
            if !size.is_power_of_two() || size > RING_ENTRIES_MAX {
                return Err(Invalid::Ring);
            }
        }
        if !req.frame_size.is_power_of_two()
            || !(FRAME_SIZE_MIN..=FRAME_SIZE_MAX).contains(&req.frame_size)
        {
            return Err(Invalid::FrameSize);
        }
        if !(1..=FRAMES_MAX).contains(&req.frame_count) {
            return Err(Invalid::FrameCount);
        }

        let (tx, end) = ring(0, req.tx_entries, 16);
        let (completion, end) = ring(end, req.completion_entries, 16);
        let (fill, end) = ring(end, req.fill_entries, 8);
        let (rx, end) = ring(end, req.rx_entries, 16);

        let frame_size = u64::from(req.frame_size);
        let frames = end.next_multiple_of(PAGE_SIZE.max(frame_size));
        let end = frames + frame_size * u64::from(req.frame_count);
        let region_size = end.next_multiple_of(PAGE_SIZE);
        if region_size > u64::from(REGION_SIZE_MAX) {
            return Err(Invalid::Region);
        }
        // INVARIANT: All was checked or computed above.
        Ok(Self {
            layout: Layout {
                region_size,
                flags: req.flags,
                frames: frames as u32,
                frame_size: req.frame_size,
                frame_count: req.frame_count,
                reserved: [0; 2],
                tx,
                completion,
                fill,
                rx,
            },
        })
    }

    /// The layout, as userspace gets it.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Pages of the region.
    pub fn pages(&self) -> usize {
        (self.layout.region_size / PAGE_SIZE) as usize
    }

    /// Bytes of payload that a frame holds.
    pub fn capacity(&self) -> u32 {
        self.layout.frame_size.saturating_sub(FRAME_HEADROOM)
    }

    /// Number of frames that a payload of `len` bytes needs.
    pub fn frames_for(&self, len: u32) -> u32 {
        match self.capacity() {
            // Most often, and without a division.
            capacity if len <= capacity => 1,
            capacity => len.div_ceil(capacity.max(1)),
        }
    }

    /// The frame that starts at `offset`, if one does.
    pub fn frame_at(&self, offset: u64) -> Option<Frame> {
        let offset = u32::try_from(offset).ok()?;
        let frame = self.frame_of(offset)?;
        (frame.0 == offset).then_some(frame)
    }

    /// The frame in which `offset` lies, if it lies in one.
    pub fn frame_of(&self, offset: u32) -> Option<Frame> {
        let at = offset.checked_sub(self.layout.frames)?;
        // At most REGION_SIZE_MAX. A division would take longer than all else.
        if at >= self.layout.frame_size.wrapping_mul(self.layout.frame_count) {
            return None;
        }
        Some(Frame(offset & !self.layout.frame_size.wrapping_sub(1)))
    }

    /// Whether `len` bytes at `offset` are all payload of one frame, and of which.
    pub fn payload(&self, offset: u32, len: u32) -> Option<Frame> {
        let frame = self.frame_of(offset)?;
        let before = offset.wrapping_sub(frame.0);
        let fits = before >= FRAME_HEADROOM && len <= self.layout.frame_size.wrapping_sub(before);
        fits.then_some(frame)
    }
}
