// SPDX-License-Identifier: GPL-2.0

//! The operations of streams: TCP's, once the protocol lets them.

use super::{
    datagrams::sent_to,
    name::{Name, Unspecified},
    state::{state, state_of_work, State},
    Operations, Protocol, Registration,
};
use crate::sys::{
    bindings,
    errno::{econnaborted, eopnotsupp},
    pernet::NetRef,
    reaper,
    sock::{LockedStream, Sock},
    socket::Socket,
};
use core::{mem::MaybeUninit, ptr};
use kernel::{
    error::{from_result, to_result},
    prelude::*,
    sync::atomic::ordering::{Full, Relaxed},
};

/// Of errno(3): connect() is under way, was begun before, or has succeeded before.
const EINPROGRESS: c_int = -115;
const EALREADY: c_int = -114;
const EISCONN: c_int = -106;

impl<T: Protocol> Registration<T> {
    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn connect_stream(
        socket: *mut bindings::socket,
        name: *mut bindings::sockaddr_unsized,
        len: c_int,
        flags: c_int,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The socket is in use by the caller, and so is the address.
            unsafe {
                let inner = Operations::inner(socket).connect.ok_or_else(eopnotsupp)?;
                let Some(state) = state::<T>((*socket).sk) else {
                    return Ok(inner(socket, name, len, flags));
                };
                let this = Socket::from_raw(socket);
                let given = Name::from_raw(name.cast(), len, Unspecified::Nothing);
                let _connecting = Connecting::begin(state, this.sk());
                Self::may_become_connected(state, this, &given)?;
                // Without waiting: first the rules are asked about the local port that the connection
                // has now.
                let nonblocking = bindings::O_NONBLOCK as c_int;
                let begun = inner(socket, name, len, flags | nonblocking);
                if begun == 0 || begun == EINPROGRESS {
                    Self::became_connected(state, this)?;
                }
                if begun != EINPROGRESS && begun != EALREADY || flags & nonblocking != 0 {
                    return Ok(begun);
                }
                let ports = this.sk().ports();
                // For a connection that was begun before, its time-out gives EALREADY.
                let ended = match inner(socket, name, len, flags) {
                    EALREADY => begun,
                    ended => ended,
                };
                if this.sk().ports() != ports {
                    // Another thread has disconnected it, and it was connected anew.
                    Self::became_connected(state, this)?;
                }
                Ok(ended)
            }
        })
    }

    /// The stream is about to be connected to an address, if it is one.
    fn may_become_connected(state: &State<T>, socket: &Socket, name: &Name) -> Result {
        state.protocol.may_connect(socket, name)?;
        if name.peer().is_some() {
            socket.sk().occupy()?;
        }
        Ok(())
    }

    /// The stream is being connected, or was disconnected.
    fn became_connected(state: &State<T>, socket: &Socket) -> Result {
        state.protocol.after_connect(socket).inspect_err(|_| {
            // SAFETY: The caller uses the socket.
            unsafe { disconnect(socket.as_ptr()) };
        })
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn listen(socket: *mut bindings::socket, backlog: c_int) -> c_int {
        from_result(|| {
            // SAFETY: The socket is in use by the caller.
            unsafe {
                let inner = Operations::inner(socket).listen.ok_or_else(eopnotsupp)?;
                let Some(state) = state::<T>((*socket).sk) else {
                    return Ok(inner(socket, backlog));
                };
                let this = Socket::from_raw(socket);
                state.protocol.may_listen(this)?;
                to_result(inner(socket, backlog))?;
                vacate_listener(state, this.sk());
                state
                    .protocol
                    .after_listen(this)
                    .inspect_err(|_| disconnect(socket))?;
            }
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn accept(
        socket: *mut bindings::socket,
        new: *mut bindings::socket,
        argument: *mut bindings::proto_accept_arg,
    ) -> c_int {
        // SAFETY: The sockets and the argument are in use by the caller.
        from_result(|| unsafe { Self::try_accept(socket, new, argument) }.map(|()| 0))
    }

    /// # Safety
    ///
    /// The arguments must be those of a running `accept` operation.
    unsafe fn try_accept(
        socket: *mut bindings::socket,
        new: *mut bindings::socket,
        argument: *mut bindings::proto_accept_arg,
    ) -> Result {
        // SAFETY: The listener and the argument are in use by the caller, and the new socket has no
        // other user. If this fails after the inner operation, the caller releases the new socket,
        // by its operations, which it has already: only `kernel_accept` would set them later.
        unsafe {
            let inner = Operations::inner(socket).accept.ok_or_else(eopnotsupp)?;
            if (*argument).kern {
                // As for `create`.
                return Err(eopnotsupp());
            }
            let listener = state::<T>((*socket).sk).ok_or(EINVAL)?;
            listener.protocol.may_accept(Socket::from_raw(socket))?;
            // First what may fail: the connection stays in the queue then.
            let net = NetRef::from_raw(bindings::kopi_sock_net((*socket).sk));
            let state = Self::new_state(net)?;
            to_result(inner(socket, new, argument))?;
            let state = Self::install(state, (*new).sk);
            let this = Socket::from_raw(new);
            // Where a BPF program has put it into a sockmap before, it is occupied.
            let _ = this.sk().occupy();
            let accepted = if bindings::kopi_tcp_has_ulp((*new).sk) {
                // A subflow of MPTCP, say, which SO_REUSEPORT has moved here.
                Err(econnaborted())
            } else {
                state.protocol.after_open(this).and_then(|()| {
                    let connected = state.protocol.after_connect(this);
                    connected.map_err(|_| econnaborted())
                })
            };
            // The peer isn't to take it for a connection that was served, and has ended.
            accepted.inspect_err(|_| {
                bindings::tcp_abort((*new).sk, econnaborted().to_errno().wrapping_neg());
            })
        }
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn sendmsg_stream(
        socket: *mut bindings::socket,
        message: *mut bindings::msghdr,
        len: usize,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The socket is in use by the caller, and so is the message.
            unsafe {
                let inner = Operations::inner(socket).sendmsg.ok_or_else(eopnotsupp)?;
                let Some(state) = state::<T>((*socket).sk) else {
                    return Ok(inner(socket, message, len));
                };
                let this = Socket::from_raw(socket);
                state.protocol.may_use(this)?;
                if (*message).msg_flags & bindings::MSG_FASTOPEN == 0 {
                    return Ok(inner(socket, message, len));
                }
                // Fast Open connects the socket, too.
                let _connecting = Connecting::begin(state, this.sk());
                if let Some(name) = sent_to(this.sk(), &*message) {
                    Self::may_become_connected(state, this, &name)?;
                }
                let ports = this.sk().ports();
                let sent = inner(socket, message, len);
                // The call found the stream connected, or being connected, and left it so.
                let changed_nothing = this.sk().ports() == ports
                    && [EALREADY, EISCONN, eopnotsupp().to_errno()].contains(&sent);
                // Also if a signal has interrupted it: the connection is being made.
                if !changed_nothing && this.sk().peer().is_some() {
                    Self::became_connected(state, this)?;
                }
                Ok(sent)
            }
        })
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn recvmsg_stream(
        socket: *mut bindings::socket,
        message: *mut bindings::msghdr,
        len: usize,
        flags: c_int,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The socket is in use by the caller, and so is the message.
            unsafe {
                let inner = Operations::inner(socket).recvmsg.ok_or_else(eopnotsupp)?;
                if flags & bindings::MSG_ERRQUEUE as i32 == 0 {
                    Self::may_use(socket)?;
                }
                Ok(inner(socket, message, len, flags))
            }
        })
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn splice_read(
        socket: *mut bindings::socket,
        position: *mut bindings::loff_t,
        pipe: *mut bindings::pipe_inode_info,
        len: usize,
        flags: c_uint,
    ) -> isize {
        // SAFETY: The socket is in use by the caller, and so are the other arguments.
        unsafe {
            let Some(inner) = Operations::inner(socket).splice_read else {
                return eopnotsupp().to_errno() as isize;
            };
            match Self::may_use(socket) {
                Ok(()) => inner(socket, position, pipe, len, flags),
                Err(error) => error.to_errno() as isize,
            }
        }
    }

    /// Whether a stream may be read.
    ///
    /// # Safety
    ///
    /// The socket must be a live stream of the family, which the caller uses.
    unsafe fn may_use(socket: *mut bindings::socket) -> Result {
        // SAFETY: Required of the caller.
        unsafe {
            match state::<T>((*socket).sk) {
                Some(state) => state.protocol.may_use(Socket::from_raw(socket)),
                None => Ok(()),
            }
        }
    }
}

/// A call that may connect a stream. Process context.
///
/// A connected stream's `sk_user_data` stays occupied: each call that connects it occupies it first, and what
/// has the stream listen gives it up only if there is no such call. Threads may connect, disconnect and listen
/// at once.
struct Connecting<'a, T> {
    state: &'a State<T>,
    sk: &'a Sock,
}

impl<'a, T> Connecting<'a, T> {
    fn begin(state: &'a State<T>, sk: &'a Sock) -> Self {
        // Full order: whoever gets the sock's lock after this call's `occupy` sees the call.
        state.connecting.fetch_add(1, Full);
        Self { state, sk }
    }
}

impl<T> Drop for Connecting<'_, T> {
    fn drop(&mut self) {
        self.state.connecting.fetch_sub(1, Full);
        if self.sk.is_listening() {
            // listen() has found this call under way, and left `sk_user_data` occupied.
            vacate_listener(self.state, self.sk);
        }
    }
}

