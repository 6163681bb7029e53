// SPDX-License-Identifier: GPL-2.0

//! The pages of a batch of frames. They begin with two tables: what is known of each frame, and which
//! socks are charged besides that of the skb, which stands for the batch.

use super::frames::{FramePages, BULK, LINE};
use crate::sys::{bindings, sock::Sock};
use core::{
    mem::size_of,
    ops::{Deref, Range},
    slice,
};

/// A frame of a batch.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FrameEntry {
    /// The sock that sent it, which the batch's charge keeps.
    pub(super) sk: *mut bindings::sock,
    /// Where its memory is in the pages, in cache lines.
    pub(super) at: u16,
    /// Its bytes.
    pub(super) len: u16,
    /// What the skb has by which the stack sends it after all.
    pub(super) mark: u32,
    pub(super) priority: u32,
    pub(super) hash: u32,
}

/// What a sock is charged for a datagram of a batch.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SockCharge {
    pub(super) sk: *mut bindings::sock,
    /// Bytes.
    pub(super) bytes: u32,
}

/// Where the table of charges begins.
const CHARGES: usize = BULK * size_of::<FrameEntry>();

/// Pages for frames, with their tables if there are any.
///
/// # Invariants
///
/// If `charges` isn't 0, the pages begin with the tables, and so many entries of the second one are of socks
/// that are charged.
pub(super) struct BatchPages {
    pages: FramePages,
    charges: u16,
}

impl BatchPages {
    /// Bytes of the tables.
    pub(super) const TABLES: usize =
        (CHARGES + BULK * size_of::<SockCharge>()).next_multiple_of(LINE);

    /// Pages with tables, and room for so many bytes of frames behind them; `None` if memory is short. Any
    /// context.
    pub(super) fn new(bytes: usize) -> Option<Self> {
        // INVARIANT: Nobody is charged.
        FramePages::new(bytes.checked_add(Self::TABLES)?).map(Self::without_tables)
    }

    /// Pages that have frames only, and aren't asked for their tables.
    pub(super) fn without_tables(pages: FramePages) -> Self {
        // INVARIANT: Nobody is charged.
        Self { pages, charges: 0 }
    }

    /// Writes the entry of a frame, unless there are as many as there can be, into the tables at `start`.
    ///
    /// # Safety
    ///
    /// `start` must be that of pages with tables, of which nothing else uses this entry.
    pub(super) unsafe fn set_entry(start: *mut u8, index: usize, entry: FrameEntry) {
        if index < BULK {
            // SAFETY: The table has `BULK` entries. The rest is required of the caller.
            unsafe { start.cast::<FrameEntry>().add(index).write(entry) };
        }
    }

    /// The memory of some frames, and their entries.
    ///
    /// # Safety
    ///
    /// These must have been written.
    pub(super) unsafe fn frames(
        &self,
        which: Range<usize>,
    ) -> impl Iterator<Item = (*mut u8, FrameEntry)> + '_ {
        let start = self.pages.start();
        which.map(move |index| {
            // SAFETY: Required of the caller. The pages are borrowed.
            let entry = unsafe { start.cast::<FrameEntry>().add(index).read() };
            (start.wrapping_add(usize::from(entry.at) * LINE), entry)
        })
    }

    fn charge_table(&self) -> *mut SockCharge {
        self.pages.start().wrapping_add(CHARGES).cast()
    }

    /// Charges a sock, and has the batch keep it: `false` if its send buffer has no room, or there are as many
    /// charges as there can be.
    ///
    /// # Safety
    ///
    /// The pages must have tables.
    pub(super) unsafe fn charge(&mut self, sk: &Sock, bytes: u32) -> bool {
        let index = usize::from(self.charges);
        if index >= BULK {
            return false;
        }
        let sk = sk.as_ptr();
        // SAFETY: The sock is borrowed, and the table has `BULK` entries.
        unsafe {
            if !bindings::kopi_sock_charge(sk, bytes) {
                return false;
            }
            self.charge_table()
                .add(index)
                .write(SockCharge { sk, bytes });
        }
        // INVARIANT: The entry was just written.
        self.charges = self.charges.wrapping_add(1);
        true
    }

    /// What socks are charged besides that of the skb.
    pub(super) fn charges(&self) -> &[SockCharge] {
        if self.charges == 0 {
            return &[];
        }
        // SAFETY: So many entries have been written, by the invariants, and the pages are borrowed.
        unsafe { slice::from_raw_parts(self.charge_table(), self.charges.into()) }
    }
}

impl Deref for BatchPages {
    type Target = FramePages;

    fn deref(&self) -> &FramePages {
        &self.pages
    }
}

impl Drop for BatchPages {
    fn drop(&mut self) {
        for charge in self.charges() {
            // SAFETY: The sock is charged so many bytes, by the invariants, which have kept it.
            unsafe { bindings::kopi_sock_uncharge(charge.sk, charge.bytes) };
        }
    }
}
