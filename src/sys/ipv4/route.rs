// SPDX-License-Identifier: GPL-2.0

//! Routes that a channel remembers.

use crate::sys::{bindings, sock::Sock};
use core::{cell::Cell, ptr::NonNull};
use kernel::{error::from_err_ptr, ffi::c_ulong, sync::rcu};

/// The minimum MTU of IPv4 (RFC 791).
pub(super) const MTU_MIN: u32 = 68;

/// A reference to a route, which may become invalid.
///
/// # Invariants
///
/// `dst` is an IPv4 route's, and this value owns a reference to it.
pub(crate) struct RouteV4 {
    pub(super) dst: NonNull<bindings::dst_entry>,
    /// The source address that goes with it, big-endian.
    pub(super) source: u32,
    /// Until when a look-up is taken to find it again, in jiffies; of no use if a sock remembers it.
    until: c_ulong,
    /// Bytes to leave in front of the IP header.
    pub(super) headroom: u32,
    /// The device computes checksums, or is likely to: if it doesn't any more, the stack does.
    pub(super) has_checksums: bool,
    /// The TTL that the route sets, or 0.
    pub(super) ttl: u8,
    /// The address of its device, which is only compared.
    pub(super) device: usize,
    /// Its device has several transmit queues, which the flow hash selects.
    pub(super) has_queues: bool,
    /// The flow hash of the route's datagrams, which is expensive to compute; 0 if it isn't known
    /// yet.
    pub(super) hash: Cell<u32>,
    /// IP IDs that are reserved for its datagrams: all have the same addresses.
    pub(super) ids: Cell<bindings::kopi_ip_ids>,
}

// SAFETY: A reference to a route is not bound to a task.
unsafe impl Send for RouteV4 {}

impl RouteV4 {
    /// # Safety
    ///
    /// `dst` must be null, or an IPv4 route with a reference that the caller gives away.
    unsafe fn new(dst: *mut bindings::dst_entry, source: u32) -> Option<Self> {
        let dst = NonNull::new(dst)?;
        // INVARIANT: The caller gives away a reference to an IPv4 route.
        let mut route = Self {
            dst,
            source,
            // SAFETY: The call only reads the time.
            until: unsafe { bindings::kopi_look_up4_ends() },
            headroom: 0,
            has_checksums: false,
            ttl: 0,
            device: 0,
            has_queues: false,
            hash: Cell::new(0),
            ids: Cell::new(bindings::kopi_ip_ids {
                reserved: 0,
                left: 0,
                next: 0,
                since: 0,
            }),
        };
        let cast = bindings::RTCF_BROADCAST | bindings::RTCF_MULTICAST;
        let _rcu = rcu::read_lock();
        // SAFETY: The reference keeps the dst. Its device lives through the RCU read-side section.
        unsafe {
            if bindings::kopi_dst_is_transformed(dst.as_ptr())
                || bindings::kopi_rt_flags(dst.as_ptr()) & cast != 0
            {
                return None;
            }
            route.headroom = bindings::kopi_ll_reserved_space(dst.as_ptr());
            route.has_checksums = bindings::kopi_dst_has_checksums(dst.as_ptr());
            route.ttl = bindings::kopi_dst_hoplimit(dst.as_ptr()) as u8;
            route.device = bindings::kopi_dst_dev(dst.as_ptr()).addr();
            route.has_queues = bindings::kopi_dst_has_queues(dst.as_ptr());
        }
        Some(route)
    }

    /// Looks up the route of a datagram of `sk`. `None` if udp_sendmsg() has to send the datagram,
    /// or to report the error. Any context.
    pub(super) fn look_up(sk: &Sock, key: &RouteKeyV4) -> Option<Self> {
        // SAFETY: Zeroes are valid for a flowi4, which is initialised next. The sock is borrowed,
        // and keeps its namespace. The lookup gives a reference, which is released or given to
        // `new`.
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
            // The destination was the any-address, or the lookup translated it. Or each lookup makes
            // another route, as of an address of this host's that isn't on the loopback device: to
            // remember these would keep memory that nobody is charged for.
            if flow.daddr != key.to() || bindings::kopi_dst_is_uncached(&raw const (*route).dst) {
                bindings::dst_release(&raw mut (*route).dst);
                return None;
            }
            Self::new(&raw mut (*route).dst, flow.saddr)
        }
    }

    /// The route that a connected sock remembers, if it is still valid.
    pub(in crate::sys) fn of(sk: &Sock, source: u32) -> Option<Self> {
        // SAFETY: The sock is borrowed, and of IPv4. The call gives null or a reference.
        unsafe { Self::new(bindings::sk_dst_check(sk.as_ptr(), 0), source) }
    }

    /// Whether a look-up would find it again for the sock, as far as that can be told. Any context.
    pub(super) fn is_current(&self, sk: &Sock) -> bool {
        // SAFETY: The sock is borrowed, and keeps its namespace.
        unsafe { bindings::kopi_look_up_lasts(sk.as_ptr(), self.until) && self.is_valid() }
    }

    /// Whether it is still valid: rules, addresses, devices and other routes may have changed. Any
    /// context.
    pub(super) fn is_valid(&self) -> bool {
        // SAFETY: This value owns a reference to the dst, which stays valid memory when the route
        // becomes obsolete.
        unsafe { bindings::kopi_dst_check(self.dst.as_ptr(), 0) }
    }
}

impl Drop for RouteV4 {
    fn drop(&mut self) {
        // SAFETY: This value owns the reference, and is not used any more.
        unsafe { bindings::dst_release(self.dst.as_ptr()) };
    }
}

/// The key of the route cache, packed for a comparison without branches. Addresses and ports are
/// big-endian.
#[derive(Clone, Copy)]
pub(crate) struct RouteKeyV4 {
    /// Each word begins with the lowest bits:
    ///
    /// - 0: destination address, destination port, source port;
    /// - 1: source address, or 0 if the route chooses it, and the index of the device;
    /// - 2: mark, user;
    /// - 3: flow, TOS, flags of the lookup: like word 2, from [`OptionsV4::common`].
    pub(super) words: [u64; 4],
}

impl PartialEq for RouteKeyV4 {
    /// Compares all words without a branch for each.
    fn eq(&self, other: &Self) -> bool {
        let ([a, b, c, d], [e, f, g, h]) = (self.words, other.words);
        (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h) == 0
    }
}

impl RouteKeyV4 {
    /// The destination, big-endian.
    pub(super) fn to(&self) -> u32 {
        self.words[0] as u32
    }

    /// Its port, big-endian.
    pub(super) fn port(&self) -> u16 {
        (self.words[0] >> 32) as u16
    }

    /// A hash: the highest bits of a product, to which all ports and addresses contribute.
    pub(super) fn hash(&self) -> u32 {
        let all = self.words[0] ^ self.words[3].rotate_right(24);
        (all.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u32
    }
}

/// The destination in metadata, big-endian, and the source address and device, if the metadata have
/// them.
#[derive(Clone, Copy)]
pub(super) struct To {
    pub(super) address: u32,
    pub(super) port: u16,
    pub(super) from: Option<(u32, i32)>,
}
