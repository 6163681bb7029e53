// SPDX-License-Identifier: GPL-2.0

//! Packets of flows that are about to leave by a device, and the frames that they are cut up into.
//!
//! A frame's memory is pages that no process can write; the driver frees it, and by the count of who
//! uses the pages it is known when it has.
//!
//! C headers: `include/linux/skbuff.h`, `include/net/xdp.h`

use crate::pure::gso::{is_udp, Headers, HEADERS_MAX, PROTOCOL_BYTES};
use crate::sys::{
    bindings,
    family::{self, Protocol},
    netdev::Device,
    sock::Sock, //
};
use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    mem::{size_of, ManuallyDrop},
    ptr::{self, NonNull}, //
};
use kernel::{error::to_result, prelude::*, sync::rcu};

use super::frames::{Frames, Pages, BULK, BULK_BYTES, HEADROOM, LINE};

/// What is kept in an skb's control block.
///
/// # Invariants
///
/// `page` is null, or pages of this note's own, one reference of which is its.
#[repr(C)]
struct SkbCb {
    /// Those of the frames that the driver was given last.
    page: *mut bindings::page,
    /// Since when it is with the driver, in nanoseconds.
    since: u64,
    /// Since when the driver has taken nothing of what it was offered, in nanoseconds; 0 if it has.
    refused: u64,
    /// Datagrams that have left.
    number: u16,
    /// Datagrams that there are.
    datagrams: u16,
    /// It is for the stack to send on.
    to_stack: bool,
}

/// A packet that the hook is asked about, with Ethernet's header in front.
///
/// # Invariants
///
/// Valid for `'a`, in which softirqs are off and an RCU read-side section lasts.
pub(crate) struct EgressSkb<'a> {
    skb: NonNull<bindings::sk_buff>,
    _call: PhantomData<&'a ()>,
}

impl<'a> EgressSkb<'a> {
    /// # Safety
    ///
    /// As the type's invariants say.
    pub(in crate::sys) unsafe fn from_raw(skb: NonNull<bindings::sk_buff>) -> Self {
        // INVARIANT: As the caller sees to.
        Self {
            skb,
            _call: PhantomData,
        }
    }

    fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.skb.as_ptr()
    }

    /// The flow that it is of, if it is of one that is still open.
    pub(crate) fn flow<T: Protocol>(&self) -> Option<(&'a Sock, &'a T)> {
        // SAFETY: An skb on its way out keeps its sock; RCU is held, by the invariants.
        unsafe { family::flow_of(bindings::kopi_skb_sk(self.as_ptr())) }
    }

    /// Whether it is a GSO packet.
    pub(crate) fn is_gso(&self) -> bool {
        // SAFETY: A valid skb.
        unsafe { bindings::kopi_skb_is_udp_gso(self.as_ptr()) }
    }

    /// Whether it is a datagram, or a GSO packet, that a driver would do nothing to but segmentation and
    /// checksums.
    pub(crate) fn is_plain(&self) -> bool {
        // SAFETY: A valid skb.
        !self.has_extras() && unsafe { headers(self.as_ptr()) }.is_some()
    }

    /// Whether a driver would do more to it, by what comes with its bytes.
    pub(crate) fn has_extras(&self) -> bool {
        // SAFETY: A valid skb.
        !unsafe { bindings::kopi_skb_is_plain(self.as_ptr()) }
    }

    /// Whether it is UDP.
    pub(crate) fn is_udp(&self) -> bool {
        let mut bytes = [0; PROTOCOL_BYTES];
        // SAFETY: A valid skb, whose data begin with Ethernet's header; there is room for what is copied.
        let copied = unsafe {
            let (start, len) = (bytes.as_mut_ptr().cast(), PROTOCOL_BYTES as i32);
            bindings::skb_copy_bits(self.as_ptr(), 0, start, len)
        };
        copied == 0 && is_udp(&bytes)
    }

    /// Counts it at the qdisc of a queue, as one that need not wait there.
    pub(crate) fn count(&self, device: &Device, queue: u32) {
        // SAFETY: A valid skb, and a queue that the device has; RCU is held.
        unsafe { bindings::kopi_qdisc_bstats_update(device.as_ptr(), queue, self.as_ptr()) };
    }

    /// Takes it, to be sent by a device's driver, or in the end by the stack.
    pub(crate) fn take(self, to_stack: bool) -> TakenSkb {
        // SAFETY: A valid skb, which is the hook's to take. Nobody else uses the control block here.
        unsafe {
            bindings::kopi_skb_dst_force(self.as_ptr());
            note(self.as_ptr()).write(SkbCb {
                page: ptr::null_mut(),
                since: 0,
                refused: 0,
                number: 0,
                datagrams: bindings::kopi_skb_gso_segs(self.as_ptr()).max(1),
                to_stack,
            });
        }
        // INVARIANT: Owned from now on, with a note.
        TakenSkb(self.skb)
    }
}

