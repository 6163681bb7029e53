// SPDX-License-Identifier: GPL-2.0

//! The mapping of a channel, and where its rings and frames lie in it.

use crate::pure::{
    abi::{Layout, Meta, RingLayout, FRAME_HEADROOM, META_WORDS, RING_ENTRIES_MAX},
    ring::{Consumer, Entry, Producer},
};
use std::{io, os::fd::RawFd, ptr::NonNull};

/// The mapped region of a channel; unmapped when dropped.
///
/// # Invariants
///
/// `base` is valid for reads and writes of `layout.region_size` bytes as long as the value lives, in
/// the process `only_in` if there is one. Rings and frames of `layout` lie within the region, aligned as
/// they must be; rings don't overlap each other nor the frames.
pub(crate) struct Region {
    base: NonNull<u8>,
    layout: Layout,
    /// The process that has it, and no child of it.
    only_in: Option<u32>,
}

// SAFETY: The mapping belongs to the process, not to a thread.
unsafe impl Send for Region {}

impl Region {
    /// Maps the region of the channel that `fd` is on.
    pub(crate) fn map(fd: RawFd, layout: Layout) -> io::Result<Self> {
        check(&layout)?;
        Self::mmap(libc::MAP_SHARED, fd, layout)
    }

    /// Memory laid out like a region, with no kernel on the other side.
    #[cfg(test)]
    pub(crate) fn anonymous(layout: Layout) -> io::Result<Self> {
        check(&layout)?;
        Self::mmap(libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, layout)
    }

    fn mmap(flags: i32, fd: RawFd, layout: Layout) -> io::Result<Self> {
        let len = usize::try_from(layout.region_size).map_err(|_| unusable("size"))?;
        // SAFETY: A new mapping, at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                fd,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| unusable("address"))?;
        // INVARIANT: Mapped just now and unmapped in `drop`; `check` looked at the layout.
        Ok(Self {
            base,
            layout,
            only_in: None,
        })
    }

    /// Knows that forked children don't have it mapped, as of a channel that only sends.
    pub(crate) fn not_inherited(mut self) -> Self {
        self.only_in = Some(std::process::id());
        self
    }

    #[inline]
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes of payload that a frame holds.
    pub(crate) fn capacity(&self) -> u32 {
        self.layout.frame_size - FRAME_HEADROOM
    }

    /// The first byte of the frame of that number.
    pub(crate) fn frame(&self, number: u32) -> u32 {
        debug_assert!(number < self.layout.frame_count);
        self.layout.frames + number * self.layout.frame_size
    }

    /// The first byte of the frame of which `len` bytes at `offset` are payload, if that is so.
    #[inline]
    pub(crate) fn frame_of_payload(&self, offset: u32, len: u32) -> Option<u32> {
        let layout = &self.layout;
        let at = offset.checked_sub(layout.frames)?;
        let inside = at & (layout.frame_size - 1);
        // `check` saw to it that this fits.
        let fits = at < layout.frame_size * layout.frame_count
            && inside >= FRAME_HEADROOM
            && len <= layout.frame_size - inside;
        fits.then_some(offset - inside)
    }

    /// Where byte `offset` lies in this process.
    ///
    /// # Safety
    ///
    /// `offset` must be within the region.
    #[inline]
    pub(crate) unsafe fn at(&self, offset: u32) -> NonNull<u8> {
        // SAFETY: Within the mapping, as the caller sees to.
        unsafe { self.base.add(offset as usize) }
    }

    /// Reads the metadata in the headroom of a frame.
    ///
    /// # Safety
    ///
    /// `frame` must be the first byte of a frame that belongs to the program.
    #[inline]
    pub(crate) unsafe fn read_meta(&self, frame: u32) -> Meta {
        // SAFETY: The headroom is within the region and aligned to more than a `u64`; as the frame
        // is the program's, nobody writes there.
        let words = unsafe { self.at(frame).cast::<[u64; META_WORDS]>().read() };
        Meta::from_words(words)
    }

    /// Writes metadata into the headroom of a frame.
    ///
    /// # Safety
    ///
    /// As for [`Region::read_meta`].
    #[inline]
    pub(crate) unsafe fn write_meta(&self, frame: u32, meta: Meta) {
        // SAFETY: As in `read_meta`, and nobody reads there either.
        unsafe {
            self.at(frame)
                .cast::<[u64; META_WORDS]>()
                .write(meta.to_words());
        }
    }

    /// Takes the producing side of a ring of this region.
    ///
    /// # Safety
    ///
    /// The region must outlive the result, `at` must be of this region's layout, and nobody else
    /// may have that side.
    pub(crate) unsafe fn producer<E: Entry>(&self, at: &RingLayout) -> Producer<E> {
        // SAFETY: By the type's invariants the ring's places are within the region and aligned, and
        // its size is a power of two.
        unsafe {
            Producer::new(
                self.at(at.producer).cast(),
                self.at(at.consumer).cast(),
                self.at(at.flags).cast(),
                self.at(at.entries).cast(),
                at.size,
            )
        }
    }

