// SPDX-License-Identifier: GPL-2.0

//! Network devices: their properties, an egress hook, polled queues, and device events.
//!
//! C headers: `include/linux/netdevice.h`, `include/linux/netfilter_netdev.h`

use super::{
    bindings,
    context::{might_sleep, SoftirqsOff},
    direct::egress::EgressSkb,
    pernet::NetRef,
    raw, //
};
use core::ptr::NonNull;
use kernel::{error::to_result, prelude::*, sync::rcu, types::Opaque};

/// A network device.
///
/// # Invariants
///
/// This value owns a reference to the device, which keeps its memory. The device may be
/// unregistered.
pub(crate) struct Device(NonNull<bindings::net_device>);

// SAFETY: A reference to a device is not bound to a task.
unsafe impl Send for Device {}
// SAFETY: The methods read fields of the device, or call functions that take the kernel's own
// locks, so any number of tasks may call them at once.
unsafe impl Sync for Device {}

impl Device {
    /// The device of an interface index in a namespace: `ENODEV`. Any context.
    pub(crate) fn get(net: &NetRef, ifindex: u32) -> Result<Self> {
        let ifindex = i32::try_from(ifindex).map_err(|_| ENODEV)?;
        // SAFETY: The namespace is borrowed, and so lives. The call gives a reference.
        let dev = unsafe { bindings::dev_get_by_index(net.as_ptr(), ifindex) };
        // INVARIANT: The reference is this value's.
        NonNull::new(dev).map(Self).ok_or(ENODEV)
    }

    pub(super) fn as_ptr(&self) -> *mut bindings::net_device {
        self.0.as_ptr()
    }

    /// Its interface index.
    pub(crate) fn ifindex(&self) -> u32 {
        // SAFETY: The reference keeps the device's memory. The call only reads fields of it.
        unsafe { bindings::kopi_dev_ifindex(self.as_ptr()) as u32 }
    }

    /// Its network namespace. The caller holds RTNL, or the device can't leave the namespace: it is
    /// attached, and is detached before it leaves.
    pub(crate) fn net(&self) -> &NetRef {
        // SAFETY: A namespace outlives the devices in it, and the device can't leave it meanwhile.
        unsafe { NetRef::from_raw(bindings::kopi_dev_net(self.as_ptr())) }
    }

    /// Whether it is registered and an Ethernet device.
    pub(crate) fn is_ethernet(&self, _rtnl: &Rtnl) -> bool {
        // SAFETY: The reference keeps the device's memory. The call only reads fields of it.
        unsafe {
            bindings::kopi_dev_is_registered(self.as_ptr())
                && bindings::kopi_dev_is_ethernet(self.as_ptr())
        }
    }

    /// Whether it has hardware and a driver of its own, and doesn't consist of other devices.
    pub(crate) fn is_nic(&self, _rtnl: &Rtnl) -> bool {
        // SAFETY: The reference keeps the device's memory. RTNL keeps a device that is registered with
        // its parent and driver, and its list of lower devices as it is.
        unsafe { bindings::kopi_dev_is_nic(self.as_ptr()) }
    }

    /// Whether it is up, present, and has a carrier. Any context.
    pub(crate) fn is_ready(&self) -> bool {
        // SAFETY: The reference keeps the device's memory. The call only reads fields of it.
        unsafe { bindings::kopi_dev_is_ready(self.as_ptr()) }
    }

    /// Whether it can send a frame of `len` bytes. Any context.
    pub(crate) fn fits_mtu(&self, len: u32) -> bool {
        // SAFETY: The reference keeps the device's memory. The call only reads fields of it.
        unsafe { bindings::kopi_dev_fits_mtu(self.as_ptr(), len) }
    }

    /// Whether its driver has this name.
    pub(crate) fn is_driven_by(&self, name: &CStr, _rtnl: &Rtnl) -> bool {
        // SAFETY: The reference keeps the device's memory. RTNL, which the argument proves to be
        // held, keeps a device that is registered with its parent and driver.
        unsafe { bindings::kopi_dev_is_driven_by(self.as_ptr(), name.as_char_ptr()) }
    }

    /// Whether its driver takes frames, now or once an XDP program is attached.
    pub(crate) fn has_xdp_xmit(&self) -> bool {
        // SAFETY: The reference keeps the device's memory. The call only reads fields of it.
        unsafe { bindings::kopi_dev_has_xdp_xmit(self.as_ptr()) }
    }

    /// Whether its driver takes frames now. Any context.
    pub(crate) fn takes_frames(&self) -> bool {
        // SAFETY: The reference keeps the device's memory. The call only reads fields of it.
        unsafe { bindings::kopi_dev_can_xdp_xmit(self.as_ptr()) }
    }