/// Where an skb has its note.
fn note(skb: *mut bindings::sk_buff) -> *mut SkbCb {
    const {
        assert!(size_of::<SkbCb>() <= 40);
        assert!(align_of::<SkbCb>() <= 8);
    }
    // SAFETY: Only the place is taken, of a field of a valid skb; it is aligned to 8 bytes.
    unsafe { (&raw mut (*skb).cb).cast() }
}

/// The headers of a packet: `None` if it is no plain datagram.
///
/// # Safety
///
/// A valid skb, whose data begin with Ethernet's header.
unsafe fn headers(skb: *mut bindings::sk_buff) -> Option<Headers> {
    let mut bytes = [0; HEADERS_MAX];
    // SAFETY: As required of the caller; there is room for as many bytes as are copied.
    unsafe {
        let len = HEADERS_MAX.min((*skb).len as usize);
        let start = bytes.as_mut_ptr().cast();
        to_result(bindings::skb_copy_bits(skb, 0, start, len as i32)).ok()?;
        Headers::parse(bytes.get(..len)?, !bindings::kopi_skb_is_partial(skb))
    }
}

/// What became of an attempt to send.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// All has left.
    All,
    /// The device has no room for the rest, but took some.
    Some,
    /// It has no room for anything.
    None,
    /// The driver takes nothing, or there is no memory.
    Failed,
}

/// A packet that was taken.
///
/// # Invariants
///
/// Owned, with a note.
pub(crate) struct TakenSkb(NonNull<bindings::sk_buff>);

// SAFETY: An skb is not bound to a CPU or task.
unsafe impl Send for TakenSkb {}

impl TakenSkb {
    fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    fn note(&self) -> &SkbCb {
        // SAFETY: It has a note, by the invariants.
        unsafe { &*note(self.as_ptr()) }
    }

    fn note_mut(&mut self) -> &mut SkbCb {
        // SAFETY: It has a note, by the invariants, which is borrowed as this is.
        unsafe { &mut *note(self.as_ptr()) }
    }

    /// Does something with its flow, if that is still open.
    pub(crate) fn with_flow<T: Protocol, R>(&self, act: impl FnOnce(&Sock, &T) -> R) -> Option<R> {
        let _rcu = rcu::read_lock();
        // SAFETY: The skb keeps its sock; RCU is held.
        let (sk, flow) = unsafe { family::flow_of(bindings::kopi_skb_sk(self.as_ptr())) }?;
        Some(act(sk, flow))
    }

    /// Bytes of memory that it is charged for.
    pub(crate) fn charge(&self) -> u32 {
        // SAFETY: A valid skb.
        unsafe { bindings::kopi_skb_truesize(self.as_ptr()) }
    }

    /// Number of datagrams.
    pub(crate) fn datagrams(&self) -> u32 {
        u32::from(self.note().datagrams)
    }

    /// Of these, those that the driver wasn't given.
    pub(crate) fn datagrams_left(&self) -> u32 {
        u32::from(self.note().datagrams.saturating_sub(self.note().number))
    }

    /// Whether it is for the stack to send on.
    pub(crate) fn is_to_stack(&self) -> bool {
        self.note().to_stack
    }

    /// Leaves it to the stack.
    pub(crate) fn leave_to_stack(&mut self) {
        self.note_mut().to_stack = true;
    }

    /// Whether some of it has left.
    pub(crate) fn has_begun(&self) -> bool {
        self.note().number != 0
    }

