// SPDX-License-Identifier: GPL-2.0

//! recvmsg that asks about each datagram.

use super::{
    name::{Name, Unspecified},
    Protocol,
};
use crate::{
    pure::rule::Peer,
    sys::{
        bindings,
        context::{cond_resched, signal_pending},
        errno::eopnotsupp,
        socket::Socket,
    },
};
use core::mem::MaybeUninit;
use kernel::{prelude::*, sync::Mutex};

pub(super) const DONTWAIT: c_int = bindings::MSG_DONTWAIT as c_int;

pub(super) type Receive =
    unsafe extern "C" fn(*mut bindings::socket, *mut bindings::msghdr, usize, c_int) -> c_int;

/// Reads a socket's datagrams one by one, and asks about each.
///
/// # Invariants
///
/// The socket is in use, and `inner` its inner family's operation.
pub(super) struct Reader<'a, T> {
    pub(super) socket: *mut bindings::socket,
    pub(super) inner: Receive,
    pub(super) protocol: &'a T,
    pub(super) turn: &'a Mutex<bool>,
}

impl<T: Protocol> Reader<'_, T> {
    /// Reads the first datagram that may be read; gives what the operation gives, which is EAGAIN if there
    /// is none.
    ///
    /// # Safety
    ///
    /// `message` must be as for the operation.
    pub(in crate::sys) unsafe fn read(
        &self,
        message: *mut bindings::msghdr,
        len: usize,
        flags: c_int,
    ) -> Result<i32> {
        loop {
            {
                // No other task takes the first datagram meanwhile.
                let mut counted = self.turn.lock();
                let Some((peer, bytes)) = self.peek()? else {
                    return Ok(EAGAIN.to_errno());
                };
                // SAFETY: By the invariants.
                let socket = unsafe { Socket::from_raw(self.socket) };
                let peeks = flags & bindings::MSG_PEEK as i32 != 0;
                let passes = self.protocol.may_take(socket, peer, bytes, *counted, peeks);
                // A look counts, for the read that follows it.
                *counted = passes && peeks;
                if passes {
                    // SAFETY: By the invariants, and as required of the caller.
                    return Ok(unsafe {
                        (self.inner)(self.socket, message, len, flags | DONTWAIT)
                    });
                }
                self.discard();
            }
            // Others may send what isn't let pass for ever.
            if signal_pending() {
                return Err(ERESTARTSYS);
            }
            cond_resched();
        }
    }

    /// Where the first datagram is from, and its length; `None` if there is none.
    fn peek(&self) -> Result<Option<(Peer, usize)>> {
        let mut name = [0u8; size_of::<bindings::sockaddr_in6>()];
        // SAFETY: A msghdr of zeroes has no room for anything but, then, the name.
        let mut header: bindings::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_name = name.as_mut_ptr().cast();
        header.msg_namelen = name.len() as i32;
        let flags = DONTWAIT | (bindings::MSG_PEEK | bindings::MSG_TRUNC) as i32;
        // SAFETY: By the invariants; the name is long enough for both families.
        let got = unsafe {
            if Socket::from_raw(self.socket).sk().peeks_on() {
                // The datagram that is peeked at needn't be the one that is read.
                return Err(eopnotsupp());
            }
            (self.inner)(self.socket, &mut header, 0, flags)
        };
        match usize::try_from(got) {
            Ok(bytes) => {
                let peer = Name::parse(&name, Unspecified::Nothing).ok_or(EINVAL)?;
                Ok(Some((peer, bytes)))
            }
            Err(_) if got == EAGAIN.to_errno() => Ok(None),
            Err(_) => Err(Error::from_errno(got)),
        }
    }

    /// Takes the first datagram away.
    fn discard(&self) {
        // SAFETY: A msghdr of zeroes has no room for anything; by the invariants.
        unsafe {
            let mut header: bindings::msghdr = MaybeUninit::zeroed().assume_init();
            (self.inner)(self.socket, &mut header, 0, DONTWAIT);
        }
    }
}
