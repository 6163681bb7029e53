// SPDX-License-Identifier: GPL-2.0

//! Network devices: what leaves by them, and when they go.
//!
//! C headers: `include/linux/netdevice.h`, `include/linux/netfilter_netdev.h`

use super::bindings;
use super::{
    direct::egress::EgressSkb,
    pernet::NetRef, //
};
use core::ptr::NonNull;
use kernel::{error::to_result, prelude::*, sync::rcu, types::Opaque};

/// A device.
///
/// # Invariants
///
/// A reference to it is this value's.
pub(crate) struct Device(NonNull<bindings::net_device>);

// SAFETY: A device is not bound to a task.
unsafe impl Send for Device {}
// SAFETY: What is done with a shared one is done by the kernel's own rules.
unsafe impl Sync for Device {}

impl Device {
    /// That of a number: `ENODEV`. Any context.
    pub(crate) fn get(net: &NetRef, ifindex: u32) -> Result<Self> {
        let ifindex = i32::try_from(ifindex).map_err(|_| ENODEV)?;
        // SAFETY: A valid namespace; gives a reference.
        let dev = unsafe { bindings::kopi_dev_get_by_index(net.as_ptr(), ifindex) };
        // INVARIANT: The reference is this value's.
        NonNull::new(dev).map(Self).ok_or(ENODEV)
    }

    pub(super) fn as_ptr(&self) -> *mut bindings::net_device {
        self.0.as_ptr()
    }

    /// Its number.
    pub(crate) fn ifindex(&self) -> u32 {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_dev_ifindex(self.as_ptr()) as u32 }
    }

    /// Its network namespace; the caller holds RTNL, or the device can't leave it.
    pub(crate) fn net(&self) -> &NetRef {
        // SAFETY: A device keeps its namespace.
        unsafe { NetRef::from_raw(bindings::kopi_dev_net(self.as_ptr())) }
    }

    /// Whether it is there, and of Ethernet. Under RTNL.
    pub(crate) fn is_ethernet(&self) -> bool {
        // SAFETY: By the invariants.
        unsafe {
            bindings::kopi_dev_is_registered(self.as_ptr())
                && bindings::kopi_dev_is_ethernet(self.as_ptr())
        }
    }

    /// Whether it has hardware and a driver of its own, and is made of no other devices. Under RTNL.
    pub(crate) fn is_nic(&self) -> bool {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_dev_is_nic(self.as_ptr()) }
    }

    /// Whether it is up, there, and has a carrier. Any context.
    pub(crate) fn is_ready(&self) -> bool {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_dev_is_ready(self.as_ptr()) }
    }

    /// Whether a frame of so many bytes isn't too long for it. Any context.
    pub(crate) fn takes_length(&self, len: u32) -> bool {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_dev_takes_length(self.as_ptr(), len) }
    }

    /// Whether its driver can be given frames, now or after an XDP program is attached.
    pub(crate) fn has_driver(&self) -> bool {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_dev_has_xdp_xmit(self.as_ptr()) }
    }

    /// Whether its driver takes frames now. Any context.
    pub(crate) fn takes_frames(&self) -> bool {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_dev_can_xdp_xmit(self.as_ptr()) }
    }

    /// Whether it takes the tags of VLANs off what it receives, and tells them otherwise.
    pub(crate) fn strips_vlans(&self) -> bool {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_dev_strips_vlans(self.as_ptr()) }
    }

    /// Whether its driver runs an XDP program of this name now. Any context.
    pub(crate) fn runs(&self, name: &CStr) -> bool {
        let _rcu = rcu::read_lock();
        // SAFETY: By the invariants; programs are freed by RCU.
        unsafe { bindings::kopi_dev_runs(self.as_ptr(), name.as_char_ptr()) }
    }

    /// Whether what it receives is to be coalesced to GRO packets.
    pub(crate) fn merges_received(&self) -> bool {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_dev_merges_received(self.as_ptr()) }
    }

    /// Whether this egress hook is the last of all. In an RCU read-side section.
    pub(crate) fn asks_last<T: Egress>(&self, hook: &T) -> bool {
        let data = core::ptr::from_ref(hook).cast_mut().cast();
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_egress_is_last(self.as_ptr(), data) }
    }

    /// Whether tc has something to say about what leaves. Any context.
    pub(crate) fn has_tc_egress(&self) -> bool {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_dev_has_tcx_egress(self.as_ptr()) }
    }

    /// Whether anybody looks at what leaves. In an RCU read-side section.
    pub(crate) fn is_tapped(&self) -> bool {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_dev_nit_active(self.as_ptr()) }
    }

    /// Number of its transmit queues that are used.
    pub(crate) fn queues(&self) -> u32 {
        // SAFETY: By the invariants.
        unsafe { bindings::kopi_dev_real_num_tx_queues(self.as_ptr()) }
    }

    /// Whether the stack, too, would have a packet leave by any of its queues without waiting. Softirqs
    /// are off.
    pub(crate) fn queues_can_be_bypassed(&self) -> bool {
        (0..self.queues()).all(|index| {
            // SAFETY: A queue that it has; softirqs are off.
            unsafe { bindings::kopi_txq_can_bypass(self.as_ptr(), index) }
        })
    }

    /// Has the driver tell the device of what it was given. Softirqs are off.
    pub(crate) fn flush(&self) {
        self.call(bindings::XDP_XMIT_FLUSH);
    }

    /// Has the driver free what has left. Softirqs are off.
    pub(crate) fn reap(&self) {
        self.call(0);
    }

    fn call(&self, flags: u32) {
        // SAFETY: No frames; softirqs are off. Nothing is done if the device isn't ready.
        unsafe {
            bindings::kopi_dev_xdp_xmit(self.as_ptr(), 0, core::ptr::null_mut(), flags);
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: The reference is this value's.
        unsafe { bindings::kopi_dev_put(self.as_ptr()) };
    }
}