    /// Nanoseconds for which the driver has taken nothing of it, at the time `now`, at which it didn't either;
    /// which begins anew if it had `taken` something.
    pub(crate) fn refused(&mut self, now: u64, taken: bool) -> u64 {
        let note = self.note_mut();
        if taken || note.refused == 0 {
            note.refused = now;
        }
        now.saturating_sub(note.refused)
    }

    /// Gives to the driver what hasn't left yet. Softirqs are off.
    pub(crate) fn send(&mut self, device: &Device) -> Sent {
        // SAFETY: A valid skb.
        let (headers, len) = unsafe { (headers(self.as_ptr()), (*self.as_ptr()).len) };
        let Some(mut headers) = headers else {
            return Sent::Failed;
        };
        let payload = len.saturating_sub(headers.size() as u32);
        // SAFETY: A valid skb.
        let segment = match unsafe { bindings::kopi_skb_gso_size(self.as_ptr()) } {
            0 => payload,
            segment => segment,
        };
        let longest = (headers.size() as u32).saturating_add(segment.min(payload));
        if !device.is_ready() || !device.takes_length(longest) {
            return Sent::Failed;
        }
        let before = self.note().number;
        loop {
            let left = self.left(segment, payload);
            let Some(mut frames) = self.frames(&mut headers, segment, payload) else {
                return Sent::Failed;
            };
            let ready = frames.len as u32;
            let last = left.saturating_add(ready.saturating_mul(segment)) >= payload;
            let Ok(sent) = frames.give(device, last) else {
                return Sent::Failed;
            };
            let note = self.note_mut();
            note.number = note.number.wrapping_add(sent as u16);
            if sent < ready {
                device.flush();
                let any = self.note().number != before;
                return if any { Sent::Some } else { Sent::None };
            }
            if last {
                return Sent::All;
            }
        }
    }

    /// Bytes of payload that have left.
    fn left(&self, segment: u32, payload: u32) -> u32 {
        payload.min(u32::from(self.note().number).saturating_mul(segment))
    }

    /// Makes the next frames of it: `None` without memory.
    fn frames(&mut self, headers: &mut Headers, segment: u32, payload: u32) -> Option<Frames> {
        let (left, number) = (self.left(segment, payload), self.note().number);
        let whole = headers.size().checked_add(segment as usize)?;
        let start = size_of::<bindings::xdp_frame>().next_multiple_of(LINE) + HEADROOM;
        let tail = bindings::KOPI_CONST_SKB_SHARED_INFO_SIZE as usize;
        let slot = start
            .checked_add(whole)?
            .next_multiple_of(LINE)
            .checked_add(tail)?;
        let fit = BULK.min(BULK_BYTES.checked_div(slot)?).max(1);
        let wanted = match payload.saturating_sub(left).div_ceil(segment.max(1)) {
            0 => 1,
            wanted => fit.min(wanted as usize),
        };
        let page = Pages::new(slot.checked_mul(wanted)?)?;
        let mut frames = Frames {
            frames: [ptr::null_mut(); BULK],
            len: 0,
            first: 0,
        };
        let mut at = left;
        for index in 0..wanted {
            let bytes = segment.min(payload.saturating_sub(at));
            let memory = page.start().wrapping_add(index.wrapping_mul(slot));
            let data = memory.wrapping_add(start);
            // SAFETY: The slot has room for the frame's struct, the headroom, headers and payload; the
            // skb has as many bytes at that place.
            unsafe {
                let from = (headers.size() as u32).wrapping_add(at);
                let to = data.add(headers.size());
                let sum =
                    bindings::skb_copy_and_csum_bits(self.as_ptr(), from as i32, to, bytes as i32);
                let number = number.wrapping_add(index as u16);
                let header = headers.make(number, bytes as u16, sum);
                ptr::copy_nonoverlapping(header.as_ptr(), data, header.len());
                let frame = memory.cast::<bindings::xdp_frame>();
                // Of pages that are shared, which all zeroes say.
                frame.write(core::mem::zeroed());
                (*frame).data = data.cast();
                (*frame).len = (headers.size() as u32).wrapping_add(bytes);
                (*frame).headroom = (start - size_of::<bindings::xdp_frame>()) as u32;
                (*frame).frame_sz = slot as u32;
                if let Some(place) = frames.frames.get_mut(index) {
                    *place = frame;
                }
            }
            at = at.saturating_add(bytes);
        }
        page.share(wanted);
        frames.len = wanted;
        let old = core::mem::replace(&mut self.note_mut().page, page.into_raw());
        drop(Pages::from_note(old));
        Some(frames)
    }

