// SPDX-License-Identifier: GPL-2.0

//! Ordinary sockets, which are not of the family: hooks of BPF's LSM tell of their system calls and
//! of the packets that they receive.
//!
//! `tools/kopictl/src/bpf/enforce.bpf.c` has the programs, which call `shim/ordinary.c`.
//!
//! C header: `include/linux/lsm_hook_defs.h`

mod table;

use super::{
    bindings,
    context::might_sleep,
    family::{self, Name, Protocol},
    pernet::NetRef,
    raw,
    sock::Sock,
    task::Task, //
};
use crate::pure::{peer::Peer, rule::Received};
use kernel::{
    alloc::Flags,
    error::{from_result, to_result},
    prelude::*,
    sync::{rcu, Arc},
};
use table::SockTable;

/// A system call on an ordinary socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketCall {
    Bind,
    Connect,
    Listen,
    Accept,
    Send,
    Receive,
}

impl SocketCall {
    /// The call of a number: `EINVAL`.
    fn of(call: raw::Call) -> Result<Self> {
        Ok(match call {
            bindings::kopi_call_KOPI_CALL_BIND => Self::Bind,
            bindings::kopi_call_KOPI_CALL_CONNECT => Self::Connect,
            bindings::kopi_call_KOPI_CALL_LISTEN => Self::Listen,
            bindings::kopi_call_KOPI_CALL_ACCEPT => Self::Accept,
            bindings::kopi_call_KOPI_CALL_SEND => Self::Send,
            bindings::kopi_call_KOPI_CALL_RECEIVE => Self::Receive,
            _ => return Err(EINVAL),
        })
    }
}

/// What is known of an ordinary socket, and decides about it.
pub(crate) trait JudgesOrdinary: Sized + Send + Sync + 'static {
    /// The sockets that aren't ordinary.
    type Family: Protocol;

    /// Whether the ordinary sockets of a network namespace are judged. In an RCU read-side section.
    fn are_judged(net: &NetRef) -> bool;

    /// Whether the owners of a network namespace's ordinary sockets are noted: also while its rules
    /// can refuse nothing, since other rules may come. In an RCU read-side section.
    fn are_noted(net: &NetRef) -> bool;

    /// Whether owners were noted all the time since this one was. Any context.
    fn is_noted(&self) -> bool;

    /// Whether a process that used it was noted, by itself or by the socket that it was made out of. Any
    /// context.
    fn was_used(&self) -> bool;

    /// The socket's owner is that of another one from now on. Any context but hard interrupts.
    fn follow(&self, owner: &Self);

    /// A socket that the current process uses. Process context.
    fn of_current(sk: &Sock) -> Result<Arc<Self>>;

    /// A socket that another process has open. In an RCU read-side section.
    fn of_task(sk: &Sock, task: &Task, flags: Flags) -> Result<Arc<Self>>;

    /// A socket that is made out of this one. Any context but hard interrupts.
    fn of_child(&self) -> Result<Arc<Self>>;

    /// Judges a system call of the current process: `EACCES`. `to` is the address that it names.
    /// Process context.
    fn judge_call(&self, sk: &Sock, call: SocketCall, to: Option<Peer>) -> Result;

    /// Judges what comes from a peer; `known` is `None` for a socket of which nothing is known. In an
    /// RCU read-side section.
    fn judge_received(known: Option<&Self>, sk: &Sock, from: &Peer, size: Received) -> Result;
}

/// The sock, if it is an ordinary socket's whose namespace is such a one.
///
/// # Safety
///
/// `sk` must be a full sock of UDP or TCP that isn't freed for `'a`.
unsafe fn ordinary<'a, T: JudgesOrdinary>(
    sk: *mut raw::Sock,
    is_such: fn(&NetRef) -> bool,
) -> Option<&'a Sock> {
    let _rcu = rcu::read_lock();
    // SAFETY: Required of the caller. RCU is held here.
    unsafe {
        let sock = Sock::from_raw(sk);
        // A socket that is being made or released has no flow, and no system calls.
        if family::flow_of::<T::Family>(sk).is_some() || !is_such(sock.net()) {
            return None;
        }
        Some(sock)
    }
}

