// SPDX-License-Identifier: GPL-2.0

//! Monitor devices: network devices of type kopimon, on which packet sockets see copies.
//!
//! What they see is seen by tracepoints, which cost nothing while no device is up: a packet that is
//! given to a driver, and one that is dropped. As drivers/net/nlmon.c.
//!
//! C headers: `include/linux/netdevice.h`, `include/net/rtnetlink.h`, `include/linux/tracepoint.h`

use super::{
    bindings,
    context::BottomHalvesOff,
    errno::eopnotsupp,
    family::{self, Protocol},
    pernet::{Namespace, NetRef},
    skb::SkBuff,
    sock::Sock, //
};
use crate::pure::{
    abi::MonHdr,
    ip::HEADER_MAX, //
};
use core::{
    marker::PhantomData,
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, Ordering}, //
};
use kernel::{
    error::{from_result, to_result},
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        global_lock,
        rcu, //
    }, //
};

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

/// Namespaces in which a device is up, as far as there are places: those where a packet that the stack
/// drops before it knows whose it is, is looked up. The first place is the initial namespace's.
static WATCHED: [AtomicPtr<bindings::net>; 16] = [const { AtomicPtr::new(ptr::null_mut()) }; 16];

/// Devices of a namespace among which that of a dropped packet is looked for.
const DEVICES_MAX: u32 = 64;

/// Devices that can be up in a namespace: each packet of a flow is shown on all of them, with softirqs
/// off.
const UP_MAX: usize = 16;

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