    /// Whether its driver has no queue for frames of some CPU, and would take one all the same. Of a
    /// device that is ready.
    pub(crate) fn lacks_queues(&self, _softirqs: &SoftirqsOff) -> bool {
        // SAFETY: The reference keeps the device's memory. A device that is ready is registered, and
        // keeps its parent and driver as long as softirqs are off.
        unsafe { bindings::kopi_dev_lacks_queues(self.as_ptr()) }
    }

    /// Whether it strips VLAN tags from received frames, and reports them out of band.
    pub(crate) fn strips_vlans(&self) -> bool {
        // SAFETY: The reference keeps the device's memory. The call only reads fields of it.
        unsafe { bindings::kopi_dev_strips_vlans(self.as_ptr()) }
    }

    /// Whether its driver runs an XDP program of this name now. Any context.
    pub(crate) fn runs_xdp(&self, name: &CStr) -> bool {
        let _rcu = rcu::read_lock();
        // SAFETY: The reference keeps the device's memory. RCU, held here, keeps the program.
        unsafe { bindings::kopi_dev_runs_xdp(self.as_ptr(), name.as_char_ptr()) }
    }

    /// Whether generic receive offload is on.
    pub(crate) fn has_gro(&self) -> bool {
        // SAFETY: The reference keeps the device's memory. The call only reads fields of it.
        unsafe { bindings::kopi_dev_has_gro(self.as_ptr()) }
    }

    /// Whether this egress hook is the device's last one.
    pub(crate) fn is_last_hook<T: Egress>(&self, hook: &T, _softirqs: &SoftirqsOff) -> bool {
        let data = core::ptr::from_ref(hook).cast_mut().cast();
        // SAFETY: The reference keeps the device's memory. The list of hooks stays as long as softirqs
        // are off. `data` is only compared.
        unsafe { bindings::kopi_egress_is_last(self.as_ptr(), data) }
    }

    /// Whether tc has filters or programs for outgoing packets. Any context.
    pub(crate) fn has_tc_egress(&self) -> bool {
        // SAFETY: The reference keeps the device's memory. The call only reads fields of it.
        unsafe { bindings::kopi_dev_has_tcx_egress(self.as_ptr()) }
    }

    /// Whether a packet socket sees outgoing packets.
    pub(crate) fn is_tapped(&self, _softirqs: &SoftirqsOff) -> bool {
        // SAFETY: The reference keeps the device's memory, and with it the namespace's fields. The call
        // takes softirqs that are off for RCU.
        unsafe { bindings::dev_nit_active_rcu(self.as_ptr()) }
    }

    /// Number of transmit queues in use.
    pub(crate) fn queues(&self) -> u32 {
        // SAFETY: The reference keeps the device's memory. The call only reads fields of it.
        unsafe { bindings::kopi_dev_real_num_tx_queues(self.as_ptr()) }
    }

    /// Whether the stack would let a packet bypass the qdisc of each transmit queue, and its priority
    /// doesn't choose the queue.
    pub(crate) fn queues_can_be_bypassed(&self, _softirqs: &SoftirqsOff) -> bool {
        // SAFETY: The reference keeps the device's memory. Its root qdisc stays as long as softirqs are
        // off.
        let has_classes = unsafe { bindings::kopi_dev_has_classes(self.as_ptr()) };
        let mut queues = 0..self.queues();
        !has_classes
            && queues.all(|index| {
                // SAFETY: `index` is below the number of queues in use. The qdisc stays as long as
                // softirqs are off.
                unsafe { bindings::kopi_txq_can_bypass(self.as_ptr(), index) }
            })
    }

    /// Makes the driver tell the device to send the frames that the driver was given.
    pub(crate) fn flush(&self, softirqs: &SoftirqsOff) {
        self.call(bindings::XDP_XMIT_FLUSH, softirqs);
    }

    /// Makes the driver free the frames that were sent.
    pub(crate) fn reap(&self, softirqs: &SoftirqsOff) {
        self.call(0, softirqs);
    }

