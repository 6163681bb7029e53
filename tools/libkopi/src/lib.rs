// SPDX-License-Identifier: GPL-2.0

//! KOPI's flows and channels in C: what `libkopi.so.1` is linked from.
//!
//! `include/kopi.h` documents each function, with its errors and what threads may do; here stands
//! only what is this side's. What is `extern "C"` doesn't unwind: Rust makes an abort of a panic that
//! reaches it. Nothing allocates but what opens a flow or a channel, and errors.
//!
//! What a caller must see to, in all functions: each pointer is NULL or valid for what the function
//! does with it, as the header says; flows and channels are open; a channel is one thread's.

#![allow(clippy::missing_safety_doc)]

mod abi;
mod channel;
mod datagram;
mod error;
mod flow;
mod frames;
mod meta;
mod pointer;

pub use self::{
    abi::{Completion, Frame, Options, COMPLETED, ERROR, NO_FRAMES, READABLE, WRITABLE},
    channel::{
        kopi_arm, kopi_channel_close, kopi_channel_fd, kopi_channel_layout, kopi_channel_open,
        kopi_complete, kopi_doorbell, kopi_flush, kopi_wait, Channel,
    },
    datagram::{kopi_queue, kopi_recv, kopi_send},
    error::kopi_strerror,
    flow::{
        kopi_family, kopi_flow_bind, kopi_flow_close, kopi_flow_connect, kopi_flow_error,
        kopi_flow_fd, kopi_flow_join, kopi_flow_number, kopi_flow_open, kopi_flow_stats,
    },
    frames::{kopi_commit, kopi_recv_frames, kopi_release, kopi_reserve},
    meta::{kopi_meta_local, kopi_meta_peer, kopi_meta_reply, kopi_meta_to},
};
