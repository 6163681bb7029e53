// SPDX-License-Identifier: GPL-2.0

//! Datagrams that become frames for a driver without an skb for each.
//!
//! A page has up to [`BULK`] frames. One skb stands for all of them: it is charged to the sock that sent
//! the first one, and waits in a queue as the skb of a GSO packet does. Other socks that have frames in
//! it are charged for these ([`FrameBatch::join`]). While netfilter hooks see what is sent, each
//! datagram is shown to them as an skb around its frame.

use super::{
    batch_pages::{BatchPages, FrameEntry},
    frames::{slot_of, BULK, BULK_BYTES, LINE, START},
    taken::TakenSkb,
};
use crate::sys::{
    bindings,
    datagram::{self, Datagram},
    netdev::{self, Egress},
    sock::Sock,
};
use core::{
    mem::ManuallyDrop,
    ptr::{self, NonNull},
};
use kernel::{prelude::*, sync::rcu};

/// Bytes of an Ethernet header.
const HEADER_ETH: usize = 14;

/// A sender's datagrams that leave as frames.
pub(crate) struct FrameBatch {
    open: Option<Open>,
    /// Has the frames of a batch leave, of which there may be none.
    leave: fn(TakenSkb),
    /// Frames of the last batch.
    last: usize,
    /// An skb without data for the next datagram that hooks are asked about, or null.
    spare: *mut bindings::sk_buff,
    /// The datagram that a hook has just changed, if it has.
    stray: Option<Stray>,
}

// SAFETY: Skbs and pages are not bound to a CPU or task, and this value is their only owner.
unsafe impl Send for FrameBatch {}

/// The frames that are being made.
///
/// # Invariants
///
/// This value owns the skb, which is charged to a sock. The pages begin at `start`, with their tables, and
/// have `room` bytes, of which the first `at` are in use by the tables and `count` frames.
struct Open {
    skb: NonNull<bindings::sk_buff>,
    /// The address of the device, which is only compared.
    device: usize,
    /// Whether the frames are of IPv6, as the skb's route is.
    is_ipv6: bool,
    pages: BatchPages,
    start: *mut u8,
    room: usize,
    at: usize,
    count: usize,
}

/// A datagram that a hook has changed, so that the stack has to send it.
struct Stray {
    skb: NonNull<bindings::sk_buff>,
    stage: bindings::kopi_hooks,
}

/// Whether a datagram can go with the frames of a batch.
pub(crate) enum Fit {
    /// It can, with those of the sock for which the batch was begun.
    Yes,
    /// It can, if its sock can [`FrameBatch::join`].
    IfJoined,
    /// There is no room for it.
    NoRoom,
    /// It can't go with these.
    No,
}

/// The result of giving a datagram to a batch.
pub(in crate::sys) enum Pushed {
    /// It is a frame, or has gone elsewhere: what sendmsg returns.
    Done(c_int),
    /// It is for [`FrameBatch::send_by_stack`].
    Left,
}

/// Bytes of memory for a datagram's frame; `None` if that is too long.
fn slot_for(datagram: &Datagram<'_>) -> Option<usize> {
    let slot = slot_of(datagram.whole().checked_add(HEADER_ETH)?)?;
    (slot <= BULK_BYTES / 2).then_some(slot)
}

/// Whether a datagram can become a frame, as far as its sock and route tell.
///
/// # Safety
///
/// `sk` must be valid.
#[inline(always)]
unsafe fn can_push(sk: *mut bindings::sock, datagram: &Datagram<'_>, _rcu: &rcu::Guard) -> bool {
    let dst = datagram.dst();
    // SAFETY: The caller passes a valid sock, and the route owns a reference to the dst. RCU, which the
    // argument proves to be held, keeps its device.
    let can =
        unsafe { bindings::kopi_sock_can_send(sk) && bindings::kopi_output_is_plain(sk, dst) };
    can && datagram.fits_route()
}

impl FrameBatch {
    /// Without frames. `leave` has those of a batch leave, of which there may be none; it is called in process
    /// context.
    pub(crate) fn new(leave: fn(TakenSkb)) -> Self {
        Self {
            open: None,
            leave,
            last: BULK,
            spare: ptr::null_mut(),
            stray: None,
        }
    }

