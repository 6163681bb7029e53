// SPDX-License-Identifier: GPL-2.0

//! Monitor devices: network devices of type kopimon, on which packet sockets see copies of packets.
//!
//! Tracepoints show the packets that are given to a driver, and the packets that are dropped. They
//! cost nothing while no device is up. The devices are modelled on drivers/net/nlmon.c.
//!
//! C headers: `include/linux/netdevice.h`, `include/net/rtnetlink.h`, `include/linux/tracepoint.h`

mod devices;
mod packet;
mod watched;

use crate::sys::{
    bindings,
    context::might_sleep,
    errno::eopnotsupp,
    family::{self, Protocol},
    pernet::{Namespace, NetRef},
    raw,
    sock::Sock,
};
use core::{
    marker::PhantomData,
    ptr::{self, NonNull},
};
pub(crate) use devices::Devices;
use kernel::{
    error::{from_result, to_result},
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        global_lock, rcu,
    },
};
pub(crate) use packet::{Packet, ProbedSkb, QueuedSkb};
use watched::Watched;

/// Whether the probes are registered, and for how many devices and which namespaces.
struct ProbeState {
    /// Number of devices that are up.
    up: usize,
    /// The probes are registered. They stay so for a while after the last device went down, because
    /// registering and unregistering patches the kernel's text on all CPUs, and a user may take
    /// devices up and down as fast as possible.
    registered: bool,
    watched: Watched,
}

global_lock! {
    // SAFETY: `MonitorType::new` initializes it before it registers the type of device. Without a
    // device, nothing takes the lock.
    /// Taken under RTNL where a device goes up or down. The work that removes the probes has no RTNL.
    unsafe(uninit) static PROBES: Mutex<ProbeState> = ProbeState {
        up: 0,
        registered: false,
        watched: Watched::new(),
    };
}

/// The tracepoint of packets that are given to a driver; null if the kernel has none.
static START_XMIT: Atomic<*mut bindings::tracepoint> = Atomic::new(ptr::null_mut());

/// The tracepoint of segments that TCP socks receive; null if the kernel has none.
static TCP_PROBE: Atomic<*mut bindings::tracepoint> = Atomic::new(ptr::null_mut());

/// While it lives, devices of type kopimon can be made.
pub(crate) struct MonitorType(());

impl MonitorType {
    /// Registers the type: `EEXIST`. There can be one registration at a time.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: The module's init is the only caller, and runs once.
        unsafe { PROBES.init() };
        // SAFETY: The module's init runs in process context, where the list of tracepoints may be
        // walked.
        unsafe {
            START_XMIT.store(bindings::kopi_tracepoint_start_xmit(), Relaxed);
            TCP_PROBE.store(bindings::kopi_tracepoint_tcp_probe(), Relaxed);
        }
        // SAFETY: The module's init runs in process context, and the operations are static.
        to_result(unsafe { bindings::kopi_mon_register() })?;
        Ok(Self(()))
    }
}

impl Drop for MonitorType {
    fn drop(&mut self) {
        // SAFETY: `new` registered the type. The first call ends all devices, so nothing starts the
        // work again after the second call has cancelled it.
        unsafe {
            bindings::kopi_mon_unregister();
            bindings::kopi_mon_cancel_unprobe();
        }
        unprobe_if_unused(&mut PROBES.lock());
        // SAFETY: The module's exit runs in process context, where the call may wait for the probes
        // that still run.
        unsafe { bindings::kopi_tracepoint_synchronize_unregister() };
    }
}

/// Registers the probes: `EOPNOTSUPP` if the kernel has no such tracepoint. Process context.
fn probe() -> Result {
    might_sleep();
    let (start_xmit, tcp_probe) = (START_XMIT.load(Relaxed), TCP_PROBE.load(Relaxed));
    if start_xmit.is_null() || tcp_probe.is_null() {
        return Err(eopnotsupp());
    }
    // SAFETY: The caller is in process context. The tracepoints are the kernel's own, which live
    // for ever.
    unsafe {
        to_result(bindings::kopi_probe_start_xmit(start_xmit))?;
        to_result(bindings::kopi_probe_tcp(tcp_probe))
            .inspect_err(|_| bindings::kopi_unprobe_start_xmit(start_xmit))?;
        to_result(bindings::kopi_probe_kfree_skb()).inspect_err(|_| {
            bindings::kopi_unprobe_tcp(tcp_probe);
            bindings::kopi_unprobe_start_xmit(start_xmit);
        })
    }
}

/// Unregisters the probes, unless a device is up. Process context.
fn unprobe_if_unused(probes: &mut ProbeState) {
    might_sleep();
    if probes.up == 0 && core::mem::take(&mut probes.registered) {
        // SAFETY: The caller is in process context. `registered` was set, so `probe` has registered
        // all.
        unsafe {
            bindings::kopi_unprobe_kfree_skb();
            bindings::kopi_unprobe_tcp(TCP_PROBE.load(Relaxed));
            bindings::kopi_unprobe_start_xmit(START_XMIT.load(Relaxed));
        }
    }
}

