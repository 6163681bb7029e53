// SPDX-License-Identifier: GPL-2.0

//! Sending for sockets of somebody else's: what a preloaded library needs.

use crate::{
    pure::{
        abi::{
            ChannelReq, Desc, Join, Layout, Meta, CHANNEL_TX_ONLY, DESC_META, FRAME_HEADROOM,
            OPT_CHANNEL, OPT_INFO, OPT_JOIN, PROTO_UDP,
        },
        ring::{Broken, Consumer, Producer},
    },
    region::Region,
    sys,
};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

/// Bytes of each frame.
const FRAME_SIZE: u32 = 2048;

/// The sending half of a channel whose flows receive as if they had none.
///
/// Flows are named by their descriptors, which belong to the program. The channel holds none of
/// them open. [`SendRing::send`] has the kernel send a batch as sendmmsg(2) with MSG_DONTWAIT on the
/// descriptor would: by what that descriptor is at that moment, or not at all.
///
/// So the functions take a [`RawFd`] and not a [`BorrowedFd`](std::os::fd::BorrowedFd): another
/// thread of the program may close it at any time, and nobody can promise that it stays open. A
/// descriptor that is closed, or no KOPI socket by now, gives an error. A program that knows its
/// descriptors uses [`Channel`](crate::Channel).
///
/// A forked child doesn't have the memory mapped, and must not use this.
pub struct SendRing {
    tx: Producer<Desc>,
    completion: Consumer<Desc>,
    /// Datagrams that were written, and not sent yet.
    written: u32,
    /// Holds what the rings point to, so stays behind them.
    region: Region,
}

/// What became of the datagrams that were written, from the first one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Number of those that were sent.
    pub count: u32,
    /// Why the next one was not, as sendmsg(2) would say; none of those behind it was tried.
    pub error: Option<i32>,
}

/// A doorbell that has rung. The ring has what became of the datagrams.
#[derive(Debug)]
pub struct Rung {
    /// Where the batch begins.
    start: u32,
    /// Datagrams that were written.
    count: u32,
    taken: io::Result<u32>,
}

impl Rung {
    /// Number of datagrams that the kernel has taken; some may have failed.
    pub fn taken(&self) -> u32 {
        self.taken
            .as_ref()
            .map_or(0, |&taken| taken.min(self.count))
    }
}

impl SendRing {
    /// Datagrams that one batch can have.
    pub const BATCH_MAX: u32 = 64;
    /// Bytes of payload that one datagram can have.
    pub const PAYLOAD_MAX: usize = (FRAME_SIZE - FRAME_HEADROOM) as usize;

    /// Makes a channel with no flow on it yet but the one whose descriptor this gives. The flow of
    /// `first` has to [join](SendRing::join) while that one is open. `family` is the number of AF_KOPI:
    /// to find it out takes memory and files, which a signal handler can't have.
    ///
    /// If the channel is refused, `kopictl` shows why as a fact about that flow.
    pub fn open(family: i32, first: RawFd) -> io::Result<(Self, OwnedFd)> {
        let socket = sys::open(family, PROTO_UDP)?;
        let request = ChannelReq {
            flags: CHANNEL_TX_ONLY,
            frame_size: FRAME_SIZE,
            frame_count: Self::BATCH_MAX,
            tx_entries: Self::BATCH_MAX,
            completion_entries: Self::BATCH_MAX,
            fill_entries: 1,
            rx_entries: 1,
            reserved: [0; 9],
        };
        let fd = socket.as_raw_fd();
        if let Err(error) = sys::set_option(fd, OPT_CHANNEL, &request) {
            // The kernel keeps it for that flow. Should it grant the channel now, the flow sends by the
            // routes that this remembers.
            let _ = sys::set_option(first, OPT_CHANNEL, &request);
            return Err(error);
        }
        let layout: Layout = sys::get_option(fd, OPT_CHANNEL)?;
        let region = Region::map(fd, layout)?.not_inherited();
        if region.capacity() as usize != Self::PAYLOAD_MAX || layout.frame_count < Self::BATCH_MAX {
            return Err(Broken.into());
        }
        // SAFETY: The rings live in this value, beside the region and no longer than it. The channel
        // is new, so nobody else has a side of one.
        let (tx, completion) = unsafe {
            (
                region.producer(&layout.tx),
                region.consumer(&layout.completion),
            )
        };
        // Nobody sleeps for completions: they are there when the doorbell returns.
        completion.want_wakeup(false);
        let ring = Self {
            tx,
            completion,
            written: 0,
            region,
        };
        Ok((ring, socket.into()))
    }

