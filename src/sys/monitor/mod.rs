// SPDX-License-Identifier: GPL-2.0

//! Monitor devices: network devices of type kopimon, on which packet sockets see copies.
//!
//! What they see is seen by tracepoints, which cost nothing while no device is up: a packet that is
//! given to a driver, and one that is dropped. As drivers/net/nlmon.c.
//!
//! C headers: `include/linux/netdevice.h`, `include/net/rtnetlink.h`, `include/linux/tracepoint.h`

mod devices;
mod packet;

use crate::sys::{
    bindings,
    errno::eopnotsupp,
    family::{self, Protocol},
    pernet::{Namespace, NetRef},
    sock::Sock,
};
use core::{
    marker::PhantomData,
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, Ordering},
};
pub(crate) use devices::Devices;
use devices::{unwatch, watch};
use kernel::{
    error::{from_result, to_result},
    prelude::*,
    sync::{global_lock, rcu},
};
pub(crate) use packet::{First, Packet, Seeing};

/// Whether the probes are called, and for how many devices.
struct Called {
    /// How many devices are up.
    up: usize,
    /// They are for a while after the last device went down, too: to begin and to end it patches the
    /// kernel's text, on all CPUs, and a user may have devices go up and down as fast as he can.
    are_called: bool,
}

global_lock! {
    // SAFETY: `Registration::new` initializes it, before there is any device.
    /// Taken under RTNL.
    unsafe(uninit) static PROBES: Mutex<Called> = Called { up: 0, are_called: false };
}

/// The tracepoint of packets that are given to a driver; null where the kernel has none.
static START_XMIT: AtomicPtr<bindings::tracepoint> = AtomicPtr::new(ptr::null_mut());

/// While it lives, devices of type kopimon can be made.
pub(crate) struct Registration(());

impl Registration {
    /// Registers the type: `EEXIST`. There can be one registration at a time.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: Called once, by the module's init.
        unsafe { PROBES.init() };
        // SAFETY: Process context.
        let found = unsafe { bindings::kopi_tracepoint_start_xmit() };
        START_XMIT.store(found, Ordering::Relaxed);
        // SAFETY: Process context; the operations are static.
        to_result(unsafe { bindings::kopi_mon_register() })?;
        Ok(Self(()))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: Registered by `new`. All devices go down, so that nothing starts the work again.
        unsafe {
            bindings::kopi_mon_unregister();
            bindings::kopi_mon_cancel_unprobe();
        }
        unprobe_if_unused(&mut PROBES.lock());
        // SAFETY: Process context. Probes that still run have ended after it.
        unsafe { bindings::kopi_tracepoint_synchronize_unregister() };
    }
}

/// Has the probes called: `EOPNOTSUPP` where the kernel has no such tracepoint.
fn probe() -> Result {
    let start_xmit = START_XMIT.load(Ordering::Relaxed);
    if start_xmit.is_null() {
        return Err(eopnotsupp());
    }
    // SAFETY: Process context; a tracepoint of the kernel's own lives for ever.
    unsafe {
        to_result(bindings::kopi_probe_start_xmit(start_xmit))?;
        to_result(bindings::kopi_probe_kfree_skb())
            .inspect_err(|_| bindings::kopi_unprobe_start_xmit(start_xmit))
    }
}

/// Has them called no more, unless a device is up.
fn unprobe_if_unused(probes: &mut Called) {
    if probes.up == 0 && core::mem::take(&mut probes.are_called) {
        // SAFETY: Process context; pairs with `probe`.
        unsafe {
            bindings::kopi_unprobe_kfree_skb();
            bindings::kopi_unprobe_start_xmit(START_XMIT.load(Ordering::Relaxed));
        }
    }
}

/// Has it looked at in a while whether the probes are needed.
fn unprobe_later() {
    // SAFETY: The work is cancelled when no device can be up any more.
    unsafe { bindings::kopi_mon_unprobe_later() };
}

/// Who is told of packets that the tracepoints show.
pub(crate) trait Probes {
    /// Has [`Devices`] of each namespace.
    type Namespace: Namespace;

    /// A packet is given to the driver of a device. Any context with interrupts on.
    fn transmitted(packet: Seeing<'_>, ifindex: u32, rcu: &rcu::Guard);

    /// A packet is dropped for a reason of the kernel's. Any context with interrupts on.
    fn dropped(packet: Seeing<'_>, reason: u32, receiver: Receiver<'_>, rcu: &rcu::Guard);
}

/// The sock that a dropped packet was to be received by, if the stack knew it.
pub(crate) struct Receiver<'a>(*mut bindings::sock, PhantomData<&'a bindings::sock>);

impl<'a> Receiver<'a> {
    /// Whether the stack knew it.
    pub(crate) fn is_known(&self) -> bool {
        !self.0.is_null()
    }

    /// The flow whose sock it is.
    pub(crate) fn flow<T: Protocol>(&self, _rcu: &'a rcu::Guard) -> Option<(&'a Sock, &'a T)> {
        // SAFETY: Null, or a sock that the caller of the probe keeps; RCU is held.
        unsafe { family::flow_of(self.0) }
    }
}

