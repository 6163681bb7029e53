// SPDX-License-Identifier: GPL-2.0

//! Attaching devices and detaching them, and what happens to them meanwhile.

use super::{
    device::AttachedDevice,
    path::{RxPath, TxPath}, //
};
use crate::flow::Flow;
use crate::sys::{
    context::{now, BottomHalvesOff},
    direct::port_map::PortMap,
    netdev::{self, Device, DeviceEvents, Egress, Hooked, Rtnl},
    pernet::NetRef, //
};
use kernel::{
    prelude::*,
    sync::{global_lock, rcu},
    time::{delay::fsleep, Delta}, //
};

/// How long a port that is taken away waits for what it has taken, in nanoseconds.
const CLOSING: u64 = 1_000_000_000;
/// Between two looks of who waits for that, in nanoseconds.
const CLOSING_TICK: i64 = 1_000_000;
/// Attached devices that there can be, of all network namespaces.
const ATTACHED_MAX: usize = 64;

global_lock! {
    // SAFETY: `Attaching::register` initializes it, before any device is attached.
    /// Those of all network namespaces. Taken under RTNL, if that is held, and always when one comes or goes. What
    /// makes or ends devices is done without it, since those who are told of that take it.
    unsafe(uninit) static ATTACHED: Mutex<KVec<Hooked<AttachedDevice>>> = KVec::new();
}

/// Why a device is not made a port.
pub(crate) enum Refusal {
    /// There is none.
    Absent,
    /// It is one.
    Attached,
    /// It has no hardware or driver of its own, or is made of other devices: behind it there are hooks that
    /// a driver doesn't ask.
    NotNic,
    /// Its driver takes no frames.
    NoFrames,
    /// There are as many as there can be.
    TooMany,
    /// No memory, or what the kernel says.
    Other(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Makes a device a port. What comes is redirected by its program as far as `wanted` says. Process context.
pub(crate) fn attach(
    net: &NetRef,
    ifindex: u32,
    wanted: Option<PortMap>,
) -> core::result::Result<(), Refusal> {
    let _rtnl = Rtnl::lock();
    let device = Device::get(net, ifindex).map_err(|_| Refusal::Absent)?;
    if !device.is_ethernet() || !device.is_nic() {
        return Err(Refusal::NotNic);
    }
    if !device.has_driver() {
        return Err(Refusal::NoFrames);
    }
    {
        let mut ports = ATTACHED.lock();
        if ports.iter().any(|hooked| is_of(hooked, net, ifindex)) {
            return Err(Refusal::Attached);
        }
        if ports.len() >= ATTACHED_MAX {
            return Err(Refusal::TooMany);
        }
        // Nobody takes the place: that would be under RTNL.
        ports
            .reserve(1, GFP_KERNEL_ACCOUNT)
            .map_err(|_| Refusal::Other(ENOMEM))?;
    }
    let hooked = Hooked::new(AttachedDevice::new(device, wanted)?)?;
    let refused = ATTACHED.lock().push_within_capacity(hooked);
    refused.map_err(|_| Refusal::Other(ENOMEM))
}

/// Takes a port away, when what was taken has left, or after some time: `ENODEV` if there is none. Process context.
pub(crate) fn detach(net: &NetRef, ifindex: u32) -> Result {
    let number = {
        let ports = ATTACHED.lock();
        let hooked = ports.iter().find(|hooked| is_of(hooked, net, ifindex));
        let port = hooked.ok_or(ENODEV)?.get();
        port.close();
        port.number
    };
    // With no lock: the device may go meanwhile.
    let end = now().saturating_add(CLOSING);
    let is_it = |port: &AttachedDevice| port.number == number;
    while now() < end && !is_empty(number) {
        fsleep(Delta::from_nanos(CLOSING_TICK));
    }
    let _rtnl = Rtnl::lock();
    drop(take(is_it));
    Ok(())
}

/// Whether all that a port took has left, or it has gone. Process context.
fn is_empty(number: u32) -> bool {
    let ports = ATTACHED.lock();
    let mut all = ports.iter().map(Hooked::get);
    all.find(|port| port.number == number)
        .is_none_or(AttachedDevice::is_empty)
}

/// Takes a port out, to be dropped by the caller: without the lock, and under RTNL.
fn take(is_it: impl Fn(&AttachedDevice) -> bool) -> Option<Hooked<AttachedDevice>> {
    let mut ports = ATTACHED.lock();
    let at = ports.iter().position(|hooked| is_it(hooked.get()))?;
    ports.remove(at).ok()
}

fn is_of(hooked: &Hooked<AttachedDevice>, net: &NetRef, ifindex: u32) -> bool {
    let device = hooked.get().device();
    core::ptr::eq(device.net(), net) && device.ifindex() == ifindex
}

/// Those of a network namespace.
fn of_net<'a>(
    ports: &'a [Hooked<AttachedDevice>],
    net: &'a NetRef,
) -> impl Iterator<Item = &'a AttachedDevice> {
    let here = |port: &&AttachedDevice| core::ptr::eq(port.device().net(), net);
    ports.iter().map(Hooked::get).filter(here)
}

