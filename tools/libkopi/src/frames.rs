// SPDX-License-Identifier: GPL-2.0

//! Batches: packets in the frames in which the kernel reads and writes them.

use crate::{
    abi::Frame,
    channel::Channel,
    error::{give, number, Errno, INVALID, TOO_LONG},
    pointer::{array, rooms, shared},
};
use kopi::pure::abi::{Desc, Meta, CHAIN_MAX, DESC_META, DESC_MORE, FRAME_HEADROOM};
use std::{
    ffi::{c_int, c_uint},
    mem::MaybeUninit,
    ptr, slice,
};

const MORE: u32 = DESC_MORE as u32;
const META: u32 = DESC_META as u32;

impl Channel {
    /// The frame of an entry, as the program sees it.
    #[inline]
    fn element(&self, entry: Desc, has_meta: bool) -> Option<Frame> {
        let start = self.rings.frame_of_payload(entry.offset, entry.len)?;
        let at = |offset: u32| self.rings.base().as_ptr().wrapping_add(offset as usize);
        Some(Frame {
            data: at(entry.offset).cast(),
            meta: if has_meta {
                at(start).cast()
            } else {
                ptr::null_mut()
            },
            len: entry.len,
            capacity: self
                .rings
                .layout()
                .frame_size
                .wrapping_sub(entry.offset - start),
            flow: entry.flow,
            flags: u32::from(entry.flags & DESC_MORE) | if has_meta { META } else { 0 },
            id: start,
            reserved: 0,
        })
    }

    /// Takes a frame from the program, and makes an entry of it.
    #[inline]
    fn surrender(&self, frame: &Frame, first: bool) -> Result<Desc, Errno> {
        let base = self.rings.base().as_ptr();
        let offset = (frame.data as usize).wrapping_sub(base as usize);
        let offset = u32::try_from(offset).map_err(|_| INVALID)?;
        let start = self.rings.frame_of_payload(offset, frame.len);
        if start != Some(frame.id) || frame.flags & !(MORE | META) != 0 {
            return Err(INVALID);
        }
        if self.set_owned(frame.id, false) != Some(true) {
            return Err(INVALID);
        }
        let mut flags = (frame.flags & MORE) as u16;
        if first && frame.flags & META != 0 {
            let meta = base.wrapping_add(frame.id as usize).cast::<Meta>();
            // SAFETY: The headroom of a frame, which the program had until now. No metadata is the same
            // as empty one, and less to read.
            if unsafe { meta.read() } != Meta::default() {
                flags |= DESC_META;
            }
        }
        Ok(Desc {
            offset,
            len: frame.len,
            flow: frame.flow,
            flags,
            error: 0,
        })
    }

    /// Queues the first packet of these frames, and gives its number of them.
    #[inline]
    fn commit_packet(&self, frames: &[Frame]) -> Result<usize, Errno> {
        let first = frames.first().ok_or(INVALID)?;
        if first.flags & MORE != 0 {
            return self.commit_chain(frames);
        }
        let entry = self.surrender(first, true)?;
        self.send(slice::from_ref(&entry), slice::from_ref(first))
    }

    #[cold]
    fn commit_chain(&self, frames: &[Frame]) -> Result<usize, Errno> {
        let last = frames.iter().position(|frame| frame.flags & MORE == 0);
        let frames = frames.get(..=last.ok_or(INVALID)?).ok_or(INVALID)?;
        let mut entries = [Desc::default(); CHAIN_MAX as usize];
        let entries = entries.get_mut(..frames.len()).ok_or(TOO_LONG)?;
        for (number, frame) in frames.iter().enumerate() {
            match (self.surrender(frame, number == 0), entries.get_mut(number)) {
                (Ok(entry), Some(place)) => *place = entry,
                (result, _) => {
                    self.keep(frames.get(..number).unwrap_or_default());
                    return Err(result.err().unwrap_or(INVALID));
                }
            }
        }
        self.send(entries, frames)
    }

    /// Queues the entries of one packet, or lets the program keep its frames.
    #[inline]
    fn send(&self, entries: &[Desc], frames: &[Frame]) -> Result<usize, Errno> {
        // SAFETY: The program had the frames, and gave each away once: `surrender` saw to that.
        match unsafe { self.rings.send_entries(entries) } {
            Ok(()) => Ok(frames.len()),
            Err(error) => {
                self.keep(frames);
                Err(error.into())
            }
        }
    }