    /// Puts the flow of a descriptor on the channel that the flow of another one is on, which must be
    /// this one; gives its number there.
    ///
    /// `EBUSY` if it is on a channel, or has ever been corked.
    pub fn join(fd: RawFd, other: RawFd) -> io::Result<u32> {
        let request = Join {
            fd: other,
            ..Join::default()
        };
        sys::set_option(fd, OPT_JOIN, &request)?;
        let info: crate::pure::abi::Info = sys::get_option(fd, OPT_INFO)?;
        Ok(info.flow)
    }

    /// Number of datagrams that were written.
    pub fn written(&self) -> u32 {
        self.written
    }

    /// Writes a datagram of `len` bytes from the flow of that number: `fill` gets the memory for its
    /// payload. Without `meta` it goes to the connected peer. Returns whether there was room.
    pub fn write(
        &mut self,
        flow: u32,
        meta: Option<&Meta>,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        if self.written >= Self::BATCH_MAX || len > Self::PAYLOAD_MAX {
            return false;
        }
        if !matches!(self.tx.room(1), Ok(1..)) {
            return false;
        }
        let frame = self.region.frame(self.written);
        // SAFETY: A frame of this region, and its payload. All frames are the program's: each batch
        // completes before the next one is written. The memory has been zero at least, and `self` is
        // borrowed exclusively meanwhile.
        unsafe {
            if let Some(meta) = meta {
                self.region.write_meta(frame, *meta);
            }
            let payload = self.region.at(frame + FRAME_HEADROOM);
            fill(std::slice::from_raw_parts_mut(payload.as_ptr(), len));
        }
        self.tx.write(Desc {
            offset: frame + FRAME_HEADROOM,
            len: len as u32,
            flow,
            flags: if meta.is_some() { DESC_META } else { 0 },
            error: 0,
        });
        self.written += 1;
        true
    }

    /// Takes back what was written, and not sent.
    pub fn discard(&mut self) {
        let (start, _) = self.tx.positions();
        self.take_back(start);
        self.written = 0;
    }

    /// Sends what was written, by the flow that `fd` is now. [`SendRing::collect`] says what became of it.
    ///
    /// A signal handler that runs at the end may call fork(): then this returns in the child, too, which
    /// must not use the ring.
    pub fn send(&mut self, fd: RawFd) -> Rung {
        let (start, _) = self.tx.positions();
        self.tx.submit();
        let taken = sys::ring_send(fd);
        let count = std::mem::take(&mut self.written);
        Rung {
            start,
            count,
            taken,
        }
    }

    /// What became of what was sent.
    ///
    /// An error means that the descriptor is not a flow on this channel (any more), or that the
    /// kernel refuses: then nothing was sent. Nothing was sent either, without an error, if it is another
    /// flow of the channel than the datagrams'.
    pub fn collect(&mut self, rung: Rung) -> io::Result<Sent> {
        let Rung {
            start,
            count,
            taken,
        } = rung;
        let mut sent = Sent {
            count: 0,
            error: None,
        };
        let mut completed = 0;
        while completed < count && self.completion.available(1)? > 0 {
            let error = self.completion.read().error;
            completed += 1;
            match (error, sent.error) {
                (0, None) => sent.count += 1,
                (_, None) => sent.error = Some(error.into()),
                _ => {}
            }
        }
        self.completion.release(0);
        if completed < count {
            self.take_back(start.wrapping_add(completed));
        }
        match taken {
            Err(error) if completed == 0 => Err(error),
            _ => Ok(sent),
        }
    }

    /// Takes back what the kernel has not seen: the next entry is that one again.
    fn take_back(&mut self, index: u32) {
        let at = self.region.layout().tx;
        // SAFETY: The place of the producer's index, which is this side's to write. The kernel reads
        // it when the doorbell rings, and only then. The producer that this replaces is gone.
        unsafe {
            let producer = self.region.at(at.producer).cast();
            std::sync::atomic::AtomicU32::from_ptr(producer.as_ptr())
                .store(index, std::sync::atomic::Ordering::Release);
            self.tx = self.region.producer(&at);
        }
    }
}