/// Schedules the work that unregisters the probes unless a device is up.
fn unprobe_later() {
    // SAFETY: The work is static, and is cancelled when no device can be up any more, before the
    // module is unloaded.
    unsafe { bindings::kopi_mon_unprobe_later() };
}

/// The receiver of the packets that the tracepoints show.
pub(crate) trait Probes {
    /// The state of a namespace, which has its [`Devices`].
    type Namespace: Namespace;

    /// The user, by its id in the initial user namespace, on whose behalf the current process sets
    /// a device up. Process context.
    fn user() -> u32;

    /// A packet is being given to the driver of a device, of this index in this namespace. Any
    /// context with interrupts on.
    fn on_transmit(packet: ProbedSkb<'_>, net: &NetRef, ifindex: u32, rcu: &rcu::Guard);

    /// A TCP sock, whose connection is established, receives a segment. It is locked. Any context
    /// with interrupts on.
    fn on_receive(packet: ProbedSkb<'_>, by: ReceivedBy<'_>, rcu: &rcu::Guard);

    /// A packet is being dropped, with the kernel's drop reason. Any context with interrupts on.
    fn on_drop(packet: ProbedSkb<'_>, reason: u32, receiver: DroppedFor<'_>, rcu: &rcu::Guard);
}

/// The TCP sock that receives a segment.
pub(crate) struct ReceivedBy<'a>(*mut bindings::sock, PhantomData<&'a bindings::sock>);

impl<'a> ReceivedBy<'a> {
    /// The flow of the sock.
    pub(crate) fn flow<T: Protocol>(&self, _rcu: &'a rcu::Guard) -> Option<(&'a Sock, &'a T)> {
        // SAFETY: The caller of the tracepoint has locked the sock, and keeps it for `'a`. The
        // guard proves that RCU is held.
        unsafe { family::flow_of(self.0) }
    }
}

/// The sock that would have received a dropped packet, if the stack had found it.
pub(crate) struct DroppedFor<'a>(*mut bindings::sock, PhantomData<&'a bindings::sock>);

impl<'a> DroppedFor<'a> {
    /// Whether the stack had found it.
    pub(crate) fn is_known(&self) -> bool {
        !self.0.is_null()
    }

    /// The flow of the sock. TCP may have given its reference to the sock back, so the memory may be
    /// another TCP sock's by now: [`ProbedSkb::is_for`] tells.
    pub(crate) fn flow<T: Protocol>(&self, _rcu: &'a rcu::Guard) -> Option<(&'a Sock, &'a T)> {
        // SAFETY: The pointer is null, or a sock that the caller of the tracepoint keeps for `'a`,
        // or memory that stays a sock of TCP's, or a request or timewait of it, while RCU is held
        // (SLAB_TYPESAFE_BY_RCU). The guard proves that it is. A full sock whose socket is a flow's
        // was open in this RCU read-side section, which keeps what it refers to.
        unsafe { family::flow_of(self.0) }
    }
}

/// The body of `kopi_mon_open`.
///
/// # Safety
///
/// Must be called as the `ndo_open` of a monitor device, under RTNL.
pub(crate) unsafe fn open<P: Probes>(dev: *mut raw::Device) -> c_int {
    from_result(|| {
        let device = NonNull::new(dev).ok_or(EINVAL)?;
        // SAFETY: The device is valid, as required of the caller. A namespace outlives its devices,
        // and RTNL keeps the device in it.
        let net = unsafe { NetRef::from_raw(bindings::kopi_dev_net(dev)) };
        let mut probes = PROBES.lock();
        if !probes.registered {
            probe()?;
            probes.registered = true;
        }
        let state = net.state_of::<P::Namespace>();
        let mut added = state.monitors().add(device);
        if added.is_ok() && state.monitors().len() == 1 {
            added = probes.watched.add(net, P::user());
            if added.is_err() {
                state.monitors().remove(device);
            }
        }
        match added {
            Ok(()) => probes.up = probes.up.saturating_add(1),
            Err(_) => unprobe_later(),
        }
        added?;
        Ok(0)
    })
}

/// The body of `kopi_mon_stop`.
///
/// # Safety
///
/// Must be called as the `ndo_stop` of a monitor device, under RTNL.
pub(crate) unsafe fn stop<N: Namespace>(dev: *mut raw::Device) -> c_int {
    if let Some(device) = NonNull::new(dev) {
        // SAFETY: The device is valid, as required of the caller. A namespace outlives its devices,
        // and RTNL keeps the device in it.
        let net = unsafe { NetRef::from_raw(bindings::kopi_dev_net(dev)) };
        let mut probes = PROBES.lock();
        if net.state_of::<N>().monitors().remove(device) {
            probes.watched.remove(net);
        }
        probes.up = probes.up.saturating_sub(1);
        if probes.up == 0 {
            unprobe_later();
        }
    }
    0
}