/// Enters a namespace, whose first device comes up, in the list of those watched.
fn watch(net: &NetRef) {
    let first = if net.is_initial() { 0 } else { 1 };
    for slot in WATCHED.iter().skip(first) {
        let swapped = slot.compare_exchange(
            ptr::null_mut(),
            net.as_ptr(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if swapped.is_ok() {
            return;
        }
    }
}

/// Takes out one whose last device goes down.
fn unwatch(net: &NetRef) {
    for slot in &WATCHED {
        let _ = slot.compare_exchange(
            net.as_ptr(),
            ptr::null_mut(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }
}

/// The devices of a network namespace that are up.
///
/// # Invariants
///
/// Each device is entered when it comes up, and taken out when it goes down: it is freed, or leaves the
/// namespace, a grace period later at the earliest.
pub(crate) struct Devices {
    up: [AtomicPtr<bindings::net_device>; UP_MAX],
    any: Atomic<bool>,
}

impl Devices {
    /// None.
    pub(crate) fn new() -> Self {
        Self {
            up: [const { AtomicPtr::new(ptr::null_mut()) }; UP_MAX],
            any: Atomic::new(false),
        }
    }

    /// Whether any is up. Any context.
    pub(crate) fn is_any_up(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// How many are up.
    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    /// Those that are up, which are valid while RCU is held.
    fn iter(&self) -> impl Iterator<Item = NonNull<bindings::net_device>> + '_ {
        self.up
            .iter()
            .filter_map(|slot| NonNull::new(slot.load(Ordering::Acquire)))
    }

    /// Enters a device, and says whether it is the first: `EMFILE`. Under RTNL.
    fn add(&self, device: NonNull<bindings::net_device>) -> Result<bool> {
        let free = self
            .up
            .iter()
            .find(|slot| slot.load(Ordering::Relaxed).is_null())
            .ok_or(EMFILE)?;
        free.store(device.as_ptr(), Ordering::Release);
        Ok(!self.any.xchg(true, Relaxed))
    }

    /// Takes a device out, and says whether it was the last. Under RTNL.
    fn remove(&self, device: NonNull<bindings::net_device>) -> bool {
        for slot in &self.up {
            if ptr::eq(slot.load(Ordering::Relaxed), device.as_ptr()) {
                slot.store(ptr::null_mut(), Ordering::Relaxed);
            }
        }
        let is_any_left = self.iter().next().is_some();
        self.any.store(is_any_left, Relaxed);
        !is_any_left
    }

    /// Shows a packet on all that are up. Any context but hard interrupts, and interrupts on.
    ///
    /// Where there is no memory for a copy, that is counted as a drop of the devices'.
    pub(crate) fn show(&self, header: MonHdr, packet: &Packet<'_>) {
        let copy = packet.with_header(header);
        let _softirqs = BottomHalvesOff::new();
        let _rcu = rcu::read_lock();
        for device in self.iter() {
            // SAFETY: By the invariants the device is valid while RCU is held, and softirqs are off.
            unsafe {
                match &copy {
                    Some(copy) => copy.show_on(device),
                    None => bindings::kopi_dev_rx_dropped_inc(device.as_ptr()),
                }
            }
        }
    }
}

/// A packet that was seen: an skb, or what would have become one.
pub(crate) enum Packet<'a> {
    Skb(Seeing<'a>),
    /// Header and payload, which is of IPv6.
    Bytes(&'a [u8], &'a [u8], bool),
}

/// An skb that somebody else has, with an IP header.
#[derive(Clone, Copy)]
pub(crate) struct Seeing<'a>(
    NonNull<bindings::sk_buff>,
    PhantomData<&'a bindings::sk_buff>,
);

impl<'a> Packet<'a> {
    /// One that a sock had queued.
    pub(crate) fn of(skb: &'a SkBuff) -> Self {
        Self::Skb(Seeing(skb.as_non_null(), PhantomData))
    }

    /// One that a sock has queued.
    pub(crate) fn first(first: &'a First) -> Self {
        Self::Skb(first.seeing())
    }

    /// A copy, or one that shares the payload, with a header in front.
    fn with_header(&self, header: MonHdr) -> Option<Copy> {
        let copy = match self {
            Self::Skb(seeing) => seeing.copy()?,
            Self::Bytes(header, payload, is_ipv6) => Copy::of_bytes(header, payload, *is_ipv6)?,
        };
        copy.put_header(header);
        Some(copy)
    }
}

/// The first packet in the queue of a UDP sock, which stays there.
///
/// # Invariants
///
/// An skb of which this value has a reference.
pub(crate) struct First(NonNull<bindings::sk_buff>);

impl First {
    /// `None` if there is none. An error that the sock has stays there, too. Process context.
    pub(crate) fn of(sk: &Sock) -> Option<Self> {
        let (mut offset, mut errno) = (0, 0);
        let flags = bindings::MSG_PEEK | bindings::MSG_DONTWAIT;
        // SAFETY: KOPI's socks are UDP's.
        let first =
            unsafe { bindings::__skb_recv_udp(sk.as_ptr(), flags, &mut offset, &mut errno) };
        if first.is_null() && errno != EAGAIN.to_errno() {
            sk.set_error(Error::from_errno(errno));
        }
        // INVARIANT: Peeking takes a reference.
        NonNull::new(first).map(Self)
    }

    fn seeing(&self) -> Seeing<'_> {
        Seeing(self.0, PhantomData)
    }

    /// The device that it came by.
    pub(crate) fn came_by(&self) -> u32 {
        self.seeing().came_by()
    }

    /// Bytes of payload of each datagram of a GSO packet, or 0.
    pub(crate) fn gso_size(&self) -> u32 {
        self.seeing().gso_size()
    }
}

impl Drop for First {
    fn drop(&mut self) {
        // SAFETY: By the invariants.
        unsafe { bindings::consume_skb(self.0.as_ptr()) };
    }
}

impl Seeing<'_> {
    /// What a probe was called with; `None` where sockets' locks can't be taken.
    ///
    /// # Safety
    ///
    /// `skb` must be null, or live as long as the result.
    unsafe fn by_probe(skb: *mut bindings::sk_buff) -> Option<Self> {
        let skb = Self(NonNull::new(skb)?, PhantomData);
        // SAFETY: Looks at this CPU.
        (!unsafe { bindings::kopi_irqs_disabled() }).then_some(skb)
    }

    fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    /// What tells it from other packets, as long as it is there.
    pub(crate) fn id(&self) -> usize {
        self.as_ptr() as usize
    }

    /// The flow whose sock it is of.
    pub(crate) fn flow<'b, T: Protocol>(&self, _rcu: &'b rcu::Guard) -> Option<(&'b Sock, &'b T)> {
        // SAFETY: An skb keeps its sock; RCU is held.
        unsafe { family::flow_of(bindings::kopi_skb_sk(self.as_ptr())) }
    }

    /// Bytes of payload of each datagram of a GSO packet, or 0.
    pub(crate) fn gso_size(&self) -> u32 {
        // SAFETY: A valid skb.
        unsafe { bindings::kopi_skb_gso_size(self.as_ptr()) }
    }

    /// The device that it came by; 0 for one that goes out.
    pub(crate) fn came_by(&self) -> u32 {
        // SAFETY: A valid skb.
        unsafe { bindings::kopi_skb_iif(self.as_ptr()) as u32 }
    }

    /// What its field for a device holds, which needn't be one: UDP's queues, and trees of qdiscs and of
    /// fragments, use the same bytes for something else. To be compared, and never followed.
    fn device(&self) -> *mut bindings::net_device {
        // SAFETY: A valid skb.
        unsafe { bindings::kopi_skb_dev(self.as_ptr()) }
    }

    /// The namespace of the device that it came by, if that is watched.
    pub(crate) fn watched_net<'b>(&self, _rcu: &'b rcu::Guard) -> Option<&'b NetRef> {
        let ifindex = i32::try_from(self.came_by()).ok()?;
        WATCHED.iter().find_map(|slot| {
            let net = NonNull::new(slot.load(Ordering::Acquire))?;
            // SAFETY: A namespace leaves the list before its devices are gone, and is freed a grace
            // period later; the caller holds RCU.
            unsafe {
                let found = bindings::kopi_net_dev(net.as_ptr(), ifindex);
                (!found.is_null() && ptr::eq(found, self.device()))
                    .then(|| NetRef::from_raw(net.as_ptr()))
            }
        })
    }

    /// The number of the device that it is on, in a namespace; 0 for one that isn't found among the
    /// first [`DEVICES_MAX`].
    pub(crate) fn ifindex_in(&self, net: &NetRef, _rcu: &rcu::Guard) -> u32 {
        // SAFETY: A valid namespace; pointers are compared, and RCU is held.
        unsafe { bindings::kopi_net_find_dev(net.as_ptr(), self.device(), DEVICES_MAX) as u32 }
    }

    /// Where its IP header is, from its data on; `None` if that isn't in its linear part.
    fn ip_header(&self) -> Option<i32> {
        // SAFETY: A valid skb.
        let (offset, headroom, headlen) = unsafe {
            (
                bindings::kopi_skb_network_offset(self.as_ptr()),
                bindings::kopi_skb_headroom(self.as_ptr()),
                bindings::kopi_skb_headlen(self.as_ptr()),
            )
        };
        let inside = match u32::try_from(offset) {
            Ok(offset) => offset < headlen,
            Err(_) => offset.unsigned_abs() <= headroom,
        };
        // SAFETY: A valid skb.
        (inside && unsafe { bindings::kopi_skb_is_ip(self.as_ptr()) }).then_some(offset)
    }

    /// Its first bytes from the IP header on.
    pub(crate) fn first_bytes(&self) -> Option<[u8; HEADER_MAX]> {
        let offset = u32::try_from(self.ip_header()?).ok()?;
        let mut bytes = [0u8; HEADER_MAX];
        // SAFETY: A valid skb.
        let (data, headlen) = unsafe {
            (
                (*self.as_ptr()).data,
                bindings::kopi_skb_headlen(self.as_ptr()),
            )
        };
        let len = HEADER_MAX.min(headlen.checked_sub(offset)? as usize);
        // SAFETY: So many bytes are in the linear part behind the offset.
        unsafe { ptr::copy_nonoverlapping(data.add(offset as usize), bytes.as_mut_ptr(), len) };
        Some(bytes)
    }

    fn copy(&self) -> Option<Copy> {
        let offset = self.ip_header()?;
        // SAFETY: A valid skb. The clone is this function's; expanding gives it a head of its own,
        // with room for the header before the IP header, which lies in it.
        unsafe {
            let copy = Copy(NonNull::new(bindings::skb_clone(
                self.as_ptr(),
                bindings::KOPI_CONST_GFP_ATOMIC,
            ))?);
            // It needn't be one.
            bindings::kopi_skb_set_dev(copy.as_ptr(), ptr::null_mut());
            let room = i32::try_from(bindings::kopi_skb_headroom(copy.as_ptr())).ok()?;
            let needed = i32::try_from(MonHdr::LEN).ok()?;
            let more = needed.saturating_sub(room.saturating_add(offset)).max(0);
            to_result(bindings::pskb_expand_head(
                copy.as_ptr(),
                more,
                0,
                bindings::KOPI_CONST_GFP_ATOMIC,
            ))
            .ok()?;
            bindings::skb_scrub_packet(copy.as_ptr(), true);
            bindings::kopi_skb_gso_reset(copy.as_ptr());
            match u32::try_from(offset) {
                Ok(0) => {}
                Ok(offset) => _ = bindings::skb_pull(copy.as_ptr(), offset),
                Err(_) => _ = bindings::skb_push(copy.as_ptr(), offset.unsigned_abs()),
            }
            Some(copy)
        }
    }
}

