// SPDX-License-Identifier: GPL-2.0

//! What a channel is to be like, and the making of one.

use super::{Bell, Channel, Rx, Tx};
use crate::{
    flow::Flow,
    pure::abi::{
        ChannelReq, Layout, CHANNEL_ENGINE, CHANNEL_GRO, CHANNEL_GRO_MERGED, CHANNEL_GSO,
        OPT_CHANNEL,
    },
    region::Region,
    sys,
};
use std::{cell::RefCell, io, os::fd::AsRawFd};

/// What a channel is to be like; from [`Channel::builder`].
#[derive(Clone, Copy, Debug)]
pub struct Builder {
    request: ChannelReq,
    rx_frames: Option<u32>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            request: ChannelReq {
                flags: 0,
                frame_size: 2048,
                frame_count: 1024,
                tx_entries: 1024,
                completion_entries: 1024,
                fill_entries: 1024,
                rx_entries: 1024,
                reserved: [0; 9],
            },
            rx_frames: None,
        }
    }
}

impl Builder {
    /// Bytes of each frame: a power of two, of which 64 bytes are headroom. 2048 unless said.
    #[must_use]
    pub fn frame_size(mut self, bytes: u32) -> Self {
        self.request.frame_size = bytes;
        self
    }

    /// Number of frames, 1024 unless said.
    #[must_use]
    pub fn frames(mut self, count: u32) -> Self {
        self.request.frame_count = count;
        self
    }

    /// How many of the frames the kernel may have for packets to come, half of them unless said.
    #[must_use]
    pub fn rx_frames(mut self, count: u32) -> Self {
        self.rx_frames = Some(count);
        self
    }

    /// Entries of the TX and COMPLETION rings: a power of two, 1024 unless said.
    #[must_use]
    pub fn tx_entries(mut self, entries: u32) -> Self {
        self.request.tx_entries = entries;
        self.request.completion_entries = entries;
        self
    }

    /// Entries of the FILL and RX rings: a power of two, 1024 unless said.
    #[must_use]
    pub fn rx_entries(mut self, entries: u32) -> Self {
        self.request.fill_entries = entries;
        self.request.rx_entries = entries;
        self
    }

    /// Whether datagrams of one size to one peer that are sent in turn travel as one GSO packet, which
    /// costs less, and counts as one with rules and limits.
    #[must_use]
    pub fn gso(self, yes: bool) -> Self {
        self.flag(CHANNEL_GSO, yes)
    }

    /// Whether datagrams from one peer may be received as one GRO packet, which costs less, and counts
    /// as one with rules and limits.
    #[must_use]
    pub fn gro(self, yes: bool) -> Self {
        self.flag(CHANNEL_GRO, yes)
    }

    /// Whether a GRO packet comes as one packet with its
    /// [`segment_size`](crate::Packet::segment_size).
    #[must_use]
    pub fn gro_merged(self, yes: bool) -> Self {
        self.flag(CHANNEL_GRO_MERGED, yes)
    }

    /// Whether the kernel's engines, if an administrator has set some, look at what is sent, so that
    /// no system call is needed while the channel is busy.
    #[must_use]
    pub fn engine(self, yes: bool) -> Self {
        self.flag(CHANNEL_ENGINE, yes)
    }

    fn flag(mut self, flag: u32, yes: bool) -> Self {
        self.request.flags &= !flag;
        if yes {
            self.request.flags |= flag;
        }
        self
    }

    /// Makes the channel, with `flow` as the first on it.
    ///
    /// Memory counts against RLIMIT_MEMLOCK and net.kopi.user_max_frames, for all channels of a user
    /// together, against net.kopi.netns_max_frames, and against the cgroup's limit. What isn't said
    /// otherwise takes two of the eight megabytes that systems commonly allow.
    pub fn open(self, flow: &Flow) -> io::Result<Channel> {
        let fd = flow.as_raw_fd();
        sys::set_option(fd, OPT_CHANNEL, &self.request).map_err(|error| self.explain(error))?;
        let layout: Layout = sys::get_option(fd, OPT_CHANNEL)?;
        let region = Region::map(fd, layout)?;
        let channel = self.assemble(region, Bell::Socket(flow.socket().clone()))?;
        flow.learn_number()?;
        Ok(channel)
    }

    /// Adds what to do to the errors that need it.
    fn explain(&self, error: io::Error) -> io::Error {
        match error.raw_os_error() {
            Some(libc::ENOBUFS) => io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!(
                    "{} frames of {} bytes are more than this user may have by RLIMIT_MEMLOCK \
                     (ulimit -l), or by net.kopi.user_max_frames or netns_max_frames: raise the \
                     limit, or ask for fewer ({error})",
                    self.request.frame_count, self.request.frame_size
                ),
            ),
            _ => error,
        }
    }

    pub(crate) fn assemble(self, region: Region, bell: Bell) -> io::Result<Channel> {
        let layout = *region.layout();
        // SAFETY: The rings live in the channel, beside the region and no longer than it; it was
        // made just now, so nobody else has a side of one.
        let (tx, completion, fill, rx) = unsafe {
            (
                region.producer(&layout.tx),
                region.consumer(&layout.completion),
                region.producer(&layout.fill),
                region.consumer(&layout.rx),
            )
        };
        let rx_frames = self
            .rx_frames
            .unwrap_or(layout.frame_count / 2)
            .min(layout.frame_count)
            .min(layout.fill.size);
        let channel = Channel {
            tx: RefCell::new(Tx {
                ring: tx,
                completion,
            }),
            rx: RefCell::new(Rx {
                ring: rx,
                fill,
                posted: 0,
                target: rx_frames,
            }),
            free: RefCell::new(
                (0..layout.frame_count)
                    .rev()
                    .map(|number| region.frame(number))
                    .collect(),
            ),
            bell,
            region,
        };
        channel.refill(&mut channel.rx.borrow_mut())?;
        Ok(channel)
    }

    #[cfg(test)]
    pub(crate) fn request(&self) -> &ChannelReq {
        &self.request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_on_frames_is_named() {
        let error = Builder::default().explain(io::Error::from_raw_os_error(libc::ENOBUFS));
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        for limit in ["RLIMIT_MEMLOCK", "user_max_frames", "netns_max_frames"] {
            assert!(error.to_string().contains(limit), "{error}");
        }
    }
}
