// SPDX-License-Identifier: GPL-2.0

//! Frames that belong to the program.

use crate::channel::Channel;
use std::{
    fmt, mem,
    ops::{Deref, DerefMut},
    ptr,
};

/// A frame of a channel, owned by the program: its payload can be read and written in place.
///
/// A frame comes from [`Channel::frame`], or with a received [`Packet`](crate::Packet). Sending it
/// gives it away; dropping it gives it back to the channel. As either takes the value, a frame can't
/// be touched while the kernel has it.
///
/// It dereferences to the payload, which is empty in a new frame: [`Frame::set_len`] and
/// [`Frame::extend_from_slice`] make it longer.
pub struct Frame<'c> {
    channel: &'c Channel,
    /// The frame's first byte.
    start: u32,
    /// The payload's first byte.
    offset: u32,
    len: u32,
}

impl<'c> Frame<'c> {
    /// Takes a frame that the kernel doesn't have.
    ///
    /// # Safety
    ///
    /// `start` must be the first byte of a frame of the channel, for which no other `Frame` exists
    /// and which isn't on the free list nor the kernel's; `len` bytes at `offset` must be payload of
    /// it.
    pub(crate) unsafe fn new(channel: &'c Channel, start: u32, offset: u32, len: u32) -> Self {
        Self {
            channel,
            start,
            offset,
            len,
        }
    }

    #[inline]
    pub(crate) fn channel(&self) -> &'c Channel {
        self.channel
    }

    #[inline]
    pub(crate) fn start(&self) -> u32 {
        self.start
    }

    #[inline]
    pub(crate) fn offset(&self) -> u32 {
        self.offset
    }

    /// Gives the frame away: it isn't put on the free list.
    #[inline]
    pub(crate) fn into_kernel(self) {
        mem::forget(self);
    }

    /// A number that tells this frame from the others of its channel, and its
    /// [`Completion`](crate::Completion) from theirs.
    pub fn id(&self) -> u32 {
        self.start
    }

    /// Bytes of payload that fit.
    #[inline]
    pub fn capacity(&self) -> usize {
        let used = self.offset - self.start;
        (self.channel.region().layout().frame_size - used) as usize
    }

    /// Sets the length of the payload. Bytes beyond the old length are those that the frame held last.
    ///
    /// # Panics
    ///
    /// If `len` is over the [capacity](Frame::capacity).
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "longer than the frame");
        self.len = len as u32;
    }

    /// Makes the payload longer, by as much of `data` as fits, and says how much that was.
    pub fn extend_from_slice(&mut self, data: &[u8]) -> usize {
        let at = self.len as usize;
        let fits = data.len().min(self.capacity() - at);
        self.set_len(at + fits);
        self[at..].copy_from_slice(&data[..fits]);
        fits
    }
}

impl Deref for Frame<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `offset` and `len` are within the region, which the channel keeps. The frame is
        // the program's and this its only owner, so nobody writes there: the kernel writes only into
        // frames that it was given.
        unsafe {
            let at = self.channel.region().at(self.offset);
            std::slice::from_raw_parts(at.as_ptr(), self.len as usize)
        }
    }
}

impl DerefMut for Frame<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: As in `deref`, and nobody reads there either.
        unsafe {
            let at = self.channel.region().at(self.offset);
            std::slice::from_raw_parts_mut(at.as_ptr(), self.len as usize)
        }
    }
}

impl Drop for Frame<'_> {
    #[inline]
    fn drop(&mut self) {
        self.channel.put_free(self.start);
    }
}

impl fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("id", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// The frames of one packet, in order: nearly always one, more for payload that fits no frame.
///
/// # Invariants
///
/// All frames are of one channel. So nothing lends a `&mut Frame` out of a payload, by which another
/// channel's could be put there.
#[derive(Debug)]
pub struct Payload<'c> {
    first: Frame<'c>,
    rest: Vec<Frame<'c>>,
}

impl<'c> Payload<'c> {
    pub(crate) fn new(first: Frame<'c>, rest: Vec<Frame<'c>>) -> Self {
        Self { first, rest }
    }

    /// Appends a frame.
    ///
    /// # Panics
    ///
    /// If the frame is of another channel.
    pub fn push(&mut self, frame: Frame<'c>) {
        assert!(
            ptr::eq(frame.channel, self.first.channel),
            "a frame of another channel"
        );
        self.rest.push(frame);
    }

    /// Number of bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.frames().map(|frame| frame.len()).sum()
    }

    /// The first frame.
    #[inline]
    pub fn first(&self) -> &Frame<'c> {
        &self.first
    }

    /// All frames.
    pub fn frames(&self) -> impl Iterator<Item = &Frame<'c>> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// Shows all frames: quicker than an iterator over the first one and the rest.
    #[inline]
    pub(crate) fn for_each(&self, mut show: impl FnMut(&Frame<'c>)) {
        show(&self.first);
        self.rest.iter().for_each(show);
    }

    /// The bytes of all frames, to be written to.
    ///
    /// The frames themselves stay where they are: one of another channel can't get into a payload.
    ///
    /// ```compile_fail
    /// fn exchange<'c>(payload: &mut kopi::Payload<'c>, frame: &mut kopi::Frame<'c>) {
    ///     std::mem::swap(payload.frames_mut().next().unwrap(), frame);
    /// }
    /// ```
    ///
    /// ```
    /// fn exchange(payload: &mut kopi::Payload<'_>, frame: &mut kopi::Frame<'_>) {
    ///     payload.frames_mut().next().unwrap().swap_with_slice(frame);
    /// }
    /// ```
    pub fn frames_mut(&mut self) -> impl Iterator<Item = &mut [u8]> + use<'_, 'c> {
        std::iter::once(&mut self.first)
            .chain(&mut self.rest)
            .map(|frame| &mut **frame)
    }

    /// Puts `data` in place of what is there, as much as fits into the frames, and says how much that
    /// was. Frames that aren't needed become free.
    pub fn replace(&mut self, data: &[u8]) -> usize {
        self.first.set_len(0);
        let mut at = self.first.extend_from_slice(data);
        let mut needed = 0;
        for frame in &mut self.rest {
            if at == data.len() {
                break;
            }
            frame.set_len(0);
            at += frame.extend_from_slice(&data[at..]);
            needed += 1;
        }
        self.rest.truncate(needed);
        at
    }

    /// Copies as much as `buffer` has room for, and says how much that was.
    pub fn copy_to(&self, buffer: &mut [u8]) -> usize {
        let mut at = 0;
        for frame in self.frames() {
            let fits = frame.len().min(buffer.len() - at);
            buffer[at..at + fits].copy_from_slice(&frame[..fits]);
            at += fits;
        }
        at
    }

    /// Number of frames.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        1 + self.rest.len()
    }

    /// Gives all frames away.
    #[inline]
    pub(crate) fn into_kernel(self) {
        self.first.into_kernel();
        // Nearly never, and neither the iterator's end nor that of an empty vector is for nothing.
        if self.rest.capacity() > 0 {
            self.rest.into_iter().for_each(Frame::into_kernel);
        } else {
            mem::forget(self.rest);
        }
    }
}

impl<'c> From<Frame<'c>> for Payload<'c> {
    #[inline]
    fn from(frame: Frame<'c>) -> Self {
        Self::new(frame, Vec::new())
    }
}
