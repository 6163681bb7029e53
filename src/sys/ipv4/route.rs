// SPDX-License-Identifier: GPL-2.0

//! A route that a flow remembers.

use crate::sys::{bindings, sock::Sock};
use core::{cell::Cell, ptr::NonNull};
use kernel::{error::from_err_ptr, sync::rcu};

/// The least MTU of a device that IPv4 takes (RFC 791).
pub(super) const MTU_MIN: u32 = 68;

/// A route, which lives on when the kernel forgets it.
///
/// # Invariants
///
/// `dst` is of an IPv4 route that this owns a reference to.
pub(crate) struct Route {
    pub(super) dst: NonNull<bindings::dst_entry>,
    /// The source address that goes with it, big-endian.
    pub(super) source: u32,
    /// Bytes to leave in front of the IP header.
    pub(super) headroom: u32,
    /// The device computes checksums, or is likely to: if it doesn't any more, the stack does.
    pub(super) has_checksums: bool,
    /// Its MTU isn't locked: it can be found out what gets through.
    pub(super) may_grow: bool,
    /// The TTL that it asks for, or 0.
    pub(super) ttl: u8,
    /// Its device has several queues, of which hashes choose.
    pub(super) has_queues: bool,
    /// What the kernel hashes the ends of its datagrams to, which takes it longer than all else; or 0.
    pub(super) hash: Cell<u32>,
}

// SAFETY: Routes are not bound to a task.
unsafe impl Send for Route {}

impl Route {
    /// # Safety
    ///
    /// `dst` must be an IPv4 route, or null, with a reference that is the caller's to give away.
    unsafe fn new(dst: *mut bindings::dst_entry, source: u32) -> Option<Self> {
        let dst = NonNull::new(dst)?;
        // INVARIANT: As the caller sees to.
        let mut route = Self {
            dst,
            source,
            headroom: 0,
            has_checksums: false,
            may_grow: false,
            ttl: 0,
            has_queues: false,
            hash: Cell::new(0),
        };
        let cast = bindings::RTCF_BROADCAST | bindings::RTCF_MULTICAST;
        let _rcu = rcu::read_lock();
        // SAFETY: By the invariants; its device lives through the RCU read-side section.
        unsafe {
            if bindings::kopi_dst_is_transformed(dst.as_ptr())
                || bindings::kopi_rt_flags(dst.as_ptr()) & cast != 0
            {
                return None;
            }
            route.headroom = bindings::kopi_ll_reserved_space(dst.as_ptr());
            route.has_checksums = bindings::kopi_dst_has_checksums(dst.as_ptr());
            route.may_grow = !bindings::kopi_dst_mtu_locked(dst.as_ptr());
            route.ttl = bindings::kopi_dst_hoplimit(dst.as_ptr()) as u8;
            route.has_queues = bindings::kopi_dst_has_queues(dst.as_ptr());
        }
        Some(route)
    }

    /// The route of a datagram of `sk`; `None` if it is for udp_sendmsg() to say what is wrong, or to
    /// send it. Any context.
    pub(crate) fn look_up(sk: &Sock, key: &RouteKey) -> Option<Self> {
        // SAFETY: Zeroes are a flowi4 of nothing. The sock is valid, and so is its namespace.
        unsafe {
            let mut flow: bindings::flowi4 = core::mem::zeroed();
            let [ends, source, owner, rest] = key.words;
            bindings::kopi_flowi4_init_output(
                &mut flow,
                (source >> 32) as i32,
                owner as u32,
                (rest >> 32) as u8,
                (rest >> 40) as u8,
                key.to(),
                source as u32,
                key.port(),
                (ends >> 48) as u16,
                sk.as_ptr(),
            );
            bindings::security_sk_classify_flow(sk.as_ptr(), &mut flow.__fl_common);
            let net = bindings::kopi_sock_net(sk.as_ptr());
            let route =
                from_err_ptr(bindings::ip_route_output_flow(net, &mut flow, sk.as_ptr())).ok()?;
            if flow.daddr != key.to() {
                // Of no address; or translated.
                bindings::dst_release(&raw mut (*route).dst);
                return None;
            }
            Self::new(&raw mut (*route).dst, flow.saddr)
        }
    }

    /// The route that a connected sock remembers, if it is still good.
    pub(in crate::sys) fn of(sk: &Sock, source: u32) -> Option<Self> {
        // SAFETY: A valid sock; gives a reference.
        unsafe { Self::new(bindings::sk_dst_check(sk.as_ptr(), 0), source) }
    }

    /// Whether it is still good: rules, addresses, devices and other routes may have changed. Any
    /// context.
    pub(crate) fn is_valid(&self) -> bool {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_dst_check(self.dst.as_ptr()) }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        // SAFETY: The reference is this value's.
        unsafe { bindings::dst_release(self.dst.as_ptr()) };
    }
}

/// All that decides about the route of a datagram, and whose it is. Addresses and ports are
/// big-endian.
#[derive(Clone, Copy)]
pub(crate) struct RouteKey {
    /// Destination, its port, and the source's; source, or 0 if the route is to say, and device; and
    /// what [`Options::common`] has. Each begins with the lowest bits.
    pub(super) words: [u64; 4],
}

impl PartialEq for RouteKey {
    /// Without a branch for each word.
    fn eq(&self, other: &Self) -> bool {
        let ([a, b, c, d], [e, f, g, h]) = (self.words, other.words);
        (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h) == 0
    }
}

impl RouteKey {
    /// The destination, big-endian.
    pub(crate) fn to(&self) -> u32 {
        self.words[0] as u32
    }

    /// Its port, big-endian.
    pub(crate) fn port(&self) -> u16 {
        (self.words[0] >> 32) as u16
    }

    /// A number by which to find it: the upper half of a product, on which all bits have a say.
    pub(crate) fn hash(&self) -> u32 {
        let all = self.words[0] ^ self.words[3].rotate_right(24);
        (all.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }
}

/// A destination that metadata name, big-endian; and a source address and device, if they do.
#[derive(Clone, Copy)]
pub(crate) struct To {
    pub(crate) address: u32,
    pub(crate) port: u16,
    pub(crate) from: Option<(u32, i32)>,
}