    /// Calls the driver's `ndo_xdp_xmit` without frames.
    fn call(&self, flags: u32, _softirqs: &SoftirqsOff) {
        // SAFETY: There are no frames, so the array isn't read. Softirqs are off, as the argument
        // proves. C checks that the device is ready, and that its driver takes frames now.
        unsafe {
            bindings::kopi_dev_xdp_xmit(self.as_ptr(), 0, core::ptr::null_mut(), flags);
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: This value owns the reference, and is not used any more.
        unsafe { bindings::kopi_dev_put(self.as_ptr()) };
    }
}

/// RTNL is held while this value lives, so devices keep their configuration.
pub(crate) struct Rtnl(());

impl Rtnl {
    /// Takes RTNL. Process context.
    pub(crate) fn lock() -> Self {
        // SAFETY: The caller is in process context, where the mutex may be waited for. `drop`
        // releases it.
        unsafe { bindings::rtnl_lock() };
        Self(())
    }
}

impl Drop for Rtnl {
    fn drop(&mut self) {
        // SAFETY: `lock` took the mutex, and only this value releases it.
        unsafe { bindings::rtnl_unlock() };
    }
}

/// An egress hook's verdict on a packet.
pub(crate) enum EgressVerdict {
    /// The stack continues with it.
    Pass,
    /// The hook has taken it.
    Taken,
}

/// An egress hook: it sees all packets that leave by its device, after all other hooks.
pub(crate) trait Egress: Send + Sync + 'static {
    /// The device.
    fn device(&self) -> &Device;

    /// Judges a packet that is about to leave. In an RCU read-side section.
    fn egress(&self, packet: EgressSkb<'_>, softirqs: &SoftirqsOff) -> EgressVerdict;
}

/// The only egress hook of a device, if this is a `T`.
///
/// # Safety
///
/// The device must be valid. The caller must be in an RCU read-side section for `'a`.
pub(super) unsafe fn only_hook<'a, T: Egress>(dev: *const bindings::net_device) -> Option<&'a T> {
    let function = egress::<T> as *const c_void;
    // SAFETY: The caller passes a valid device, under RCU. A hook with this function has a `T` as
    // its private data, which outlives the registration and a grace period after it.
    unsafe {
        bindings::kopi_egress_only(dev, function)
            .cast::<T>()
            .as_ref()
    }
}

/// A registered egress hook.
pub(crate) struct Hooked<T: Egress> {
    /// Dropped first: it ends the calls of `hook`.
    _hook: Hook,
    hook: KBox<T>,
}

impl<T: Egress> Hooked<T> {
    /// Registers a hook: `ENOMEM`. The result must be dropped before the device leaves its namespace.
    pub(crate) fn new(hook: T, _rtnl: &Rtnl) -> Result<Self> {
        might_sleep();
        let hook = KBox::new(hook, GFP_KERNEL_ACCOUNT)?;
        // SAFETY: The struct holds integers, raw pointers and an `Option` of a function, for which
        // zeroes are valid.
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
        // SAFETY: The boxes of the operations and of the hook, which holds the device, are fields
        // that are dropped after `_hook`, which ends the registration.
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

/// The registration of a hook.
///
/// # Invariants
///
/// The operations are registered in the namespace, which lives.
struct Hook {
    net: *mut bindings::net,
    ops: KBox<bindings::nf_hook_ops>,
}

// SAFETY: A registration is not bound to a task: any may end it.
unsafe impl Send for Hook {}

impl Drop for Hook {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: The operations are registered in a live namespace, by the invariants. The second
        // call waits for the hook's callers, so the hook isn't used any more afterwards.
        unsafe {
            bindings::nf_unregister_net_hook(self.net, &*self.ops);
            bindings::synchronize_net();
        }
    }
}

/// # Safety
///
/// Only the kernel may call it, as the function of a [`Hooked<T>`]'s operations.
unsafe extern "C" fn egress<T: Egress>(
    hook: *mut c_void,
    skb: *mut bindings::sk_buff,
    _state: *const bindings::nf_hook_state,
) -> c_uint {
    // SAFETY: `hook` is the private pointer of the operations: a hook that outlives its
    // registration. The kernel calls egress hooks with a valid skb, softirqs off, and RCU held.
    let verdict = unsafe {
        match NonNull::new(skb) {
            Some(skb) => {
                (*hook.cast::<T>()).egress(EgressSkb::from_raw(skb), SoftirqsOff::assume())
            }
            None => EgressVerdict::Pass,
        }
    };
    match verdict {
        EgressVerdict::Pass => bindings::NF_ACCEPT,
        EgressVerdict::Taken => bindings::NF_STOLEN,
    }
}

/// A queue that a [`Timer`] polls.
pub(crate) trait Polled: Send + Sync + 'static {
    /// Makes the driver free the frames that were sent. Called when the timer has expired, before
    /// [`Self::poll`].
    fn on_expiry(&self, softirqs: &SoftirqsOff);

