// SPDX-License-Identifier: GPL-2.0

//! Routes of IPv6 that a channel remembers.
//!
//! What the stack looks up for each datagram of an unconnected sock is looked up again after each
//! change of the namespace's routes, routing rules, addresses and address labels, and ten times a
//! second.

use crate::sys::{bindings, sock::Sock};
use core::ptr::NonNull;
use kernel::sync::rcu;

/// The minimum MTU of IPv6 (RFC 8200).
pub(super) const MTU_MIN: u32 = 1280;

/// A reference to a route, which may become invalid.
///
/// # Invariants
///
/// `dst` is an IPv6 route's, and this value owns a reference to it.
pub(crate) struct RouteV6 {
    pub(super) dst: NonNull<bindings::dst_entry>,
    /// The source address that goes with it, as it lies in memory.
    pub(super) source: [u8; 16],
    /// What the route is valid by.
    cookie: u32,
    /// What a look-up depended on; `None` if the sock remembers the route.
    generation: Option<bindings::kopi_generation6>,
    /// Bytes to leave in front of the IP header: for the device, and a fragment header, as
    /// __ip6_append_data() does.
    pub(super) headroom: u32,
    /// The device computes checksums, or is likely to: if it doesn't any more, the stack does.
    pub(super) has_checksums: bool,
    /// The address of its device, which is only compared.
    pub(super) device: usize,
    /// The flow hash of the route's datagrams.
    pub(super) hash: u32,
}

// SAFETY: A reference to a route is not bound to a task.
unsafe impl Send for RouteV6 {}

/// An address, as the kernel has it.
fn in6_addr(bytes: [u8; 16]) -> bindings::in6_addr {
    let mut address = pin_init::zeroed::<bindings::in6_addr>();
    address.in6_u.u6_addr8 = bytes;
    address
}

impl RouteV6 {
    /// # Safety
    ///
    /// `dst` must be null, or an IPv6 route with a reference that the caller gives away.
    unsafe fn new(
        dst: *mut bindings::dst_entry,
        (source, to): (bindings::in6_addr, bindings::in6_addr),
        [source_port, port]: [u16; 2],
        cookie: u32,
        generation: Option<bindings::kopi_generation6>,
    ) -> Option<Self> {
        let dst = NonNull::new(dst)?;
        // SAFETY: Any bytes are an address. Both are borrowed for the call.
        let (bytes, hash) = unsafe {
            let hash = bindings::kopi_flow6_hash(&source, &to, source_port, port);
            (source.in6_u.u6_addr8, hash)
        };
        // INVARIANT: The caller gives away a reference to an IPv6 route.
        let mut route = Self {
            dst,
            source: bytes,
            cookie,
            generation,
            headroom: 0,
            has_checksums: false,
            device: 0,
            hash,
        };
        let _rcu = rcu::read_lock();
        // SAFETY: The reference keeps the dst. Its device lives through the RCU read-side section.
        unsafe {
            if !bindings::kopi_route6_is_plain(dst.as_ptr()) {
                return None;
            }
            let fragment_header = size_of::<bindings::frag_hdr>() as u32;
            route.headroom =
                bindings::kopi_ll_reserved_space(dst.as_ptr()).wrapping_add(fragment_header);
            route.has_checksums = bindings::kopi_dst_has_checksums(dst.as_ptr());
            route.device = bindings::kopi_dst_dev(dst.as_ptr()).addr();
        }
        Some(route)
    }

