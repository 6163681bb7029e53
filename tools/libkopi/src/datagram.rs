// SPDX-License-Identifier: GPL-2.0

//! Single datagrams, copied.

use crate::{
    channel::Channel,
    error::{give, Errno, AGAIN, INVALID, TOO_LONG},
    pointer::shared,
};
use kopi::pure::abi::{Desc, Meta, CHAIN_MAX, DESC_META, DESC_MORE, FRAME_HEADROOM};
use std::{ffi::c_void, ptr, slice};

/// The longest payload that the length field of UDP allows, and more than any packet holds.
const PAYLOAD_MAX: usize = 65535;

/// Bytes of the caller's: readable, so many, and nobody writes there during the call.
#[derive(Clone, Copy)]
struct Bytes {
    at: *const u8,
    len: usize,
}

impl Channel {
    /// Where in this process an offset is.
    fn at(&self, offset: u32) -> *mut u8 {
        self.rings.base().as_ptr().wrapping_add(offset as usize)
    }

    /// Copies a part of the datagram into a frame; gives its entry, without flags.
    ///
    /// # Safety
    ///
    /// `start` must be a frame of the caller's, and `data` readable.
    #[inline]
    unsafe fn fill(&self, start: u32, flow: u32, data: Bytes, from: usize) -> Desc {
        let part = (data.len - from).min(self.capacity() as usize);
        let offset = start.wrapping_add(FRAME_HEADROOM);
        // SAFETY: A frame has room for that much behind its headroom; the caller sees to `data`, of which
        // so many bytes are left.
        unsafe { ptr::copy_nonoverlapping(data.at.wrapping_add(from), self.at(offset), part) };
        Desc {
            offset,
            len: part as u32,
            flow,
            ..Desc::default()
        }
    }

    /// Queues a datagram, and gives its last frame.
    ///
    /// # Safety
    ///
    /// `data` must be readable.
    unsafe fn queue(&self, flow: u32, data: Bytes, meta: Option<&Meta>) -> Result<u32, Errno> {
        if data.len > self.capacity() as usize {
            // SAFETY: As required of the caller.
            return unsafe { self.queue_long(flow, data, meta) };
        }
        let start = self.rings.take_frame().ok_or(AGAIN)?;
        // SAFETY: Taken just now; the caller sees to `data`.
        let mut entry = unsafe { self.fill(start, flow, data, 0) };
        self.describe(start, &mut entry, meta);
        // SAFETY: Taken just now, and not touched any more.
        match unsafe { self.rings.send_entries(slice::from_ref(&entry)) } {
            Ok(()) => Ok(start),
            Err(error) => {
                // SAFETY: Taken just now.
                unsafe { self.rings.give_frame(start) };
                Err(error.into())
            }
        }
    }

    /// Writes metadata, if there is anything to say, into the headroom of a frame of the caller's.
    #[inline]
    fn describe(&self, start: u32, first: &mut Desc, meta: Option<&Meta>) {
        if let Some(meta) = meta.filter(|meta| **meta != Meta::default()) {
            // SAFETY: The headroom of a frame, with room and alignment for it.
            unsafe { self.at(start).cast::<Meta>().write(*meta) };
            first.flags |= DESC_META;
        }
    }

    /// As [`Channel::queue`], of what takes several frames.
    ///
    /// # Safety
    ///
    /// `data` must be readable.
    #[cold]
    unsafe fn queue_long(&self, flow: u32, data: Bytes, meta: Option<&Meta>) -> Result<u32, Errno> {
        let needed = data.len.div_ceil(self.capacity().max(1) as usize);
        let mut entries = [Desc::default(); CHAIN_MAX as usize];
        let entries = entries.get_mut(..needed).ok_or(TOO_LONG)?;
        if data.len > PAYLOAD_MAX || needed > self.rings.layout().frame_count as usize {
            return Err(TOO_LONG);
        }
        let (mut from, mut taken) = (0, 0);
        for entry in entries.iter_mut() {
            let Some(start) = self.rings.take_frame() else {
                break;
            };
            // SAFETY: Taken just now; the caller sees to `data`.
            *entry = unsafe { self.fill(start, flow, data, from) };
            from += entry.len as usize;
            entry.flags = if from < data.len { DESC_MORE } else { 0 };
            if taken == 0 {
                self.describe(start, entry, meta);
            }
            taken += 1;
        }
        let sent = if taken == needed {
            // SAFETY: Taken just now, and not touched any more.
            unsafe { self.rings.send_entries(entries) }.map_err(Errno::from)
        } else {
            Err(AGAIN)
        };
        let starts = entries
            .iter()
            .map(|entry| entry.offset.wrapping_sub(FRAME_HEADROOM));
        if let Err(error) = sent {
            for start in starts.take(taken) {
                // SAFETY: Taken just now.
                unsafe { self.rings.give_frame(start) };
            }
            return Err(error);
        }
        starts.last().ok_or(INVALID)
    }

