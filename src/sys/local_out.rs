// SPDX-License-Identifier: GPL-2.0

//! A hook of netfilter's LOCAL_OUT that judges all packets of flows, while a namespace has rules, and
//! those of ordinary sockets, while the rules are enforced.
//!
//! The arguments of a call don't decide alone which packet is sent: options, control messages and
//! corking change its destination and its form, and another thread may change these during the
//! call.
//!
//! C header: `include/linux/netfilter.h`

use super::{
    bindings,
    context::might_sleep,
    family::{self, Protocol},
    pernet::NetRef,
    raw,
    sock::Sock, //
};
use crate::pure::peer::Peer;
use kernel::{error::to_result, prelude::*, sync::rcu};

impl NetRef {
    /// Registers the hook in the namespace: `ENOMEM`. Process context.
    pub(crate) fn hook_local_out(&self) -> Result {
        might_sleep();
        // SAFETY: The namespace is borrowed, and so valid; the operations are static.
        to_result(unsafe { bindings::kopi_hook_local_out(self.as_ptr()) })
    }

    /// Unregisters the hook, which must be registered. Process context.
    pub(crate) fn unhook_local_out(&self) {
        might_sleep();
        // SAFETY: The namespace is borrowed, and so valid. The caller registered the hook by
        // `hook_local_out`; a mistake would make netfilter warn, not access freed memory.
        unsafe { bindings::kopi_unhook_local_out(self.as_ptr()) };
    }
}

/// A packet, or a GSO packet, that a flow or an ordinary socket sends.
pub(crate) struct Leaving {
    /// The final destination.
    pub(crate) to: Peer,
    /// The first hop of a source route; otherwise the same as `to`.
    pub(crate) via: Peer,
    /// The local port from which it leaves.
    pub(crate) from_port: u16,
    /// Bytes of payload of each datagram of a GSO packet; 0 for a non-GSO datagram.
    pub(crate) gso_size: u16,
    /// Bytes of payload in total.
    pub(crate) bytes: u32,
    /// The packet's mark, which a rule may set.
    pub(crate) mark: u32,
    /// The packet's priority, which a rule may set.
    pub(crate) priority: u32,
    /// It was judged, and counted, before.
    pub(crate) counted_before: bool,
    /// It is a RST of TCP.
    pub(crate) is_reset: bool,
}

/// A protocol that judges the packets of its flows.
pub(crate) trait LocalOut: Protocol {
    /// Judges a packet of a flow, and may change its mark and priority. A listener's is a SYN-ACK.
    /// An error drops the packet, and becomes the result of UDP's sendmsg.
    fn judge_leaving(&self, sk: &Sock, packet: &mut Leaving, rcu: &rcu::Guard) -> Result;

    /// The same of a packet of an ordinary socket. In an RCU read-side section.
    fn judge_leaving_ordinary(sk: &Sock, packet: &mut Leaving) -> Result;
}

/// The body of `kopi_local_out`.
///
/// # Safety
///
/// Only the hook may call it, with the sock of an outgoing packet, which is a full one of UDP or TCP,
/// and a description of the packet.
pub(crate) unsafe fn judge_leaving<T: LocalOut>(
    sk: *mut raw::Sock,
    packet: *mut raw::Sent,
) -> c_int {
    let rcu = rcu::read_lock();
    // SAFETY: The packet keeps its sock, or RCU does, if it is a listener. RCU, held here, keeps the
    // flow. `packet` is a structure on the hook's stack that nothing else accesses.
    unsafe {
        let flow = family::flow_of::<T>(sk);
        let packet = &mut *packet;
        let peer = |address: &bindings::in6_addr| Peer {
            address: address.in6_u.u6_addr8,
            port: packet.port,
        };
        let mut leaving = Leaving {
            to: peer(&packet.to),
            via: peer(&packet.via),
            from_port: packet.from_port,
            gso_size: packet.gso_size,
            bytes: packet.bytes,
            mark: packet.mark,
            priority: packet.priority,
            counted_before: packet.counted_before,
            is_reset: packet.is_reset,
        };
        let judged = match flow {
            Some((sk, flow)) => flow.judge_leaving(sk, &mut leaving, &rcu),
            None => T::judge_leaving_ordinary(Sock::from_raw(sk), &mut leaving),
        };
        match judged {
            Ok(()) => {
                (packet.mark, packet.priority) = (leaving.mark, leaving.priority);
                0
            }
            Err(error) => error.to_errno(),
        }
    }
}

/// Defines the function that C's hook calls, for the type that implements [`LocalOut`].
macro_rules! serve {
    ($protocol:ty) => {
        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C's hook calls it")]
        unsafe extern "C" fn kopi_local_out(
            sk: *mut $crate::sys::raw::Sock,
            packet: *mut $crate::sys::raw::Sent,
        ) -> c_int {
            // SAFETY: C's hook is the only caller, and passes a packet's sock and its own
            // structure.
            unsafe { $crate::sys::local_out::judge_leaving::<$protocol>(sk, packet) }
        }
    };
}
pub(crate) use serve;
