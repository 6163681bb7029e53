// SPDX-License-Identifier: GPL-2.0

//! Monitor devices: network devices of type kopimon, on which packet sockets see copies.
//!
//! What they see is seen by tracepoints, which cost nothing while no device is up: a packet that is
//! given to a driver, and one that is dropped. As drivers/net/nlmon.c.
//!
//! C headers: `include/linux/netdevice.h`, `include/net/rtnetlink.h`, `include/linux/tracepoint.h`

use super::{
    context::BottomHalvesOff,
    errno::eopnotsupp,
    family,
    pernet::NetRef,
    skb::SkBuff,
    sock::{Sock, SockRef}, //
};
use crate::bindings;
use crate::flow::Flow;
use crate::monitor::{self, Seen};
use crate::pure::{
    abi::MonHdr,
    ip::{self, HEADER_MAX}, //
};
use core::{
    marker::PhantomData,
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, Ordering}, //
};
use kernel::{
    error::{from_result, to_result},
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        global_lock,
        SpinLock, //
    }, //
};

global_lock! {
    // SAFETY: `Registration::new` initializes it, before there is any device.
    /// How many devices are up.
    unsafe(uninit) static UP: Mutex<usize> = 0;
}

/// The tracepoint of packets that are given to a driver; null where the kernel has none.
static START_XMIT: AtomicPtr<bindings::tracepoint> = AtomicPtr::new(ptr::null_mut());

/// While it lives, devices of type kopimon can be made.
pub(crate) struct Registration(());

