// SPDX-License-Identifier: GPL-2.0

//! sendmsg and recvmsg of datagrams: UDP's, once the protocol lets them.

use super::{
    name::{unspecified, Name},
    reader::{Reader, Receive, DONTWAIT},
    reader_lock::lock_reader,
    ring_message::RingMessage,
    state::{state, State},
    tables::{Operations, UDP4, UDP6},
    Cork,
    Protocol,
    Registration, //
};
use crate::sys::{
    bindings,
    errno::{edquot, enobufs, eopnotsupp},
    plain_message::PlainMessage,
    sock::Sock,
    socket::Socket,
};
use core::sync::atomic::Ordering;
use kernel::{error::from_result, prelude::*};

impl<T: Protocol> Registration<T> {
    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn sendmsg(
        socket: *mut bindings::socket,
        message: *mut bindings::msghdr,
        len: usize,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The socket is in use by the caller, and so is the message. It is a ring's only while
            // `send_ring_message` sends that.
            unsafe {
                let Some(state) = state::<T>((*socket).sk) else {
                    return Self::send_inner(socket, message, len);
                };
                let ring_message = state.message.load(Ordering::Relaxed);
                if ring_message.cast() == message {
                    return Ok(Self::send_of_ring(socket, ring_message, len));
                }
                Self::send_of_process(state, socket, message, len)
            }
        })
    }

    /// Sends a ring's packet, which the rules judged before. `send_ring_message` gives it to sock_sendmsg only for
    /// the LSM's hook, which is reachable no other way.
    ///
    /// # Safety
    ///
    /// The socket must be in use by the caller, and the message that of its `send_ring_message`.
    #[inline]
    unsafe fn send_of_ring(
        socket: *mut bindings::socket,
        message: *mut RingMessage<'static>,
        len: usize,
    ) -> i32 {
        // SAFETY: Required of the caller.
        unsafe {
            let sk = (*socket).sk;
            let sent = match (*message).send_datagram(sk) {
                Some(sent) => sent,
                None => {
                    let sent = bindings::kopi_udp_sendmsg(sk, message.cast(), len);
                    (*message).full = sent == EAGAIN.to_errno();
                    sent
                }
            };
            without_edquot(sent)
        }
    }

    /// Sends a message of a process, once the protocol lets it pass.
    ///
    /// # Safety
    ///
    /// The socket, whose state this is, must be in use by the caller, and so the message.
    unsafe fn send_of_process(
        state: &State<T>,
        socket: *mut bindings::socket,
        message: *mut bindings::msghdr,
        len: usize,
    ) -> Result<i32> {
        // SAFETY: Required of the caller.
        unsafe {
            let this = Socket::from_raw(socket);
            let name = sent_to(this.sk(), &*message);
            state.note_lost_port(this.sk());
            state.protocol.may_send(this, name.as_ref(), len)?;
            if (*message).msg_flags & bindings::MSG_MORE != 0 {
                state.protocol.begin_cork(Cork::Message)?;
                let sent = Self::send_inner(socket, message, len);
                state.protocol.end_cork();
                return sent;
            }
            let ipv6 = this.sk().is_ipv6();
            let plain = || PlainMessage::of(message, len, ipv6);
            match state.protocol.send_plain(this, plain) {
                Some(sent) => Ok(without_edquot(sent)),
                None => Self::send_inner(socket, message, len),
            }
        }
    }

    /// Sends by the inner family's operation.
    ///
    /// # Safety
    ///
    /// The socket must be in use by the caller, and so the message.
    pub(super) unsafe fn send_inner(
        socket: *mut bindings::socket,
        message: *mut bindings::msghdr,
        len: usize,
    ) -> Result<i32> {
        // SAFETY: The caller uses the socket, which is of the family, and passes a valid message.
        unsafe {
            let inner = Operations::inner(socket).sendmsg.ok_or_else(eopnotsupp)?;
            Ok(without_edquot(inner(socket, message, len)))
        }
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn recvmsg(
        socket: *mut bindings::socket,
        message: *mut bindings::msghdr,
        len: usize,
        flags: c_int,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The socket is in use by the caller, and so is the message.
            unsafe {
                let inner = Operations::inner(socket).recvmsg.ok_or_else(eopnotsupp)?;
                match state::<T>((*socket).sk) {
                    Some(state) => Self::receive(state, socket, inner, (message, len, flags)),
                    None => Ok(inner(socket, message, len, flags)),
                }
            }
        })
    }

    /// Receives by the inner family's operation what the protocol lets pass, and waits for it.
    ///
    /// The inner operation never sleeps, because rules may change during the sleep.
    ///
    /// # Safety
    ///
    /// The socket, whose state this is, must be in use by the caller, and so the message; `inner` must be the inner
    /// family's recvmsg.
    unsafe fn receive(
        state: &State<T>,
        socket: *mut bindings::socket,
        inner: Receive,
        (message, len, flags): (*mut bindings::msghdr, usize, c_int),
    ) -> Result<i32> {
        // SAFETY: Required of the caller.
        unsafe {
            let this = Socket::from_raw(socket);
            let protocol = &state.protocol;
            let mut timeout = this.sk().receive_timeout(flags & DONTWAIT != 0);
            loop {
                // What the flow has sent comes back there, which rules about what comes in don't stop.
                if flags & bindings::MSG_ERRQUEUE as i32 != 0 {
                    return Ok(inner(socket, message, len, flags));
                }
                let lock = protocol.may_read(this)?;
                if !protocol.has_queue() {
                    return Err(eopnotsupp());
                }
                let got = match lock {
                    Some(lock) => Reader {
                        socket,
                        inner,
                        protocol,
                        lock: &lock,
                    }
                    .read(message, len, flags, &mut timeout)?,
                    None => inner(socket, message, len, flags | DONTWAIT),
                };
                if got != EAGAIN.to_errno() || flags & DONTWAIT != 0 {
                    return Ok(got);
                }
                let is_over = || !protocol.has_queue();
                if !this.sk().wait_for_datagrams(&mut timeout, is_over)? {
                    return Ok(0);
                }
            }
        }
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn set_peek_off(sk: *mut bindings::sock, value: c_int) -> c_int {
        // SAFETY: The sock is in use by the caller, with its socket.
        from_result(|| unsafe {
            let kind = if Sock::from_raw(sk).is_ipv6() {
                &UDP6
            } else {
                &UDP4
            };
            let state = state::<T>(sk);
            let lock = state
                .map(|state| state.protocol.reader_lock())
                .transpose()?;
            let _reader = lock.as_deref().map(lock_reader).transpose()?;
            let inner = kind.table.set_peek_off().ok_or_else(eopnotsupp)?;
            Ok(inner(sk, value))
        })
    }
}

/// Where a message of sendmsg goes; `None` for the peer.
///
/// # Safety
///
/// The message must be valid.
pub(super) unsafe fn sent_to(sk: &Sock, message: &bindings::msghdr) -> Option<Name> {
    let (name, len) = (message.msg_name.cast::<u8>(), message.msg_namelen);
    // SAFETY: The caller passes a valid message. Its name was copied to memory of the kernel, which
    // has room for any address and which no process can write.
    unsafe {
        let is_none = name.is_null()
            || (sk.is_ipv6()
                && len >= size_of::<u16>() as i32
                && u32::from(name.cast::<u16>().read_unaligned())
                    == bindings::KOPI_CONST_AF_UNSPEC);
        (!is_none).then(|| Name::from_raw(name, len, unspecified(sk)))
    }
}

/// The answer of the rules' hook for ENOBUFS, which UDP would swallow.
pub(super) fn without_edquot(sent: c_int) -> c_int {
    if sent == edquot().to_errno() {
        enobufs().to_errno()
    } else {
        sent
    }
}
