// SPDX-License-Identifier: GPL-2.0

//! Safe wrappers of the kernel's C, one module for each of its subsystems.
//!
//! The raw bindings are private to this folder, and its code imports nothing from the module above
//! it but `pure`. Decisions belong to the types that implement the traits here.

mod bindings;
pub(crate) mod cgroup;
pub(crate) mod context;
pub(crate) mod cred;
pub(crate) mod datagram;
pub(crate) mod direct;
pub(crate) mod errno;
pub(crate) mod family;
pub(crate) mod genl;
pub(crate) mod ipv4;
pub(crate) mod ipv6;
pub(crate) mod kthread;
pub(crate) mod local_out;
pub(crate) mod lock;
pub(crate) mod locked;
pub(crate) mod monitor;
pub(crate) mod msghdr;
pub(crate) mod netdev;
pub(crate) mod ordinary;
pub(crate) mod pernet;
pub(crate) mod plain_message;
pub(crate) mod raw;
pub(crate) mod reaper;
pub(crate) mod region;
pub(crate) mod skb;
pub(crate) mod slab;
pub(crate) mod sock;
pub(crate) mod socket;
pub(crate) mod sysctl;
pub(crate) mod task;
pub(crate) mod uapi;
pub(crate) mod ubuf;
pub(crate) mod user;
pub(crate) mod wait;
