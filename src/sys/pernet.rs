// SPDX-License-Identifier: GPL-2.0

//! What there is for each network namespace.
//!
//! C header: `include/net/net_namespace.h`

use super::{bindings, monitor::Devices, raw, sock::Sock};
use core::ptr;
use kernel::{
    error::{from_result, to_result},
    prelude::*,
    sync::Arc, //
};

/// What the module keeps for each network namespace.
///
/// # Safety
///
/// One type of the module implements it: what is in a namespace's slot is taken for one.
pub(crate) unsafe trait Namespace: Send + Sync + Sized + 'static {
    /// The state of a namespace that is being made: `ENOMEM`. Process context.
    fn new() -> Result<Arc<Self>>;

    /// Whether [`NetRef::hook_local_out`] was called for it. Process context.
    fn is_hooked(&self) -> bool;

    /// Its monitor devices that are up. Any context.
    fn monitors(&self) -> &Devices;
}

/// A `struct net`.
///
/// # Invariants
///
/// Alive as long as the borrow.
#[repr(transparent)]
pub(crate) struct NetRef(kernel::types::Opaque<bindings::net>);

impl NetRef {
    /// # Safety
    ///
    /// `net` must be alive as long as the result.
    pub(super) unsafe fn from_raw<'a>(net: *mut bindings::net) -> &'a Self {
        // SAFETY: `NetRef` is transparent; the rest is the caller's to see to.
        unsafe { &*net.cast() }
    }

    pub(super) fn as_ptr(&self) -> *mut bindings::net {
        self.0.get()
    }

    /// Whether it is the first one, which the machine started with.
    pub(super) fn is_initial(&self) -> bool {
        core::ptr::eq(self.as_ptr(), &raw const bindings::init_net)
    }

    /// Whether it belongs to the initial user namespace, whose root is trusted.
    pub(crate) fn is_of_initial_users(&self) -> bool {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_net_is_of_initial_users(self.as_ptr()) }
    }

    /// The number that no other namespace ever has.
    pub(crate) fn cookie(&self) -> u64 {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_net_cookie(self.as_ptr()) }
    }

    /// What the module keeps for the namespace. Any context.
    pub(crate) fn state_of<N: Namespace>(&self) -> Arc<N> {
        // SAFETY: The slot was filled when the namespace, or the module, came up, and is emptied
        // when it goes, which the borrow keeps it from. It holds an `Arc` of the one type that
        // there is, made raw; a second one takes a count of its own.
        unsafe {
            let raw = (*bindings::kopi_net_slot(self.as_ptr())).cast::<N>();
            let kept = core::mem::ManuallyDrop::new(Arc::from_raw(raw));
            Arc::clone(&kept)
        }
    }

    /// A user as the owner of the namespace names it. Any context.
    pub(crate) fn show_uid(&self, uid: u32) -> u32 {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_net_show_uid(self.as_ptr(), uid) }
    }

    /// A group as the owner of the namespace names it. Any context.
    pub(crate) fn show_gid(&self, gid: u32) -> u32 {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_net_show_gid(self.as_ptr(), gid) }
    }

    /// The name of a device. Any context.
    pub(crate) fn device_name(&self, ifindex: i32) -> Option<[u8; 16]> {
        let mut name = [0u8; 16];
        // SAFETY: By the invariants; the name has room for IFNAMSIZ bytes.
        unsafe { bindings::kopi_device_name(self.as_ptr(), ifindex, name.as_mut_ptr().cast()) }
            .then_some(name)
    }
}

impl Sock {
    /// Its network namespace.
    pub(crate) fn net(&self) -> &NetRef {
        // SAFETY: A sock keeps its namespace.
        unsafe { NetRef::from_raw(bindings::kopi_sock_net(self.as_ptr())) }
    }
}

/// While it lives, each namespace has its state.
pub(crate) struct PerNet(());

impl PerNet {
    /// Makes one for each namespace. There can be one registration at a time.
    pub(crate) fn register() -> Result<Self> {
        // SAFETY: Process context; the operations are static.
        to_result(unsafe { bindings::kopi_register_pernet() })?;
        Ok(Self(()))
    }
}

impl Drop for PerNet {
    fn drop(&mut self) {
        // SAFETY: Registered by `register`.
        unsafe { bindings::kopi_unregister_pernet() };
    }
}

/// What `kopi_net_init` does.
///
/// # Safety
///
/// To be called for a namespace that is being made.
pub(crate) unsafe fn init<N: Namespace>(net: *mut raw::Net) -> c_int {
    from_result(|| {
        let state = N::new()?;
        // SAFETY: The namespace is being made, and its slot is this function's.
        unsafe { *bindings::kopi_net_slot(net) = Arc::into_raw(state).cast_mut().cast() };
        Ok(0)
    })
}

/// What `kopi_net_exit` does.
///
/// # Safety
///
/// To be called for a namespace that is going, for which [`init`] was called.
pub(crate) unsafe fn exit<N: Namespace>(net: *mut raw::Net) {
    // SAFETY: The namespace is going: nothing reads the slot any more. It holds what `init` put
    // there.
    unsafe {
        let slot = bindings::kopi_net_slot(net);
        let state = Arc::from_raw((*slot).cast::<N>());
        if state.is_hooked() {
            NetRef::from_raw(net).unhook_local_out();
        }
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
            // SAFETY: The kernel calls it for a namespace that is being made.
            unsafe { $crate::sys::pernet::init::<$namespace>(net) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C calls it, as the operation of namespaces")]
        unsafe extern "C" fn kopi_net_exit(net: *mut $crate::sys::raw::Net) {
            // SAFETY: The kernel calls it for a namespace that is going.
            unsafe { $crate::sys::pernet::exit::<$namespace>(net) }
        }
    };
}
pub(crate) use serve;
