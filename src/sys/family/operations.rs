// SPDX-License-Identifier: GPL-2.0

//! The operations of a socket of the family, but those that send and receive.

use super::{
    name::{unspecified, Name, Unspecified},
    state::{state, State},
    stream, Cork, Operations, Protocol, Registration,
};
use crate::{
    pure::abi,
    sys::{
        bindings,
        errno::{enoprotoopt, eopnotsupp},
        region::Vma,
        socket::Socket,
        user::{OptionIn, OptionOut},
        wait::PollTable,
    },
};
use kernel::{
    error::{from_result, to_result},
    prelude::*,
};

impl<T: Protocol> Registration<T> {
    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn poll(
        file: *mut bindings::file,
        socket: *mut bindings::socket,
        table: *mut bindings::poll_table_struct,
    ) -> bindings::__poll_t {
        // SAFETY: The socket and its file are in use by the caller.
        unsafe {
            let Some(inner) = Operations::inner(socket).poll else {
                return 0;
            };
            let events = inner(file, socket, table);
            match state::<T>((*socket).sk) {
                Some(state) => state.protocol.poll(
                    Socket::from_raw(socket),
                    &PollTable::from_raw(file, table),
                    events,
                ),
                None => events,
            }
        }
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn ioctl(
        socket: *mut bindings::socket,
        request: c_uint,
        argument: usize,
    ) -> c_int {
        // SAFETY: The kernel calls this for a socket of the family, which its file keeps meanwhile.
        unsafe { Self::any_ioctl(socket, request, argument, Operations::inner(socket).ioctl) }
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    #[cfg(CONFIG_COMPAT)]
    pub(super) unsafe extern "C" fn compat_ioctl(
        socket: *mut bindings::socket,
        request: c_uint,
        argument: usize,
    ) -> c_int {
        // SAFETY: The kernel calls this for a socket of the family, which its file keeps meanwhile.
        unsafe {
            Self::any_ioctl(
                socket,
                request,
                argument,
                Operations::inner(socket).compat_ioctl,
            )
        }
    }

    /// # Safety
    ///
    /// `socket` must be a live socket of the family, and `inner` an ioctl operation.
    pub(super) unsafe fn any_ioctl(
        socket: *mut bindings::socket,
        request: u32,
        argument: usize,
        inner: Option<unsafe extern "C" fn(*mut bindings::socket, c_uint, usize) -> c_int>,
    ) -> c_int {
        // SAFETY: The caller passes a socket of the family that it uses, and an ioctl operation of
        // the socket's inner family.
        unsafe {
            let own = state::<T>((*socket).sk).and_then(|state| {
                state
                    .protocol
                    .ioctl(Socket::from_raw(socket), request, argument)
            });
            match (own, inner) {
                (Some(result), _) => from_result(|| result),
                (None, Some(inner)) => inner(socket, request, argument),
                (None, None) => ENOIOCTLCMD.to_errno(),
            }
        }
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn setsockopt(
        socket: *mut bindings::socket,
        level: c_int,
        name: c_int,
        value: bindings::sockptr_t,
        len: c_uint,
    ) -> c_int {
        // SAFETY: The socket is in use by the caller, and the value is the caller's.
        unsafe {
            if changes_operations(level, name) {
                return enoprotoopt().to_errno();
            }
            if level == bindings::SOL_UDP as i32 && name == bindings::UDP_CORK as i32 {
                let state = state::<T>((*socket).sk);
                if let Some(Err(error)) = state.map(|state| state.protocol.begin_cork(Cork::Option))
                {
                    return error.to_errno();
                }
            }
            match (
                state::<T>((*socket).sk),
                Operations::inner(socket).setsockopt,
            ) {
                (Some(state), _) if level == abi::SOL_KOPI => from_result(|| {
                    let value = OptionIn::from_raw(value, len);
                    state
                        .protocol
                        .set_option(Socket::from_raw(socket), name, &value)?;
                    Ok(0)
                }),
                (state, Some(inner)) => option_call(state, || {
                    if let Some(state) = state.filter(|_| binds_to_device(level, name)) {
                        state.protocol.note_move();
                    }
                    let result = inner(socket, level, name, value, len);
                    let attaches = level == bindings::SOL_SOCKET as i32
                        && name == bindings::SO_ATTACH_FILTER as i32;
                    // What accept() gives shares the filter of a stream, which no ring sends by.
                    if attaches && result == 0 && !Socket::from_raw(socket).sk().is_stream() {
                        bindings::kopi_forget_classic_filter((*socket).sk);
                    }
                    result
                }),
                (_, None) => eopnotsupp().to_errno(),
            }
        }
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn getsockopt(
        socket: *mut bindings::socket,
        level: c_int,
        name: c_int,
        value: *mut c_char,
        len: *mut c_int,
    ) -> c_int {
        // SAFETY: The socket is in use by the caller, and the pointers are the caller's.
        unsafe {
            if stream::reads(level, name) {
                let this = Socket::from_raw(socket);
                let state = state::<T>((*socket).sk).filter(|_| this.sk().is_stream());
                if let Some(Err(error)) = state.map(|state| state.protocol.may_use(this)) {
                    return error.to_errno();
                }
            }
            match (
                state::<T>((*socket).sk),
                Operations::inner(socket).getsockopt,
            ) {
                (Some(state), _) if level == abi::SOL_KOPI => from_result(|| {
                    let value = OptionOut::from_raw(value, len);
                    state
                        .protocol
                        .get_option(Socket::from_raw(socket), name, &value)?;
                    Ok(0)
                }),
                (state, Some(inner)) => {
                    option_call(state, || inner(socket, level, name, value, len))
                }
                (_, None) => eopnotsupp().to_errno(),
            }
        }
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn bind(
        socket: *mut bindings::socket,
        name: *mut bindings::sockaddr_unsized,
        len: c_int,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The socket is in use by the caller, and so is the address.
            unsafe {
                let inner = Operations::inner(socket).bind.ok_or_else(eopnotsupp)?;
                let Some(state) = state::<T>((*socket).sk) else {
                    return Ok(inner(socket, name, len));
                };
                let this = Socket::from_raw(socket);
                let given = Name::from_raw(name.cast(), len, unspecified(this.sk()));
                state.note_lost_port(this.sk());
                state.protocol.may_bind(this, &given)?;
                let before = this.sk().before_bind();
                to_result(inner(socket, name, len))?;
                let bound = state.protocol.after_bind(this);
                bound.inspect_err(|_| {
                    state.protocol.note_move();
                    this.sk().unbind(before);
                })?;
            }
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn connect(
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
                state.protocol.may_connect(this, &given)?;
                // Also without a port: another thread may bind it meanwhile.
                state.protocol.note_move();
                let device = this.sk().bound_device();
                let connected = to_result(inner(socket, name, len, flags));
                state.protocol.after_ends_change();
                connected?;
                state.protocol.after_connect(this).inspect_err(|_| {
                    this.sk().disconnect(device);
                    state.protocol.after_ends_change();
                })?;
            }
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    pub(super) unsafe extern "C" fn mmap(
        _file: *mut bindings::file,
        socket: *mut bindings::socket,
        vma: *mut bindings::vm_area_struct,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The socket and the vma are in use by the caller.
            unsafe {
                let state = state::<T>((*socket).sk).ok_or(ENODEV)?;
                state.protocol.map(&Vma::from_raw(vma))?;
            }
            Ok(0)
        })
    }
}

/// Whether an option would put other operations in place of the socket's, or take a copy of the
/// socket's for others.
///
/// IPV6_ADDRFORM puts the kernel's own. TCP_ULP puts those of TLS, for instance, and kTLS builds the
/// tables for all sockets of the machine out of the operations of the first one.
fn changes_operations(level: i32, name: i32) -> bool {
    let (level, name) = (level as u32, name as u32);
    (level, name) == (bindings::SOL_IPV6, bindings::IPV6_ADDRFORM)
        || (level, name) == (bindings::SOL_TCP, bindings::TCP_ULP)
}

/// Whether an option binds a socket to a device, or to none.
fn binds_to_device(level: i32, name: i32) -> bool {
    level == bindings::SOL_SOCKET as i32
        && [bindings::SO_BINDTODEVICE, bindings::SO_BINDTOIFINDEX].contains(&(name as u32))
}

/// Makes a call about a socket's options, of which a ring that sends has to know.
fn option_call<T: Protocol>(state: Option<&State<T>>, call: impl FnOnce() -> c_int) -> c_int {
    let Some(state) = state else {
        return call();
    };
    state.protocol.begin_option();
    let result = call();
    state.protocol.end_option();
    result
}