/// Gives up `sk_user_data` of a listener that nobody is connecting: arrays of BPF programs accept listeners in
/// which it is free. Process context.
fn vacate_listener<T>(state: &State<T>, sk: &Sock) {
    sk.with_stream_locked(|locked| {
        if locked.sk().is_listening() && state.connecting.load(Relaxed) == 0 {
            locked.vacate();
        }
    });
}

/// Whether getting an option of a stream reads from it.
pub(super) fn reads(level: i32, name: i32) -> bool {
    (level as u32, name as u32) == (bindings::SOL_TCP, bindings::TCP_ZEROCOPY_RECEIVE)
}

/// Disconnects a stream, or ends its listening, as connect() to AF_UNSPEC does. Process context.
///
/// # Safety
///
/// The caller must use the socket, which must be a stream of the family.
unsafe fn disconnect(socket: *mut bindings::socket) {
    // SAFETY: Zeroes are a valid address, which is of AF_UNSPEC. The caller uses the socket.
    unsafe {
        let mut name: bindings::sockaddr_in = MaybeUninit::zeroed().assume_init();
        let len = size_of::<bindings::sockaddr_in>() as c_int;
        if let Some(connect) = Operations::inner(socket).connect {
            connect(socket, ptr::from_mut(&mut name).cast(), len, 0);
        }
    }
}

