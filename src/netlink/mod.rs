// SPDX-License-Identifier: GPL-2.0

//! The operations of `uapi/kopi.yaml`, by which administrators show and change things.
//!
//! `family.c` and `family.h` are made from that file (`qemu/netlink`). They check requests, and
//! `crate::sys::genl` calls the functions here.

pub(crate) mod devices;
pub(crate) mod engines;
pub(crate) mod events;
pub(crate) mod rules;
pub(crate) mod show;
