// SPDX-License-Identifier: GPL-2.0

//! The place where all that a flow sends is judged: a hook of netfilter, while a namespace has rules.
//!
//! What a program says in a call needn't be what becomes of it: options, control messages and corking
//! change where it goes and as what, and another thread may change them during the call.
//!
//! C header: `include/linux/netfilter.h`

use super::{
    bindings,
    family::{self, Protocol},
    pernet::NetRef,
    sock::Sock, //
};
use crate::pure::rule::Peer;
use kernel::{error::to_result, prelude::*, sync::rcu};

impl NetRef {
    /// Has what flows send judged from now on: `ENOMEM`. Process context.
    pub(crate) fn hook_local_out(&self) -> Result {
        // SAFETY: By the invariants; the operations are static.
        to_result(unsafe { bindings::kopi_hook_local_out(self.as_ptr()) })
    }

    /// No more, after it was. Process context.
    pub(crate) fn unhook_local_out(&self) {
        // SAFETY: By the invariants; hooked by `hook_local_out`.
        unsafe { bindings::kopi_unhook_local_out(self.as_ptr()) };
    }
}

/// A packet that a flow sends, or a GSO packet.
pub(crate) struct Leaving {
    /// Where it goes in the end.
    pub(crate) to: Peer,
    /// The first hop of a source route; else as `to`.
    pub(crate) via: Peer,
    /// Bytes of payload of each datagram of a GSO packet, or 0.
    pub(crate) gso_size: u16,
    /// Bytes of payload.
    pub(crate) bytes: u32,
    pub(crate) mark: u32,
    pub(crate) priority: u32,
}

/// A protocol whose flows' packets are judged by the hook.
pub(crate) trait Judged: Protocol {
    /// Judges a packet of a flow, and may change its mark and priority; an error drops it, which the
    /// caller of sendmsg is told. In an RCU read-side section.
    fn leaves(&self, sk: &Sock, packet: &mut Leaving) -> Result;
}

/// The hook's `struct sock` and `struct kopi_sent`, as C has them.
pub(crate) type RawSock = bindings::sock;
pub(crate) type RawSent = bindings::kopi_sent;

/// What `kopi_local_out` does.
///
/// # Safety
///
/// To be called by the hook only.
pub(crate) unsafe fn leaves<T: Judged>(sk: *mut RawSock, packet: *mut RawSent) -> c_int {
    let _rcu = rcu::read_lock();
    // SAFETY: The packet keeps its sock, and RCU is held; the hook's structure is valid, and its own.
    unsafe {
        let Some((sk, flow)) = family::flow_of::<T>(sk) else {
            return 0;
        };
        let packet = &mut *packet;
        let peer = |address: &bindings::in6_addr| Peer {
            address: address.in6_u.u6_addr8,
            port: packet.port,
        };
        let mut leaving = Leaving {
            to: peer(&packet.to),
            via: peer(&packet.via),
            gso_size: packet.gso_size,
            bytes: packet.bytes,
            mark: packet.mark,
            priority: packet.priority,
        };
        match flow.leaves(sk, &mut leaving) {
            Ok(()) => {
                (packet.mark, packet.priority) = (leaving.mark, leaving.priority);
                0
            }
            Err(error) => error.to_errno(),
        }
    }
}

/// Defines the function that C's hook calls, for the type that implements [`Judged`].
macro_rules! serve {
    ($protocol:ty) => {
        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C's hook calls it")]
        unsafe extern "C" fn kopi_local_out(
            sk: *mut $crate::sys::local_out::RawSock,
            packet: *mut $crate::sys::local_out::RawSent,
        ) -> c_int {
            // SAFETY: The hook calls it.
            unsafe { $crate::sys::local_out::leaves::<$protocol>(sk, packet) }
        }
    };
}
pub(crate) use serve;
