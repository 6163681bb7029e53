// SPDX-License-Identifier: GPL-2.0

//! Locked socks, and references to socks.

use super::Sock;
use crate::{
    pure::{abi::Meta, ip::FourTuple, peer::unmapped},
    sys::{
        bindings,
        family::{self, Protocol},
        pernet::NetRef,
    },
};
use core::mem::size_of_val;
use kernel::sync::rcu;

/// A locked sock: no other task changes its options. BPF programs, which may change them, need the
/// lock.
///
/// # Invariants
///
/// The sock is locked, with softirqs off, as long as this value lives.
#[derive(Clone, Copy)]
pub(crate) struct LockedSock<'a>(pub(super) &'a Sock);

impl<'a> LockedSock<'a> {
    /// # Safety
    ///
    /// The sock must be locked, with softirqs off, for `'a`.
    pub(in crate::sys) unsafe fn from_locked(sk: &'a Sock) -> Self {
        // INVARIANT: As required of the caller.
        Self(sk)
    }

    /// Runs the cgroup's `recvmsg` programs, which may change the peer that the program will see.
    pub(crate) fn run_receive_hook(&self, meta: &mut Meta) {
        if self.0.is_ipv6() {
            let mut name = bindings::sockaddr_in6 {
                sin6_family: bindings::AF_INET6 as u16,
                sin6_port: meta.peer_port,
                ..pin_init::zeroed()
            };
            name.sin6_addr.in6_u.u6_addr8 = meta.peer;
            let mut len = size_of_val(&name) as i32;
            // SAFETY: The sock is locked, by the invariants; `name` and `len` are an address and
            // its size.
            unsafe {
                bindings::kopi_run_udp6_recvmsg(self.0.as_ptr(), (&raw mut name).cast(), &mut len);
                meta.peer = name.sin6_addr.in6_u.u6_addr8;
            }
            meta.peer_port = name.sin6_port;
        } else {
            let [a, b, c, d, ..] = meta.peer;
            let mut name = bindings::sockaddr_in {
                sin_family: bindings::AF_INET as u16,
                sin_port: meta.peer_port,
                sin_addr: bindings::in_addr {
                    s_addr: u32::from_ne_bytes([a, b, c, d]),
                },
                ..pin_init::zeroed()
            };
            let mut len = size_of_val(&name) as i32;
            // SAFETY: The sock is locked, by the invariants; `name` and `len` are an address and
            // its size.
            unsafe {
                bindings::kopi_run_udp4_recvmsg(self.0.as_ptr(), (&raw mut name).cast(), &mut len)
            };
            let address = name.sin_addr.s_addr.to_ne_bytes();
            for (to, from) in meta.peer.iter_mut().zip(address) {
                *to = from;
            }
            meta.peer_port = name.sin_port;
        }
    }
}

/// A reference to a sock.
pub(crate) struct SockRef<'a>(pub(super) &'a Sock);

impl SockRef<'_> {
    /// The flow of the sock.
    pub(crate) fn flow<'b, T: Protocol>(
        &'b self,
        _rcu: &'b rcu::Guard,
    ) -> Option<(&'b Sock, &'b T)> {
        // SAFETY: The reference keeps the sock. The guard proves that RCU is held.
        unsafe { family::flow_of(self.as_ptr()) }
    }

    pub(in crate::sys) fn as_ptr(&self) -> *mut bindings::sock {
        self.0.as_ptr()
    }
}

impl<'a> SockRef<'a> {
    /// The UDP sock that receives a packet with these ends from a device. In an RCU read-side
    /// section.
    pub(crate) fn find(net: &'a NetRef, ends: &FourTuple, ifindex: u32) -> Option<Self> {
        let (from, to) = (&ends.source, &ends.destination);
        let (sport, dport) = (from.port.to_be(), to.port.to_be());
        // SAFETY: The namespace is borrowed, and the addresses have as many bytes as the functions
        // read. The lookup takes a reference to the sock that it finds, which is a UDP sock.
        unsafe {
            let sk = match (unmapped(&from.address), unmapped(&to.address)) {
                (Some(saddr), Some(daddr)) => bindings::udp4_lib_lookup(
                    net.as_ptr(),
                    u32::from_ne_bytes(saddr),
                    sport,
                    u32::from_ne_bytes(daddr),
                    dport,
                    ifindex as i32,
                ),
                _ => bindings::udp6_lib_lookup(
                    net.as_ptr(),
                    from.address.as_ptr().cast(),
                    sport,
                    to.address.as_ptr().cast(),
                    dport,
                    ifindex as i32,
                ),
            };
            (!sk.is_null()).then(|| Self(Sock::from_raw(sk)))
        }
    }
}

impl Drop for SockRef<'_> {
    fn drop(&mut self) {
        // SAFETY: `find` took the reference. A UDP sock is freed by RCU, so the last
        // reference may be released in any context.
        unsafe { bindings::kopi_sock_put(self.0.as_ptr()) };
    }
}

/// Whether the UDP socket that receives a packet with these ends from a device asked for GRO
/// packets. Softirqs are off.
pub(crate) fn wants_gro(net: &NetRef, ends: &FourTuple, ifindex: u32) -> bool {
    let _rcu = rcu::read_lock();
    let found = SockRef::find(net, ends, ifindex);
    // SAFETY: The reference keeps the sock, which is a UDP sock.
    found.is_some_and(|sk| unsafe { bindings::kopi_udp_wants_gro(sk.as_ptr()) })
}
