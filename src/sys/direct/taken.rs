// SPDX-License-Identifier: GPL-2.0

//! Packets that were taken from the stack: GSO packets and single datagrams, whose frames for the driver are made
//! (`segments.rs`), and batches of frames (`taken_frames.rs`).
//!
//! A frame lies in pages that no process can write. The driver frees the frame; the reference count
//! of the pages shows when it has freed all of them.
//!
//! C headers: `include/linux/skbuff.h`, `include/net/xdp.h`

use super::{
    batch_pages::{BatchPages, SockCharge},
    frames::FramePages,
    segments::Payload,
};
use crate::sys::{
    bindings,
    context::SoftirqsOff,
    family::{self, Protocol},
    netdev::Device,
    sock::Sock, //
};
use core::{
    mem::{size_of, ManuallyDrop},
    ptr::{self, NonNull}, //
};
use kernel::{prelude::*, sync::rcu};

/// The contents of a taken skb's control block, `skb->cb`.
#[repr(C)]
pub(super) struct SkbCb {
    /// The pages of the frames that the driver was given last, or of all frames of a batch.
    pages: Option<BatchPages>,
    /// The time at which the driver was given all of it, in nanoseconds.
    xmit_time: u64,
    /// Since when the driver has taken none of its frames, in nanoseconds; 0 if no attempt has failed.
    stuck_since: u64,
    /// Datagrams that the driver has taken.
    number: u16,
    /// Datagrams in total.
    datagrams: u16,
    /// The stack is to send it.
    to_stack: bool,
    /// It stands for a batch of frames, and has no data.
    is_batch: bool,
    /// A hook has kept a datagram that lies in the same pages as the batch's frames.
    is_kept: bool,
}

impl SkbCb {
    /// Of an skb that the stack has made, of so many datagrams.
    pub(super) fn of_packet(datagrams: u16, to_stack: bool) -> Self {
        Self {
            pages: None,
            xmit_time: 0,
            stuck_since: 0,
            number: 0,
            datagrams,
            to_stack,
            is_batch: false,
            is_kept: false,
        }
    }

    /// Of an skb that stands for `count` frames in these pages, none of which a driver has been given.
    pub(super) fn of_frames(pages: BatchPages, count: u16) -> Self {
        let is_kept = pages.is_shared();
        Self {
            pages: Some(pages),
            xmit_time: 0,
            stuck_since: 0,
            number: 0,
            datagrams: count,
            to_stack: false,
            is_batch: true,
            is_kept,
        }
    }
}

/// The place of an skb's [`SkbCb`].
///
/// # Safety
///
/// The skb must be valid.
unsafe fn cb_of(skb: *mut bindings::sk_buff) -> *mut SkbCb {
    const {
        assert!(size_of::<SkbCb>() <= 40);
        assert!(align_of::<SkbCb>() <= 8);
    }
    // SAFETY: The caller passes a valid skb. Only the address of its field is computed.
    unsafe { (&raw mut (*skb).cb).cast() }
}

/// The result of an attempt to send.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum XmitResult {
    /// The driver has taken all frames.
    All,
    /// The driver has taken some frames, and has no room for the rest.
    Some,
    /// The driver has no room for any frame.
    None,
    /// The driver takes no frames of this packet, or memory is short.
    Failed,
}

/// The part of a packet that belongs to one open flow.
pub(crate) struct Part<'s, 'a, T> {
    /// The parts of a packet are numbered; those of flows that were closed keep their numbers.
    pub(crate) number: usize,
    pub(crate) sk: &'s Sock,
    pub(crate) flow: &'a T,
    /// Bytes that the sock is charged for it.
    pub(crate) charge: u32,
}

/// A packet that was taken from the stack.
///
/// # Invariants
///
/// This value owns the skb, whose control block holds an [`SkbCb`].
pub(crate) struct TakenSkb(pub(super) NonNull<bindings::sk_buff>);

// SAFETY: An skb is not bound to a CPU or task, and this value is its only owner.
unsafe impl Send for TakenSkb {}

impl TakenSkb {
    /// # Safety
    ///
    /// The caller must own the skb, whose control block has no user, and give it away.
    pub(super) unsafe fn new(skb: NonNull<bindings::sk_buff>, cb: SkbCb) -> Self {
        // SAFETY: Required of the caller.
        unsafe { cb_of(skb.as_ptr()).write(cb) };
        // INVARIANT: Owned from here, with an `SkbCb`.
        Self(skb)
    }

    pub(super) fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    /// Its control block.
    fn cb(&self) -> &SkbCb {
        // SAFETY: The control block holds an `SkbCb`, by the invariants. The borrow of this value,
        // the skb's only owner, excludes writes meanwhile.
        unsafe { &*cb_of(self.as_ptr()) }
    }

    /// Its control block, to be changed.
    fn cb_mut(&mut self) -> &mut SkbCb {
        // SAFETY: The control block holds an `SkbCb`, by the invariants. This value, the skb's only
        // owner, is borrowed exclusively.
        unsafe { &mut *cb_of(self.as_ptr()) }
    }

