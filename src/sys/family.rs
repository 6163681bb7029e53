// SPDX-License-Identifier: GPL-2.0

//! A socket family whose sockets are UDP sockets with some operations of their own.
//!
//! `create` makes an AF_INET or AF_INET6 datagram socket and grafts its sock onto the family's
//! socket, as accept() grafts a connection. The operations are those of the inner family, but for
//! those that [`Protocol`] has.
//!
//! C header: `include/linux/net.h`

use super::bindings;
use super::{
    context::{cond_resched, signal_pending, BottomHalvesOff, SoftirqsOff},
    errno::{
        edquot,
        enobufs,
        enoprotoopt,
        eopnotsupp,
        eprotonosupport,
        esocktnosupport, //
    },
    ipv4::Datagram,
    pernet::NetRef,
    reaper,
    region::Vma,
    skb::SkBuff,
    slab::{Cache, CacheBox, Cached, Slot},
    sock::{LockedSock, Sock, SockRef},
    socket::{Socket, SocketFile},
    user::{OptionIn, OptionOut},
    wait::PollTable, //
};
use crate::pure::{
    abi,
    rule::{mapped, Peer}, //
};
use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    mem::MaybeUninit,
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, Ordering}, //
};
use kernel::{
    error::{from_result, to_result},
    prelude::*,
    sync::Mutex, //
};

/// What a socket of the family does differently from a UDP socket.
///
/// # Safety
///
/// One type of the module implements it: the state of each socket of the family is taken for one's.
pub(crate) unsafe trait Protocol: Send + Sync + Sized + 'static {
    /// The state of a new socket of a network namespace. Process context.
    fn new(net: &NetRef) -> Result<Self>;

    /// The socket is whole, and nobody else has it yet; an error closes it. Process context.
    fn opened(&self, socket: &Socket) -> Result;

    /// Whether it may be bound so; looks at who the current process is. Process context.
    fn may_bind(&self, socket: &Socket, name: &Name) -> Result;

    /// It is bound; an error is the caller's answer. Process context.
    fn bound(&self, socket: &Socket) -> Result;

    /// Whether it may be connected so; looks at who the current process is. Process context.
    fn may_connect(&self, socket: &Socket, name: &Name) -> Result;

    /// It is connected, or not any more; an error is the caller's answer. Process context.
    fn connected(&self, socket: &Socket) -> Result;

    /// Whether the socket may be corked, for good or by one message: `EOPNOTSUPP`. Process context.
    ///
    /// A ring's packets are sent under locks of the module's, and to a corked socket they would wait for
    /// the sock's lock, with which processes sleep.
    fn may_cork(&self, for_good: bool) -> Result;

    /// One message has been sent that [`Protocol::may_cork`] was asked about. Process context.
    fn has_corked(&self);

    /// Whether a datagram may be sent by sendmsg, to an address or the peer. Process context.
    fn may_send(&self, socket: &Socket, name: Option<&Name>, bytes: usize) -> Result;

    /// Whether datagrams may be read by recvmsg. Where each is to be asked about ([`Self::may_take`]),
    /// gives the lock under which that is done. Process context.
    fn may_read(&self, socket: &Socket) -> Result<Option<&Mutex<bool>>>;

    /// Whether a datagram from a peer, the first in the queue, may be read: else it is dropped. `again`
    /// says that it was asked about before, `peeks` that it stays if it may. Process context.
    fn may_take(&self, socket: &Socket, peer: Peer, bytes: usize, again: bool, peeks: bool)
        -> bool;

    /// The lock under which datagrams are read one by one; it has whether the first one was asked about
    /// before, for a look. Any context.
    fn reading(&self) -> Option<&Mutex<bool>>;

    /// The socket is being closed; it is still whole. Process context.
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

    /// Maps the socket's memory. Process context, with the process's memory locked: whoever reads
    /// or writes a program's memory under a lock must not have that lock taken here.
    fn map(&self, vma: &Vma) -> Result;

    /// Packets were queued, after [`install_callbacks`]. The sock comes locked, too, if it has a receive hook:
    /// then, as those who send don't wait, some may be left, which is the answer.
    fn data_ready(&self, sk: &Sock, locked: Option<LockedSock<'_>>, softirqs: &SoftirqsOff)
        -> bool;
}

