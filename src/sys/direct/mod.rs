// SPDX-License-Identifier: GPL-2.0

//! What the direct path needs of the kernel: packets on their way out, frames, and XDP's redirection.

pub(crate) mod egress;
mod frames;
pub(crate) mod port_map;
pub(crate) mod redirect_device;
pub(crate) mod redirected;