/// How to allocate where nothing may sleep.
fn atomic() -> Flags {
    GFP_ATOMIC | __GFP_NOWARN
}

/// The value of a sock, which is made if there is none. The context is that of `make` and the flags.
fn known_or<T: JudgesOrdinary>(
    sk: &Sock,
    flags: Flags,
    make: impl FnOnce() -> Result<Arc<T>>,
) -> Result<Arc<T>> {
    if let Some(known) = SockTable::find(sk) {
        return Ok(known);
    }
    let new = make()?;
    match SockTable::insert(sk, new.clone(), false, flags) {
        Err(EEXIST) => SockTable::find(sk).ok_or(EAGAIN),
        result => result.map(|()| new),
    }
}

/// The value of a sock that a task uses, which is made, without sleeping, if there is none. In an RCU read-side
/// section.
fn known_or_of<T: JudgesOrdinary>(sk: &Sock, task: &Task, flags: Flags) -> Result<Arc<T>> {
    known_or(sk, flags, || T::of_task(sk, task, flags))
}

/// Whether BPF programs ask the module about system calls: `ENOMEM`. Process context.
pub(crate) fn hooks_are_there(net: &NetRef) -> Result<bool> {
    might_sleep();
    // SAFETY: The namespace is borrowed, and so valid.
    let found = unsafe { bindings::kopi_lsm_is_there(net.as_ptr()) };
    to_result(found)?;
    Ok(found != 0)
}

/// The value of an ordinary sock, if there is one. A subflow of MPTCP gets the owner of the socket that it
/// belongs to, whose calls name that one only. Any context but hard interrupts.
pub(crate) fn look_up<T: JudgesOrdinary>(sk: &Sock) -> Option<Arc<T>> {
    let (known, owner) = (SockTable::<T>::find(sk), known_of_owner::<T>(sk));
    match (&known, owner) {
        (Some(known), Some(owner)) => known.follow(&owner),
        (None, Some(owner)) => {
            inherit(&*owner, sk, false);
            return SockTable::find(sk);
        }
        _ => {}
    }
    known
}

/// The value of the MPTCP sock that has this one as a subflow.
fn known_of_owner<T: JudgesOrdinary>(sk: &Sock) -> Option<Arc<T>> {
    let _rcu = rcu::read_lock();
    // SAFETY: The sock is borrowed, and so valid, and RCU is held. The call gives a reference to the
    // owner, which is a full sock, and which RCU lets be released in any context.
    unsafe {
        let owner = bindings::kopi_subflow_owner(sk.as_ptr());
        if owner.is_null() {
            return None;
        }
        let known = SockTable::find(Sock::from_raw(owner));
        bindings::kopi_sock_put(owner);
        known
    }
}

/// The body of `kopi_ordinary_are_judged`: whether a namespace's ordinary sockets are.
///
/// # Safety
///
/// `net` must be a namespace that its caller keeps.
pub(crate) unsafe fn are_judged<T: JudgesOrdinary>(net: *mut raw::Net) -> bool {
    let _rcu = rcu::read_lock();
    // SAFETY: Required of the caller.
    T::are_judged(unsafe { NetRef::from_raw(net) })
}

/// The body of `kopi_ordinary_calls`: a system call.
///
/// # Safety
///
/// `sk` must be a full sock of UDP or TCP that its caller keeps. `address` must be null, or have
/// `len` bytes that don't change meanwhile. Process context.
pub(crate) unsafe fn calls<T: JudgesOrdinary>(
    sk: *mut raw::Sock,
    call: raw::Call,
    address: *const u8,
    len: c_int,
) -> c_int {
    might_sleep();
    from_result(|| {
        let call = SocketCall::of(call)?;
        // SAFETY: Required of the caller.
        let (sk, name) = unsafe {
            let Some(sk) = ordinary::<T>(sk, T::are_noted) else {
                return Ok(0);
            };
            (
                sk,
                Name::of_call(address, len, sk, call == SocketCall::Connect),
            )
        };
        let known = known_or(sk, GFP_KERNEL_ACCOUNT, || T::of_current(sk))?;
        known.judge_call(sk, call, name.peer())?;
        Ok(0)
    })
}

