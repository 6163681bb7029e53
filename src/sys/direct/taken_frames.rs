// SPDX-License-Identifier: GPL-2.0

//! The skb that stands for a batch of frames: gives them to a driver, or to the stack.

use super::{
    batch_pages::{BatchPages, FrameEntry},
    frames::{slot_of, Frames, BULK, START},
    taken::{SkbCb, TakenSkb, XmitResult},
};
use crate::sys::{
    bindings,
    context::SoftirqsOff,
    netdev::{self, Device, Egress},
};
use core::ptr::NonNull;
use kernel::{prelude::*, sync::rcu};

impl TakenSkb {
    /// The skb of `count` frames in these pages.
    ///
    /// # Safety
    ///
    /// The caller must own the skb, and give it away. The pages must begin with the table of the
    /// frames.
    pub(super) unsafe fn of_frames(
        skb: NonNull<bindings::sk_buff>,
        pages: BatchPages,
        count: u16,
    ) -> Self {
        // SAFETY: Nothing else uses the skb, nor its control block.
        unsafe { Self::new(skb, SkbCb::of_frames(pages, count)) }
    }

    /// The memory of the frames from `first` on, and what the table has of each.
    fn entries<'a>(
        &self,
        pages: &'a BatchPages,
        first: usize,
    ) -> impl Iterator<Item = (*mut u8, FrameEntry)> + 'a {
        let count = (self.datagrams() as usize).min(BULK);
        // SAFETY: `FrameBatch::push` has written the entry of each datagram.
        unsafe { pages.frames(first..count) }
    }

    /// Bytes of all frames.
    fn frame_bytes(&self, pages: &BatchPages) -> u32 {
        let frames = self.entries(pages, 0);
        frames.fold(0, |sum, (_, entry)| sum.wrapping_add(entry.len.into()))
    }

    /// Counts the frames at the qdisc of a transmit queue, as the stack counts packets that bypass
    /// the qdisc. `queue` must be below [`Device::queues`].
    pub(crate) fn count_frames(&self, device: &Device, queue: u32, _softirqs: &SoftirqsOff) {
        let bytes = self
            .with_pages(|pages| self.frame_bytes(pages))
            .unwrap_or(0);
        // SAFETY: The qdisc stays as long as softirqs are off. The caller passes the index of a queue
        // that the device has.
        unsafe {
            let packets = self.datagrams();
            bindings::kopi_qdisc_bstats_add(device.as_ptr(), queue, bytes, packets);
        }
    }

    /// Gives the frames to the driver that it hasn't taken yet.
    pub(super) fn send_frames(&mut self, device: &Device, softirqs: &SoftirqsOff) -> XmitResult {
        let first = self.datagrams_taken();
        let frames = self.with_pages(|pages| self.frames_from(pages, first));
        let Some((mut frames, longest)) = frames else {
            return XmitResult::Failed;
        };
        if !device.is_ready() || !device.fits_mtu(longest) {
            return XmitResult::Failed;
        }
        let ready = frames.len() as u32;
        let Ok(sent) = frames.xmit(device, true, softirqs) else {
            return XmitResult::Failed;
        };
        self.count_taken(sent as u16);
        match sent {
            sent if sent >= ready => XmitResult::All,
            0 => XmitResult::None,
            _ => XmitResult::Some,
        }
    }

    /// Makes the driver's structures of the frames from `first` on; gives the longest one's bytes, too. They are
    /// written anew for each attempt, because drivers change those that they refuse.
    fn frames_from(&self, pages: &BatchPages, first: usize) -> (Frames, u32) {
        let (mut frames, mut longest) = (Frames::new(), 0);
        for (memory, entry) in self.entries(pages, first) {
            longest = longest.max(entry.len);
            let slot = slot_of(entry.len.into()).unwrap_or(0);
            // SAFETY: The memory is a slot of the pages. The driver hasn't taken the frame, so nothing
            // else uses it; the reference follows below.
            unsafe { frames.push(memory, entry.len.into(), slot) };
        }
        pages.share(frames.len());
        (frames, longest.into())
    }

    /// Gives the frames to the stack before the egress hooks, as packets that are about to leave.
    /// Returns the number of those that were lost because memory was short. Softirqs are off.
    pub(crate) fn pass_to_hooks(self) -> u32 {
        let lost = self.pass_frames(false);
        self.finish();
        lost
    }

    /// The only egress hook of the device by which the packet is about to leave, if this is a `T`.
    pub(crate) fn only_hook<'a, T: Egress>(&self, _rcu: &'a rcu::Guard) -> Option<&'a T> {
        // SAFETY: This value owns the skb, which has a reference to its dst. RCU, held for `'a`,
        // keeps the device, the list of hooks, and the hook of a registration that ends meanwhile.
        unsafe {
            bindings::kopi_skb_settle_dev(self.as_ptr());
            netdev::only_hook(bindings::kopi_skb_dev(self.as_ptr()))
        }
    }

    /// Gives copies of the frames to the stack that the driver hasn't taken, behind the egress hooks
    /// if `skip` is set. Returns the number of those that were lost because memory was short.
    /// Softirqs are off.
    pub(super) fn pass_frames(&self, skip: bool) -> u32 {
        let first = self.datagrams_taken();
        self.with_pages(|pages| {
            let lost = self.entries(pages, first).filter(|(memory, entry)| {
                // SAFETY: This value owns the skb, whose device lives as long as it is queued for
                // it, or RCU is held. The batch keeps the frame's sock. The frame's bytes are behind
                // its start.
                let error = unsafe {
                    let data = memory.add(START).cast();
                    let (skb, len) = (self.as_ptr(), entry.len.into());
                    let (mark, priority, hash) = (entry.mark, entry.priority, entry.hash);
                    let sk = entry.sk;
                    bindings::kopi_xmit_frame_copy(skb, sk, data, len, mark, priority, hash, skip)
                };
                error == ENOMEM.to_errno()
            });
            lost.count() as u32
        })
        .unwrap_or(0)
    }
}