/// # Safety
///
/// Only the kernel may call it, as the function of the work that [`unprobe_later`] schedules.
#[no_mangle]
unsafe extern "C" fn kopi_mon_unprobe(_work: *mut bindings::work_struct) {
    unprobe_if_unused(&mut PROBES.lock());
}

/// The body of `kopi_on_start_xmit`.
///
/// # Safety
///
/// Must be called as a probe of the tracepoint `net_dev_start_xmit`.
pub(crate) unsafe fn on_transmit<P: Probes>(skb: *mut raw::Skb, dev: *mut raw::Device) {
    // SAFETY: The caller of the tracepoint owns the skb, which lives through the call.
    let Some(packet) = (unsafe { ProbedSkb::by_probe(skb) }) else {
        return;
    };
    let rcu = rcu::read_lock();
    // SAFETY: The caller of the tracepoint sends by the device, which is valid through the call, and
    // can't leave its namespace meanwhile.
    unsafe {
        // Packets that a program sends by a monitor device aren't shown.
        if !bindings::kopi_mon_is(dev) {
            let net = NetRef::from_raw(bindings::kopi_dev_net(dev));
            P::on_transmit(packet, net, bindings::kopi_dev_ifindex(dev) as u32, &rcu);
        }
    }
}

/// The body of `kopi_on_tcp_probe`.
///
/// # Safety
///
/// Must be called as a probe of the tracepoint `tcp_probe`.
pub(crate) unsafe fn on_receive<P: Probes>(sk: *mut raw::Sock, skb: *mut raw::Skb) {
    // SAFETY: The caller of the tracepoint owns the skb, which lives through the call.
    let Some(packet) = (unsafe { ProbedSkb::by_probe(skb) }) else {
        return;
    };
    P::on_receive(packet, ReceivedBy(sk, PhantomData), &rcu::read_lock());
}

/// The body of `kopi_on_kfree_skb`.
///
/// # Safety
///
/// Must be called as a probe of the tracepoint `kfree_skb`.
pub(crate) unsafe fn on_drop<P: Probes>(skb: *mut raw::Skb, reason: u32, rx_sk: *mut raw::Sock) {
    // SAFETY: The caller of the tracepoint owns the skb, which it frees after the call.
    let Some(packet) = (unsafe { ProbedSkb::by_probe(skb) }) else {
        return;
    };
    P::on_drop(
        packet,
        reason,
        DroppedFor(rx_sk, PhantomData),
        &rcu::read_lock(),
    );
}

/// Defines the functions that C calls, for the type that implements [`Probes`].
macro_rules! serve {
    ($probes:ty) => {
        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C calls it, as monitor devices' operation")]
        unsafe extern "C" fn kopi_mon_open(dev: *mut $crate::sys::raw::Device) -> c_int {
            // SAFETY: C calls it for a monitor device that comes up.
            unsafe { $crate::sys::monitor::open::<$probes>(dev) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C calls it, as monitor devices' operation")]
        unsafe extern "C" fn kopi_mon_stop(dev: *mut $crate::sys::raw::Device) -> c_int {
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
        unsafe extern "C" fn kopi_on_start_xmit(
            skb: *mut $crate::sys::raw::Skb,
            dev: *mut $crate::sys::raw::Device,
        ) {
            // SAFETY: C's probe of `net_dev_start_xmit` is the only caller, and passes its
            // arguments on.
            unsafe { $crate::sys::monitor::on_transmit::<$probes>(skb, dev) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C's probe calls it")]
        unsafe extern "C" fn kopi_on_tcp_probe(
            sk: *mut $crate::sys::raw::Sock,
            skb: *mut $crate::sys::raw::Skb,
        ) {
            // SAFETY: C's probe of `tcp_probe` is the only caller, and passes its arguments on.
            unsafe { $crate::sys::monitor::on_receive::<$probes>(sk, skb) }
        }

        /// # Safety
        ///
        /// Only C may call it, as its declaration in shim.h says.
        #[no_mangle]
        #[expect(unsafe_code, reason = "C's probe calls it")]
        unsafe extern "C" fn kopi_on_kfree_skb(
            skb: *mut $crate::sys::raw::Skb,
            reason: c_uint,
            rx_sk: *mut $crate::sys::raw::Sock,
        ) {
            // SAFETY: C's probe of `kfree_skb` is the only caller, and passes its arguments on.
            unsafe { $crate::sys::monitor::on_drop::<$probes>(skb, reason, rx_sk) }
        }
    };
}

pub(crate) use serve;
