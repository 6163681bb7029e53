// SPDX-License-Identifier: GPL-2.0

//! The operations of the family's sockets, by the kind of socket that they are over.

use super::{Protocol, Registration};
use crate::{
    pure::abi,
    sys::{
        bindings,
        context::might_sleep,
        errno::{eafnosupport, eprotonosupport, esocktnosupport},
    },
};
use core::{cell::UnsafeCell, mem::MaybeUninit, ptr};
use kernel::{error::to_result, prelude::*};

/// The operations of the family's sockets over one kind of inner sockets.
///
/// # Invariants
///
/// `Registration::new` writes the fields before the family is registered. Afterwards they are only
/// read. It leaves out those of sockets that the machine doesn't have, of which no socket is made.
#[repr(C)]
pub(super) struct Operations {
    /// The first field, so that a socket's pointer to it is one to the whole.
    ops: UnsafeCell<MaybeUninit<bindings::proto_ops>>,
    inner: UnsafeCell<*const bindings::proto_ops>,
}

// SAFETY: By the invariants, the fields are written before other tasks can reach them, and only
// read afterwards.
unsafe impl Sync for Operations {}

impl Operations {
    const fn new() -> Self {
        Self {
            ops: UnsafeCell::new(MaybeUninit::uninit()),
            inner: UnsafeCell::new(ptr::null()),
        }
    }

    /// The family's operations, for a new socket.
    pub(super) fn ops(&self) -> *const bindings::proto_ops {
        self.ops.get().cast()
    }

    /// Whether they are there: the family is registered.
    fn is_filled(&self) -> bool {
        // SAFETY: By the invariants, the pointer isn't written any more.
        !unsafe { *self.inner.get() }.is_null()
    }

    /// The inner family's operations for a socket of ours.
    ///
    /// # Safety
    ///
    /// `socket` must be a live socket of this family.
    pub(super) unsafe fn inner<'a>(socket: *mut bindings::socket) -> &'a bindings::proto_ops {
        // SAFETY: Its operations are the first field of one of the tables, which `create` chose,
        // or accept() from the listener. What would change them is refused: IPV6_ADDRFORM, TCP_ULP,
        // and by an occupied `sk_user_data` what takes connections over (`occupy`).
        unsafe { &**(*(*socket).ops.cast::<Operations>()).inner.get() }
    }

    /// The inner operation that sets SO_PEEK_OFF.
    ///
    /// # Safety
    ///
    /// The family must be registered.
    pub(super) unsafe fn set_peek_off(
        &self,
    ) -> Option<unsafe extern "C" fn(*mut bindings::sock, c_int) -> c_int> {
        // SAFETY: By the invariants, the pointer isn't written any more.
        unsafe { (**self.inner.get()).set_peek_off }
    }
}

/// A kind of socket.
pub(super) struct Kind {
    pub(super) family: i32,
    type_: u32,
    protocol: u32,
    /// The protocol's number in the family.
    number: i32,
    pub(super) table: Operations,
}

impl Kind {
    const fn new(family: u32, type_: u32, protocol: u32, number: i32) -> Self {
        Self {
            family: family as i32,
            type_,
            protocol,
            number,
            table: Operations::new(),
        }
    }

    /// Whether its sockets are streams.
    pub(super) fn is_stream(&self) -> bool {
        self.type_ == bindings::sock_type_SOCK_STREAM
    }