/// Takes away the ports of some devices. Process context, under RTNL.
fn remove(is_it: impl Fn(&Device) -> bool) {
    while let Some(hooked) = take(|port| is_it(port.device())) {
        drop(hooked);
    }
}

/// Drops what waits at the ports of some devices. Process context.
fn empty(mut is_it: impl FnMut(&Device) -> bool) {
    for hooked in ATTACHED.lock().iter() {
        if is_it(hooked.get().device()) {
            hooked.get().empty();
        }
    }
}

/// Has some devices' programs redirect as far as that can be, now that their features have changed. Process
/// context, under RTNL.
fn follow(mut is_it: impl FnMut(&Device) -> bool) {
    for hooked in ATTACHED.lock().iter() {
        let port = hooked.get();
        if let (true, Some(target)) = (is_it(port.device()), &port.receiving) {
            target.follow();
        }
    }
}

/// Shows the ports of a network namespace but the first `start`, as long as `show` says to go on. Process
/// context.
pub(crate) fn each(
    net: &NetRef,
    start: usize,
    mut show: impl FnMut(&AttachedDevice, TxPath) -> Result<bool>,
) -> Result {
    let ports = ATTACHED.lock();
    for port in of_net(&ports, net).skip(start) {
        let way = {
            let _softirqs = BottomHalvesOff::new();
            let _rcu = rcu::read_lock();
            port.tx_path()
        };
        if !show(port, way)? {
            break;
        }
    }
    Ok(())
}

/// The ports of a network namespace, as those who show its flows want them.
pub(crate) struct Attached(KVec<(u32, RxPath)>);

impl Attached {
    /// Those that there are now: `ENOMEM`. Process context.
    pub(crate) fn now(net: &NetRef) -> Result<Self> {
        let mut all = KVec::new();
        let ports = ATTACHED.lock();
        for port in of_net(&ports, net) {
            all.push(
                (port.device().ifindex(), port.rx_path()),
                GFP_KERNEL_ACCOUNT,
            )?;
        }
        Ok(Self(all))
    }

    /// Which way the last packet of a flow took that left by one of them, as `TxPath` numbers them, and by which.
    pub(crate) fn tx_path(&self, flow: &Flow) -> Option<(u32, u32)> {
        let last = flow.direct.last()?;
        let is_there = self.0.iter().any(|(ifindex, _)| *ifindex == last.1);
        is_there.then_some(last)
    }

    /// Which way packets come in for a flow that is bound to a device, or to none if that is 0: `None` if no such
    /// is attached.
    pub(crate) fn rx_path(&self, flow: &Flow, ifindex: u32) -> Option<RxPath> {
        let could = |at: &&(u32, RxPath)| ifindex == 0 || at.0 == ifindex;
        let of_devices = || self.0.iter().filter(could).map(|at| at.1);
        let way = of_devices()
            .find(|way| *way == RxPath::Direct)
            .or_else(|| of_devices().next())?;
        Some(if flow.is_redirected() {
            way
        } else {
            RxPath::NoGro
        })
    }
}

/// While it lives, there can be ports.
pub(crate) struct Attaching(netdev::Registration);

impl Attaching {
    /// None at first. There can be one registration at a time.
    #[expect(unsafe_code, reason = "a global lock is initialised once")]
    pub(crate) fn register() -> Result<Self> {
        // SAFETY: Called once, by the module's init.
        unsafe { ATTACHED.init() };
        Ok(Self(netdev::Registration::new()?))
    }
}

netdev::serve!(Attaching);

impl DeviceEvents for Attaching {
    fn going(is_it: impl Fn(&Device) -> bool) {
        remove(is_it);
    }

    fn down(is_it: impl Fn(&Device) -> bool) {
        empty(is_it);
    }

    fn changed(is_it: impl Fn(&Device) -> bool) {
        follow(is_it);
    }
}
