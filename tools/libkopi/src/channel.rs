// SPDX-License-Identifier: GPL-2.0

//! Channels: opening, the doorbell, completions, waiting.

use crate::{
    abi::{Completion, Options, COMPLETED, ERROR, NO_FRAMES, READABLE, WRITABLE},
    error::{give, number, Errno, INVALID},
    pointer::{room, rooms, shared},
};
use kopi::{
    pure::abi::{
        Layout, CHANNEL_ENGINE, CHANNEL_FLAGS, CHANNEL_GRO, CHANNEL_GRO_MERGED, CHANNEL_GSO,
        DESC_MORE, FRAME_HEADROOM,
    },
    Builder, Flow, Interest,
};
use std::{
    cell::Cell,
    ffi::{c_int, c_uint},
    os::fd::AsRawFd,
    time::Duration,
};

/// `struct kopi_channel`.
pub struct Channel {
    pub(crate) rings: kopi::Channel,
    /// Which frames the program has, by number: no other may be sent or given back.
    owned: Box<[Cell<bool>]>,
    /// The kernel stopped at the last flush, and has not taken all.
    pub(crate) stopped: Cell<bool>,
}

impl Channel {
    fn new(rings: kopi::Channel) -> Self {
        let count = rings.layout().frame_count;
        Self {
            rings,
            owned: (0..count).map(|_| Cell::new(false)).collect(),
            stopped: Cell::new(false),
        }
    }

    /// Says of a frame, by its first byte, whether the program has it; gives what was said before, and
    /// nothing if there is no such frame.
    #[inline]
    pub(crate) fn set_owned(&self, start: u32, owned: bool) -> Option<bool> {
        let layout = self.rings.layout();
        let at = start.checked_sub(layout.frames)?;
        // A power of two.
        if at & layout.frame_size.wrapping_sub(1) != 0 {
            return None;
        }
        let number = at >> layout.frame_size.trailing_zeros();
        Some(self.owned.get(number as usize)?.replace(owned))
    }

    /// As [`kopi::Channel::flush_with`].
    pub(crate) fn flush(&self, completed: impl FnMut(kopi::Completion)) -> Result<bool, Errno> {
        let all = self.rings.flush_with(completed)?;
        self.stopped.set(!all);
        Ok(all)
    }

    /// Bytes of payload that a frame holds.
    #[inline]
    pub(crate) fn capacity(&self) -> u32 {
        self.rings
            .layout()
            .frame_size
            .saturating_sub(FRAME_HEADROOM)
    }
}

fn builder(options: &Options) -> Result<Builder, Errno> {
    if options.flags & !CHANNEL_FLAGS != 0 || options.reserved.iter().any(|word| *word != 0) {
        return Err(INVALID);
    }
    let has = |flag| options.flags & flag != 0;
    let mut builder = kopi::Channel::builder()
        .gso(has(CHANNEL_GSO))
        .gro(has(CHANNEL_GRO))
        .gro_merged(has(CHANNEL_GRO_MERGED))
        .engine(has(CHANNEL_ENGINE));
    if options.frame_size != 0 {
        builder = builder.frame_size(options.frame_size);
    }
    if options.frames != 0 {
        builder = builder.frames(options.frames);
    }
    if options.tx_entries != 0 {
        builder = builder.tx_entries(options.tx_entries);
    }
    if options.rx_entries != 0 {
        builder = builder.rx_entries(options.rx_entries);
    }
    Ok(match options.rx_frames {
        0 => builder,
        NO_FRAMES => builder.rx_frames(0),
        count => builder.rx_frames(count),
    })
}

/// Makes a channel.
#[no_mangle]
pub unsafe extern "C" fn kopi_channel_open(
    channel: *mut *mut Channel,
    flow: *mut Flow,
    options: *const Options,
) -> c_int {
    // SAFETY: The caller sees to the pointers.
    let (channel, flow, options) = unsafe { (room(channel), shared(flow), options.as_ref()) };
    give((|| {
        let (place, flow) = (channel?, flow?);
        let rings = builder(options.unwrap_or(&Options::default()))?.open(flow)?;
        place.write(Box::into_raw(Box::new(Channel::new(rings))));
        Ok(0)
    })())
}

/// Frees a channel.
#[no_mangle]
pub unsafe extern "C" fn kopi_channel_close(channel: *mut Channel) {
    if !channel.is_null() {
        // SAFETY: From `kopi_channel_open`, and used no more, as the caller sees to.
        drop(unsafe { Box::from_raw(channel) });
    }
}

/// A file descriptor to poll.
#[no_mangle]
pub unsafe extern "C" fn kopi_channel_fd(channel: *const Channel) -> c_int {
    // SAFETY: The caller sees to the pointer.
    give(unsafe { shared(channel) }.map(|channel| channel.rings.as_raw_fd()))
}