    /// Looks up the route of a datagram of `sk`. `None` if udpv6_sendmsg() has to send the datagram,
    /// or to report the error. Any context.
    pub(super) fn look_up(sk: &Sock, key: &RouteKeyV6) -> Option<Self> {
        let flow = bindings::kopi_flow6 {
            to: in6_addr(key.to.to_ne_bytes()),
            from: in6_addr(key.from.to_ne_bytes()),
            device: key.device,
            mark: key.owner as u32,
            port: key.ports as u16,
            source_port: (key.ports >> 16) as u16,
            tclass: (key.rest >> 32) as u8,
            is_from_message: key.rest >> 48 & 1 != 0,
        };
        let mut source = pin_init::zeroed::<bindings::in6_addr>();
        let mut generation = pin_init::zeroed::<bindings::kopi_generation6>();
        // SAFETY: The sock is borrowed, and keeps its namespace. The look-up gives null, or a
        // reference to an IPv6 route.
        unsafe {
            let dst =
                bindings::kopi_look_up_route6(sk.as_ptr(), &flow, &mut source, &mut generation);
            let (ports, cookie) = ([flow.source_port, flow.port], generation.cookie);
            Self::new(dst, (source, flow.to), ports, cookie, Some(generation))
        }
    }

    /// The route that a connected sock remembers, if it is still valid for these options.
    pub(super) fn of(sk: &Sock, options: &bindings::kopi_options6) -> Option<Self> {
        let mut cookie = 0;
        // SAFETY: The sock is borrowed, and a UDP one of IPv6, as its options say. Any bytes are an
        // address. The call gives null, or a reference to an IPv6 route.
        unsafe {
            if options.source.in6_u.u6_addr8 == [0; 16] {
                return None;
            }
            let dst = bindings::kopi_connected_route6(sk.as_ptr(), options, &mut cookie);
            let ports = [options.source_port, options.peer_port];
            Self::new(dst, (options.source, options.peer), ports, cookie, None)
        }
    }

    /// Whether it is still valid for the sock: rules, addresses, devices and other routes may have
    /// changed. Any context.
    pub(super) fn is_valid(&self, sk: &Sock) -> bool {
        // SAFETY: The sock is borrowed. This value owns a reference to the dst, which stays valid
        // memory when the route becomes obsolete.
        unsafe {
            let is_current = match &self.generation {
                Some(then) => bindings::kopi_generation6_is_current(sk.as_ptr(), then),
                None => true,
            };
            is_current && bindings::kopi_dst_check(self.dst.as_ptr(), self.cookie)
        }
    }
}

impl Drop for RouteV6 {
    fn drop(&mut self) {
        // SAFETY: This value owns the reference, and is not used any more.
        unsafe { bindings::dst_release(self.dst.as_ptr()) };
    }
}

/// The key of the route cache, packed for a comparison without branches. Addresses and ports are as
/// they lie in memory.
#[derive(Clone, Copy)]
pub(crate) struct RouteKeyV6 {
    pub(super) to: u128,
    /// 0 if the route chooses it.
    pub(super) from: u128,
    pub(super) device: i32,
    /// The destination's port, and that of the source.
    pub(super) ports: u32,
    /// From the lowest bits: mark, user.
    pub(super) owner: u64,
    /// From the lowest bits: flow, traffic class, preferences among source addresses, whether the
    /// source is that of a control message.
    pub(super) rest: u64,
}

impl PartialEq for RouteKeyV6 {
    /// Compares all without a branch for each.
    fn eq(&self, other: &Self) -> bool {
        let addresses = (self.to ^ other.to) | (self.from ^ other.from);
        let labels = (self.owner ^ other.owner) | (self.rest ^ other.rest);
        let ends = (self.device ^ other.device) as u32 | (self.ports ^ other.ports);
        addresses | u128::from(labels | u64::from(ends)) == 0
    }
}

impl RouteKeyV6 {
    /// A hash: the highest bits of a product, to which all bits of the destination contribute.
    pub(super) fn hash(&self) -> u32 {
        let to = self.to as u64 ^ (self.to >> 64) as u64;
        // Addresses differ most in their last bytes, which are the highest here.
        let to = to ^ (to >> 32);
        let all = to ^ self.rest.rotate_right(24) ^ u64::from(self.ports) << 8;
        (all.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u32
    }
}
