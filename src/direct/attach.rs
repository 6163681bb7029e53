// SPDX-License-Identifier: GPL-2.0

//! Attaching and detaching devices, and the events of devices that are attached.

use super::{
    device::AttachedDevice,
    path::{RxPath, TxPath},
    ATTACHED_MAX, //
};
use crate::flow::Flow;
use crate::sys::{
    context::{now, BottomHalvesOff},
    direct::port_map::PinnedPortMap,
    netdev::{self, Device, DeviceEvents, Egress, Hooked, Rtnl},
    pernet::NetRef, //
};
use kernel::{
    prelude::*,
    sync::global_lock,
    time::{delay::fsleep, Delta}, //
};

/// How long detaching waits for packets in flight, in nanoseconds.
const CLOSING: u64 = 1_000_000_000;
/// Interval at which detaching checks for packets in flight, in nanoseconds.
const CLOSING_TICK: i64 = 1_000_000;

/// Drivers whose ndo_xdp_xmit can't be relied on, by a reading of 7.3.4. The kernel frees the last of a
/// bulk's frames if fewer were sent.
///
/// - atlantic, rvu_nicpf: they go on after a frame that failed. So others are freed that are in use.
/// - ionic: after an error of DMA, it returns one frame fewer than it has.
/// - lan966x-switch: forgets a frame with too little headroom.
/// - qede: divides by the number of queues for frames, which is 0 before its first XDP program.
/// - vif (xen-netfront): writes past its ring when that is full, and never frees a frame.
/// - hv_netvsc, mana: make an skb of each frame, and free those for which the ring has no room, but count
///   them as sent. A bulk can fill the ring, so looking at their queues before doesn't help.
/// - ice, idpf, funeth: free what was sent only when more is sent and the ring is nearly full (idpf after a
///   second, too), so a full send buffer would stay full. Called without frames (`Device::reap`), ice also
///   writes to a descriptor that the NIC may be reporting as done; without that report, its ring is full
///   for ever.
const UNSOUND: [&CStr; 11] = [
    c"atlantic",
    c"rvu_nicpf",
    c"ionic",
    c"lan966x-switch",
    c"qede",
    c"vif",
    c"hv_netvsc",
    c"mana",
    c"ice",
    c"idpf",
    c"funeth",
];

global_lock! {
    // SAFETY: `Attaching::register` initializes it. It runs in the module's init, before netlink
    // requests and device events, the only users of the lock, can come.
    /// The attached devices of all network namespaces. RTNL is taken before this lock: always when
    /// a device is added or removed, and wherever both are held. Attached devices are never made or
    /// ended under this lock, because the notifiers for that take it.
    unsafe(uninit) static ATTACHED: Mutex<KVec<Hooked<AttachedDevice>>> = KVec::new();
}

/// Why a device can't be attached.
pub(crate) enum AttachError {
    /// There is no such device.
    Absent,
    /// It is attached already.
    Attached,
    /// It has no hardware or driver of its own, or consists of other devices. Such a device has
    /// hooks behind it that its driver doesn't call for XDP frames.
    NotNic,
    /// Its driver takes no frames.
    NoFrames,
    /// Its driver is one of [`UNSOUND`].
    UnsoundDriver,
    /// The kernel has PREEMPT_RT: a task with softirqs off isn't alone with its CPU, so it may meet
    /// another one in a driver's queue for frames, or here in what is of a CPU.
    Realtime,
    /// The maximum number of devices is attached.
    TooMany,
    /// Memory is short, or the kernel's own refusal.
    Other(Error),
}