/// Where rings and frames lie.
#[no_mangle]
pub unsafe extern "C" fn kopi_channel_layout(
    channel: *const Channel,
    layout: *mut Layout,
) -> c_int {
    // SAFETY: The caller sees to the pointers.
    let (channel, layout) = unsafe { (shared(channel), room(layout)) };
    give((|| {
        layout?.write(*channel?.rings.layout());
        Ok(0)
    })())
}

/// Shows the kernel what was queued, and takes completions.
#[no_mangle]
pub unsafe extern "C" fn kopi_flush(channel: *mut Channel) -> c_int {
    // SAFETY: The caller sees to the pointer.
    let channel = unsafe { shared(channel) };
    give(channel.and_then(|channel| channel.flush(|_| {}).map(c_int::from)))
}

/// Shows the kernel what was queued.
#[no_mangle]
pub unsafe extern "C" fn kopi_doorbell(channel: *mut Channel) -> c_int {
    // SAFETY: The caller sees to the pointer.
    let channel = unsafe { shared(channel) };
    give((|| Ok(channel?.rings.doorbell()?.into()))())
}

/// Takes completions.
#[no_mangle]
pub unsafe extern "C" fn kopi_complete(
    channel: *mut Channel,
    completions: *mut Completion,
    count: c_uint,
) -> c_int {
    // SAFETY: The caller sees to the pointers.
    let (channel, completions) = unsafe { (shared(channel), rooms(completions, count)) };
    give((|| {
        let (channel, completions) = (channel?, completions?);
        let mut free = completions.iter_mut();
        let taken = channel.rings.reap_up_to(count, |done| {
            if let Some(place) = free.next() {
                place.write(Completion {
                    flow: done.flow.0,
                    id: done.frame,
                    len: done.len,
                    flags: if done.more { DESC_MORE } else { 0 },
                    error: done.error,
                });
            }
        })?;
        Ok(number(taken as usize))
    })())
}

fn interest(events: c_uint) -> Result<Interest, Errno> {
    let known = [
        (READABLE, Interest::READABLE),
        (WRITABLE, Interest::WRITABLE),
        (COMPLETED, Interest::COMPLETION),
    ];
    if events & !(READABLE | WRITABLE | COMPLETED) != 0 {
        return Err(INVALID);
    }
    let asked = known.into_iter().filter(|(event, _)| events & event != 0);
    asked
        .map(|(_, interest)| interest)
        .reduce(|one, other| one | other)
        .ok_or(INVALID)
}

fn duration(time: &libc::timespec) -> Result<Duration, Errno> {
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(nanoseconds)) if nanoseconds < 1_000_000_000 => {
            Ok(Duration::new(seconds, nanoseconds))
        }
        _ => Err(INVALID),
    }
}

/// Sleeps until something happens.
#[no_mangle]
pub unsafe extern "C" fn kopi_wait(
    channel: *mut Channel,
    events: c_uint,
    timeout: *const libc::timespec,
) -> c_int {
    // SAFETY: The caller sees to the pointers.
    let (channel, timeout) = unsafe { (shared(channel), timeout.as_ref()) };
    give((|| {
        let (channel, interest) = (channel?, interest(events)?);
        let ready = channel
            .rings
            .wait(interest, timeout.map(duration).transpose()?)?;
        let found = [
            (ready.readable, READABLE),
            (ready.writable, WRITABLE),
            (ready.completion, COMPLETED),
            (ready.error, ERROR),
        ];
        let found = found.into_iter().filter(|(found, _)| *found);
        Ok(found.fold(0, |all, (_, event)| all | event as c_int))
    })())
}

/// Asks to be woken.
#[no_mangle]
pub unsafe extern "C" fn kopi_arm(channel: *mut Channel, want: c_int) -> c_int {
    // SAFETY: The caller sees to the pointer.
    let channel = unsafe { shared(channel) };
    give((|| Ok(channel?.rings.arm(want != 0)?.into()))())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_checked() {
        let time = |tv_sec, tv_nsec| duration(&libc::timespec { tv_sec, tv_nsec });
        assert_eq!(time(1, 5), Ok(Duration::new(1, 5)));
        assert_eq!(time(-1, 0), Err(INVALID));
        assert_eq!(time(0, -1), Err(INVALID));
        assert_eq!(time(0, 1_000_000_000), Err(INVALID));
        assert!(time(i64::MAX, 999_999_999).is_ok());
    }

    #[test]
    fn events_are_checked() {
        assert_eq!(interest(0), Err(INVALID));
        assert_eq!(interest(ERROR), Err(INVALID));
        assert_eq!(interest(READABLE), Ok(Interest::READABLE));
        let all = interest(READABLE | WRITABLE | COMPLETED);
        assert_eq!(
            all,
            Ok(Interest::READABLE | Interest::WRITABLE | Interest::COMPLETION)
        );
    }

    #[test]
    fn options_are_checked() {
        let mut options = Options::default();
        assert!(builder(&options).is_ok());
        options.flags = 1 << 31;
        assert_eq!(builder(&options).err(), Some(INVALID));
        options.flags = 0;
        options.reserved[9] = 1;
        assert_eq!(builder(&options).err(), Some(INVALID));
    }
}