/// Has [`Protocol::on_locked`] called soon, with the stream's sock locked. Any context, in an RCU
/// read-side section.
///
/// The lock isn't waited for: a process can hold it as long as it likes.
pub(crate) fn lock_later<T: Protocol>(sk: &Sock) {
    let _rcu = kernel::sync::rcu::read_lock();
    // SAFETY: The sock is borrowed, and is a flow's. RCU, held here, keeps the state. Its work is
    // disabled before the state is freed.
    unsafe {
        if let Some(state) = state::<T>(sk.as_ptr()) {
            reaper::queue_delayed(state.work.get(), 0);
        }
    }
}

/// Calls [`Protocol::on_locked`], with the sock locked.
///
/// # Safety
///
/// Only the kernel may call it, as the function of a state's `work`.
pub(super) unsafe extern "C" fn work<T: Protocol>(work: *mut bindings::work_struct) {
    // SAFETY: The work is a field of a state. `release` disables the work, and waits for it, before
    // the state and the sock are freed. The sock is locked while `LockedStream` is used.
    unsafe {
        let state = state_of_work::<T>(work);
        if bindings::kopi_try_lock_sock(state.sk) {
            state.reset_wait();
            let locked = LockedStream::from_locked(Sock::from_raw(state.sk));
            state.protocol.on_locked(&locked);
            bindings::release_sock(state.sk);
        } else {
            state.retry_later();
        }
    }
}