    /// The only egress hook of the device by which a datagram leaves, if this is a `T`.
    pub(crate) fn only_hook<'a, T: Egress>(
        datagram: &Datagram<'_>,
        _rcu: &'a rcu::Guard,
    ) -> Option<&'a T> {
        // SAFETY: The route owns a reference to the dst. RCU, held for `'a`, keeps the device, the
        // list of hooks, and the hook of a registration that ends meanwhile.
        unsafe { netdev::only_hook(bindings::kopi_dst_dev(datagram.dst())) }
    }

    /// Whether a datagram can become a frame, as far as its sock and route tell.
    pub(crate) fn accepts(sk: &Sock, datagram: &Datagram<'_>, rcu: &rcu::Guard) -> bool {
        // SAFETY: The sock is borrowed.
        unsafe { can_push(sk.as_ptr(), datagram, rcu) }
    }

    /// Whether a batch was begun.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether a datagram of the sock can go with the frames that are there. Any context.
    pub(crate) fn fit(&self, sk: &Sock, datagram: &Datagram<'_>) -> Fit {
        let Some(open) = &self.open else {
            return Fit::NoRoom;
        };
        let slot = slot_for(datagram).unwrap_or(usize::MAX);
        let has_room = open.count < BULK && slot <= open.room.saturating_sub(open.at);
        // SAFETY: The batch owns the skb.
        let first = unsafe { bindings::kopi_skb_sk(open.skb.as_ptr()) };
        if open.device != datagram.device() || open.is_ipv6 != datagram.is_ipv6() {
            Fit::No
        } else if !has_room {
            Fit::NoRoom
        } else if first == sk.as_ptr() {
            Fit::Yes
        } else {
            Fit::IfJoined
        }
    }

    /// Charges another sock for a datagram that is to go with the frames that are there. Returns the bytes;
    /// `None` if the sock's send buffer or the batch has no room for that. Process context.
    pub(crate) fn join(&mut self, sk: &Sock, datagram: &Datagram<'_>) -> Option<u32> {
        let slot = slot_for(datagram)? as u32;
        let open = self.open.as_mut()?;
        // SAFETY: The pages have tables.
        unsafe { open.pages.charge(sk, slot) }.then_some(slot)
    }

    /// Number of frames that the last batch had.
    pub(crate) fn last(&self) -> usize {
        self.last
    }

    /// Begins a batch with a datagram that `ahead` others may follow. Returns the bytes that the sock
    /// is charged for it; `None` if memory is short, or the datagram too long. Process context.
    pub(crate) fn begin(&mut self, sk: &Sock, datagram: &Datagram<'_>, ahead: u32) -> Option<u32> {
        // Where flows take turns, batches are short, and the rest of their pages would be charged for
        // nothing.
        let expected = (ahead as usize)
            .saturating_add(1)
            .min(self.last.saturating_mul(2));
        self.open = Open::new(sk, datagram, expected);
        self.open.as_ref().map(Open::charge)
    }

    /// Has the frames leave that are there. Process context.
    #[inline(never)]
    pub(crate) fn flush(&mut self) {
        if let Some(packet) = self.end() {
            (self.leave)(packet);
        }
    }

    /// Ends the batch; gives its frames, of which there may be none.
    fn end(&mut self) -> Option<TakenSkb> {
        let open = self.open.take()?;
        self.last = open.count;
        let (skb, count) = (open.skb, open.count as u16);
        let open = ManuallyDrop::new(open);
        // SAFETY: The pages are read out of a value that is not used or dropped any more. The batch
        // owned the skb, which no layer of the stack has seen.
        unsafe {
            let pages = ptr::read(&raw const open.pages);
            Some(TakenSkb::of_frames(skb, pages, count))
        }
    }

    /// Makes a frame of a datagram, as ip_local_out() and the functions that it calls would send it.
    /// Process context.
    ///
    /// # Safety
    ///
    /// `sk` must be the valid sock of the datagram, for which the batch was begun or which has joined it, with
    /// its socket.
    pub(in crate::sys) unsafe fn push(
        &mut self,
        sk: *mut bindings::sock,
        datagram: &Datagram<'_>,
    ) -> Pushed {
        let (Some(open), Some(slot)) = (&self.open, slot_for(datagram)) else {
            return Pushed::Left;
        };
        if open.count >= BULK || slot > open.room.saturating_sub(open.at) {
            return Pushed::Left;
        }
        let rcu = rcu::read_lock();
        // SAFETY: Required of the caller. The pages have `room` bytes, of which `slot` are free
        // behind `at`; `slot` is at least the start, the headers, the payload, and an skb's tail.
        let (memory, header) = unsafe {
            if !can_push(sk, datagram, &rcu) {
                return Pushed::Left;
            }
            let memory = open.start.add(open.at);
            let header = memory.add(START + HEADER_ETH);
            datagram.write(sk, header);
            (memory, header)
        };
        // SAFETY: The caller passes a valid sock. RCU, held here, keeps the hooks' lists, and
        // neighbours. In front of the header are more than 16 bytes, and `memory` has `slot` bytes.
        let labels = unsafe {
            if bindings::kopi_has_output_hooks(sk, datagram.dst()) {
                self.show_to_hooks(sk, datagram, memory, slot)
            } else {
                put_hard_header(sk, datagram, header)
            }
        };
        let (mark, priority) = match labels {
            Ok(labels) => labels,
            Err(elsewhere) => return elsewhere,
        };
        // SAFETY: The caller passes a valid sock. The route's reference keeps the dst.
        unsafe { bindings::kopi_count_output(sk, datagram.dst(), datagram.whole() as u32) };
        let len = datagram.whole().wrapping_add(HEADER_ETH) as u16;
        if let Some(open) = &mut self.open {
            open.add(slot, |at| FrameEntry {
                sk,
                at,
                len,
                mark,
                priority,
                hash: datagram.hash(),
            });
        }
        // SAFETY: The caller passes a valid sock. The route's reference keeps the dst.
        Pushed::Done(unsafe { datagram::sent(sk, datagram.dst(), datagram.data().len(), 0) })
    }

    /// Shows hooks a datagram, in the next part of the batch's pages. Returns the mark and priority
    /// that it has then; or, if it can't be a frame, what has become of it. In an RCU read-side
    /// section.
    ///
    /// # Safety
    ///
    /// `sk` must be the valid sock of the datagram. `memory` must have `slot` bytes,
    /// with the datagram's IP packet where that of a frame is.
    unsafe fn show_to_hooks(
        &mut self,
        sk: *mut bindings::sock,
        datagram: &Datagram<'_>,
        memory: *mut u8,
        slot: usize,
    ) -> core::result::Result<(u32, u32), Pushed> {
        let (spare, start) = (self.spare, START + HEADER_ETH);
        self.spare = ptr::null_mut();
        let mut error = 0;
        // SAFETY: The caller passes a valid sock, and memory with room for an skb's tail. The spare
        // skb is this value's, and without data. RCU keeps the hooks' lists. An skb that they let
        // pass is still owned here.
        let (skb, stage) = unsafe {
            let skb = datagram.wrap(sk, spare, memory, slot, start);
            let Some(skb) = NonNull::new(skb) else {
                return Err(Pushed::Left);
            };
            let field = bindings::IPSTATS_MIB_OUTREQUESTS as i32;
            bindings::kopi_output_inc_stats(sk, datagram.dst(), field);
            let stage = bindings::kopi_ask_output_hooks(sk, skb.as_ptr(), &mut error);
            if stage == bindings::kopi_hooks_KOPI_HOOKS_PASSED {
                let mark = bindings::kopi_skb_mark(skb.as_ptr());
                let priority = bindings::kopi_skb_priority(skb.as_ptr());
                bindings::kopi_release_frame_skb(skb.as_ptr());
                self.spare = skb.as_ptr();
                return Ok((mark, priority));
            }
            (skb, stage)
        };
        // A hook may have kept the skb, which has this memory from now on. Then the pages have no room for more:
        // what others send must not wait for that hook.
        if let Some(open) = &mut self.open {
            open.at = match open.pages.is_shared() {
                true => open.room,
                false => open.at.saturating_add(slot),
            };
        }
        if stage == bindings::kopi_hooks_KOPI_HOOKS_GONE {
            let len = datagram.data().len();
            // SAFETY: The caller passes a valid sock. The route's reference keeps the dst.
            let sent = unsafe { datagram::sent(sk, datagram.dst(), len, error) };
            return Err(Pushed::Done(sent));
        }
        self.stray = Some(Stray { skb, stage });
        Err(Pushed::Left)
    }

    /// Sends by the stack a datagram that was [`Pushed::Left`], behind those that were pushed before: as
    /// [`Datagram::send`] does, or what hooks have made of it. Process context.
    ///
    /// # Safety
    ///
    /// `sk` must be the valid sock of the datagram, with its socket.
    #[cold]
    #[inline(never)]
    pub(in crate::sys) unsafe fn send_by_stack(
        &mut self,
        sk: *mut bindings::sock,
        datagram: &Datagram<'_>,
    ) -> Option<c_int> {
        self.flush();
        let Some(Stray { skb, stage }) = self.stray.take() else {
            // SAFETY: Required of the caller.
            return unsafe { datagram.send(sk) };
        };
        let _rcu = rcu::read_lock();
        // SAFETY: The stray owned the skb, which holds its dst by a reference. The stack owns it from here. The
        // caller passes a valid sock, and the route's reference keeps the dst that the skb was made with.
        unsafe {
            let error = bindings::kopi_output_by_stack(sk, skb.as_ptr(), stage);
            let len = datagram.data().len();
            Some(datagram::sent(sk, datagram.dst(), len, error))
        }
    }
}