/// A packet of its own, with room for a header.
struct Copy(NonNull<bindings::sk_buff>);

impl Copy {
    fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    fn of_bytes(header: &[u8], payload: &[u8], is_ipv6: bool) -> Option<Self> {
        let len = u32::try_from(header.len().checked_add(payload.len())?).ok()?;
        let size = u32::try_from(MonHdr::LEN).ok()?.checked_add(len)?;
        // SAFETY: A new skb with room for all of it; what `skb_put` gives has room for what is
        // written there. Pulled again, the monitor's header has room before the data.
        unsafe {
            let skb = bindings::kopi_alloc_skb(size, bindings::KOPI_CONST_GFP_ATOMIC);
            let copy = Self(NonNull::new(skb)?);
            bindings::skb_put(skb, MonHdr::LEN as u32);
            bindings::skb_pull(skb, MonHdr::LEN as u32);
            for bytes in [header, payload] {
                let room = bindings::skb_put(skb, bytes.len() as u32).cast::<u8>();
                ptr::copy_nonoverlapping(bytes.as_ptr(), room, bytes.len());
            }
            bindings::kopi_skb_reset_network_header(skb);
            let protocol = if is_ipv6 {
                bindings::ETH_P_IPV6
            } else {
                bindings::ETH_P_IP
            };
            bindings::kopi_skb_set_protocol(skb, protocol as u16);
            Some(copy)
        }
    }