impl From<Error> for AttachError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Attaches a device. With a port map, its XDP program redirects the ports of the map. Process
/// context.
pub(crate) fn attach(
    net: &NetRef,
    ifindex: u32,
    port_map: Option<PinnedPortMap>,
) -> core::result::Result<(), AttachError> {
    let rtnl = Rtnl::lock();
    let device = Device::get(net, ifindex).map_err(|_| AttachError::Absent)?;
    check(&device, &rtnl)?;
    reserve_place(net, ifindex)?;
    let hooked = Hooked::new(AttachedDevice::new(device, port_map, &rtnl)?, &rtnl)?;
    let added = ATTACHED.lock().push_within_capacity(hooked);
    added.map_err(|_| AttachError::Other(ENOMEM))
}

/// Whether a device can be attached, whatever others are.
fn check(device: &Device, rtnl: &Rtnl) -> core::result::Result<(), AttachError> {
    if !device.is_ethernet(rtnl) || !device.is_nic(rtnl) {
        return Err(AttachError::NotNic);
    }
    if !device.has_xdp_xmit() {
        return Err(AttachError::NoFrames);
    }
    if cfg!(CONFIG_PREEMPT_RT) {
        return Err(AttachError::Realtime);
    }
    if UNSOUND.iter().any(|name| device.is_driven_by(name, rtnl)) {
        return Err(AttachError::UnsoundDriver);
    }
    Ok(())
}

/// Makes room for another attached device. It stays free without the lock, as devices are only added under RTNL, which
/// the caller holds.
fn reserve_place(net: &NetRef, ifindex: u32) -> core::result::Result<(), AttachError> {
    let mut devices = ATTACHED.lock();
    if devices.iter().any(|hooked| is_of(hooked, net, ifindex)) {
        return Err(AttachError::Attached);
    }
    if devices.len() >= ATTACHED_MAX {
        return Err(AttachError::TooMany);
    }
    devices
        .reserve(1, GFP_KERNEL_ACCOUNT)
        .map_err(|_| AttachError::Other(ENOMEM))
}

/// Detaches a device once no packet is in flight, or after [`CLOSING`]. `ENODEV` if it isn't
/// attached. Process context.
pub(crate) fn detach(net: &NetRef, ifindex: u32) -> Result {
    let number = {
        let devices = ATTACHED.lock();
        let hooked = devices.iter().find(|hooked| is_of(hooked, net, ifindex));
        let attached = hooked.ok_or(ENODEV)?.get();
        attached.close();
        attached.number
    };
    // Without a lock, so the device may be removed during the wait.
    let end = now().saturating_add(CLOSING);
    let is_it = |attached: &AttachedDevice| attached.number == number;
    while now() < end && !is_empty(number) {
        fsleep(Delta::from_nanos(CLOSING_TICK));
    }
    let _rtnl = Rtnl::lock();
    drop(take(is_it));
    Ok(())
}

/// Whether an attached device has no packet in flight, or isn't attached any more. Process context.
fn is_empty(number: u32) -> bool {
    let devices = ATTACHED.lock();
    let mut all = devices.iter().map(Hooked::get);
    all.find(|attached| attached.number == number)
        .is_none_or(AttachedDevice::is_empty)
}

/// Removes a device from the list, whose memory goes with the last one. The caller drops it without the lock, and
/// under RTNL.
fn take(is_it: impl Fn(&AttachedDevice) -> bool) -> Option<Hooked<AttachedDevice>> {
    let mut devices = ATTACHED.lock();
    let at = devices.iter().position(|hooked| is_it(hooked.get()))?;
    let taken = devices.remove(at).ok();
    if devices.is_empty() {
        *devices = KVec::new();
    }
    taken
}

/// Whether an attached device is the one of this index in a network namespace.
fn is_of(hooked: &Hooked<AttachedDevice>, net: &NetRef, ifindex: u32) -> bool {
    let device = hooked.get().device();
    core::ptr::eq(device.net(), net) && device.ifindex() == ifindex
}

/// The attached devices of a network namespace.
fn of_net<'a>(
    devices: &'a [Hooked<AttachedDevice>],
    net: &'a NetRef,
) -> impl Iterator<Item = &'a AttachedDevice> {
    let here = |attached: &&AttachedDevice| core::ptr::eq(attached.device().net(), net);
    devices.iter().map(Hooked::get).filter(here)
}

