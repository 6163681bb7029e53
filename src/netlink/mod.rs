// SPDX-License-Identifier: GPL-2.0

//! What administrators ask and say: the operations of `uapi/kopi.yaml`.
//!
//! `family.c` and `family.h` are made from that file (`qemu/netlink`); they check what comes, and
//! `crate::sys::genl` calls the functions here.

pub(crate) mod devices;
pub(crate) mod engines;
pub(crate) mod events;
pub(crate) mod rules;
pub(crate) mod show;