    /// The kind of a type and a protocol of socket(): `ESOCKTNOSUPPORT`, `EPROTONOSUPPORT`; `EAFNOSUPPORT` if the
    /// machine has no such sockets. The family is registered.
    pub(super) fn of(type_: u32, number: i32) -> Result<&'static Self> {
        let mut of_type = KINDS.iter().filter(|kind| kind.type_ == type_).peekable();
        of_type.peek().ok_or_else(esocktnosupport)?;
        // The first of a type is what 0 means.
        let kind = of_type
            .find(|kind| number == 0 || kind.number == number)
            .copied()
            .ok_or_else(eprotonosupport)?;
        if !kind.table.is_filled() {
            return Err(eafnosupport());
        }
        Ok(kind)
    }

    /// Makes an inner socket of the kind.
    ///
    /// # Safety
    ///
    /// `net` must be valid.
    pub(super) unsafe fn inner_socket(
        &self,
        net: *mut bindings::net,
        kern: bool,
    ) -> Result<*mut bindings::socket> {
        might_sleep();
        let mut socket = ptr::null_mut();
        // SAFETY: The callers are in process context, and pass a valid namespace. `socket` is
        // memory for the result.
        to_result(unsafe {
            bindings::__sock_create(
                net,
                self.family,
                self.type_ as i32,
                self.protocol as i32,
                &mut socket,
                i32::from(kern),
            )
        })?;
        Ok(socket)
    }
}

const DGRAM: u32 = bindings::sock_type_SOCK_DGRAM;
const STREAM: u32 = bindings::sock_type_SOCK_STREAM;
const UDP: u32 = bindings::IPPROTO_UDP;
const TCP: u32 = bindings::IPPROTO_TCP;

pub(super) static UDP4: Kind = Kind::new(bindings::AF_INET, DGRAM, UDP, abi::PROTO_UDP);
pub(super) static UDP6: Kind = Kind::new(bindings::AF_INET6, DGRAM, UDP, abi::PROTO_UDP6);
static TCP4: Kind = Kind::new(bindings::AF_INET, STREAM, TCP, abi::PROTO_TCP);
static TCP6: Kind = Kind::new(bindings::AF_INET6, STREAM, TCP, abi::PROTO_TCP6);

pub(super) static KINDS: [&Kind; 4] = [&UDP4, &UDP6, &TCP4, &TCP6];

/// Whether operations are those of the family.
pub(super) fn is_of_family(ops: *const bindings::proto_ops) -> bool {
    KINDS.iter().any(|kind| kind.table.ops() == ops)
}

impl<T: Protocol> Registration<T> {
    /// Makes the operations over an inner family out of those of a socket of it.
    ///
    /// # Safety
    ///
    /// The kind's table must not be in use yet.
    pub(super) unsafe fn fill(kind: &Kind, number: i32, module: *mut bindings::module) -> Result {
        // SAFETY: The initial namespace is static.
        let socket = unsafe { kind.inner_socket(&raw mut bindings::init_net, true)? };
        // SAFETY: The socket was just made; its operations are static in the kernel. (IPv6 is
        // built into the supported kernels; and were it not, inner sockets keep their module.)
        unsafe {
            let inner = (*socket).ops;
            kind.table.inner.get().write(inner);
            let mut ops = *inner;
            ops.family = number;
            ops.owner = module;
            ops.release = Some(Self::release);
            ops.ioctl = Some(Self::ioctl);
            #[cfg(CONFIG_COMPAT)]
            {
                ops.compat_ioctl = Some(Self::compat_ioctl);
            }
            ops.setsockopt = Some(Self::setsockopt);
            ops.getsockopt = Some(Self::getsockopt);
            ops.getsockopt_iter = None;
            ops.bind = Some(Self::bind);
            if kind.is_stream() {
                Self::fill_stream(&mut ops);
            } else {
                Self::fill_datagram(&mut ops);
            }
            (*kind.table.ops.get()).write(ops);
            bindings::sock_release(socket);
        }
        Ok(())
    }

    fn fill_datagram(ops: &mut bindings::proto_ops) {
        ops.poll = Some(Self::poll);
        ops.connect = Some(Self::connect);
        ops.sendmsg = Some(Self::sendmsg);
        ops.recvmsg = Some(Self::recvmsg);
        ops.set_peek_off = Some(Self::set_peek_off);
        ops.mmap = Some(Self::mmap);
    }

    fn fill_stream(ops: &mut bindings::proto_ops) {
        ops.connect = Some(Self::connect_stream);
        ops.listen = Some(Self::listen);
        ops.accept = Some(Self::accept);
        ops.sendmsg = Some(Self::sendmsg_stream);
        ops.recvmsg = Some(Self::recvmsg_stream);
        ops.splice_read = Some(Self::splice_read);
    }
}
