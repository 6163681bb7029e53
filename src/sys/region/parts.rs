// SPDX-License-Identifier: GPL-2.0

//! Parts of a region, in the forms that the kernel's functions take.

use super::{Region, PAGE_SIZE};
use crate::sys::bindings;
use core::{marker::PhantomData, ptr::NonNull};
use kernel::prelude::*;

/// A list of pieces of a region that are to be written, in order.
///
/// # Invariants
///
/// All pieces lie within the region, which lives for `'a`. `bytes` is the sum of their lengths.
pub(crate) struct KernelVec<'a> {
    pub(super) region: &'a Region,
    pub(super) pieces: &'a mut KVec<bindings::kvec>,
    pub(super) bytes: usize,
}

/// Memory for the list of a [`KernelVec`].
pub(crate) struct KernelVecBuffer(pub(super) KVec<bindings::kvec>);

// SAFETY: The list owns no memory that its pointers lead to. A `KernelVec` uses the pointers, and
// `of` empties the list before.
unsafe impl Send for KernelVecBuffer {}

impl KernelVecBuffer {
    /// A list with room for `capacity` pieces: `ENOMEM`. Process context.
    pub(crate) fn new(capacity: usize) -> Result<Self> {
        Ok(Self(KVec::with_capacity(capacity, GFP_KERNEL_ACCOUNT)?))
    }

    /// Starts an empty list of pieces of `region`.
    pub(crate) fn of<'a>(&'a mut self, region: &'a Region) -> KernelVec<'a> {
        self.0.clear();
        // INVARIANT: The list has no pieces yet.
        KernelVec {
            region,
            pieces: &mut self.0,
            bytes: 0,
        }
    }
}

impl KernelVec<'_> {
    /// Appends a piece: `EINVAL` unless it lies within the region, `ENOMEM` if the list is full.
    /// Any context.
    pub(crate) fn push(&mut self, offset: u32, len: u32) -> Result {
        let len = len as usize;
        let at = self.region.at::<u8>(offset, len)?;
        let piece = bindings::kvec {
            iov_base: at.as_ptr().cast(),
            iov_len: len,
        };
        // INVARIANT: `at` checked that the piece lies within the region.
        self.pieces
            .push_within_capacity(piece)
            .map_err(|_| ENOMEM)?;
        self.bytes = self.bytes.saturating_add(len);
        Ok(())
    }

    /// The pieces.
    pub(in crate::sys) fn pieces(&self) -> &[bindings::kvec] {
        self.pieces
    }

    /// The sum of the pieces' lengths.
    pub(in crate::sys) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Bytes that C is to copy: of a region, whose process may write them meanwhile, or the kernel's own.
///
/// # Invariants
///
/// The bytes are valid for `'a`.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a> {
    pub(super) at: NonNull<u8>,
    pub(super) len: usize,
    pub(super) _region: PhantomData<&'a Region>,
}

impl<'a> Bytes<'a> {
    /// The kernel's own.
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        // INVARIANT: They are borrowed for `'a`.
        Self {
            at: NonNull::from(bytes).cast(),
            len: bytes.len(),
            _region: PhantomData,
        }
    }

    /// The kernel's address of the first byte.
    pub(in crate::sys) fn as_ptr(&self) -> *const u8 {
        self.at.as_ptr()
    }

    /// The number of bytes.
    pub(in crate::sys) fn len(&self) -> usize {
        self.len
    }
}

/// A list of pieces of pages that are to be sent, in order, and the sum of their lengths.
pub(crate) struct PageVec(pub(super) KVec<bindings::bio_vec>, usize);

// SAFETY: The list owns no pages. Its user keeps the region whose pages are on the list.
unsafe impl Send for PageVec {}

impl PageVec {
    /// A list with room for `capacity` pieces: `ENOMEM`. Process context.
    pub(crate) fn new(capacity: usize) -> Result<Self> {
        Ok(Self(KVec::with_capacity(capacity, GFP_KERNEL_ACCOUNT)?, 0))
    }

    /// Empties the list.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
        self.1 = 0;
    }

    /// Appends `len` bytes at `offset` of the region, as one piece for each page: `EINVAL` unless
    /// they lie within the region, `EMSGSIZE` if the list is full.
    pub(crate) fn push(&mut self, region: &Region, offset: u32, len: u32) -> Result {
        let mut at = offset as usize;
        let mut left = len as usize;
        while left > 0 {
            let page = *region.pages.get(at / PAGE_SIZE).ok_or(EINVAL)?;
            let in_page = at % PAGE_SIZE;
            let piece = left.min(PAGE_SIZE.wrapping_sub(in_page));
            self.0
                .push_within_capacity(bindings::bio_vec {
                    bv_page: page,
                    bv_len: piece as u32,
                    bv_offset: in_page as u32,
                })
                .map_err(|_| EMSGSIZE)?;
            self.1 = self.1.saturating_add(piece);
            at = at.wrapping_add(piece);
            left = left.wrapping_sub(piece);
        }
        Ok(())
    }

    /// The address of the first piece.
    pub(in crate::sys) fn as_ptr(&self) -> *const bindings::bio_vec {
        self.0.as_ptr()
    }

    /// Number of pieces.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The sum of the pieces' lengths.
    pub(crate) fn bytes(&self) -> usize {
        self.1
    }
}