/// An address that a program gives.
pub(crate) struct Name {
    /// Of IPv4 or IPv6, as IPv6; `None` for what is neither.
    peer: Option<Peer>,
}

impl Name {
    /// # Safety
    ///
    /// `name` must have `len` bytes.
    unsafe fn from_raw(name: *const u8, len: i32, unspecified: Unspecified) -> Self {
        let bytes = match usize::try_from(len) {
            // SAFETY: As required of the caller.
            Ok(len) if !name.is_null() => unsafe { core::slice::from_raw_parts(name, len) },
            _ => &[],
        };
        Self {
            peer: Self::parse(bytes, unspecified),
        }
    }

    fn parse(bytes: &[u8], unspecified: Unspecified) -> Option<Peer> {
        let (&family, rest) = bytes.split_first_chunk::<2>()?;
        let (&port, rest) = rest.split_first_chunk::<2>()?;
        let address = match u32::from(u16::from_ne_bytes(family)) {
            bindings::AF_INET => mapped(*rest.first_chunk::<4>()?),
            bindings::KOPI_CONST_AF_UNSPEC if matches!(unspecified, Unspecified::Ipv4) => {
                mapped(*rest.first_chunk::<4>()?)
            }
            // The flow label comes first.
            bindings::AF_INET6 => *rest.get(4..)?.first_chunk::<16>()?,
            _ => return None,
        };
        Some(Peer {
            address,
            port: u16::from_be_bytes(port),
        })
    }

    /// The address and the port, if it is one of IP.
    pub(crate) fn peer(&self) -> Option<Peer> {
        self.peer
    }
}

/// What the kernel takes an address of AF_UNSPEC for.
#[derive(Clone, Copy)]
enum Unspecified {
    /// One of IPv4.
    Ipv4,
    /// None.
    Nothing,
}

/// What bind() and sendmsg() of IPv4 and IPv6 take an address of AF_UNSPEC for. (connect() breaks a connection.)
fn unspecified(sk: &Sock) -> Unspecified {
    if sk.is_ipv6() {
        Unspecified::Nothing
    } else {
        Unspecified::Ipv4
    }
}

/// What the `i_private` of a socket's inode points to, which sockets don't use otherwise.
///
/// Not the sock's `sk_user_data`: sockmaps and reuseport arrays of BPF take only socks whose own
/// is free.
struct State<T> {
    /// For freeing it when no softirq uses it any more.
    rcu: UnsafeCell<bindings::callback_head>,
    /// The operation that [`install_callbacks`] replaced.
    data_ready: UnsafeCell<Callback>,
    /// Takes what is queued in process context; disabled before the sock is released.
    work: UnsafeCell<bindings::delayed_work>,
    sk: *mut bindings::sock,
    /// The message that [`send_own`] is sending.
    own: AtomicPtr<Own<'static>>,
    /// The task that is in [`send_own`]; to be compared only.
    sender: AtomicPtr<c_void>,
    protocol: T,
}

/// The cache of states.
static STATES: Slot = Slot::new();

impl<T> Cached for State<T> {
    fn slot() -> &'static Slot {
        &STATES
    }
}

type Callback = Option<unsafe extern "C" fn(sk: *mut bindings::sock)>;

/// The operations of the family's sockets over one inner family.
///
/// # Invariants
///
/// Written by `Registration::new` before the family is registered, and only read after it.
#[repr(C)]
struct Operations {
    /// First: sockets point to it, and so to the whole.
    ops: UnsafeCell<MaybeUninit<bindings::proto_ops>>,
    inner: UnsafeCell<*const bindings::proto_ops>,
}

// SAFETY: By the invariants.
unsafe impl Sync for Operations {}

impl Operations {
    const fn new() -> Self {
        Self {
            ops: UnsafeCell::new(MaybeUninit::uninit()),
            inner: UnsafeCell::new(ptr::null()),
        }
    }