    /// Takes the consuming side of a ring of this region.
    ///
    /// # Safety
    ///
    /// As for [`Region::producer`].
    pub(crate) unsafe fn consumer<E: Entry>(&self, at: &RingLayout) -> Consumer<E> {
        // SAFETY: As in `producer`.
        unsafe {
            Consumer::new(
                self.at(at.producer).cast(),
                self.at(at.consumer).cast(),
                self.at(at.flags).cast(),
                self.at(at.entries).cast(),
                at.size,
            )
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // A child may have something else at this address.
        if self.only_in.is_some_and(|pid| pid != std::process::id()) {
            return;
        }
        // SAFETY: Mapped in `mmap`, with this size; nothing that points there outlives the value.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.layout.region_size as usize) };
    }
}

fn unusable(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the kernel describes a channel that can't be used: {what}"),
    )
}

/// Establishes the invariants of [`Region`] for a layout that the kernel gave.
fn check(layout: &Layout) -> io::Result<()> {
    if layout.region_size > u64::from(u32::MAX) {
        return Err(unusable("region size"));
    }
    if !layout.frame_size.is_power_of_two() || layout.frame_size < 2 * FRAME_HEADROOM {
        return Err(unusable("frame size"));
    }
    let frames = u64::from(layout.frame_size) * u64::from(layout.frame_count);
    if layout.frame_count == 0
        || layout.frames % layout.frame_size != 0
        || u64::from(layout.frames) + frames > layout.region_size
    {
        return Err(unusable("frames"));
    }

    // Not in a Vec: a preloaded library may come here where memory can't be allocated.
    let mut used = [(u64::from(layout.frames), frames); 17];
    let mut places = used.iter_mut().skip(1);
    for (ring, entry_size) in [
        (&layout.tx, 16),
        (&layout.completion, 16),
        (&layout.fill, 8),
        (&layout.rx, 16),
    ] {
        if ring.entry_size != entry_size
            || !ring.size.is_power_of_two()
            || ring.size > RING_ENTRIES_MAX
        {
            return Err(unusable("ring size"));
        }
        let entries = u64::from(ring.size) * u64::from(ring.entry_size);
        for (at, len, align) in [
            (ring.producer, 4, 4),
            (ring.consumer, 4, 4),
            (ring.flags, 4, 4),
            (ring.entries, entries, 8),
        ] {
            if at % align != 0 || u64::from(at) + len > layout.region_size {
                return Err(unusable("ring"));
            }
            if let Some(place) = places.next() {
                *place = (u64::from(at), len);
            }
        }
    }
    used.sort_unstable();
    let overlap = used
        .windows(2)
        .any(|pair| matches!(pair, [(at, len), (next, _)] if at + len > *next));
    if overlap {
        return Err(unusable("overlap"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pure::{abi::ChannelReq, geometry::Geometry};

    #[inline]
    fn layout() -> Layout {
        let request = ChannelReq {
            frame_size: 2048,
            frame_count: 8,
            tx_entries: 4,
            completion_entries: 4,
            fill_entries: 8,
            rx_entries: 8,
            ..ChannelReq::default()
        };
        *Geometry::new(&request).unwrap().layout()
    }

    #[test]
    fn good_layout_is_taken() {
        check(&layout()).unwrap();
    }

    #[test]
    fn bad_layouts_are_refused() {
        let spoil: [fn(&mut Layout); 10] = [
            |l| l.region_size = 4096,
            |l| l.region_size = 1 << 33,
            |l| l.frame_size = 2047,
            |l| l.frame_size = 64,
            |l| l.frame_count = 0,
            |l| l.frame_count = 9,
            |l| l.tx.size = 3,
            |l| l.fill.entry_size = 16,
            |l| l.rx.producer += 1,
            |l| l.rx.entries = l.tx.entries,
        ];
        for (number, spoil) in spoil.into_iter().enumerate() {
            let mut bad = layout();
            spoil(&mut bad);
            assert!(check(&bad).is_err(), "case {number}");
        }
    }

    #[test]
    fn payload_of_a_frame() {
        let region = Region::anonymous(layout()).unwrap();
        let first = region.frame(0);
        assert_eq!(region.frame_of_payload(first + 64, 1984), Some(first));
        assert_eq!(region.frame_of_payload(first + 100, 0), Some(first));
        assert_eq!(region.frame_of_payload(first + 2047, 1), Some(first));
        assert_eq!(region.frame_of_payload(first + 63, 1), None);
        assert_eq!(region.frame_of_payload(first + 64, 1985), None);
        assert_eq!(region.frame_of_payload(first - 1, 1), None);
        let last = region.frame(7);
        assert_eq!(region.frame_of_payload(last + 64, 1), Some(last));
        assert_eq!(region.frame_of_payload(last + 2048 + 64, 1), None);
        assert_eq!(region.frame_of_payload(u32::MAX, u32::MAX), None);
    }

    #[test]
    fn metadata_comes_back() {
        let region = Region::anonymous(layout()).unwrap();
        let meta = Meta {
            peer: [7; 16],
            mark: 9,
            timestamp: u64::MAX,
            ..Meta::default()
        };
        let frame = region.frame(3);
        // SAFETY: A frame of this region, which nobody else uses.
        unsafe {
            region.write_meta(frame, meta);
            assert_eq!(region.read_meta(frame), meta);
        }
    }
}