/// Writes the Ethernet header of a datagram that no hook sees. Returns the mark and priority of its sock; or what has
/// become of it, if its neighbour has to be resolved.
///
/// # Safety
///
/// `sk` must be the valid sock of the datagram, and `header` its IP header with more than 16 bytes in front. The
/// caller must be in an RCU read-side section.
#[inline(always)]
unsafe fn put_hard_header(
    sk: *mut bindings::sock,
    datagram: &Datagram<'_>,
    header: *mut u8,
) -> core::result::Result<(u32, u32), Pushed> {
    let dst = datagram.dst();
    // SAFETY: Required of the caller. The route's reference keeps the dst.
    unsafe {
        if !bindings::kopi_put_hard_header(dst, header.cast()) {
            return Err(Pushed::Left);
        }
        let field = bindings::IPSTATS_MIB_OUTREQUESTS as i32;
        bindings::kopi_output_inc_stats(sk, dst, field);
        let priority = ptr::read_volatile(&raw const (*sk).sk_priority);
        Ok((datagram.mark(), priority))
    }
}

impl Open {
    /// A batch without frames, with room for as many as the datagram's as are `expected`; `None` if memory is short,
    /// or the datagram too long. Process context.
    fn new(sk: &Sock, datagram: &Datagram<'_>, expected: usize) -> Option<Self> {
        let slot = slot_for(datagram)?;
        let most = (BULK_BYTES - BatchPages::TABLES)
            .checked_div(slot)?
            .min(BULK);
        let frames = most.min(expected).max(1);
        let pages = BatchPages::new(slot.checked_mul(frames)?)?;
        let room = pages.size();
        // SAFETY: The sock is borrowed, and the route owns a reference to the dst.
        let skb =
            unsafe { bindings::kopi_alloc_frames_skb(sk.as_ptr(), datagram.dst(), room as u32) };
        // INVARIANT: Owned from here, and charged. Only the tables are in use.
        Some(Self {
            skb: NonNull::new(skb)?,
            device: datagram.device(),
            is_ipv6: datagram.is_ipv6(),
            start: pages.start(),
            pages,
            room,
            at: BatchPages::TABLES,
            count: 0,
        })
    }