    /// The inner family's operations for a socket of ours.
    ///
    /// # Safety
    ///
    /// `socket` must be a live socket of this family.
    unsafe fn inner<'a>(socket: *mut bindings::socket) -> &'a bindings::proto_ops {
        // SAFETY: Its operations are the first field of one of the tables, which `create` chose,
        // and IPV6_ADDRFORM, the only thing to change them, is refused.
        unsafe { &**(*(*socket).ops.cast::<Operations>()).inner.get() }
    }
}

static IPV4: Operations = Operations::new();
static IPV6: Operations = Operations::new();

/// The state of a sock of the family.
///
/// # Safety
///
/// The caller is in an RCU read-side section, or holds the socket.
unsafe fn state<'a, T: Protocol>(sk: *mut bindings::sock) -> Option<&'a State<T>> {
    // SAFETY: The sock is valid. The pointer is set by `create` and cleared by `release`, after
    // which the state lives on for a grace period, as the inode does after its release.
    unsafe {
        bindings::kopi_sk_inode_private(sk)
            .cast::<State<T>>()
            .as_ref()
    }
}

/// The sock and the protocol's state, of a sock that is of the family.
///
/// # Safety
///
/// The caller is in an RCU read-side section, and `sk` null, or a sock that is kept.
pub(super) unsafe fn flow_of<'a, T: Protocol>(
    sk: *mut bindings::sock,
) -> Option<(&'a Sock, &'a T)> {
    // SAFETY: The sock is valid. Its socket, if it still has one, lives on for a grace period, as its
    // inode does; its operations say whether it is of the family.
    unsafe {
        if sk.is_null() || !bindings::kopi_sk_fullsock(sk) {
            return None;
        }
        let socket = ptr::read_volatile(&raw const (*sk).sk_socket);
        if socket.is_null() || !is_of_family(ptr::read_volatile(&raw const (*socket).ops)) {
            return None;
        }
        let state = state::<T>(sk)?;
        Some((Sock::from_raw(sk), &state.protocol))
    }
}

/// Whether operations are those of the family.
fn is_of_family(ops: *const bindings::proto_ops) -> bool {
    [&IPV4, &IPV6]
        .iter()
        // SAFETY: The tables are static.
        .any(|table| unsafe { (*table.ops.get()).as_ptr() } == ops)
}

/// The number that the module was told to use for the family.
pub(crate) fn wanted_number() -> i32 {
    // SAFETY: Reads a variable that doesn't change.
    unsafe { bindings::kopi_family_parameter() }
}

/// Payloads of more bytes than this are to be sent by reference, as the administrator says now.
pub(crate) fn copybreak() -> u32 {
    // SAFETY: Reads a variable once.
    unsafe { bindings::kopi_copybreak_parameter() }
}

/// The registered family.
pub(crate) struct Registration<T: Protocol> {
    number: i32,
    /// Let go of when there is no family any more.
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
        // SAFETY: There is no other registration. States are of sockets, none of which is left when this
        // one is dropped; RCU frees them.
        let states = unsafe { Cache::new::<State<T>>(&STATES, c"kopi_flow") }?;
        // SAFETY: As `fill` requires: nothing is registered yet.
        unsafe {
            Self::fill(&IPV4, bindings::AF_INET as i32, number, module)?;
            match Self::fill(&IPV6, bindings::AF_INET6 as i32, number, module) {
                Ok(()) => (),
                // The machine has no IPv6: neither can it make inner sockets of it.
                Err(error) => pr_info!("no IPv6 ({})\n", error.to_errno()),
            }
            *FAMILY.0.get() = bindings::net_proto_family {
                family: number,
                create: Some(Self::create),
                owner: module,
            };
        }
        // SAFETY: The family is static.
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