    /// Processes the queue. Returns in how many nanoseconds the timer is to expire, if it has to be
    /// started anew.
    fn poll(&self, softirqs: &SoftirqsOff) -> Option<u64>;
}

/// A queue, with a timer that polls it.
#[pin_data(PinnedDrop)]
pub(crate) struct Timer<Q: Polled> {
    #[pin]
    timer: Opaque<bindings::kopi_timer>,
    #[pin]
    pub(crate) queue: Q,
}

// SAFETY: An hrtimer is not bound to a task, and the queue is `Send`.
unsafe impl<Q: Polled> Send for Timer<Q> {}
// SAFETY: The kernel's functions for hrtimers take its own locks, and the queue is `Sync`.
unsafe impl<Q: Polled> Sync for Timer<Q> {}

impl<Q: Polled> Timer<Q> {
    /// A queue with a timer that isn't running.
    pub(crate) fn new(queue: impl PinInit<Q, Error>) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            // SAFETY: The memory is of that type and pinned, and `drop` cancels the timer.
            timer <- Opaque::ffi_init(|timer| unsafe {
                bindings::kopi_timer_setup(timer, Some(on_expiry::<Q>));
            }),
            queue <- queue,
        })
    }

    /// Polls the queue, and starts the timer if need be. On the queue's CPU.
    pub(crate) fn poll(&self, softirqs: &SoftirqsOff) {
        if let Some(time) = self.queue.poll(softirqs) {
            // SAFETY: `new` initialised the timer, which is pinned. `drop` cancels it before the
            // memory is freed.
            unsafe { bindings::kopi_timer_start(self.timer.get(), time) };
        }
    }
}

#[pinned_drop]
impl<Q: Polled> PinnedDrop for Timer<Q> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: `new` initialised the timer. The owner drops a queue in process context, where
        // the timer's function may be waited for, when nothing else polls the queue any more. The
        // kernel cancels a timer even if its function starts it again.
        unsafe { bindings::kopi_timer_cancel(self.timer.get()) };
    }
}

/// # Safety
///
/// Only the kernel may call it, as the function of a [`Timer<Q>`]'s timer.
unsafe extern "C" fn on_expiry<Q: Polled>(timer: *mut c_void) {
    let timer = timer.cast::<Opaque<bindings::kopi_timer>>();
    // SAFETY: The timer is a field of a `Timer<Q>`, which cancels it before it is freed. It expires in a
    // softirq.
    let (expired, softirqs) = unsafe {
        let expired = &*kernel::container_of!(timer, Timer<Q>, timer);
        (expired, SoftirqsOff::assume())
    };
    expired.queue.on_expiry(softirqs);
    expired.poll(softirqs);
}

/// The receiver of device events. `is_it` is true of the device in question.
pub(crate) trait DeviceEvents {
    /// The device is being unregistered, leaves its namespace, or gets lower devices. Under RTNL.
    fn on_going(is_it: impl Fn(&Device) -> bool);

    /// The device has gone down. Under RTNL.
    fn on_down(is_it: impl Fn(&Device) -> bool);

    /// The device's features have changed. Under RTNL.
    fn on_change(is_it: impl Fn(&Device) -> bool);
}

/// While it lives, [`DeviceEvents`] are called.
pub(crate) struct DeviceNotifier(());

impl DeviceNotifier {
    /// Registers the notifier. There can be one registration at a time.
    pub(crate) fn new() -> Result<Self> {
        might_sleep();
        // SAFETY: Only the module's init calls it, in process context. The notifier is static.
        to_result(unsafe { bindings::kopi_netdev_register() })?;
        Ok(Self(()))
    }
}

impl Drop for DeviceNotifier {
    fn drop(&mut self) {
        // SAFETY: `new` registered the notifier. The call reports all devices as going, so that
        // none stays attached.
        unsafe { bindings::kopi_netdev_unregister() };
    }
}

/// Whether a device is this one.
pub(crate) fn is(device: &Device, dev: *mut raw::Device) -> bool {
    device.as_ptr() == dev
}

/// Defines the functions that C's notifier calls, for the type that implements [`DeviceEvents`].
macro_rules! serve {
    ($events:ty) => {
        #[no_mangle]
        #[expect(unsafe_code, reason = "C's notifier calls it")]
        extern "C" fn kopi_device_going(dev: *mut $crate::sys::raw::Device) {
            <$events as $crate::sys::netdev::DeviceEvents>::on_going(|device| {
                $crate::sys::netdev::is(device, dev)
            });
        }

        #[no_mangle]
        #[expect(unsafe_code, reason = "C's notifier calls it")]
        extern "C" fn kopi_device_down(dev: *mut $crate::sys::raw::Device) {
            <$events as $crate::sys::netdev::DeviceEvents>::on_down(|device| {
                $crate::sys::netdev::is(device, dev)
            });
        }

        #[no_mangle]
        #[expect(unsafe_code, reason = "C's notifier calls it")]
        extern "C" fn kopi_device_changed(dev: *mut $crate::sys::raw::Device) {
            <$events as $crate::sys::netdev::DeviceEvents>::on_change(|device| {
                $crate::sys::netdev::is(device, dev)
            });
        }
    };
}
pub(crate) use serve;
