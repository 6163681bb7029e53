// SPDX-License-Identifier: GPL-2.0

//! Network devices that XDP programs redirect to: each takes what one NIC received.
//!
//! They are named kopirx and a number, have no queue and no addresses, and send nothing.
//!
//! C headers: `include/linux/netdevice.h`, `include/net/xdp.h`

use super::incoming::Frame;
use crate::bindings;
use crate::redirect::Receiver;
use core::{
    ptr::NonNull,
    slice, //
};
use kernel::{error::to_result, prelude::*};

/// A device.
///
/// # Invariants
///
/// Registered, in the NIC's namespace, which it can't leave; it knows the receiver.
pub(crate) struct RedirectDevice {
    dev: NonNull<bindings::net_device>,
    receiver: KBox<Receiver>,
}

// SAFETY: A device is not bound to a task.
unsafe impl Send for RedirectDevice {}
// SAFETY: What is done with a shared one is done by the kernel's own rules.
unsafe impl Sync for RedirectDevice {}

impl RedirectDevice {
    /// Makes one, and has it up: `ENOMEM`, or whatever it is refused for. Under RTNL.
    pub(crate) fn new(receiver: Receiver) -> Result<Self> {
        let receiver = KBox::new(receiver, GFP_KERNEL_ACCOUNT)?;
        let data = core::ptr::from_ref::<Receiver>(&receiver).cast_mut().cast();
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
        target.receiver.wanted().send_to(target.ifindex());
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

impl Drop for RedirectDevice {
    fn drop(&mut self) {
        // SAFETY: Registered; RTNL is held wherever ports are taken away. It goes down before, and nobody calls
        // its operations any more afterwards.
        unsafe { bindings::unregister_netdevice_queue(self.dev.as_ptr(), core::ptr::null_mut()) };
    }
}

/// # Safety
///
/// To be called by the kernel only, under RTNL, when a device of such a receiver comes up.
#[no_mangle]
unsafe extern "C" fn kopi_target_open(receiver: *mut c_void) -> c_int {
    // SAFETY: The receiver outlives its device.
    let opened = unsafe { (*receiver.cast::<Receiver>()).open() };
    opened.map_or_else(|error| error.to_errno(), |()| 0)
}

/// # Safety
///
/// To be called by the kernel only, under RTNL, when a device of such a receiver goes down.
#[no_mangle]
unsafe extern "C" fn kopi_target_stop(receiver: *mut c_void) {
    // SAFETY: The receiver outlives its device. Process context.
    unsafe {
        (*receiver.cast::<Receiver>()).close();
        // No program has seen them wanted any more when it goes down.
        bindings::synchronize_net();
    }
}

/// # Safety
///
/// To be called by the kernel only, with frames for a device of such a receiver, in NAPI's context.
#[no_mangle]
unsafe extern "C" fn kopi_target_xmit(
    receiver: *mut c_void,
    n: c_int,
    frames: *mut *mut bindings::xdp_frame,
    flags: u32,
) -> c_int {
    // SAFETY: So many frames, which are the device's from now on, but those that it doesn't take; devices
    // that don't say so get none in several pieces. All are dropped before the last call returns, which is said to
    // be it. The receiver outlives its device.
    unsafe {
        let receiver = &*receiver.cast::<Receiver>();
        let frames = slice::from_raw_parts(frames, usize::try_from(n).unwrap_or(0));
        let owned = frames
            .iter()
            .filter_map(|frame| NonNull::new(*frame))
            .map(|frame| Frame::from_raw(frame));
        if receiver.came(owned, flags & bindings::XDP_XMIT_FLUSH != 0) {
            n
        } else {
            0
        }
    }
}