    /// The program has these frames again.
    #[cold]
    fn keep(&self, frames: &[Frame]) {
        for frame in frames {
            self.set_owned(frame.id, true);
        }
    }

    fn reserve(&self, flow: u32, places: &mut [MaybeUninit<Frame>]) -> usize {
        let mut count = 0;
        for place in places {
            let Some(start) = self.rings.take_frame() else {
                break;
            };
            let entry = Desc {
                offset: start.wrapping_add(FRAME_HEADROOM),
                flow,
                ..Desc::default()
            };
            let Some(element) = self.element(entry, true) else {
                break;
            };
            // SAFETY: The headroom of a frame that was free.
            unsafe { element.meta.write(Meta::default()) };
            self.set_owned(start, true);
            place.write(element);
            count += 1;
        }
        count
    }

    fn receive(&self, places: &mut [MaybeUninit<Frame>]) -> Result<usize, Errno> {
        let mut filled = 0;
        loop {
            let free = places.get_mut(filled..).unwrap_or_default();
            let room = u32::try_from(free.len()).unwrap_or(u32::MAX);
            let mut free = free.iter_mut();
            let mut written = 0;
            let count = self.rings.recv_entries(room, |entry| {
                let element = self.element(entry, written == 0);
                if let (Some(place), Some(element)) = (free.next(), element) {
                    self.set_owned(element.id, true);
                    place.write(element);
                    written += 1;
                }
            });
            match count {
                // Something else wrote to an entry, after it was looked at and before it was read.
                Ok(count) if count <= room && count != written => {
                    return if filled > 0 {
                        Ok(filled)
                    } else {
                        Err(Errno(libc::EIO))
                    };
                }
                Ok(0) => return Ok(filled),
                Ok(count) if count > room && filled == 0 => return Err(TOO_LONG),
                Ok(count) if count > room => return Ok(filled),
                Ok(count) => filled += count as usize,
                // It will be there the next time, too.
                Err(_) if filled > 0 => return Ok(filled),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Takes free frames.
#[no_mangle]
pub unsafe extern "C" fn kopi_reserve(
    channel: *mut Channel,
    flow: u32,
    frames: *mut Frame,
    count: c_uint,
) -> c_int {
    // SAFETY: The caller sees to the pointers.
    let (channel, frames) = unsafe { (shared(channel), rooms(frames, count)) };
    give((|| Ok(number(channel?.reserve(flow, frames?))))())
}

/// Queues packets.
#[no_mangle]
pub unsafe extern "C" fn kopi_commit(
    channel: *mut Channel,
    frames: *const Frame,
    count: c_uint,
) -> c_int {
    // SAFETY: The caller sees to the pointers.
    let (channel, frames) = unsafe { (shared(channel), array(frames, count)) };
    give((|| {
        let (channel, frames) = (channel?, frames?);
        let mut done = 0;
        while let Some(rest @ [_, ..]) = frames.get(done..) {
            match channel.commit_packet(rest) {
                Ok(count) => done += count,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(number(done))
    })())
}

/// Gives frames back.
#[no_mangle]
pub unsafe extern "C" fn kopi_release(
    channel: *mut Channel,
    frames: *const Frame,
    count: c_uint,
) -> c_int {
    // SAFETY: The caller sees to the pointers.
    let (channel, frames) = unsafe { (shared(channel), array(frames, count)) };
    give((|| {
        let channel = channel?;
        for frame in frames? {
            if channel.set_owned(frame.id, false) != Some(true) {
                return Err(INVALID);
            }
            // SAFETY: The program had it, and has it no more.
            unsafe { channel.rings.give_frame(frame.id) };
        }
        Ok(0)
    })())
}

/// Receives packets.
#[no_mangle]
pub unsafe extern "C" fn kopi_recv_frames(
    channel: *mut Channel,
    frames: *mut Frame,
    count: c_uint,
) -> c_int {
    // SAFETY: The caller sees to the pointers.
    let (channel, frames) = unsafe { (shared(channel), rooms(frames, count)) };
    give((|| Ok(number(channel?.receive(frames?)?)))())
}