/// Calls `show` with the attached devices of a network namespace, in order of their numbers, until it returns
/// `false`. Process context.
pub(crate) fn each(
    net: &NetRef,
    mut show: impl FnMut(&AttachedDevice, TxPath) -> Result<bool>,
) -> Result {
    let devices = ATTACHED.lock();
    for attached in of_net(&devices, net) {
        let path = attached.tx_path(&BottomHalvesOff::new());
        if !show(attached, path)? {
            break;
        }
    }
    Ok(())
}

/// A copy of the attached devices of a network namespace, by which the paths of its flows are
/// shown.
pub(crate) struct Attached(KVec<AttachedNow>);

/// One of them.
struct AttachedNow {
    number: u32,
    ifindex: u32,
    rx_path: RxPath,
}

impl Attached {
    /// The devices that are attached now: `ENOMEM`. Process context.
    pub(crate) fn now(net: &NetRef) -> Result<Self> {
        // The memory is charged to the requester's cgroup, which can make that last. Others wait
        // for the lock.
        let mut all = KVec::with_capacity(ATTACHED_MAX, GFP_KERNEL_ACCOUNT)?;
        let devices = ATTACHED.lock();
        for attached in of_net(&devices, net) {
            let now = AttachedNow {
                number: attached.number,
                ifindex: attached.device().ifindex(),
                rx_path: attached.rx_path(),
            };
            all.push_within_capacity(now).map_err(|_| ENOMEM)?;
        }
        Ok(Self(all))
    }

    /// The path of the last packet of a flow that one of them saw, numbered as [`TxPath`], and that
    /// device's interface index.
    pub(crate) fn tx_path(&self, flow: &Flow) -> Option<(u32, u32)> {
        self.0
            .iter()
            .find_map(|at| Some((flow.direct.last_at(at.number)?, at.ifindex)))
    }

    /// The path of incoming packets of a flow that is bound to a device, or to none if `ifindex` is
    /// 0. `None` if no device that the flow could receive from is attached.
    pub(crate) fn rx_path(&self, flow: &Flow, ifindex: u32) -> Option<RxPath> {
        let could = |at: &&AttachedNow| ifindex == 0 || at.ifindex == ifindex;
        let of_devices = || self.0.iter().filter(could).map(|at| at.rx_path);
        let path = of_devices()
            .find(|path| *path == RxPath::Direct)
            .or_else(|| of_devices().next())?;
        Some(if flow.is_redirected() {
            path
        } else {
            RxPath::NotRedirected
        })
    }
}

/// While it lives, devices can be attached.
pub(crate) struct Attaching(netdev::DeviceNotifier);

impl Attaching {
    /// Registers for device events. There can be one registration at a time.
    #[expect(unsafe_code, reason = "a global lock is initialised once")]
    pub(crate) fn register() -> Result<Self> {
        // SAFETY: The module's init is the only caller, and runs once.
        unsafe { ATTACHED.init() };
        Ok(Self(netdev::DeviceNotifier::new()?))
    }
}

netdev::serve!(Attaching);

impl DeviceEvents for Attaching {
    fn on_going(is_it: impl Fn(&Device) -> bool) {
        while let Some(hooked) = take(|attached| is_it(attached.device())) {
            drop(hooked);
        }
    }

    fn on_down(is_it: impl Fn(&Device) -> bool) {
        for hooked in ATTACHED.lock().iter() {
            if is_it(hooked.get().device()) {
                hooked.get().empty();
            }
        }
    }

    fn on_change(is_it: impl Fn(&Device) -> bool) {
        for hooked in ATTACHED.lock().iter() {
            let attached = hooked.get();
            if let (true, Some(redirect)) = (is_it(attached.device()), &attached.receiving) {
                redirect.follow();
            }
        }
    }
}
