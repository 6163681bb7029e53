// SPDX-License-Identifier: GPL-2.0

//! The kernel's interfaces of the direct path: packets at the egress hook, XDP frames, redirection.

mod batch_pages;
pub(crate) mod datagram_ends;
pub(crate) mod egress;
pub(crate) mod frame_batch;
mod frames;
pub(crate) mod incoming;
pub(crate) mod input_routes;
pub(crate) mod list;
pub(crate) mod port_map;
pub(crate) mod redirect_device;
pub(crate) mod redirected;
pub(crate) mod rx_observer;
mod segments;
pub(crate) mod taken;
mod taken_frames;
