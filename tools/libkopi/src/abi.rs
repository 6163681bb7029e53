// SPDX-License-Identifier: GPL-2.0

//! The structs and numbers of `kopi.h`; a test compares them with it.

use kopi::pure::abi::Meta;
use std::ffi::c_void;

/// `struct kopi_options`: 0 is each field's default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// `CHANNEL_*`.
    pub flags: u32,
    /// Bytes of a frame.
    pub frame_size: u32,
    /// Number of frames.
    pub frames: u32,
    /// Of them, for what is received; or [`NO_FRAMES`].
    pub rx_frames: u32,
    /// Entries of the TX and COMPLETION rings.
    pub tx_entries: u32,
    /// Entries of the FILL and RX rings.
    pub rx_entries: u32,
    /// Zero.
    pub reserved: [u32; 10],
}

/// [`Options::rx_frames`] of a channel that only sends.
pub const NO_FRAMES: u32 = u32::MAX;

/// `struct kopi_frame`: a frame that the program has.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The payload.
    pub data: *mut c_void,
    /// In the headroom; NULL in all but a packet's first frame.
    pub meta: *mut Meta,
    /// Bytes of payload.
    pub len: u32,
    /// Bytes of payload that fit.
    pub capacity: u32,
    /// The flow's number.
    pub flow: u32,
    /// `DESC_MORE`, `DESC_META`.
    pub flags: u32,
    /// The frame's first byte.
    pub id: u32,
    /// Zero.
    pub reserved: u32,
}

/// `struct kopi_completion`: what became of a frame.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The flow's number.
    pub flow: u32,
    /// As [`Frame::id`].
    pub id: u32,
    /// Bytes of payload.
    pub len: u32,
    /// `DESC_MORE`.
    pub flags: u16,
    /// 0, or an errno.
    pub error: u16,
}

/// A packet to receive.
pub const READABLE: u32 = 1 << 0;
/// Room to send.
pub const WRITABLE: u32 = 1 << 1;
/// Completions.
pub const COMPLETED: u32 = 1 << 2;
/// The first flow's error.
pub const ERROR: u32 = 1 << 3;
