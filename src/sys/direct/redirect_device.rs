// SPDX-License-Identifier: GPL-2.0

//! Redirect devices: network devices to which XDP programs redirect the frames of one NIC each.
//!
//! Their names are kopirx and a number. They have no queue and no addresses, and send nothing.
//!
//! C headers: `include/linux/netdevice.h`, `include/net/xdp.h`

use super::redirected::XdpFrame;
use crate::sys::{
    bindings,
    context::SoftirqsOff,
    netdev::{Device, Rtnl},
    raw, //
};
use core::{
    ptr::NonNull,
    slice, //
};
use kernel::{error::to_result, prelude::*};

/// The receiver of a redirect device's frames.
pub(crate) trait FrameReceiver: Send + Sync + 'static {
    /// The NIC whose XDP program redirects the frames.
    fn device(&self) -> &Device;

    /// Makes the program redirect to the device of this index. Under RTNL.
    fn redirect_to(&self, ifindex: u32);

    /// The redirect device takes frames now: `ENOMEM`. Under RTNL.
    fn open(&self) -> Result;

    /// The redirect device goes down. Under RTNL.
    fn close(&self);

    /// The device's `ndo_xdp_xmit`. Takes all frames, or returns `false` and takes none. `last` is
    /// XDP_XMIT_FLUSH: no more frames come in this NAPI poll. Softirqs are off.
    fn xdp_xmit(
        &self,
        frames: impl Iterator<Item = XdpFrame>,
        last: bool,
        softirqs: &SoftirqsOff,
    ) -> bool;
}

/// A redirect device.
///
/// # Invariants
///
/// The device is registered in the NIC's namespace, which it can't leave. Its private data point to
/// the receiver.
pub(crate) struct RedirectDevice<R: FrameReceiver> {
    dev: NonNull<bindings::net_device>,
    receiver: KBox<R>,
}

// SAFETY: A device is not bound to a task, and a receiver is `Send`.
unsafe impl<R: FrameReceiver> Send for RedirectDevice<R> {}
// SAFETY: Through a shared reference, the device's state is only read, as any task may, and a
// receiver is `Sync`.
unsafe impl<R: FrameReceiver> Sync for RedirectDevice<R> {}

impl<R: FrameReceiver> RedirectDevice<R> {
    /// Makes a redirect device and brings it up: `ENOMEM`, or the kernel's own refusal.
    pub(crate) fn new(receiver: R, _rtnl: &Rtnl) -> Result<Self> {
        let receiver = KBox::new(receiver, GFP_KERNEL_ACCOUNT)?;
        let data = core::ptr::from_ref::<R>(&receiver).cast_mut().cast();
        let net = receiver.device().net().as_ptr();
        // SAFETY: The NIC, which the receiver holds, keeps its namespace. The receiver's box
        // outlives the device: `drop` unregisters the device before fields are dropped.
        let dev = NonNull::new(unsafe { bindings::kopi_redirect_new(net, data) }).ok_or(ENOMEM)?;
        // SAFETY: The device was just made, and is freed if it can't be registered. RTNL is held.
        unsafe {
            to_result(bindings::register_netdevice(dev.as_ptr()))
                .inspect_err(|_| bindings::free_netdev(dev.as_ptr()))?;
        }
        // INVARIANT: Just registered in the NIC's namespace, with the receiver.
        let device = Self { dev, receiver };
        device.receiver.redirect_to(device.ifindex());
        // SAFETY: The device is registered, and RTNL is held.
        to_result(unsafe { bindings::dev_open(dev.as_ptr(), core::ptr::null_mut()) })?;
        // Once more, to know whether there is memory for it.
        reopen(&*device.receiver)?;
        Ok(device)
    }

    /// Lets the receiver decide anew whether it takes frames, after the NIC's features have
    /// changed. Under RTNL.
    pub(crate) fn follow(&self) {
        if !self.is_up() {
            self.receiver.close();
        } else if reopen(&*self.receiver).is_err() {
            pr_debug!("a device doesn't take frames: no memory\n");
        }
    }

    /// The index of the redirect device.
    fn ifindex(&self) -> u32 {
        // SAFETY: The device is registered, by the invariants.
        unsafe { bindings::kopi_dev_ifindex(self.dev.as_ptr()) as u32 }
    }

