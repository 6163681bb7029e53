// SPDX-License-Identifier: GPL-2.0

//! A socket family whose sockets are UDP or TCP sockets with some operations of their own.
//!
//! `create` makes an AF_INET or AF_INET6 socket and grafts its sock onto the family's socket, as
//! accept() grafts a connection. The operations are those of the inner family, but for those that
//! [`Protocol`] has (`tables.rs`).
//!
//! C header: `include/linux/net.h`

mod datagrams;
mod name;
mod operations;
mod reader;
mod reader_lock;
mod receive;
mod ring_message;
mod state;
mod stream;
mod tables;

use crate::{
    pure::{peer::Peer, rule::Received},
    sys::{
        bindings,
        context::SoftirqsOff,
        errno::eopnotsupp,
        pernet::NetRef,
        plain_message::PlainMessage,
        reaper,
        region::Vma,
        slab::{Cache, CacheBox},
        sock::{LockedSock, LockedStream, Sock},
        socket::{Socket, SocketFile},
        user::{OptionIn, OptionOut},
        wait::PollTable,
    },
};
use core::{cell::UnsafeCell, marker::PhantomData, mem::MaybeUninit, ptr, sync::atomic::AtomicPtr};
use kernel::{
    error::{from_result, to_result},
    prelude::*,
    sync::{atomic::Atomic, Arc},
};
pub(crate) use name::Name;
pub(crate) use reader_lock::{lock_reader, FirstDatagram, ReaderLock};
pub(super) use receive::data_ready_of;
use receive::receive_work;
pub(crate) use receive::{drain, install_callback, next_packet, remove_callback};
pub(super) use ring_message::{send_ring_message, RingMessage};
pub(crate) use ring_message::{was_judged, Judged};
pub(super) use state::flow_of;
pub(crate) use state::{has_our_socket, protocol};
use state::{state, State, STATES};
pub(crate) use stream::lock_later;
use tables::{is_of_family, Kind, Operations, KINDS};

/// What may cork a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cork {
    /// The option UDP_CORK, from now on: that it is taken back isn't asked about.
    Option,
    /// A message with MSG_MORE, until [`Protocol::end_cork`].
    Message,
}

