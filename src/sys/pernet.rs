// SPDX-License-Identifier: GPL-2.0

//! The module's state of each network namespace.
//!
//! C header: `include/net/net_namespace.h`

use super::{bindings, context::might_sleep, monitor::Devices, raw, sock::Sock};
use core::ptr;
use kernel::{
    error::{from_result, to_result},
    prelude::*,
    sync::{rcu, Arc}, //
};

/// The module's state of a network namespace.
///
/// # Safety
///
/// Only one type of the module may implement it, because the pointer in a namespace's slot is taken
/// for one to a value of that type.
pub(crate) unsafe trait Namespace: Send + Sync + Sized + 'static {
    /// The state of a new namespace: `ENOMEM`. Process context.
    fn new() -> Result<Arc<Self>>;

    /// Whether [`NetRef::hook_local_out`] was called for the namespace. Process context.
    fn is_hooked(&self) -> bool;

    /// The namespace ends: no process has a socket there. Process context.
    fn end(&self);

    /// The namespace's monitor devices that are up. Any context.
    fn monitors(&self) -> &Devices;
}

/// A `struct net`.
///
/// # Invariants
///
/// The namespace isn't freed as long as it is borrowed, and its slot keeps the module's state.
#[repr(transparent)]
pub(crate) struct NetRef(kernel::types::Opaque<bindings::net>);

impl NetRef {
    /// # Safety
    ///
    /// The type's invariants must hold for `net` as long as the result is used.
    pub(super) unsafe fn from_raw<'a>(net: *mut bindings::net) -> &'a Self {
        // SAFETY: `NetRef` is transparent. The caller passes a namespace that outlives the result.
        unsafe { &*net.cast() }
    }

    /// The C structure.
    pub(super) fn as_ptr(&self) -> *mut bindings::net {
        self.0.get()
    }

    /// Whether it is the initial namespace.
    pub(super) fn is_initial(&self) -> bool {
        core::ptr::eq(self.as_ptr(), &raw const bindings::init_net)
    }

    /// Whether it belongs to the initial user namespace, whose root is trusted.
    pub(crate) fn is_of_initial_users(&self) -> bool {
        // SAFETY: The namespace is borrowed, and its owner never changes.
        unsafe { bindings::kopi_net_is_of_initial_users(self.as_ptr()) }
    }

    /// The namespace's cookie, which no other namespace ever has.
    pub(crate) fn cookie(&self) -> u64 {
        // SAFETY: The namespace is borrowed, and its cookie never changes.
        unsafe { bindings::kopi_net_cookie(self.as_ptr()) }
    }

    /// The module's state of the namespace. Any context.
    pub(crate) fn state_of<N: Namespace>(&self) -> Arc<N> {
        // SAFETY: `init` has put a pointer into the slot, made by `Arc::into_raw`, before the
        // namespace had users. `exit` takes it out when the namespace has none left, which the
        // borrow excludes, or the module is unloaded: then flows, netlink and BPF programs, which
        // hold the module, are gone, and so is the hook (`pre_exit`). The pointer is to an `N`, the
        // one type that implements `Namespace`. `ManuallyDrop` leaves the slot's reference to it.
        unsafe {
            let raw = (*bindings::kopi_net_slot(self.as_ptr())).cast::<N>();
            let kept = core::mem::ManuallyDrop::new(Arc::from_raw(raw));
            Arc::clone(&kept)
        }
    }

    /// The state of a namespace that may be ending, as one of a kernel's sock may be: `None` then.
    pub(crate) fn state_if_alive<N: Namespace>(&self, _rcu: &rcu::Guard) -> Option<Arc<N>> {
        // SAFETY: The namespace is borrowed. If it is alive, its slot has its state as long as RCU is
        // held, which the argument proves.
        unsafe { bindings::kopi_net_is_alive(self.as_ptr()) }.then(|| self.state_of())
    }

    /// The id of a user in the user namespace that owns this namespace. Any context.
    pub(crate) fn show_uid(&self, uid: u32) -> u32 {
        // SAFETY: The namespace is borrowed, and keeps its user namespace.
        unsafe { bindings::kopi_net_show_uid(self.as_ptr(), uid) }
    }

    /// The id of a group in the user namespace that owns this namespace. Any context.
    pub(crate) fn show_gid(&self, gid: u32) -> u32 {
        // SAFETY: The namespace is borrowed, and keeps its user namespace.
        unsafe { bindings::kopi_net_show_gid(self.as_ptr(), gid) }
    }