    /// Makes the operations over an inner family out of those of a socket of it.
    ///
    /// # Safety
    ///
    /// Nobody may use `table` yet.
    unsafe fn fill(
        table: &Operations,
        inner_family: i32,
        number: i32,
        module: *mut bindings::module,
    ) -> Result {
        // SAFETY: The initial namespace is always there.
        let socket = unsafe { inner_socket(&raw mut bindings::init_net, inner_family, true)? };
        // SAFETY: The socket was just made; its operations are static in the kernel. (IPv6 is
        // built into the supported kernels; and were it not, inner sockets keep their module.)
        unsafe {
            let inner = (*socket).ops;
            table.inner.get().write(inner);
            let mut ops = *inner;
            ops.family = number;
            ops.owner = module;
            ops.release = Some(Self::release);
            ops.poll = Some(Self::poll);
            ops.ioctl = Some(Self::ioctl);
            #[cfg(CONFIG_COMPAT)]
            {
                ops.compat_ioctl = Some(Self::compat_ioctl);
            }
            ops.setsockopt = Some(Self::setsockopt);
            ops.getsockopt = Some(Self::getsockopt);
            ops.getsockopt_iter = None;
            ops.bind = Some(Self::bind);
            ops.connect = Some(Self::connect);
            ops.sendmsg = Some(Self::sendmsg);
            ops.recvmsg = Some(Self::recvmsg);
            ops.set_peek_off = Some(Self::set_peek_off);
            ops.mmap = Some(Self::mmap);
            (*table.ops.get()).write(ops);
            bindings::sock_release(socket);
        }
        Ok(())
    }

    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn create(
        net: *mut bindings::net,
        socket: *mut bindings::socket,
        protocol: c_int,
        kern: c_int,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The arguments are those of a `create` operation.
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
        // SAFETY: The socket is being made by the caller.
        if u32::from(unsafe { (*socket).type_ } as u16) != bindings::sock_type_SOCK_DGRAM {
            return Err(esocktnosupport());
        }
        let (family, table) = match protocol {
            0 | abi::PROTO_UDP => (bindings::AF_INET, &IPV4),
            abi::PROTO_UDP6 => (bindings::AF_INET6, &IPV6),
            _ => return Err(eprotonosupport()),
        };
        let state = State {
            rcu: UnsafeCell::new(pin_init::zeroed()),
            data_ready: UnsafeCell::new(None),
            // SAFETY: Zeroes are a delayed_work that is not initialised yet.
            work: UnsafeCell::new(unsafe { MaybeUninit::zeroed().assume_init() }),
            sk: ptr::null_mut(),
            own: AtomicPtr::new(ptr::null_mut()),
            sender: AtomicPtr::new(ptr::null_mut()),
            // SAFETY: `net` is the caller's.
            protocol: T::new(unsafe { NetRef::from_raw(net) })?,
        };
        // SAFETY: The cache is there as long as the family is registered.
        let mut state = unsafe { CacheBox::new(state) }?;
        // SAFETY: `net` is the caller's. The inner socket is whole, and ours alone; the outer has
        // no sock yet and nobody else knows it. After the graft the inner one has no sock, so that
        // its release frees nothing but itself.
        unsafe {
            let inner = inner_socket(net, family as i32, kern)?;
            let sk = (*inner).sk;
            (*inner).sk = ptr::null_mut();
            (*socket).ops = (*table.ops.get()).as_ptr();
            (*socket).flags |= (*inner).flags;
            bindings::kopi_sock_graft(sk, socket);
            bindings::sock_release(inner);
            state.sk = sk;
            bindings::kopi_init_delayed_work(state.work.get(), Some(receive_work::<T>));
            let state = CacheBox::into_raw(state);
            bindings::kopi_set_sk_inode_private(sk, state.cast());
            if let Err(error) = (*state).protocol.opened(Socket::from_raw(socket)) {
                // The caller knows of no operations of a socket that couldn't be made.
                Self::release(socket);
                return Err(error);
            }
        }
        Ok(())
    }

    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
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
                if let Some(data_ready) = *state.data_ready.get() {
                    (*sk).sk_data_ready = Some(data_ready);
                }
                bindings::kopi_set_sk_inode_private(sk, ptr::null_mut());
                bindings::kopi_write_unlock_bh_callback(sk);
                // Waits if it runs; those who still have the state can't start it again.
                bindings::disable_delayed_work_sync(state.work.get());
                // Softirqs that still run with the state are done after a grace period.
                bindings::call_rcu(state.rcu.get(), Some(Self::free));
            }
            inner(socket)
        }
    }

    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn free(rcu: *mut bindings::callback_head) {
        // SAFETY: `rcu` is the state's, a box that `create` made and nobody uses any more.
        unsafe {
            let state = kernel::container_of!(
                rcu.cast::<UnsafeCell<bindings::callback_head>>(),
                State<T>,
                rcu
            );
            drop(CacheBox::from_raw(state));
        }
    }

    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn poll(
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
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn ioctl(
        socket: *mut bindings::socket,
        request: c_uint,
        argument: usize,
    ) -> c_int {
        // SAFETY: The socket is in use by the caller.
        unsafe { Self::any_ioctl(socket, request, argument, Operations::inner(socket).ioctl) }
    }

    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    #[cfg(CONFIG_COMPAT)]
    unsafe extern "C" fn compat_ioctl(
        socket: *mut bindings::socket,
        request: c_uint,
        argument: usize,
    ) -> c_int {
        // SAFETY: The socket is in use by the caller.
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
    unsafe fn any_ioctl(
        socket: *mut bindings::socket,
        request: u32,
        argument: usize,
        inner: Option<unsafe extern "C" fn(*mut bindings::socket, c_uint, usize) -> c_int>,
    ) -> c_int {
        // SAFETY: As required of the caller.
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
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn setsockopt(
        socket: *mut bindings::socket,
        level: c_int,
        name: c_int,
        value: bindings::sockptr_t,
        len: c_uint,
    ) -> c_int {
        // SAFETY: The socket is in use by the caller, and the value is the caller's.
        unsafe {
            if level == bindings::SOL_IPV6 as i32 && name == bindings::IPV6_ADDRFORM as i32 {
                // It would put UDP's own operations in place of ours.
                return enoprotoopt().to_errno();
            }
            if level == bindings::SOL_UDP as i32 && name == bindings::UDP_CORK as i32 {
                let state = state::<T>((*socket).sk);
                if let Some(Err(error)) = state.map(|state| state.protocol.may_cork(true)) {
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
                (_, Some(inner)) => inner(socket, level, name, value, len),
                (_, None) => eopnotsupp().to_errno(),
            }
        }
    }

    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn getsockopt(
        socket: *mut bindings::socket,
        level: c_int,
        name: c_int,
        value: *mut c_char,
        len: *mut c_int,
    ) -> c_int {
        // SAFETY: The socket is in use by the caller, and the pointers are the caller's.
        unsafe {
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
                (_, Some(inner)) => inner(socket, level, name, value, len),
                (_, None) => eopnotsupp().to_errno(),
            }
        }
    }

    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn bind(
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
                state.protocol.may_bind(this, &given)?;
                let before = this.sk().before_bind();
                to_result(inner(socket, name, len))?;
                state
                    .protocol
                    .bound(this)
                    .inspect_err(|_| this.sk().unbind(before))?;
            }
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn connect(
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
                let device = this.sk().bound_device();
                to_result(inner(socket, name, len, flags))?;
                state
                    .protocol
                    .connected(this)
                    .inspect_err(|_| this.sk().disconnect(device))?;
            }
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn sendmsg(
        socket: *mut bindings::socket,
        message: *mut bindings::msghdr,
        len: usize,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The socket is in use by the caller, and so is the message.
            unsafe {
                if let Some(state) = state::<T>((*socket).sk) {
                    let own = state.own.load(Ordering::Relaxed);
                    if own.cast() == message {
                        // Rings' packets were looked at before.
                        let datagram = (*own).datagram.as_ref();
                        let sent = datagram.and_then(|datagram| datagram.send((*socket).sk));
                        return Ok(without_edquot(sent.unwrap_or_else(|| {
                            bindings::kopi_udp_sendmsg((*socket).sk, message, len)
                        })));
                    }
                    let this = Socket::from_raw(socket);
                    let name = sent_to(this.sk(), &*message);
                    state.protocol.may_send(this, name.as_ref(), len)?;
                    if (*message).msg_flags & bindings::MSG_MORE != 0 {
                        state.protocol.may_cork(false)?;
                        let sent = Self::send_inner(socket, message, len);
                        state.protocol.has_corked();
                        return sent;
                    }
                }
                Self::send_inner(socket, message, len)
            }
        })
    }

    /// Sends by the inner family's operation.
    ///
    /// # Safety
    ///
    /// The socket must be in use by the caller, and so the message.
    unsafe fn send_inner(
        socket: *mut bindings::socket,
        message: *mut bindings::msghdr,
        len: usize,
    ) -> Result<i32> {
        // SAFETY: As required of the caller.
        unsafe {
            let inner = Operations::inner(socket).sendmsg.ok_or_else(eopnotsupp)?;
            Ok(without_edquot(inner(socket, message, len)))
        }
    }

    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn recvmsg(
        socket: *mut bindings::socket,
        message: *mut bindings::msghdr,
        len: usize,
        flags: c_int,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The socket is in use by the caller, and so is the message.
            unsafe {
                let inner = Operations::inner(socket).recvmsg.ok_or_else(eopnotsupp)?;
                let Some(state) = state::<T>((*socket).sk) else {
                    return Ok(inner(socket, message, len, flags));
                };
                let this = Socket::from_raw(socket);
                let mut timeout = this.sk().receive_timeout(flags & DONTWAIT != 0);
                // Nobody sleeps within UDP: rules may come meanwhile.
                loop {
                    let turn = state.protocol.may_read(this)?;
                    if flags & bindings::MSG_ERRQUEUE as i32 != 0 {
                        return Ok(inner(socket, message, len, flags));
                    }
                    if !state.protocol.has_queue() {
                        return Err(eopnotsupp());
                    }
                    let got = match turn {
                        Some(turn) => Reader {
                            socket,
                            inner,
                            protocol: &state.protocol,
                            turn,
                        }
                        .read(message, len, flags)?,
                        None => inner(socket, message, len, flags | DONTWAIT),
                    };
                    if got != EAGAIN.to_errno() || flags & DONTWAIT != 0 {
                        return Ok(got);
                    }
                    if !this.sk().wait_for_datagrams(&mut timeout)? {
                        return Ok(0);
                    }
                }
            }
        })
    }

    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn set_peek_off(sk: *mut bindings::sock, value: c_int) -> c_int {
        // SAFETY: The sock is in use by the caller, with its socket.
        unsafe {
            let table = if Sock::from_raw(sk).is_ipv6() {
                &IPV6
            } else {
                &IPV4
            };
            let turn = state::<T>(sk).and_then(|state| state.protocol.reading());
            let _turn = turn.map(Mutex::lock);
            match (**table.inner.get()).set_peek_off {
                Some(inner) => inner(sk, value),
                None => eopnotsupp().to_errno(),
            }
        }
    }

    /// # Safety
    ///
    /// To be called by the kernel only, as the operation that it is set as.
    unsafe extern "C" fn mmap(
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

/// Where a message of sendmsg goes; `None` for the peer.
///
/// # Safety
///
/// The message must be valid.
unsafe fn sent_to(sk: &Sock, message: &bindings::msghdr) -> Option<Name> {
    let (name, len) = (message.msg_name.cast::<u8>(), message.msg_namelen);
    // SAFETY: As required of the caller. Names are in memory of the kernel, with room for an address.
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
fn without_edquot(sent: c_int) -> c_int {
    if sent == edquot().to_errno() {
        enobufs().to_errno()
    } else {
        sent
    }
}

/// Whether programs of BPF are called before UDP sends to an address, for which the sock is locked.
/// Any context.
pub(crate) fn has_sendmsg_hooks() -> bool {
    // SAFETY: Reads keys of the kernel's.
    unsafe { bindings::kopi_has_sendmsg_hooks() }
}

const DONTWAIT: c_int = bindings::MSG_DONTWAIT as c_int;

type Receive =
    unsafe extern "C" fn(*mut bindings::socket, *mut bindings::msghdr, usize, c_int) -> c_int;

/// Reads a socket's datagrams one by one, and asks about each.
///
/// # Invariants
///
/// The socket is in use, and `inner` its inner family's operation.
struct Reader<'a, T> {
    socket: *mut bindings::socket,
    inner: Receive,
    protocol: &'a T,
    turn: &'a Mutex<bool>,
}

impl<T: Protocol> Reader<'_, T> {
    /// Reads the first datagram that may be read; gives what the operation gives, which is EAGAIN if there
    /// is none.
    ///
    /// # Safety
    ///
    /// `message` must be as for the operation.
    unsafe fn read(&self, message: *mut bindings::msghdr, len: usize, flags: c_int) -> Result<i32> {
        loop {
            {
                // Nobody else takes what is first meanwhile.
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
                // What is looked at needn't be what is read.
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

impl<T: Protocol> Drop for Registration<T> {
    fn drop(&mut self) {
        // SAFETY: Registered by `new`. No socket is left: each holds a reference to the module.
        unsafe { bindings::sock_unregister(self.number) };
    }
}

/// Makes a UDP socket of an IP family.
///
/// # Safety
///
/// `net` must be valid.
unsafe fn inner_socket(
    net: *mut bindings::net,
    family: i32,
    kern: bool,
) -> Result<*mut bindings::socket> {
    let mut socket = ptr::null_mut();
    // SAFETY: Process context, `net` is valid by the caller, and `socket` is written to.
    to_result(unsafe {
        bindings::__sock_create(
            net,
            family,
            bindings::sock_type_SOCK_DGRAM as i32,
            bindings::IPPROTO_UDP as i32,
            &mut socket,
            i32::from(kern),
        )
    })?;
    Ok(socket)
}

/// From now on has `data_ready` of the protocol called. Process context.
///
/// To be called once for a socket. Packets that were queued before remain queued.
pub(crate) fn install_callbacks<T: Protocol>(socket: &Socket) {
    let sk = socket.sk().as_ptr();
    // SAFETY: The socket is in use by the caller. The callbacks and their copies are written under
    // the lock; the copies are not read before the callbacks are set.
    unsafe {
        let Some(state) = state::<T>(sk) else {
            return;
        };
        bindings::kopi_write_lock_bh_callback(sk);
        state.data_ready.get().write((*sk).sk_data_ready);
        ptr::write_volatile(&raw mut (*sk).sk_data_ready, Some(data_ready::<T>));
        bindings::kopi_write_unlock_bh_callback(sk);
    }
}

/// # Safety
///
/// To be called by the kernel only, as the operation that it is set as.
unsafe extern "C" fn data_ready<T: Protocol>(sk: *mut bindings::sock) {
    let _rcu = kernel::sync::rcu::read_lock();
    // SAFETY: The sock is in use by the caller; RCU is held. UDP calls this with softirqs off, as
    // `poke` does.
    unsafe {
        // Softirqs find socks without a reference, and `read_skb` needs one: a close may take the
        // last away meanwhile. What is queued then goes with the sock.
        let Some(_kept) = SockRef::get(Sock::from_raw(sk)) else {
            return;
        };
        if let Some(state) = state::<T>(sk) {
            if Sock::from_raw(sk).has_receive_hook() {
                reaper::queue_delayed(state.work.get(), 0);
            } else {
                let softirqs = SoftirqsOff::assume();
                let _ = state
                    .protocol
                    .data_ready(Sock::from_raw(sk), None, softirqs);
            }
        }
    }
}

/// After how many jiffies a sock that a process had locked is tried again.
const LOCKED_RETRY: c_ulong = 2;

/// Takes what is queued where the sock can be locked, which receive hooks rely on.
///
/// Never waits for the lock, which a process can make last: a worker that waits is one less for others.
///
/// # Safety
///
/// To be called by the kernel only, as the function of a state's `work`.
unsafe extern "C" fn receive_work<T: Protocol>(work: *mut bindings::work_struct) {
    // SAFETY: The work is a state's, which is kept, as its sock is, until the work is disabled. From
    // where the sock is locked to where it is unlocked, softirqs are off, and what says so is used.
    unsafe {
        let work = kernel::container_of!(work, bindings::delayed_work, work);
        let state = &*kernel::container_of!(
            work.cast::<UnsafeCell<bindings::delayed_work>>(),
            State<T>,
            work
        );
        if bindings::kopi_bh_lock_sock_unowned(state.sk) {
            let sk = Sock::from_raw(state.sk);
            let locked = Some(LockedSock::from_locked(sk));
            let more = state.protocol.data_ready(sk, locked, SoftirqsOff::assume());
            bindings::kopi_bh_unlock_sock(state.sk);
            if more {
                reaper::queue_delayed(state.work.get(), 0);
            }
        } else {
            reaper::queue_delayed(state.work.get(), LOCKED_RETRY);
        }
    }
}

/// Has what is queued on a socket moved on, after [`install_callbacks`]. Process context.
pub(crate) fn drain<T: Protocol>(socket: &Socket) {
    let _softirqs = BottomHalvesOff::new();
    // SAFETY: The socket is in use by the caller.
    unsafe { data_ready::<T>(socket.sk().as_ptr()) };
}

/// Takes the next packet off the sock's queue, its checksum verified; looks at `left` at the most, of which
/// it takes those that it looked at. Softirq, or softirqs off; the caller keeps the sock.
///
/// It never polls a NIC, so a spinlock may be held.
pub(crate) fn next_packet(sk: &Sock, left: &mut u32) -> Option<SkBuff> {
    // SAFETY: A valid UDP sock, to which the caller has a reference.
    let skb = unsafe { bindings::kopi_udp_read_skb(sk.as_ptr(), left) };
    let skb = NonNull::new(skb)?;
    // SAFETY: A packet of a UDP sock's queue, whose headers are linear; nobody else has it.
    Some(unsafe { SkBuff::from_raw(skb) })
}

/// A message of the module's own.
#[repr(C)]
pub(super) struct Own<'a> {
    /// First: the operation gets a pointer to it.
    pub(super) header: bindings::msghdr,
    /// The same as a datagram that needs no udp_sendmsg(), if it is such a one.
    pub(super) datagram: Option<Datagram<'a>>,
    /// The peer that the rules were asked about.
    pub(super) judged: Peer,
}

/// Sends a message of the module's own, which [`Protocol::may_send`] isn't asked about. One at a time
/// for each socket.
///
/// # Safety
///
/// The message must be valid, and a datagram be of the socket.
pub(super) unsafe fn send_own<T: Protocol>(socket: &Socket, message: &mut Own<'_>) -> c_int {
    let message = ptr::from_mut(message);
    // SAFETY: The socket is in use by the caller, and the message is valid, which nobody looks at
    // after this call.
    unsafe {
        let state = state::<T>((*socket.as_ptr()).sk);
        if let Some(state) = state {
            state.own.store(message.cast(), Ordering::Relaxed);
            let current = bindings::kopi_current().cast_mut();
            state.sender.store(current, Ordering::Relaxed);
        }
        let sent = bindings::sock_sendmsg(socket.as_ptr(), message.cast());
        if let Some(state) = state {
            state.sender.store(ptr::null_mut(), Ordering::Relaxed);
            state.own.store(ptr::null_mut(), Ordering::Relaxed);
        }
        sent
    }
}

/// Whether the current task is in [`send_own`] for this sock, with a message about whose peer the rules
/// were asked. The caller is in an RCU read-side section.
pub(crate) fn has_judged<T: Protocol>(sk: &Sock, peer: &Peer) -> bool {
    // SAFETY: The sock is borrowed, and RCU held.
    let state = unsafe { state::<T>(sk.as_ptr()) };
    // SAFETY: The task is compared only. The message is on the stack of that task, which is this one, and
    // which clears the pointer after the task's.
    state.is_some_and(|state| unsafe {
        bindings::kopi_is_current(state.sender.load(Ordering::Relaxed))
            && state
                .own
                .load(Ordering::Relaxed)
                .as_ref()
                .is_some_and(|own| own.judged == *peer)
    })
}

/// The protocol's state of a socket of the family.
pub(crate) fn protocol<T: Protocol>(socket: &Socket) -> Option<&T> {
    // SAFETY: The socket lives as long as the borrow, and so does its state.
    Some(unsafe { &state::<T>((*socket.as_ptr()).sk)?.protocol })
}

impl SocketFile {
    /// The socket, if it is of the family.
    pub(crate) fn socket(&self) -> Option<&Socket> {
        let socket = self.as_ptr();
        // SAFETY: The file keeps the socket; its operations say whose it is.
        unsafe { is_of_family((*socket).ops).then(|| Socket::from_raw(socket)) }
    }
}