/// Keeps devices as they are while it lives.
pub(crate) struct Rtnl(());

impl Rtnl {
    /// Waits for it. Process context.
    pub(crate) fn lock() -> Self {
        // SAFETY: Process context; undone in `drop`.
        unsafe { bindings::kopi_rtnl_lock() };
        Self(())
    }
}

impl Drop for Rtnl {
    fn drop(&mut self) {
        // SAFETY: Undoes the call in `lock`.
        unsafe { bindings::kopi_rtnl_unlock() };
    }
}

/// What becomes of a packet.
pub(crate) enum Verdict {
    /// The stack goes on with it.
    Pass,
    /// The hook has taken it.
    Taken,
}

/// An egress hook: it sees all that leaves by its device, behind all other hooks.
pub(crate) trait Egress: Send + Sync + 'static {
    /// The device.
    fn device(&self) -> &Device;

    /// A packet is about to leave. Softirqs are off, in an RCU read-side section.
    fn egress(&self, packet: EgressSkb<'_>) -> Verdict;
}

/// A registered egress hook.
pub(crate) struct Hooked<T: Egress> {
    /// Goes first.
    _hook: Hook,
    hook: KBox<T>,
}

impl<T: Egress> Hooked<T> {
    /// Registers it: `ENOMEM`. Under RTNL; it must be dropped before the device leaves its namespace.
    pub(crate) fn new(hook: T) -> Result<Self> {
        let hook = KBox::new(hook, GFP_KERNEL_ACCOUNT)?;
        // SAFETY: Zeroes are valid until it is initialised.
        let ops: bindings::nf_hook_ops = unsafe { core::mem::zeroed() };
        let mut ops = KBox::new(ops, GFP_KERNEL_ACCOUNT)?;
        let device = hook.device();
        let net = device.net().as_ptr();
        let data = core::ptr::from_ref::<T>(&hook).cast_mut().cast();
        ops.hook = Some(egress::<T>);
        ops.dev = device.as_ptr();
        ops.priv_ = data;
        ops.pf = bindings::NFPROTO_NETDEV as u8;
        ops.hooknum = bindings::nf_dev_hooks_NF_NETDEV_EGRESS;
        // Behind all others.
        ops.priority = i32::MAX;
        // SAFETY: The operations, the device and the hook outlive the registration.
        unsafe {
            to_result(bindings::nf_register_net_hook(net, &*ops))?;
        }
        Ok(Self {
            _hook: Hook { net, ops },
            hook,
        })
    }

    /// The hook.
    pub(crate) fn get(&self) -> &T {
        &self.hook
    }
}

/// A registered hook.
///
/// # Invariants
///
/// Registered in the namespace, which lives, with these operations.
struct Hook {
    net: *mut bindings::net,
    ops: KBox<bindings::nf_hook_ops>,
}

// SAFETY: A hook is not bound to a task.
unsafe impl Send for Hook {}

impl Drop for Hook {
    fn drop(&mut self) {
        // SAFETY: By the invariants; nobody is in the hook after the second call.
        unsafe {
            bindings::nf_unregister_net_hook(self.net, &*self.ops);
            bindings::synchronize_net();
        }
    }
}

/// # Safety
///
/// To be called by the kernel only, as the hook that it is set as.
unsafe extern "C" fn egress<T: Egress>(
    hook: *mut c_void,
    skb: *mut bindings::sk_buff,
    _state: *const bindings::nf_hook_state,
) -> c_uint {
    // SAFETY: The hook outlives its registration. Softirqs are off, and RCU is held.
    let verdict = unsafe {
        match NonNull::new(skb) {
            Some(skb) => (*hook.cast::<T>()).egress(EgressSkb::from_raw(skb)),
            None => Verdict::Pass,
        }
    };
    match verdict {
        Verdict::Pass => bindings::NF_ACCEPT,
        Verdict::Taken => bindings::NF_STOLEN,
    }
}