    fn put_header(&self, header: MonHdr) {
        let bytes = header.to_bytes();
        // SAFETY: The makers of copies left room for it.
        unsafe {
            let room = bindings::skb_push(self.as_ptr(), MonHdr::LEN as u32).cast::<u8>();
            ptr::copy_nonoverlapping(bytes.as_ptr(), room, bytes.len());
            bindings::kopi_skb_reset_mac_header(self.as_ptr());
        }
    }

    /// Shows it to the packet sockets of a device.
    ///
    /// # Safety
    ///
    /// The device must be valid, softirqs off, and RCU held.
    unsafe fn show_on(&self, device: NonNull<bindings::net_device>) {
        let device = device.as_ptr();
        // SAFETY: As required of the caller; the skb is this value's. Sockets get clones.
        unsafe {
            bindings::kopi_skb_set_dev(self.as_ptr(), device);
            bindings::kopi_dev_lstats_add(device, (*self.as_ptr()).len);
            bindings::dev_queue_xmit_nit(self.as_ptr(), device);
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // SAFETY: A valid skb, this value's.
        unsafe { bindings::consume_skb(self.as_ptr()) };
    }
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
        #[no_mangle]
        #[expect(
            unsafe_code,
            reason = "C calls it, as the operation of monitor devices"
        )]
        unsafe extern "C" fn kopi_mon_open(dev: *mut $crate::sys::monitor::RawDevice) -> c_int {
            // SAFETY: C calls it for a monitor device that comes up.
            unsafe {
                $crate::sys::monitor::open::<<$probes as $crate::sys::monitor::Probes>::Namespace>(
                    dev,
                )
            }
        }

        #[no_mangle]
        #[expect(
            unsafe_code,
            reason = "C calls it, as the operation of monitor devices"
        )]
        unsafe extern "C" fn kopi_mon_stop(dev: *mut $crate::sys::monitor::RawDevice) -> c_int {
            // SAFETY: C calls it for a monitor device that goes down.
            unsafe {
                $crate::sys::monitor::stop::<<$probes as $crate::sys::monitor::Probes>::Namespace>(
                    dev,
                )
            }
        }

        #[no_mangle]
        #[expect(unsafe_code, reason = "C's probe calls it")]
        unsafe extern "C" fn kopi_seen_transmitted(
            skb: *mut $crate::sys::monitor::RawSkb,
            dev: *mut $crate::sys::monitor::RawDevice,
        ) {
            // SAFETY: The probe calls it.
            unsafe { $crate::sys::monitor::transmitted::<$probes>(skb, dev) }
        }

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