    /// The name of a device. Any context.
    pub(crate) fn device_name(&self, ifindex: i32) -> Option<[u8; 16]> {
        let mut name = [0u8; 16];
        // SAFETY: The namespace is borrowed. `name` has room for IFNAMSIZ bytes. The call looks the
        // device up under RCU.
        unsafe { bindings::kopi_device_name(self.as_ptr(), ifindex, name.as_mut_ptr().cast()) }
            .then_some(name)
    }
}

impl Sock {
    /// The sock's network namespace.
    pub(crate) fn net(&self) -> &NetRef {
        // SAFETY: A flow's sock was made by a process, so it holds a reference to its namespace.
        unsafe { NetRef::from_raw(bindings::kopi_sock_net(self.as_ptr())) }
    }
}

/// The registration by which each network namespace has the module's state.
pub(crate) struct PerNet(());

impl PerNet {
    /// Makes the state of each namespace: `ENOMEM`. Only the module's init calls this, once.
    /// Process context.
    pub(crate) fn register() -> Result<Self> {
        might_sleep();
        // SAFETY: The module's init runs in process context. The operations are static, and the
        // functions that they name are those of `serve!`.
        to_result(unsafe { bindings::kopi_register_pernet() })?;
        Ok(Self(()))
    }
}

impl Drop for PerNet {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: `register` registered the operations. The module's exit runs in process context,
        // where the call may wait for a grace period.
        unsafe { bindings::kopi_unregister_pernet() };
    }
}

/// The body of `kopi_net_init`.
///
/// # Safety
///
/// Only the kernel may call it, once for each namespace, before the namespace has users. Process
/// context.
pub(crate) unsafe fn init<N: Namespace>(net: *mut raw::Net) -> c_int {
    from_result(|| {
        let state = N::new()?;
        // SAFETY: The kernel has allocated the slot, a pointer, before it calls this. Nothing else
        // accesses the slot as long as the namespace has no users.
        unsafe { *bindings::kopi_net_slot(net) = Arc::into_raw(state).cast_mut().cast() };
        Ok(0)
    })
}

/// The body of `kopi_net_pre_exit`. Between it and [`exit`] the kernel waits for RCU: a CPU that is in
/// the hook still has the state.
///
/// # Safety
///
/// Only the kernel may call it, for a namespace for which [`init`] succeeded, before [`exit`]. Process
/// context.
pub(crate) unsafe fn pre_exit<N: Namespace>(net: *mut raw::Net) {
    // SAFETY: The caller passes a namespace whose slot `init` has filled, and which lives during the call.
    let net = unsafe { NetRef::from_raw(net) };
    let state = net.state_of::<N>();
    if state.is_hooked() {
        net.unhook_local_out();
    }
    state.end();
}

/// The body of `kopi_net_exit`.
///
/// # Safety
///
/// Only the kernel may call it, for a namespace for which [`init`] succeeded, when the namespace
/// has no users any more, or the module none there. Process context.
pub(crate) unsafe fn exit<N: Namespace>(net: *mut raw::Net) {
    // SAFETY: Without users nothing else accesses the slot. It holds the pointer that `init` made
    // by `Arc::into_raw`, whose reference this call takes over.
    unsafe {
        let slot = bindings::kopi_net_slot(net);
        let state = Arc::from_raw((*slot).cast::<N>());
        // No flow is left, so no datagram is queued anew. A CPU that goes on with one is in an RCU
        // read-side section, for which the end of the registration waits.
        bindings::kopi_drop_queued(net);
        drop(state);
        *slot = ptr::null_mut();
    }
}

/// Defines the functions that C calls, for the type that implements [`Namespace`].
macro_rules! serve {
    ($namespace:ty) => {
        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C calls it, as the operation of namespaces")]
        unsafe extern "C" fn kopi_net_init(net: *mut $crate::sys::raw::Net) -> c_int {
            // SAFETY: The kernel calls this as `init` of the module's pernet operations.
            unsafe { $crate::sys::pernet::init::<$namespace>(net) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C calls it, as the operation of namespaces")]
        unsafe extern "C" fn kopi_net_pre_exit(net: *mut $crate::sys::raw::Net) {
            // SAFETY: The kernel calls this as `pre_exit` of the module's pernet operations.
            unsafe { $crate::sys::pernet::pre_exit::<$namespace>(net) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C calls it, as the operation of namespaces")]
        unsafe extern "C" fn kopi_net_exit(net: *mut $crate::sys::raw::Net) {
            // SAFETY: The kernel calls this as `exit` of the module's pernet operations.
            unsafe { $crate::sys::pernet::exit::<$namespace>(net) }
        }
    };
}
pub(crate) use serve;
