// SPDX-License-Identifier: GPL-2.0

//! The kernel's types in the signatures of the functions that C calls and that each subsystem's
//! `serve!` defines.
//!
//! Code outside `sys` can only pass the types on.

pub(crate) use super::bindings::{
    genl_info as Info,
    kopi_call as Call,
    kopi_sent as Sent,
    net as Net,
    net_device as Device,
    netlink_callback as Callback,
    sk_buff as Skb,
    sock as Sock,
    task_struct as Task,
    xdp_frame as Frame, //
};
