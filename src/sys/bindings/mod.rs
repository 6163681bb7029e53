// SPDX-License-Identifier: GPL-2.0

//! Raw bindings to the kernel's C, generated from `helper.h`.
//!
//! Only `src/sys` may name what is in here.

#![allow(
    clippy::all,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ptr_cast_constness,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unknown_lints,
    unnecessary_transmutes,
    unreachable_pub,
    unsafe_op_in_unsafe_fn
)]

use pin_init::{MaybeZeroable, Zeroable};

type __kernel_size_t = usize;
type __kernel_ssize_t = isize;
type __kernel_ptrdiff_t = isize;

// SAFETY: A bitfield unit has one field, of type `Storage`, for which zeroes are valid.
unsafe impl<Storage: Zeroable> Zeroable for __BindgenBitfieldUnit<Storage> {}

include!("generated.rs");

/// The header and its Rust counterpart agree.
mod uapi {
    use crate::pure::abi;
    use core::mem::{offset_of, size_of};
    use kernel::static_assert;

    macro_rules! same {
        ($c:ident, $rust:ident, $($field:ident),*) => {
            static_assert!(size_of::<super::$c>() == size_of::<abi::$rust>());
            $(static_assert!(offset_of!(super::$c, $field) == offset_of!(abi::$rust, $field));)*
        };
    }

    same!(kopi_info, Info, abi_version, flow, copybreak, reserved);
    same!(
        kopi_channel_req,
        ChannelReq,
        flags,
        frame_size,
        rx_entries,
        reserved
    );
    same!(kopi_join, Join, fd, reserved);
    same!(
        kopi_ring_layout,
        RingLayout,
        producer,
        entries,
        entry_size,
        reserved
    );
    same!(
        kopi_layout,
        Layout,
        region_size,
        frames,
        tx,
        completion,
        fill,
        rx
    );
    same!(kopi_desc, Desc, offset, len, flow, flags, error);
    same!(kopi_meta, Meta, peer, local, peer_port, family, ifindex, flags, tos, len, timestamp);
    same!(
        kopi_stats,
        Stats,
        tx_packets,
        rx_packets,
        tx_invalid,
        flows,
        tx_taken,
        tx_drop_other,
        engine_time,
        reserved
    );
    same!(
        kopi_mon_hdr,
        MonHdr,
        len,
        reason,
        flow,
        gid,
        cgroup,
        exe_device,
        command,
        reserved
    );
}