    /// The parts of it that belong to open flows. A batch can have parts of several flows, and several parts of one
    /// flow.
    pub(crate) fn parts<'s, 'a: 's, T: Protocol>(
        &'s self,
        _rcu: &'a rcu::Guard,
    ) -> impl Iterator<Item = Part<'s, 'a, T>> + 's {
        let own = SockCharge {
            // SAFETY: This value owns a valid skb, and the call only reads it.
            sk: unsafe { bindings::kopi_skb_sk(self.as_ptr()) },
            bytes: self.charge(),
        };
        let others = self.other_charges();
        (0..others.len().wrapping_add(1)).filter_map(move |number| {
            let charge = match number.checked_sub(1) {
                None => &own,
                Some(other) => others.get(other)?,
            };
            // SAFETY: The skb holds its sock until it is freed, and so does the batch the other socks: neither
            // is freed for `'s`. RCU, held for `'a`, keeps the flow.
            let (sk, flow) = unsafe { family::flow_of(charge.sk) }?;
            Some(Part {
                number,
                sk,
                flow,
                charge: charge.bytes,
            })
        })
    }

    /// Bytes that the sock of its skb is charged for it.
    pub(crate) fn charge(&self) -> u32 {
        // SAFETY: This value owns a valid skb, and the call only reads it.
        unsafe { bindings::kopi_skb_truesize(self.as_ptr()) }
    }

    /// Bytes that the skb's sock is charged for frames of other socks. Those socks are charged for them as well.
    fn surplus(&self) -> u32 {
        let others = self.other_charges().iter();
        let others = others.fold(0u32, |sum, charge| sum.saturating_add(charge.bytes));
        // Some may have charges without a frame.
        others.min(self.charge() / 16 * 15)
    }

    /// Ends what the sock of its skb is charged for frames of other socks; calls `before` with the bytes, before.
    pub(crate) fn end_surplus(&mut self, before: impl FnOnce(&Self, u32)) {
        let surplus = self.surplus();
        before(self, surplus);
        // SAFETY: This value owns a valid skb, whose sock is charged for more than that.
        unsafe { bindings::kopi_skb_lower_charge(self.as_ptr(), surplus) };
    }

    /// One of its flows that is still open.
    pub(crate) fn flow<'a, T: Protocol>(&self, rcu: &'a rcu::Guard) -> Option<&'a T> {
        self.parts(rcu).next().map(|part| part.flow)
    }

    /// Whether it is a batch of several flows.
    pub(crate) fn is_mixed(&self) -> bool {
        !self.other_charges().is_empty()
    }

    /// What socks are charged for it besides that of its skb.
    fn other_charges(&self) -> &[SockCharge] {
        self.cb().pages.as_ref().map_or(&[], BatchPages::charges)
    }

    /// Whether the send buffer of a sock that is charged for it is half full.
    pub(crate) fn fills_a_buffer(&self) -> bool {
        // SAFETY: This value owns a valid skb, and the call only reads it.
        let own = unsafe { bindings::kopi_skb_sk(self.as_ptr()) };
        // SAFETY: The skb holds its sock until it is freed, and so does the batch the other socks.
        let is_full = |sk| unsafe { !Sock::from_raw(sk).is_writeable() };
        is_full(own) || self.other_charges().iter().any(|charge| is_full(charge.sk))
    }

    /// Whether it is a batch of frames, which are copies.
    pub(crate) fn is_batch(&self) -> bool {
        self.cb().is_batch
    }

    /// Whether it is a GSO packet, and not a batch of frames.
    pub(crate) fn is_gso(&self) -> bool {
        !self.is_batch() && self.cb().datagrams > 1
    }

    /// Number of its datagrams that the driver has taken.
    pub(super) fn datagrams_taken(&self) -> usize {
        self.cb().number.into()
    }

    /// Records that the driver has taken some more datagrams.
    pub(super) fn count_taken(&mut self, datagrams: u16) {
        let cb = self.cb_mut();
        cb.number = cb.number.wrapping_add(datagrams);
    }

    /// Calls `act` with its pages, of a batch of frames.
    pub(super) fn with_pages<T>(&self, act: impl FnOnce(&BatchPages) -> T) -> Option<T> {
        self.cb().pages.as_ref().map(act)
    }

    /// Number of its datagrams.
    pub(crate) fn datagrams(&self) -> u32 {
        u32::from(self.cb().datagrams)
    }

    /// Number of its datagrams that the driver hasn't taken.
    pub(crate) fn datagrams_left(&self) -> u32 {
        u32::from(self.cb().datagrams.saturating_sub(self.cb().number))
    }

    /// Whether the stack is to send it.
    pub(crate) fn is_to_stack(&self) -> bool {
        self.cb().to_stack
    }

    /// Marks it as to be sent by the stack.
    pub(crate) fn leave_to_stack(&mut self) {
        self.cb_mut().to_stack = true;
    }

    /// Whether the driver has taken any of its datagrams.
    pub(crate) fn has_begun(&self) -> bool {
        self.cb().number != 0
    }

    /// Records at the time `now` that the driver took some of its frames, not all.
    pub(crate) fn record_progress(&mut self, now: u64) {
        self.cb_mut().stuck_since = now;
    }

    /// Records at the time `now` that the driver took none of its frames. Returns for how many nanoseconds it has
    /// taken none.
    pub(crate) fn record_stuck(&mut self, now: u64) -> u64 {
        let cb = self.cb_mut();
        if cb.stuck_since == 0 {
            cb.stuck_since = now;
        }
        now.saturating_sub(cb.stuck_since)
    }

    /// Gives the datagrams to the driver that it hasn't taken yet.
    pub(crate) fn send(&mut self, device: &Device, softirqs: &SoftirqsOff) -> XmitResult {
        if self.cb().is_batch {
            return self.send_frames(device, softirqs);
        }
        let Some(mut headers) = self.headers() else {
            return XmitResult::Failed;
        };
        let Payload { len, segment } = self.payload(&headers);
        let longest = (headers.size() as u32).saturating_add(segment.min(len));
        if !device.is_ready() || !device.fits_mtu(longest) {
            return XmitResult::Failed;
        }
        let before = self.cb().number;
        loop {
            let taken = self.taken_bytes(segment, len);
            let Some(mut frames) = self.make_frames(&mut headers, segment, len) else {
                if self.cb().number != before {
                    // The driver hasn't told the device of the frames before these.
                    device.flush(softirqs);
                }
                return XmitResult::Failed;
            };
            let ready = frames.len() as u32;
            let last = taken.saturating_add(ready.saturating_mul(segment)) >= len;
            // An attempt that failed may have left frames with the driver of which it hasn't told the
            // device, if it ignores a flush without frames, as sfc does.
            let flush = last || self.cb().stuck_since != 0;
            let Ok(sent) = frames.xmit(device, flush, softirqs) else {
                return XmitResult::Failed;
            };
            self.count_taken(sent as u16);
            if sent < ready {
                device.flush(softirqs);
                return match self.cb().number == before {
                    true => XmitResult::None,
                    false => XmitResult::Some,
                };
            }
            if last {
                return XmitResult::All;
            }
        }
    }

    /// The pages of the frames that the driver gets next.
    pub(super) fn set_pages(&mut self, pages: FramePages) {
        self.cb_mut().pages = Some(BatchPages::without_tables(pages));
    }

    /// Records the time at which the driver was given all of it, in nanoseconds.
    pub(crate) fn set_xmit_time(&mut self, now: u64) {
        self.cb_mut().xmit_time = now;
    }

    /// Nanoseconds from then to the time `now`.
    pub(crate) fn since_xmit(&self, now: u64) -> u64 {
        now.saturating_sub(self.cb().xmit_time)
    }

    /// Whether the driver has freed all frames that it was given last.
    pub(crate) fn has_returned(&self) -> bool {
        !self
            .cb()
            .pages
            .as_ref()
            .is_some_and(|pages| pages.is_shared())
    }

    /// Whether its pages return only when a hook frees a datagram that it has kept.
    pub(crate) fn is_kept(&self) -> bool {
        self.cb().is_kept
    }

    /// Gives it to the stack, which continues behind the egress hooks, and then calls `passed` for what each
    /// open flow had of it. Returns the number of datagrams that were lost because memory was short. Softirqs
    /// are off.
    pub(crate) fn pass_on<T: Protocol>(self, passed: impl Fn(&T)) -> u32 {
        let rcu = rcu::read_lock();
        if self.cb().is_batch {
            let lost = self.pass_frames(true);
            self.parts(&rcu).for_each(|part| passed(part.flow));
            self.finish();
            return lost;
        }
        let flow = self.flow(&rcu);
        let skb = self.into_raw();
        // SAFETY: The skb is valid and was owned by `self`. The stack owns it from here.
        unsafe {
            bindings::kopi_nf_skip_egress(skb);
            bindings::kopi_dev_queue_xmit(skb);
        }
        flow.into_iter().for_each(passed);
        0
    }

    /// Frees it as a packet that was sent.
    pub(crate) fn finish(self) {
        // SAFETY: The skb is valid and was owned by `self`, and is not used any more.
        unsafe { bindings::consume_skb(self.into_raw()) };
    }

    /// Gives up the ownership of the skb, and releases the control block's pages.
    fn into_raw(self) -> *mut bindings::sk_buff {
        let mut this = ManuallyDrop::new(self);
        this.cb_mut().pages = None;
        this.as_ptr()
    }
}

impl Drop for TakenSkb {
    fn drop(&mut self) {
        self.cb_mut().pages = None;
        let reason = match self.cb().stuck_since {
            0 => bindings::skb_drop_reason_SKB_DROP_REASON_QDISC_DROP,
            _ => bindings::skb_drop_reason_SKB_DROP_REASON_FULL_RING,
        };
        // SAFETY: This value owns a valid skb, which is not used any more.
        unsafe { bindings::sk_skb_reason_drop(ptr::null_mut(), self.as_ptr(), reason) };
    }
}