    /// Bytes that the sock of the skb is charged for it.
    fn charge(&self) -> u32 {
        // SAFETY: The batch owns the skb.
        unsafe { bindings::kopi_skb_truesize(self.skb.as_ptr()) }
    }

    /// Records a frame in the next `slot` bytes. `entry` gets its place, in cache lines.
    fn add(&mut self, slot: usize, entry: impl FnOnce(u16) -> FrameEntry) {
        let entry = entry((self.at / LINE) as u16);
        // SAFETY: The pages begin there, with tables. This value owns them.
        unsafe { BatchPages::set_entry(self.start, self.count, entry) };
        self.count = self.count.wrapping_add(1);
        self.at = self.at.saturating_add(slot);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: This value owns the skb, which is not used any more.
        unsafe { bindings::consume_skb(self.skb.as_ptr()) };
    }
}

impl Drop for FrameBatch {
    fn drop(&mut self) {
        if !self.spare.is_null() {
            // SAFETY: The spare skb is this value's, and was released from its frame.
            unsafe { bindings::kopi_free_frame_skb(self.spare) };
        }
        if let Some(stray) = self.stray.take() {
            // SAFETY: The stray owned the skb, which is not used any more.
            unsafe { bindings::consume_skb(stray.skb.as_ptr()) };
        }
    }
}