/// A `struct net_device`, a `struct sk_buff` and a `struct sock`, as C's functions have them.
pub(crate) type RawDevice = bindings::net_device;

pub(crate) type RawSkb = bindings::sk_buff;

pub(crate) type RawSock = bindings::sock;

/// What `kopi_mon_open` does.
///
/// # Safety
///
/// To be called as the operation of a monitor device, which comes up.
pub(crate) unsafe fn open<N: Namespace>(dev: *mut RawDevice) -> c_int {
    from_result(|| {
        let device = NonNull::new(dev).ok_or(EINVAL)?;
        // SAFETY: The device is coming up, and keeps its namespace.
        let net = unsafe { NetRef::from_raw(bindings::kopi_dev_net(dev)) };
        let mut probes = PROBES.lock();
        if !probes.are_called {
            probe()?;
            probes.are_called = true;
        }
        let added = net.state_of::<N>().monitors().add(device);
        match added {
            Ok(first) => {
                probes.up = probes.up.saturating_add(1);
                if first {
                    watch(net);
                }
            }
            Err(_) => unprobe_later(),
        }
        added?;
        Ok(0)
    })
}

/// What `kopi_mon_stop` does.
///
/// # Safety
///
/// To be called as the operation of a monitor device, which goes down.
pub(crate) unsafe fn stop<N: Namespace>(dev: *mut RawDevice) -> c_int {
    if let Some(device) = NonNull::new(dev) {
        // SAFETY: The device is up, and keeps its namespace.
        let net = unsafe { NetRef::from_raw(bindings::kopi_dev_net(dev)) };
        if net.state_of::<N>().monitors().remove(device) {
            unwatch(net);
        }
        let mut probes = PROBES.lock();
        probes.up = probes.up.saturating_sub(1);
        if probes.up == 0 {
            unprobe_later();
        }
    }
    0
}

/// # Safety
///
/// To be called by the kernel only, as the function of the work that [`unprobe_later`] starts.
#[no_mangle]
unsafe extern "C" fn kopi_mon_unprobe(_work: *mut bindings::work_struct) {
    unprobe_if_unused(&mut PROBES.lock());
}

/// What `kopi_seen_transmitted` does.
///
/// # Safety
///
/// To be called as a probe of the tracepoint `net_dev_start_xmit`.
pub(crate) unsafe fn transmitted<P: Probes>(skb: *mut RawSkb, dev: *mut RawDevice) {
    // SAFETY: The skb lives through the call.
    let Some(packet) = (unsafe { Seeing::by_probe(skb) }) else {
        return;
    };
    let rcu = rcu::read_lock();
    // SAFETY: The device is valid.
    unsafe {
        // What a program sends by a monitor itself isn't shown on it.
        if !bindings::kopi_mon_is(dev) {
            P::transmitted(packet, bindings::kopi_dev_ifindex(dev) as u32, &rcu);
        }
    }
}

/// What `kopi_seen_dropped` does.
///
/// # Safety
///
/// To be called as a probe of the tracepoint `kfree_skb`.
pub(crate) unsafe fn dropped<P: Probes>(skb: *mut RawSkb, reason: u32, rx_sk: *mut RawSock) {
    // SAFETY: The skb lives through the call.
    let Some(packet) = (unsafe { Seeing::by_probe(skb) }) else {
        return;
    };
    P::dropped(
        packet,
        reason,
        Receiver(rx_sk, PhantomData),
        &rcu::read_lock(),
    );
}

/// Defines the functions that C calls, for a type that implements [`Probes`].
macro_rules! serve {
    ($probes:ty) => {
        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C calls it, as monitor devices' operation")]
        unsafe extern "C" fn kopi_mon_open(dev: *mut $crate::sys::monitor::RawDevice) -> c_int {
            // SAFETY: C calls it for a monitor device that comes up.
            unsafe {
                $crate::sys::monitor::open::<<$probes as $crate::sys::monitor::Probes>::Namespace>(
                    dev,
                )
            }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C calls it, as monitor devices' operation")]
        unsafe extern "C" fn kopi_mon_stop(dev: *mut $crate::sys::monitor::RawDevice) -> c_int {
            // SAFETY: C calls it for a monitor device that goes down.
            unsafe {
                $crate::sys::monitor::stop::<<$probes as $crate::sys::monitor::Probes>::Namespace>(
                    dev,
                )
            }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C's probe calls it")]
        unsafe extern "C" fn kopi_seen_transmitted(
            skb: *mut $crate::sys::monitor::RawSkb,
            dev: *mut $crate::sys::monitor::RawDevice,
        ) {
            // SAFETY: The probe calls it.
            unsafe { $crate::sys::monitor::transmitted::<$probes>(skb, dev) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C's probe calls it")]
        unsafe extern "C" fn kopi_seen_dropped(
            skb: *mut $crate::sys::monitor::RawSkb,
            reason: c_uint,
            rx_sk: *mut $crate::sys::monitor::RawSock,
        ) {
            // SAFETY: The probe calls it.
            unsafe { $crate::sys::monitor::dropped::<$probes>(skb, reason, rx_sk) }
        }
    };
}

pub(crate) use serve;