    /// Sends a datagram, and looks what became of it.
    ///
    /// # Safety
    ///
    /// `data` must be readable.
    unsafe fn send_now(&self, flow: u32, data: Bytes, meta: Option<&Meta>) -> Result<(), Errno> {
        // What an earlier call had to leave goes first.
        if self.stopped.get() && !self.flush(|_| {})? {
            return Err(AGAIN);
        }
        // SAFETY: As required of the caller.
        let mut queued = unsafe { self.queue(flow, data, meta) };
        if queued == Err(AGAIN) {
            // Frames may have come back.
            self.flush(|_| {})?;
            // SAFETY: As required of the caller.
            queued = unsafe { self.queue(flow, data, meta) };
        }
        let last = queued?;
        let mut verdict = 0;
        let flushed = self.flush(|done| {
            if done.frame == last && !done.more {
                verdict = done.error;
            }
        });
        if flushed.is_err() {
            // It is queued, and whoever got the error would send it again: one that lasts is the next call's.
            self.stopped.set(true);
        }
        match verdict {
            0 => Ok(()),
            errno => Err(Errno(errno.into())),
        }
    }

    /// Receives a packet into `size` bytes at `buffer`.
    ///
    /// # Safety
    ///
    /// They must be writable.
    unsafe fn receive_copy(
        &self,
        buffer: *mut u8,
        size: usize,
    ) -> Result<(usize, Meta, u32), Errno> {
        let (mut copied, mut meta, mut flow) = (0, None, 0);
        let count = self.rings.recv_entries(CHAIN_MAX, |entry| {
            let Some(start) = self.rings.frame_of_payload(entry.offset, entry.len) else {
                return;
            };
            // SAFETY: The headroom of a frame that was received.
            meta.get_or_insert_with(|| unsafe { self.at(start).cast::<Meta>().read() });
            flow = entry.flow;
            let part = (entry.len as usize).min(size - copied);
            // SAFETY: So much payload is in the frame, and room in the buffer.
            unsafe {
                ptr::copy_nonoverlapping(self.at(entry.offset), buffer.wrapping_add(copied), part);
            }
            copied += part;
            // SAFETY: Received just now, and not touched any more.
            unsafe { self.rings.give_frame(start) };
        })?;
        match count {
            0 => Err(AGAIN),
            _ => Ok((copied, meta.unwrap_or_default(), flow)),
        }
    }
}

/// What is to be sent; NULL is no bytes.
fn bytes(data: *const c_void, len: usize) -> Result<Bytes, Errno> {
    match (data.is_null(), len) {
        (true, 1..) => Err(INVALID),
        _ => Ok(Bytes {
            at: data.cast(),
            len,
        }),
    }
}

/// Sends a datagram.
#[no_mangle]
pub unsafe extern "C" fn kopi_send(
    channel: *mut Channel,
    flow: u32,
    data: *const c_void,
    len: usize,
    meta: *const Meta,
) -> isize {
    // SAFETY: The caller sees to the pointers.
    let (channel, meta) = unsafe { (shared(channel), meta.as_ref()) };
    give((|| {
        // SAFETY: The caller sees to the data.
        unsafe { channel?.send_now(flow, bytes(data, len)?, meta) }?;
        Ok(len as isize)
    })())
}

/// Queues a datagram.
#[no_mangle]
pub unsafe extern "C" fn kopi_queue(
    channel: *mut Channel,
    flow: u32,
    data: *const c_void,
    len: usize,
    meta: *const Meta,
) -> isize {
    // SAFETY: The caller sees to the pointers.
    let (channel, meta) = unsafe { (shared(channel), meta.as_ref()) };
    give((|| {
        // SAFETY: The caller sees to the data.
        unsafe { channel?.queue(flow, bytes(data, len)?, meta) }?;
        Ok(len as isize)
    })())
}

/// Receives a packet.
#[no_mangle]
pub unsafe extern "C" fn kopi_recv(
    channel: *mut Channel,
    buffer: *mut c_void,
    size: usize,
    meta: *mut Meta,
    flow: *mut u32,
) -> isize {
    // SAFETY: The caller sees to the pointer.
    let channel = unsafe { shared(channel) };
    give((|| {
        let channel = channel?;
        if buffer.is_null() && size > 0 {
            return Err(INVALID);
        }
        // SAFETY: The caller sees to the buffer.
        let (copied, what, whose) = unsafe { channel.receive_copy(buffer.cast(), size) }?;
        if !meta.is_null() {
            // SAFETY: The caller sees to the pointer.
            unsafe { meta.write(what) };
        }
        if !flow.is_null() {
            // SAFETY: The caller sees to the pointer.
            unsafe { flow.write(whose) };
        }
        Ok(copied as isize)
    })())
}
