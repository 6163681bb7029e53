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
    use crate::pure::{abi, counters::with_counters};
    use core::mem::{offset_of, size_of};
    use kernel::static_assert;

    /// Takes all fields of a type: the pattern names each.
    macro_rules! same {
        ($c:ident, $rust:ident, $($field:ident),* $(,)?) => {
            const _: fn(abi::$rust) = |abi::$rust { $($field: _),* }| ();
            static_assert!(size_of::<super::$c>() == size_of::<abi::$rust>());
            $(static_assert!(offset_of!(super::$c, $field) == offset_of!(abi::$rust, $field));)*
        };
    }

    macro_rules! same_stats {
        ($($(#[$doc:meta])* $of:ident $name:ident $(= $attribute:ident)?;)*) => {
            same!(kopi_stats, Stats, $($name,)* reserved);
        };
    }

    same!(
        kopi_info,
        Info,
        abi_version,
        family,
        flow,
        has_channel,
        frame_headroom,
        frame_size_min,
        frame_size_max,
        frames_max,
        ring_entries_max,
        region_size_max,
        chain_max,
        copybreak,
        reserved
    );
    same!(
        kopi_channel_req,
        ChannelReq,
        flags,
        frame_size,
        frame_count,
        tx_entries,
        completion_entries,
        fill_entries,
        rx_entries,
        reserved
    );
    same!(kopi_join, Join, fd, reserved);
    same!(
        kopi_ring_layout,
        RingLayout,
        producer,
        consumer,
        flags,
        entries,
        size,
        entry_size,
        reserved
    );
    same!(
        kopi_layout,
        Layout,
        region_size,
        flags,
        frames,
        frame_size,
        frame_count,
        reserved,
        tx,
        completion,
        fill,
        rx
    );
    same!(kopi_desc, Desc, offset, len, flow, flags, error);
    same!(
        kopi_meta, Meta, peer, local, peer_port, local_port, family, gso_size, ifindex, flags, tos,
        ttl, len, mark, timestamp
    );
    with_counters!(same_stats);
    same!(
        kopi_mon_hdr,
        MonHdr,
        version,
        len,
        direction,
        verdict,
        reason,
        rule,
        ifindex,
        flow,
        pid,
        uid,
        gid,
        cgroup,
        exe_inode,
        exe_device,
        gso_size,
        command,
        reserved
    );
    same!(kopi_port_map, PortMap, ports, ifindex, reserved);
}
