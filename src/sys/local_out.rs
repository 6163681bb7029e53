// SPDX-License-Identifier: GPL-2.0

//! The place where all that a flow sends is judged: a hook of netfilter, while a namespace has rules.
//!
//! What a program says in a call needn't be what becomes of it: options, control messages and corking
//! change where it goes and as what, and another thread may change them during the call.
//!
//! C header: `include/linux/netfilter.h`

use super::{
    errno::edquot,
    family,
    pernet::NetRef, //
};
use crate::bindings;
use crate::flow::{Flow, Sent};
use crate::pure::rule::Peer;
use crate::rules::Outcome;
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

/// # Safety
///
/// To be called by the hook only.
#[no_mangle]
unsafe extern "C" fn kopi_local_out(
    sk: *mut bindings::sock,
    packet: *mut bindings::kopi_sent,
) -> c_int {
    let _rcu = rcu::read_lock();
    // SAFETY: The packet keeps its sock, and RCU is held; the hook's structure is valid, and its own.
    unsafe {
        let Some((sk, flow)) = family::flow_of::<Flow>(sk) else {
            return 0;
        };
        let packet = &mut *packet;
        let mut sent = Sent {
            peer: Peer {
                address: packet.to.in6_u.u6_addr8,
                port: packet.port,
            },
            gso_size: packet.gso_size,
            bytes: packet.bytes,
            mark: packet.mark,
            priority: packet.priority,
        };
        let hop = Peer {
            address: packet.via.in6_u.u6_addr8,
            port: packet.port,
        };
        // By way of one that is denied nothing goes; what passes counts for where it goes in the end.
        if hop != sent.peer && flow.denies_hop(sk, hop, &sent) {
            return EACCES.to_errno();
        }
        let again = family::has_judged::<Flow>(sk, &sent.peer);
        match flow.sends(sk, &mut sent, again) {
            Outcome::Pass => {
                (packet.mark, packet.priority) = (sent.mark, sent.priority);
                0
            }
            Outcome::Denied => EACCES.to_errno(),
            // UDP tells nobody of ENOBUFS.
            Outcome::TooFast => edquot().to_errno(),
        }
    }
}