/// The body of `kopi_ordinary_gets`: a packet that comes.
///
/// # Safety
///
/// `sk` must be a full sock of UDP or TCP, and `skb` a packet that it is to get, at UDP's or
/// TCP's header.
pub(crate) unsafe fn gets<T: JudgesOrdinary>(sk: *mut raw::Sock, skb: *mut raw::Skb) -> c_int {
    let _rcu = rcu::read_lock();
    let mut address = pin_init::zeroed();
    let mut port = 0u16;
    // SAFETY: Required of the caller.
    let (sk, size) = unsafe {
        let Some(sk) = ordinary::<T>(sk, T::are_judged) else {
            return 0;
        };
        if !bindings::kopi_skb_sender(skb, &mut address, &mut port) {
            return EINVAL.to_errno();
        }
        // Before UDP takes its header away.
        let header = if sk.is_stream() { 0 } else { 8 };
        let size = (*skb).len.saturating_sub(header);
        let gso_size = bindings::kopi_skb_gso_size(skb);
        let is_mapped = bindings::kopi_skb_is_mapped(skb);
        (sk, Received::new(size, gso_size, is_mapped))
    };
    let from = Peer {
        // SAFETY: All of the union's fields are the same bytes.
        address: unsafe { address.in6_u.u6_addr8 },
        port,
    };
    let known = look_up::<T>(sk);
    from_result(|| {
        T::judge_received(known.as_deref(), sk, &from, size)?;
        Ok(0)
    })
}

/// The body of `kopi_ordinary_clones`: a sock is made out of another.
///
/// # Safety
///
/// Both must be full socks of UDP or TCP; nobody else uses the second yet.
pub(crate) unsafe fn clones<T: JudgesOrdinary>(sk: *mut raw::Sock, child: *mut raw::Sock) {
    // SAFETY: Required of the caller.
    let (sk, child) = unsafe { (Sock::from_raw(sk), Sock::from_raw(child)) };
    if let Some(known) = SockTable::<T>::find(sk) {
        inherit(&*known, child, true);
    }
}

/// Gives a sock what is known of another. `is_new` says that it is being made; otherwise it keeps what
/// another CPU has given it meanwhile. Any context but hard interrupts.
fn inherit<T: JudgesOrdinary>(known: &T, child: &Sock, is_new: bool) {
    // Without memory nothing is known of it, which is judged, too.
    if let Ok(value) = known.of_child() {
        let _ = SockTable::insert(child, value, is_new, atomic());
    }
}

/// The body of `kopi_ordinary_adds`: an MPTCP socket gets a subflow, which is a TCP sock that the
/// kernel makes for it.
///
/// # Safety
///
/// As of [`clones`]. Process context.
pub(crate) unsafe fn adds<T: JudgesOrdinary>(sk: *mut raw::Sock, subflow: *mut raw::Sock) {
    let _rcu = rcu::read_lock();
    // SAFETY: Required of the caller.
    let (sk, subflow) = unsafe {
        let Some(sk) = ordinary::<T>(sk, T::are_noted) else {
            return;
        };
        (sk, Sock::from_raw(subflow))
    };
    let task = Task::current();
    // setsockopt() before bind() makes the first subflow; a thread of the kernel makes later ones.
    let known = if task.is_kernels() {
        SockTable::<T>::find(sk)
    } else {
        // Any process may make it happen.
        known_or_of(sk, task, atomic() | (GFP_KERNEL_ACCOUNT & !GFP_KERNEL)).ok()
    };
    if let Some(known) = known {
        inherit(&*known, subflow, true);
    }
}

/// The body of `kopi_ordinary_ends`: a sock ends.
pub(crate) fn ends<T: JudgesOrdinary>(sk: *const raw::Sock) {
    SockTable::<T>::remove(sk);
}