/// What a [`Timer`] polls.
pub(crate) trait Polled: Send + Sync + 'static {
    /// Frees what has left, when the timer expires. Softirqs are off.
    fn reap(&self);

    /// Does what there is to do, and says in how many nanoseconds it is to be polled again, if at all.
    /// Softirqs are off.
    fn poll(&self) -> Option<u64>;
}

/// A queue, with a timer that polls it until there is nothing to do.
#[pin_data(PinnedDrop)]
pub(crate) struct Timer<Q: Polled> {
    #[pin]
    timer: Opaque<bindings::hrtimer>,
    #[pin]
    pub(crate) queue: Q,
}

// SAFETY: The kernel's own locks guard the timer, which is not bound to a task.
unsafe impl<Q: Polled> Send for Timer<Q> {}
// SAFETY: As above.
unsafe impl<Q: Polled> Sync for Timer<Q> {}

impl<Q: Polled> Timer<Q> {
    /// With a timer that isn't running.
    pub(crate) fn new(queue: impl PinInit<Q, Error>) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            // SAFETY: Memory of that type, which doesn't move.
            timer <- Opaque::ffi_init(|timer| unsafe {
                bindings::kopi_hrtimer_setup(timer, Some(expired::<Q>));
            }),
            queue <- queue,
        })
    }

    /// Polls the queue, and once more after some time if there is something left, on this CPU: the
    /// queue's own. Softirqs are off.
    pub(crate) fn poll(&self) {
        if let Some(time) = self.queue.poll() {
            // SAFETY: Initialised, and stopped before it goes.
            unsafe { bindings::kopi_hrtimer_start(self.timer.get(), time) };
        }
    }
}

#[pinned_drop]
impl<Q: Polled> PinnedDrop for Timer<Q> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Process context; nothing polls the queue any more but the timer, which doesn't start
        // itself again once there is nothing left.
        unsafe { bindings::kopi_hrtimer_cancel(self.timer.get()) };
    }
}

/// # Safety
///
/// To be called by the kernel only, by a timer of [`Timer`].
unsafe extern "C" fn expired<Q: Polled>(
    timer: *mut bindings::hrtimer,
) -> bindings::hrtimer_restart {
    let timer = timer.cast::<Opaque<bindings::hrtimer>>();
    // SAFETY: The timer is part of a `Timer`, which outlives it.
    let expired = unsafe { &*kernel::container_of!(timer, Timer<Q>, timer) };
    expired.queue.reap();
    expired.poll();
    // It is started again by `poll`.
    bindings::hrtimer_restart_HRTIMER_NORESTART
}

/// Who hears of devices.
pub(crate) trait DeviceEvents {
    /// The device that `is_it` is true of goes, or leaves its namespace. Under RTNL.
    fn going(is_it: impl Fn(&Device) -> bool);

    /// It has gone down. Under RTNL.
    fn down(is_it: impl Fn(&Device) -> bool);

    /// Its features have changed. Under RTNL.
    fn changed(is_it: impl Fn(&Device) -> bool);
}

/// While it lives, [`DeviceEvents`] are called.
pub(crate) struct Registration(());

impl Registration {
    /// Begins to listen. There can be one registration at a time.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: Process context; what is registered is static.
        to_result(unsafe { bindings::kopi_netdev_register() })?;
        Ok(Self(()))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: Registered by `new`. It tells of all devices that they go.
        unsafe { bindings::kopi_netdev_unregister() };
    }
}

/// A `struct net_device`, as C's functions have it.
pub(crate) type RawDevice = bindings::net_device;

/// Whether a device is this one.
pub(crate) fn is(device: &Device, raw: *mut RawDevice) -> bool {
    device.as_ptr() == raw
}

/// Defines the functions that C's notifier calls, for a type that implements [`DeviceEvents`].
macro_rules! serve {
    ($events:ty) => {
        #[no_mangle]
        #[expect(unsafe_code, reason = "C's notifier calls it")]
        extern "C" fn kopi_device_going(dev: *mut $crate::sys::netdev::RawDevice) {
            <$events as $crate::sys::netdev::DeviceEvents>::going(|device| {
                $crate::sys::netdev::is(device, dev)
            });
        }

        #[no_mangle]
        #[expect(unsafe_code, reason = "C's notifier calls it")]
        extern "C" fn kopi_device_down(dev: *mut $crate::sys::netdev::RawDevice) {
            <$events as $crate::sys::netdev::DeviceEvents>::down(|device| {
                $crate::sys::netdev::is(device, dev)
            });
        }

        #[no_mangle]
        #[expect(unsafe_code, reason = "C's notifier calls it")]
        extern "C" fn kopi_device_changed(dev: *mut $crate::sys::netdev::RawDevice) {
            <$events as $crate::sys::netdev::DeviceEvents>::changed(|device| {
                $crate::sys::netdev::is(device, dev)
            });
        }
    };
}
pub(crate) use serve;
