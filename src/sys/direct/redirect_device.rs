// SPDX-License-Identifier: GPL-2.0

//! Network devices that XDP programs redirect to: each takes what one NIC received.
//!
//! They are named kopirx and a number, have no queue and no addresses, and send nothing.
//!
//! C headers: `include/linux/netdevice.h`, `include/net/xdp.h`

use super::redirected::Frame;
use crate::sys::{bindings, netdev::Device};
use core::{
    ptr::NonNull,
    slice, //
};
use kernel::{error::to_result, prelude::*};

/// What receives a redirect device's frames.
pub(crate) trait Receiver: Send + Sync + 'static {
    /// The device whose XDP program redirects them.
    fn device(&self) -> &Device;

    /// Frames are to be redirected to a device of this number. Under RTNL.
    fn redirects_to(&self, ifindex: u32);

    /// The device has come up: `ENOMEM`. Under RTNL.
    fn open(&self) -> Result;

    /// It goes down. Under RTNL.
    fn close(&self);

    /// Takes frames: `false` if it takes none, which stay the caller's. `last` says that no more come in this
    /// call of NAPI. Softirqs are off.
    fn xdp_xmit(&self, frames: impl Iterator<Item = Frame>, last: bool) -> bool;
}

/// A device.
///
/// # Invariants
///
/// Registered, in the NIC's namespace, which it can't leave; it knows the receiver.
pub(crate) struct RedirectDevice<R: Receiver> {
    dev: NonNull<bindings::net_device>,
    receiver: KBox<R>,
}

// SAFETY: A device is not bound to a task.
unsafe impl<R: Receiver> Send for RedirectDevice<R> {}
// SAFETY: What is done with a shared one is done by the kernel's own rules.
unsafe impl<R: Receiver> Sync for RedirectDevice<R> {}

impl<R: Receiver> RedirectDevice<R> {
    /// Makes one, and has it up: `ENOMEM`, or whatever it is refused for. Under RTNL.
    pub(crate) fn new(receiver: R) -> Result<Self> {
        let receiver = KBox::new(receiver, GFP_KERNEL_ACCOUNT)?;
        let data = core::ptr::from_ref::<R>(&receiver).cast_mut().cast();
        let net = receiver.device().net().as_ptr();
        // SAFETY: The receiver outlives the device.
        let dev = NonNull::new(unsafe { bindings::kopi_target_new(net, data) }).ok_or(ENOMEM)?;
        // SAFETY: Made just now, and freed if it can't be registered. RTNL is held.
        unsafe {
            to_result(bindings::register_netdevice(dev.as_ptr()))
                .inspect_err(|_| bindings::free_netdev(dev.as_ptr()))?;
        }
        // INVARIANT: Registered.
        let target = Self { dev, receiver };
        target.receiver.redirects_to(target.ifindex());
        // SAFETY: Registered; RTNL is held.
        to_result(unsafe { bindings::dev_open(dev.as_ptr(), core::ptr::null_mut()) })?;
        Ok(target)
    }

    /// Takes frames if that can be, now that the features of the one that receives have changed. Under RTNL.
    pub(crate) fn follow(&self) {
        self.receiver.close();
        if self.is_up() && self.receiver.open().is_err() {
            pr_debug!("a device doesn't take frames: no memory\n");
        }
    }

    fn ifindex(&self) -> u32 {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_dev_ifindex(self.dev.as_ptr()) as u32 }
    }

    /// Whether it takes frames.
    pub(crate) fn is_up(&self) -> bool {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_dev_is_up(self.dev.as_ptr()) }
    }
}

impl<R: Receiver> Drop for RedirectDevice<R> {
    fn drop(&mut self) {
        // SAFETY: Registered; RTNL is held wherever ports are taken away. It goes down before, and nobody calls
        // its operations any more afterwards.
        unsafe { bindings::unregister_netdevice_queue(self.dev.as_ptr(), core::ptr::null_mut()) };
    }
}

/// A `struct xdp_frame`, as C's functions have it.
pub(crate) type RawFrame = bindings::xdp_frame;

/// What `kopi_target_open` does.
///
/// # Safety
///
/// To be called under RTNL, when a device of such a receiver comes up.
pub(crate) unsafe fn open<R: Receiver>(receiver: *mut c_void) -> c_int {
    // SAFETY: The receiver outlives its device.
    let opened = unsafe { (*receiver.cast::<R>()).open() };
    opened.map_or_else(|error| error.to_errno(), |()| 0)
}

/// What `kopi_target_stop` does.
///
/// # Safety
///
/// To be called under RTNL, when a device of such a receiver goes down.
pub(crate) unsafe fn stop<R: Receiver>(receiver: *mut c_void) {
    // SAFETY: The receiver outlives its device. Process context.
    unsafe {
        (*receiver.cast::<R>()).close();
        // No program still redirects frames to the device when it goes down.
        bindings::synchronize_net();
    }
}

/// What `kopi_target_xmit` does.
///
/// # Safety
///
/// To be called with `n` frames for a device of such a receiver, in NAPI's context.
pub(crate) unsafe fn xmit<R: Receiver>(
    receiver: *mut c_void,
    n: c_int,
    frames: *mut *mut RawFrame,
    flags: u32,
) -> c_int {
    // SAFETY: As many frames as the caller says, which are the device's from now on, except those that it
    // refuses. A device gets no frame in several pieces unless it says that it takes them. All are dropped before
    // the last call of NAPI returns, which `last` says. The receiver outlives its device.
    unsafe {
        let receiver = &*receiver.cast::<R>();
        let frames = slice::from_raw_parts(frames, usize::try_from(n).unwrap_or(0));
        let owned = frames
            .iter()
            .filter_map(|frame| NonNull::new(*frame))
            .map(|frame| Frame::from_raw(frame));
        if receiver.xdp_xmit(owned, flags & bindings::XDP_XMIT_FLUSH != 0) {
            n
        } else {
            0
        }
    }
}

/// Defines the functions that C calls, for the type whose [`RedirectDevice`] there is.
macro_rules! serve {
    ($receiver:ty) => {
        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C calls it, as an operation of the device")]
        unsafe extern "C" fn kopi_target_open(receiver: *mut c_void) -> c_int {
            // SAFETY: C calls it under RTNL, for a device of such a receiver.
            unsafe { $crate::sys::direct::redirect_device::open::<$receiver>(receiver) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C calls it, as an operation of the device")]
        unsafe extern "C" fn kopi_target_stop(receiver: *mut c_void) {
            // SAFETY: C calls it under RTNL, for a device of such a receiver.
            unsafe { $crate::sys::direct::redirect_device::stop::<$receiver>(receiver) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C calls it, as an operation of the device")]
        unsafe extern "C" fn kopi_target_xmit(
            receiver: *mut c_void,
            n: c_int,
            frames: *mut *mut $crate::sys::direct::redirect_device::RawFrame,
            flags: u32,
        ) -> c_int {
            // SAFETY: C calls it in NAPI's context, for a device of such a receiver.
            unsafe {
                $crate::sys::direct::redirect_device::xmit::<$receiver>(receiver, n, frames, flags)
            }
        }
    };
}
pub(crate) use serve;