/// The body of `kopi_ordinary_found`: a process has a socket open.
///
/// # Safety
///
/// `sk` must be a full sock of UDP or TCP, and `task` a task; the caller keeps both. In an RCU
/// read-side section.
pub(crate) unsafe fn found<T: JudgesOrdinary>(sk: *mut raw::Sock, task: *mut raw::Task) {
    // SAFETY: Required of the caller.
    let (sk, task) = unsafe {
        let Some(sk) = ordinary::<T>(sk, T::are_noted) else {
            return;
        };
        (sk, Task::from_raw(task))
    };
    // Without memory nothing is known of it, which is judged, too. If nobody has used it, its owner is who
    // has it open and came last: systemd keeps what it has opened for a service.
    match SockTable::<T>::find(sk) {
        Some(known) if !known.was_used() => {
            if let Ok(last) = T::of_task(sk, task, atomic()) {
                known.follow(&last);
            }
        }
        _ => {
            let _ = known_or_of::<T>(sk, task, atomic());
        }
    }
}

/// Forgets the socks of namespaces where nothing is noted any more. Process context.
pub(crate) fn forget_unnoted<T: JudgesOrdinary>() {
    SockTable::<T>::clear();
}

/// The table of what is known, and the functions that BPF programs can call. These programs keep
/// the module.
pub(crate) struct OrdinaryHooks<T> {
    _table: SockTable<T>,
}

impl<T: JudgesOrdinary> OrdinaryHooks<T> {
    /// Makes the table, and registers the functions: `ENOMEM`. Only the module's init calls this,
    /// once. Process context.
    pub(crate) fn new() -> Result<Self> {
        let table = SockTable::new()?;
        // SAFETY: The module's init runs in process context. The sets are static, and the kernel
        // forgets them with the module's BTF.
        to_result(unsafe { bindings::kopi_ordinary_register() })?;
        Ok(Self { _table: table })
    }
}

/// Defines the functions that C calls, for the type that implements [`JudgesOrdinary`].
macro_rules! serve {
    ($ordinary:ty) => {
        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "BPF programs call it, through C")]
        unsafe extern "C" fn kopi_ordinary_are_judged(net: *mut $crate::sys::raw::Net) -> bool {
            // SAFETY: C passes the namespace of a socket in a system call.
            unsafe { $crate::sys::ordinary::are_judged::<$ordinary>(net) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "BPF programs call it, through C")]
        unsafe extern "C" fn kopi_ordinary_calls(
            sk: *mut $crate::sys::raw::Sock,
            call: $crate::sys::raw::Call,
            address: *const c_void,
            len: c_int,
        ) -> c_int {
            // SAFETY: C passes the sock of a socket in a system call, and the address of that.
            unsafe { $crate::sys::ordinary::calls::<$ordinary>(sk, call, address.cast(), len) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "BPF programs call it, through C")]
        unsafe extern "C" fn kopi_ordinary_gets(
            sk: *mut $crate::sys::raw::Sock,
            skb: *mut $crate::sys::raw::Skb,
        ) -> c_int {
            // SAFETY: C passes a full sock and the packet that comes to it.
            unsafe { $crate::sys::ordinary::gets::<$ordinary>(sk, skb) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "BPF programs call it, through C")]
        unsafe extern "C" fn kopi_ordinary_clones(
            sk: *mut $crate::sys::raw::Sock,
            child: *mut $crate::sys::raw::Sock,
        ) {
            // SAFETY: C passes a full sock, and one that is being made out of it.
            unsafe { $crate::sys::ordinary::clones::<$ordinary>(sk, child) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "BPF programs call it, through C")]
        unsafe extern "C" fn kopi_ordinary_adds(
            sk: *mut $crate::sys::raw::Sock,
            subflow: *mut $crate::sys::raw::Sock,
        ) {
            // SAFETY: C passes a socket's sock, and a new one of the kernel's that it gets.
            unsafe { $crate::sys::ordinary::adds::<$ordinary>(sk, subflow) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "BPF programs call it, through C")]
        unsafe extern "C" fn kopi_ordinary_ends(sk: *const $crate::sys::raw::Sock) {
            $crate::sys::ordinary::ends::<$ordinary>(sk);
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "BPF programs call it, through C")]
        unsafe extern "C" fn kopi_ordinary_found(
            sk: *mut $crate::sys::raw::Sock,
            task: *mut $crate::sys::raw::Task,
        ) {
            // SAFETY: C passes a full sock, and a task that has it open.
            unsafe { $crate::sys::ordinary::found::<$ordinary>(sk, task) }
        }
    };
}
pub(crate) use serve;