impl Registration {
    /// Registers the type: `EEXIST`. There can be one registration at a time.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: Called once, by the module's init.
        unsafe { UP.init() };
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
        // SAFETY: Registered by `new`. All devices go down, and with the last the probes; those that
        // still run have ended after the second call.
        unsafe {
            bindings::kopi_mon_unregister();
            bindings::kopi_tracepoint_synchronize_unregister();
        }
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

fn unprobe() {
    // SAFETY: Process context; pairs with `probe`.
    unsafe {
        bindings::kopi_unprobe_kfree_skb();
        bindings::kopi_unprobe_start_xmit(START_XMIT.load(Ordering::Relaxed));
    }
}

struct Device(NonNull<bindings::net_device>);

// SAFETY: A device is not bound to a task.
unsafe impl Send for Device {}

/// The devices of a network namespace that are up.
///
/// # Invariants
///
/// Each device is entered when it comes up and removed before it goes.
#[pin_data]
pub(crate) struct Devices {
    #[pin]
    up: SpinLock<KVec<Device>>,
    any: Atomic<bool>,
}

impl Devices {
    /// None.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            up <- new_spinlock!(KVec::new(), "kopi::Devices::up"),
            any: Atomic::new(false),
        })
    }

    /// Whether any is up. Any context.
    pub(crate) fn is_any_up(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// How many are up. Process context.
    pub(crate) fn len(&self) -> usize {
        let _softirqs = BottomHalvesOff::new();
        let up = self.up.lock();
        up.len()
    }

    fn add(&self, device: Device) -> Result {
        let _softirqs = BottomHalvesOff::new();
        let mut up = self.up.lock();
        up.push(device, GFP_ATOMIC)?;
        self.any.store(true, Relaxed);
        Ok(())
    }

    fn remove(&self, device: NonNull<bindings::net_device>) {
        let _softirqs = BottomHalvesOff::new();
        let mut up = self.up.lock();
        up.retain(|each| each.0 != device);
        self.any.store(!up.is_empty(), Relaxed);
    }

    /// Shows a packet on all that are up. Any context but hard interrupts, and interrupts on.
    ///
    /// Where there is no memory for a copy, that is counted as a drop of the devices'.
    pub(crate) fn show(&self, header: MonHdr, packet: &Packet<'_>) {
        let copy = packet.with_header(header);
        let _softirqs = BottomHalvesOff::new();
        let up = self.up.lock();
        for device in up.iter() {
            match &copy {
                Some(copy) => copy.show_on(device),
                // SAFETY: The device is up.
                None => unsafe { bindings::kopi_dev_rx_dropped_inc(device.0.as_ptr()) },
            }
        }
        drop(up);
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

    /// Bytes of payload of each datagram of a train, or 0.
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
    /// What a probe was called with, if it may look: not at what is shown on a monitor itself, nor where
    /// sockets' locks can't be taken.
    ///
    /// # Safety
    ///
    /// `skb` must be null, or live as long as the result.
    unsafe fn by_probe(skb: *mut bindings::sk_buff) -> Option<Self> {
        let skb = Self(NonNull::new(skb)?, PhantomData);
        // SAFETY: A device is valid as long as an skb is on it. The other looks at this CPU.
        let hidden = unsafe {
            bindings::kopi_irqs_disabled()
                || skb
                    .device()
                    .is_some_and(|device| bindings::kopi_mon_is(device.as_ptr()))
        };
        (!hidden).then_some(skb)
    }

    fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    /// Bytes of payload of each datagram of a train, or 0.
    fn gso_size(&self) -> u32 {
        // SAFETY: A valid skb.
        unsafe { bindings::kopi_skb_gso_size(self.as_ptr()) }
    }

    /// The device that it came by; 0 for one that goes out.
    fn came_by(&self) -> u32 {
        // SAFETY: A valid skb.
        unsafe { bindings::kopi_skb_iif(self.as_ptr()) as u32 }
    }

    /// Its device, if it has one.
    fn device(&self) -> Option<NonNull<bindings::net_device>> {
        // SAFETY: A valid skb.
        NonNull::new(unsafe { bindings::kopi_skb_dev(self.as_ptr()) })
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
    fn first_bytes(&self) -> Option<[u8; HEADER_MAX]> {
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

    /// Shows it to the packet sockets of a device. Softirqs are off.
    fn show_on(&self, device: &Device) {
        // SAFETY: The device is up, and the skb this value's. Sockets get clones.
        unsafe {
            bindings::kopi_skb_set_dev(self.as_ptr(), device.0.as_ptr());
            bindings::kopi_dev_lstats_add(device.0.as_ptr(), (*self.as_ptr()).len);
            bindings::dev_queue_xmit_nit(self.as_ptr(), device.0.as_ptr());
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // SAFETY: A valid skb, this value's.
        unsafe { bindings::consume_skb(self.as_ptr()) };
    }
}

/// # Safety
///
/// To be called by the kernel only, as the operation that it is set as.
#[no_mangle]
unsafe extern "C" fn kopi_mon_open(dev: *mut bindings::net_device) -> c_int {
    from_result(|| {
        let device = NonNull::new(dev).ok_or(EINVAL)?;
        let mut count = UP.lock();
        if *count == 0 {
            probe()?;
        }
        // SAFETY: The device is coming up, and keeps its namespace.
        let net = unsafe { NetRef::from_raw(bindings::kopi_dev_net(dev)) };
        let added = net.state().monitors.add(Device(device));
        match added {
            Ok(()) => *count = count.saturating_add(1),
            Err(_) if *count == 0 => unprobe(),
            Err(_) => {}
        }
        added?;
        Ok(0)
    })
}

/// # Safety
///
/// To be called by the kernel only, as the operation that it is set as.
#[no_mangle]
unsafe extern "C" fn kopi_mon_stop(dev: *mut bindings::net_device) -> c_int {
    if let Some(device) = NonNull::new(dev) {
        // SAFETY: The device is up, and keeps its namespace.
        let net = unsafe { NetRef::from_raw(bindings::kopi_dev_net(dev)) };
        net.state().monitors.remove(device);
        let mut count = UP.lock();
        *count = count.saturating_sub(1);
        if *count == 0 {
            unprobe();
        }
    }
    0
}

/// # Safety
///
/// To be called by the kernel only, as a probe of the tracepoint `net_dev_start_xmit`.
#[no_mangle]
unsafe extern "C" fn kopi_seen_transmitted(
    skb: *mut bindings::sk_buff,
    dev: *mut bindings::net_device,
) {
    // SAFETY: The skb lives through the call.
    let Some(skb) = (unsafe { Seeing::by_probe(skb) }) else {
        return;
    };
    let _rcu = kernel::sync::rcu::read_lock();
    // SAFETY: An skb on its way out keeps its sock; RCU is held. The device is valid.
    unsafe {
        if let Some((sk, flow)) = family::flow_of::<Flow>(bindings::kopi_skb_sk(skb.as_ptr())) {
            let seen = Seen::transmitted(bindings::kopi_dev_ifindex(dev) as u32, skb.gso_size());
            monitor::show(flow, sk, seen, &Packet::Skb(skb));
        }
    }
}

/// # Safety
///
/// To be called by the kernel only, as a probe of the tracepoint `kfree_skb`.
#[no_mangle]
unsafe extern "C" fn kopi_seen_dropped(
    skb: *mut bindings::sk_buff,
    reason: c_uint,
    rx_sk: *mut bindings::sock,
) {
    // SAFETY: The skb lives through the call.
    let Some(skb) = (unsafe { Seeing::by_probe(skb) }) else {
        return;
    };
    let _rcu = kernel::sync::rcu::read_lock();
    let came_by = skb.came_by();
    let show = |sk: &Sock, flow: &Flow| {
        if flow.is_refusing(skb.as_ptr() as usize) {
            return;
        }
        let ifindex = match (came_by, skb.device()) {
            // SAFETY: A device is valid as long as an skb is on it.
            (0, Some(device)) => unsafe { bindings::kopi_dev_ifindex(device.as_ptr()) as u32 },
            (ifindex, _) => ifindex,
        };
        let seen = Seen::dropped(came_by != 0, reason, ifindex, skb.gso_size());
        monitor::show(flow, sk, seen, &Packet::Skb(skb));
    };
    // SAFETY: An skb keeps its sock, and the caller the one that it is dropped for; RCU is held.
    unsafe {
        let own = family::flow_of::<Flow>(bindings::kopi_skb_sk(skb.as_ptr()))
            .or_else(|| family::flow_of::<Flow>(rx_sk));
        match own {
            Some((sk, flow)) => show(sk, flow),
            // What a packet socket drops is its own copy.
            None if came_by != 0 && rx_sk.is_null() => with_receiver(skb, show),
            None => {}
        }
    }
}

/// Does something with the flow that a packet was to go to, if its namespace is watched.
fn with_receiver(skb: Seeing<'_>, act: impl FnOnce(&Sock, &Flow)) {
    let (Some(device), Some(bytes)) = (skb.device(), skb.first_bytes()) else {
        return;
    };
    let Some(ends) = ip::ends(&bytes) else {
        return;
    };
    // SAFETY: A device is valid as long as an skb is on it, and keeps its namespace.
    let net = unsafe { NetRef::from_raw(bindings::kopi_dev_net(device.as_ptr())) };
    if !net.state().monitors.is_any_up() {
        return;
    }
    let Some(found) = SockRef::find(net, &ends, skb.came_by()) else {
        return;
    };
    // SAFETY: The reference keeps the sock; the caller holds RCU.
    if let Some((sk, flow)) = unsafe { family::flow_of::<Flow>(found.as_ptr()) } {
        act(sk, flow);
    }
}