/// What a socket of the family does differently from its inner one.
///
/// # Safety
///
/// Only one type of the module may implement it, because the state of each socket of the family is
/// taken for a state of that type.
pub(crate) unsafe trait Protocol: Send + Sync + Sized + 'static {
    /// The state of a new socket of a network namespace. Process context.
    fn new(net: &NetRef) -> impl Init<Self, Error>;

    /// The socket is complete, and has no other user yet. An error closes it. Process context.
    fn after_open(&self, socket: &Socket) -> Result;

    /// Whether the socket may be bound to an address. Updates the identity from the current process.
    /// Process context.
    fn may_bind(&self, socket: &Socket, name: &Name) -> Result;

    /// The socket was bound. An error undoes this, and is the result of bind(). Process context.
    fn after_bind(&self, socket: &Socket) -> Result;

    /// Whether the stream may wait for connections. Updates the identity from the current process.
    /// Process context.
    fn may_listen(&self, socket: &Socket) -> Result;

    /// The stream waits for connections. An error undoes this, and is the result of listen(). Process
    /// context.
    fn after_listen(&self, socket: &Socket) -> Result;

    /// Whether the current process may take connections. Process context.
    fn may_accept(&self, socket: &Socket) -> Result;

    /// Whether the stream may be read or written. Process context.
    fn may_use(&self, socket: &Socket) -> Result;

    /// The stream's sock is locked, after [`lock_later`]. Process context.
    fn on_locked(&self, sk: &LockedStream<'_>);

    /// Whether the socket may be connected to an address. Updates the identity from the current process.
    /// Process context.
    fn may_connect(&self, socket: &Socket, name: &Name) -> Result;

    /// The socket was connected or disconnected, or is a stream that accept() made, after
    /// [`Protocol::after_open`]. An error undoes this, and is the result of connect(); of accept() it
    /// ends the connection. Process context.
    fn after_connect(&self, socket: &Socket) -> Result;

    /// A connect() has changed the socket's ends, or tried to: when this returns, no packet is sent by the earlier
    /// ends any more. Process context.
    fn after_ends_change(&self);

    /// The socket is about to be corked: `EOPNOTSUPP` if it may not. Process context.
    ///
    /// A ring's packets are sent under locks of the module. On a corked socket they would have to
    /// wait for the sock's lock, which processes hold while they sleep.
    fn begin_cork(&self, by: Cork) -> Result;

    /// A message of [`Cork::Message`] has been sent. Process context.
    fn end_cork(&self);

    /// Begins a call about the socket's options, which may hold the sock's lock for as long as the
    /// process likes. Process context.
    fn begin_option(&self);

    /// Ends a call about the socket's options. Process context.
    fn end_option(&self);

    /// The local port or the device of a socket may change: what waits in its queue then has come to the one
    /// before. Process context.
    fn note_move(&self);

    /// Whether a datagram may be sent by sendmsg, to an address or the peer. Process context.
    fn may_send(&self, socket: &Socket, name: Option<&Name>, bytes: usize) -> Result;

    /// Sends a message of sendmsg, if that is plain and less work than UDP's sendmsg: gives the result, or
    /// `None` if UDP has to send it. `message` is called at most once. [`Self::may_send`] was asked.
    /// Doesn't wait for room. Process context.
    fn send_plain(
        &self,
        socket: &Socket,
        message: impl FnOnce() -> Option<PlainMessage>,
    ) -> Option<i32>;

    /// Whether datagrams may be read by recvmsg. If [`Self::may_take`] has to be called for each
    /// datagram, returns the lock under which it is called: `ENOMEM`. Process context.
    fn may_read(&self, socket: &Socket) -> Result<Option<Arc<ReaderLock>>>;

    /// Whether the first datagram in the queue, which came from `peer`, may be read; otherwise it
    /// is dropped. `counted_before` means that this was called for the datagram before, and that it passed and was
    /// counted; `peeks` that the datagram stays in the queue. Process context.
    fn may_take(
        &self,
        socket: &Socket,
        peer: Peer,
        size: Received,
        counted_before: bool,
        peeks: bool,
    ) -> bool;

    /// The lock under which datagrams are read one by one: `ENOMEM`. Process context.
    fn reader_lock(&self) -> Result<Arc<ReaderLock>>;

    /// The socket is being closed, and is still complete. Process context.
    fn release(&self, socket: &Socket);

    /// The events to report, of which UDP would report `inner`. Process context.
    fn poll(&self, socket: &Socket, table: &PollTable, inner: u32) -> u32;

    /// Carries out an ioctl, or gives `None` if it is not one of the family's. Process context.
    fn ioctl(&self, socket: &Socket, request: u32, argument: usize) -> Option<Result<i32>>;

    /// Sets an option at the family's level. Process context.
    fn set_option(&self, socket: &Socket, name: i32, value: &OptionIn) -> Result;

    /// Gets an option at the family's level. Process context.
    fn get_option(&self, socket: &Socket, name: i32, value: &OptionOut) -> Result;

    /// Whether packets can be read by recvmsg. Any context.
    fn has_queue(&self) -> bool;

    /// Maps the socket's memory. Process context, with the process's memory locked. It must not
    /// take a lock under which other code accesses a program's memory.
    fn map(&self, vma: &Vma) -> Result;

    /// Packets were queued, after [`install_callback`]. If the sock has a receive hook, it comes
    /// locked. The number of packets that one call then delivers is bounded, because senders don't
    /// wait. Returns whether packets are left.
    fn data_ready(&self, sk: &Sock, locked: Option<LockedSock<'_>>, softirqs: &SoftirqsOff)
        -> bool;
}

/// The family's number according to the module's parameter.
pub(crate) fn family_parameter() -> i32 {
    // SAFETY: The call reads an integer that is only written while the module is loaded.
    unsafe { bindings::kopi_family_parameter() }
}

/// The current value of the module's parameter `copybreak`: longer payloads are sent by reference.
pub(crate) fn copybreak() -> u32 {
    // SAFETY: The call reads an integer by READ_ONCE; an administrator may write it meanwhile.
    unsafe { bindings::kopi_copybreak_parameter() }
}

/// The registered family.
pub(crate) struct Registration<T: Protocol> {
    number: i32,
    /// Dropped after the family is unregistered.
    _states: Cache,
    _protocol: PhantomData<T>,
}

/// The family, in memory that may be written to before it is registered.
struct FamilyCell(UnsafeCell<bindings::net_proto_family>);

// SAFETY: Written by `Registration::new` before the family is registered, and only read after it.
unsafe impl Sync for FamilyCell {}

static FAMILY: FamilyCell = FamilyCell(UnsafeCell::new(bindings::net_proto_family {
    family: 0,
    create: None,
    owner: ptr::null_mut(),
}));

impl<T: Protocol> Registration<T> {
    /// Registers the family: `EEXIST` when its number is taken, `EINVAL` when it is none.
    ///
    /// There can be one registration at a time; only the module's init makes one.
    pub(crate) fn new(number: i32, module: &'static ThisModule) -> Result<Self> {
        let module = module.as_ptr().cast::<bindings::module>();
        // SAFETY: There is no other registration. States are of sockets, none of which is left when
        // this one is dropped; RCU frees them.
        let states = unsafe { Cache::new::<State<T>>(&STATES, c"kopi_flow") }?;
        // SAFETY: The family isn't registered yet, so no socket uses the tables, and nothing reads
        // `FAMILY`. Only the module's init calls this function.
        unsafe {
            for kind in KINDS {
                match Self::fill(kind, number, module) {
                    Ok(()) => (),
                    // The machine has no IPv6 (`ipv6.disable=1`), and gets none before it boots anew.
                    Err(error)
                        if kind.family == bindings::AF_INET6 as i32
                            && error == super::errno::eafnosupport() =>
                    {
                        pr_info!("no IPv6\n");
                    }
                    Err(error) => return Err(error),
                }
            }
            *FAMILY.0.get() = bindings::net_proto_family {
                family: number,
                create: Some(Self::create),
                owner: module,
            };
        }
        // SAFETY: The structure is static, complete, and only read from here on.
        to_result(unsafe { bindings::sock_register(FAMILY.0.get()) }).map_err(|error| {
            // A number of no family.
            if error == super::errno::enobufs() {
                EINVAL
            } else {
                error
            }
        })?;
        Ok(Self {
            number,
            _states: states,
            _protocol: PhantomData,
        })
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as the family's `create` operation.
    unsafe extern "C" fn create(
        net: *mut bindings::net,
        socket: *mut bindings::socket,
        protocol: c_int,
        kern: c_int,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The kernel calls this as the family's `create` operation, with its arguments.
            unsafe { Self::try_create(net, socket, protocol, kern != 0) }?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// The arguments must be those of a running `create` operation.
    unsafe fn try_create(
        net: *mut bindings::net,
        socket: *mut bindings::socket,
        protocol: i32,
        kern: bool,
    ) -> Result {
        if kern {
            // A kernel's own socket doesn't keep its namespace, which flows rely on.
            return Err(eopnotsupp());
        }
        // SAFETY: The caller passes the new socket, which has no other user yet.
        let kind = Kind::of(u32::from(unsafe { (*socket).type_ } as u16), protocol)?;
        // SAFETY: The caller passes a namespace that it keeps during the operation.
        let state = Self::new_state(unsafe { NetRef::from_raw(net) })?;
        // SAFETY: The caller passes a namespace that it keeps, and a new socket without a sock,
        // which has no other user. The inner socket is complete, and has no other user either. Its
        // sock moves to the outer socket, so the inner one's release frees only the inner one.
        unsafe {
            let inner = kind.inner_socket(net, false)?;
            let sk = (*inner).sk;
            (*inner).sk = ptr::null_mut();
            receive::note_callback(sk);
            (*socket).ops = kind.table.ops();
            (*socket).flags |= (*inner).flags;
            bindings::kopi_sock_graft(sk, socket);
            bindings::sock_release(inner);
            let state = Self::install(state, sk);
            if let Err(error) = state.protocol.after_open(Socket::from_raw(socket)) {
                // The caller knows of no operations of a socket that couldn't be made.
                Self::release(socket);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The state of a new socket, not complete yet. Process context.
    fn new_state(net: &NetRef) -> Result<CacheBox<State<T>>> {
        let state = init!(State {
            rcu: UnsafeCell::new(pin_init::zeroed()),
            data_ready: UnsafeCell::new(None),
            // SAFETY: A delayed_work has integers, pointers and a function pointer that may be
            // null, for all of which zeroes are valid. `install` initialises it.
            work: UnsafeCell::new(unsafe { MaybeUninit::zeroed().assume_init() }),
            waited: Atomic::new(0),
            sk: ptr::null_mut(),
            message: AtomicPtr::new(ptr::null_mut()),
            sender: AtomicPtr::new(ptr::null_mut()),
            connecting: Atomic::new(0),
            protocol <- T::new(net),
        }? Error);
        // SAFETY: The cache is there as long as the family is registered.
        unsafe { CacheBox::init(state) }
    }

    /// Completes a state, and gives it to the socket of a sock.
    ///
    /// # Safety
    ///
    /// The sock must have a socket of the family, which has no state yet, and isn't released for
    /// `'a`.
    unsafe fn install<'a>(mut state: CacheBox<State<T>>, sk: *mut bindings::sock) -> &'a State<T> {
        // SAFETY: The caller passes a valid sock with a socket. The state is complete when the
        // inode's pointer to it is set, and stays until the socket is released.
        unsafe {
            state.sk = sk;
            let work = if Sock::from_raw(sk).is_stream() {
                stream::work::<T>
            } else {
                receive_work::<T>
            };
            bindings::kopi_init_delayed_work(state.work.get(), Some(work));
            let state = CacheBox::into_raw(state);
            bindings::kopi_set_sk_inode_private(sk, state.cast());
            &*state
        }
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as an operation of the family's sockets.
    unsafe extern "C" fn release(socket: *mut bindings::socket) -> c_int {
        // SAFETY: The last user of a socket releases it, so it and its sock are valid.
        unsafe {
            let sk = (*socket).sk;
            let Some(inner) = Operations::inner(socket).release else {
                return 0;
            };
            if sk.is_null() {
                return inner(socket);
            }
            if let Some(state) = state::<T>(sk) {
                state.protocol.release(Socket::from_raw(socket));
                bindings::kopi_write_lock_bh_callback(sk);
                receive::restore_callback(state, sk);
                bindings::kopi_set_sk_inode_private(sk, ptr::null_mut());
                bindings::kopi_write_unlock_bh_callback(sk);
                // This waits for work that runs. Softirqs that still have the state can't queue it
                // again.
                bindings::disable_delayed_work_sync(state.work.get());
                if Sock::from_raw(sk).is_stream() {
                    bindings::kopi_tcp_vacate(sk);
                }
                // Softirqs that still use the state have ended after a grace period.
                reaper::will_free();
                bindings::call_rcu(state.rcu.get(), Some(Self::free));
            }
            inner(socket)
        }
    }

    /// # Safety
    ///
    /// Only the kernel may call it, as the RCU callback of a state.
    unsafe extern "C" fn free(rcu: *mut bindings::callback_head) {
        // SAFETY: `rcu` is a field of a state, a box that `create` made. After the grace period it
        // has no user any more.
        unsafe {
            let state = kernel::container_of!(
                rcu.cast::<UnsafeCell<bindings::callback_head>>(),
                State<T>,
                rcu
            );
            drop(CacheBox::from_raw(state));
        }
        reaper::has_freed();
    }
}

impl<T: Protocol> Drop for Registration<T> {
    fn drop(&mut self) {
        // SAFETY: `new` registered the family. Each socket holds a reference to the module, which
        // is being unloaded, so no socket is left.
        unsafe { bindings::sock_unregister(self.number) };
    }
}

impl SocketFile {
    /// The socket, if it is of the family.
    pub(crate) fn socket(&self) -> Option<&Socket> {
        let socket = self.as_ptr();
        // SAFETY: This value's reference to the file keeps the socket. Only sockets of the family
        // have the family's operations.
        unsafe { is_of_family((*socket).ops).then(|| Socket::from_raw(socket)) }
    }
}