    /// Whether it is up, and so takes frames.
    pub(crate) fn is_up(&self) -> bool {
        // SAFETY: The device is registered, by the invariants.
        unsafe { bindings::kopi_dev_is_up(self.dev.as_ptr()) }
    }
}

impl<R: FrameReceiver> Drop for RedirectDevice<R> {
    fn drop(&mut self) {
        // SAFETY: The device is registered, and RTNL is held wherever a device is detached. The
        // call takes it down first, and its operations are not called any more when it returns.
        unsafe { bindings::unregister_netdevice_queue(self.dev.as_ptr(), core::ptr::null_mut()) };
    }
}

/// Has a receiver decide anew whether it takes frames: `ENOMEM`. Under RTNL.
fn reopen(receiver: &impl FrameReceiver) -> Result {
    receiver.close();
    receiver.open()
}

/// The body of `kopi_redirect_up`.
///
/// # Safety
///
/// Must be called under RTNL, when a [`RedirectDevice<R>`] with this receiver has come up.
pub(crate) unsafe fn up<R: FrameReceiver>(receiver: *mut c_void) {
    // SAFETY: The caller passes the receiver of a device, which outlives the device.
    let opened = unsafe { reopen(&*receiver.cast::<R>()) };
    if opened.is_err() {
        pr_debug!("a device doesn't take frames: no memory\n");
    }
}

/// The body of `kopi_redirect_stop`.
///
/// # Safety
///
/// Must be called under RTNL, when a [`RedirectDevice<R>`] with this receiver goes down.
pub(crate) unsafe fn stop<R: FrameReceiver>(receiver: *mut c_void) {
    // SAFETY: The caller passes the receiver of a device, which outlives the device. RTNL implies
    // process context, where the grace period may be waited for.
    unsafe {
        (*receiver.cast::<R>()).close();
        // Wait for programs that still redirect frames to the device.
        bindings::synchronize_net();
    }
}

/// The body of `kopi_redirect_xmit`.
///
/// # Safety
///
/// Must be called with `n` frames for a [`RedirectDevice<R>`] with this receiver, in a NAPI poll.
pub(crate) unsafe fn xmit<R: FrameReceiver>(
    receiver: *mut c_void,
    n: c_int,
    frames: *mut *mut raw::Frame,
    flags: u32,
) -> c_int {
    // SAFETY: The caller passes `n` frames. They are the device's once it takes them; if the
    // receiver refuses, it hasn't made any of the iterator's `XdpFrame`s. NAPI has softirqs off. A device gets only
    // contiguous frames unless it sets NETDEV_XDP_ACT_NDO_XMIT_SG. The receiver outlives its device.
    unsafe {
        let receiver = &*receiver.cast::<R>();
        let frames = slice::from_raw_parts(frames, usize::try_from(n).unwrap_or(0));
        let owned = frames
            .iter()
            .filter_map(|frame| NonNull::new(*frame))
            .map(|frame| XdpFrame::from_raw(frame));
        let last = flags & bindings::XDP_XMIT_FLUSH != 0;
        if receiver.xdp_xmit(owned, last, SoftirqsOff::assume()) {
            n
        } else {
            0
        }
    }
}

/// Defines the functions that C calls, for the one receiver type of [`RedirectDevice`]s.
macro_rules! serve {
    ($receiver:ty) => {
        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C calls it, when the device is up")]
        unsafe extern "C" fn kopi_redirect_up(receiver: *mut c_void) {
            // SAFETY: C calls it under RTNL, with the receiver of the device that has come up.
            unsafe { $crate::sys::direct::redirect_device::up::<$receiver>(receiver) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C calls it, as an operation of the device")]
        unsafe extern "C" fn kopi_redirect_stop(receiver: *mut c_void) {
            // SAFETY: C calls it under RTNL, with the receiver of the device that goes down.
            unsafe { $crate::sys::direct::redirect_device::stop::<$receiver>(receiver) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C calls it, as an operation of the device")]
        unsafe extern "C" fn kopi_redirect_xmit(
            receiver: *mut c_void,
            n: c_int,
            frames: *mut *mut $crate::sys::raw::Frame,
            flags: u32,
        ) -> c_int {
            // SAFETY: C calls it in a NAPI poll, with the receiver of the device and `n` frames.
            unsafe {
                $crate::sys::direct::redirect_device::xmit::<$receiver>(receiver, n, frames, flags)
            }
        }
    };
}
pub(crate) use serve;