    /// Notes the time at which the driver was given all of it.
    pub(crate) fn given_at(&mut self, now: u64) {
        self.note_mut().since = now;
    }

    /// Nanoseconds since then, at the time `now`.
    pub(crate) fn given_for(&self, now: u64) -> u64 {
        now.saturating_sub(self.note().since)
    }

    /// Whether the driver has let go of all of it that it was given.
    pub(crate) fn has_returned(&self) -> bool {
        let page = self.note().page;
        // SAFETY: Pages that the note has a reference to.
        page.is_null() || unsafe { bindings::kopi_page_ref_count(page) } == 1
    }

    /// Hands it to the stack, behind the hooks that it has met. Softirqs are off.
    pub(crate) fn pass_on(self) {
        let skb = self.without_note();
        // SAFETY: A valid skb, which the stack takes.
        unsafe {
            bindings::kopi_nf_skip_egress(skb);
            bindings::kopi_dev_queue_xmit(skb);
        }
    }

    /// Frees it as one that was sent.
    pub(crate) fn finish(self) {
        // SAFETY: A valid skb, owned, and not used any more.
        unsafe { bindings::consume_skb(self.without_note()) };
    }

    fn without_note(self) -> *mut bindings::sk_buff {
        let this = ManuallyDrop::new(self);
        drop(Pages::from_note(this.note().page));
        this.as_ptr()
    }
}

impl Drop for TakenSkb {
    fn drop(&mut self) {
        drop(Pages::from_note(self.note().page));
        let reason = match self.note().refused {
            0 => bindings::skb_drop_reason_SKB_DROP_REASON_QDISC_DROP,
            _ => bindings::skb_drop_reason_SKB_DROP_REASON_FULL_RING,
        };
        // SAFETY: A valid skb, owned, and not used any more.
        unsafe { bindings::sk_skb_reason_drop(ptr::null_mut(), self.as_ptr(), reason) };
    }
}

/// Packets, in order.
pub(crate) struct List {
    head: KBox<UnsafeCell<bindings::sk_buff_head>>,
}

// SAFETY: Packets may go from one CPU to another.
unsafe impl Send for List {}

impl List {
    /// None: `ENOMEM`. Process context.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: Zeroes are valid until it is initialised.
        let head: bindings::sk_buff_head = unsafe { core::mem::zeroed() };
        let head = KBox::new(UnsafeCell::new(head), GFP_KERNEL_ACCOUNT)?;
        // SAFETY: Memory of that type, which doesn't move.
        unsafe { bindings::kopi_skb_queue_head_init(head.get()) };
        Ok(Self { head })
    }

    /// Appends one.
    pub(crate) fn push(&mut self, packet: TakenSkb) {
        // SAFETY: Its list, and an skb that is owned and on no other.
        unsafe {
            let skb = ManuallyDrop::new(packet).as_ptr();
            bindings::kopi_skb_queue_tail(self.head.get(), skb);
        }
    }

    /// Takes the first.
    pub(crate) fn pop(&mut self) -> Option<TakenSkb> {
        // SAFETY: Its list.
        let skb = unsafe { bindings::kopi_skb_dequeue(self.head.get()) };
        // INVARIANT: On the list are packets, with their notes.
        NonNull::new(skb).map(TakenSkb)
    }

    /// Looks at the first.
    pub(crate) fn first<T>(&mut self, look: impl FnOnce(&mut TakenSkb) -> T) -> Option<T> {
        // SAFETY: Its list.
        let skb = unsafe { bindings::kopi_skb_peek(self.head.get()) };
        // INVARIANT: On the list are packets, with their notes; it stays the list's.
        let mut packet = ManuallyDrop::new(TakenSkb(NonNull::new(skb)?));
        Some(look(&mut packet))
    }
}

impl Drop for List {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}
