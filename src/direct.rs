// SPDX-License-Identifier: GPL-2.0

//! The direct path: GSO packets leave by the driver's `ndo_xdp_xmit`, datagram by datagram, instead of as skbs.
//!
//! A port is the last hook of all that leaves by a device. What it is asked about has met LOCAL_OUT and
//! POSTROUTING, the cgroup's programs, the neighbour table and nft's egress hook, a GSO packet as one packet. Where
//! nothing is left that would look at it (tc, a qdisc that isn't empty, a tap, a monitor), it is cut
//! up here; else it goes on. Packets of a flow never overtake each other: while some are with the driver
//! the stack gets none, and the other way round.

use crate::flow::Flow;
use crate::redirect::Receiver;
use crate::sys::{
    context::{now, BottomHalvesOff},
    netdev::{self, Device, DeviceEvents, Egress, Hooked, Polled, Rtnl, Timer, Verdict},
    outgoing::{EgressSkb, List, Sent, TakenSkb},
    pernet::NetRef,
    sock::Sock,
    target::RedirectDevice,
    uapi,
    wanted::PortMap, //
};
use core::sync::atomic::{
    AtomicBool,
    AtomicU16,
    AtomicU32,
    AtomicU64,
    AtomicU8,
    Ordering::Relaxed, //
};
use kernel::{
    cpu::{nr_cpu_ids, CpuId},
    new_spinlock,
    prelude::*,
    sync::{global_lock, rcu, Arc, SpinLock},
    time::{delay::fsleep, Delta}, //
};

/// Between two looks at a queue on which something waits, or is with the driver, in nanoseconds; twice as long
/// each time that nothing has changed.
const TICK: u64 = 50_000;
const TICK_MAX: u64 = 1_600_000;
/// How long a queue waits for what the stack still has of the flows whose first GSO packets are at its head, one after
/// the other, in nanoseconds; anew when the driver has taken something.
const PATIENCE: u64 = 1_000_000;
/// When it tries again if that was in vain, in nanoseconds.
const PAUSE: u64 = 1_000_000_000;
/// How long a driver may take nothing of a packet that it is offered, and how long it may have one before that
/// counts as sent, in nanoseconds.
const DRIVER_MAX: u64 = 1_000_000_000;
/// How long the stack has all packets when a driver has taken nothing for so long, in nanoseconds.
const REFUSED_PAUSE: u64 = 60_000_000_000;
/// How long a port that is taken away waits for what it has taken, in nanoseconds.
const CLOSING: u64 = 1_000_000_000;
/// Between two looks of who waits for that, in nanoseconds.
const CLOSING_TICK: i64 = 1_000_000;
/// Attached devices that there can be, of all network namespaces.
const ATTACHED_MAX: usize = 64;
/// What `kopictl attach` has a driver run, and shows in its lists of programs.
const PROGRAM: &CStr = c"kopi_redirect";
/// So many single datagrams in turn, each sent when none was held, and the flow leaves until its next GSO packet:
/// the stack takes less for one.
const DATAGRAMS_MAX: u8 = 16;
/// Datagrams that may wait on a queue, as many as fq_codel keeps.
const WAITING_MAX: u32 = 10_240;

global_lock! {
    // SAFETY: `Attaching::register` initializes it, before any device is attached.
    /// Those of all network namespaces. Taken under RTNL, if that is held, and always when one comes or goes. What
    /// makes or ends devices is done without it, since those who are told of that take it.
    unsafe(uninit) static ATTACHED: Mutex<KVec<Hooked<AttachedDevice>>> = KVec::new();
}

/// The next port's number.
static NUMBER: AtomicU32 = AtomicU32::new(1);

/// Which way packets take, as `uapi/kopi_netlink.h` numbers them; those from `Datagram` on are of one flow's only.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum TxPath {
    /// Directly, to the driver.
    Direct = uapi::KOPI_PATH_DIRECT,
    /// By the stack, since no XDP program has the driver take frames,
    NoProgram = uapi::KOPI_PATH_NO_PROGRAM,
    /// since tc has an egress hook,
    Tc = uapi::KOPI_PATH_TC,
    /// since another hook of netfilter's egress comes later,
    Hook = uapi::KOPI_PATH_HOOK,
    /// since a packet socket looks at what leaves,
    Tap = uapi::KOPI_PATH_TAP,
    /// since a monitor device is up,
    Monitor = uapi::KOPI_PATH_MONITOR,
    /// since a qdisc holds packets, or doesn't let any pass it by,
    Qdisc = uapi::KOPI_PATH_QDISC,
    /// since the device can't send,
    Down = uapi::KOPI_PATH_DOWN,
    /// since its driver took nothing for too long,
    Refused = uapi::KOPI_PATH_REFUSED,
    /// since the packet is no GSO packet,
    Datagram = uapi::KOPI_PATH_DATAGRAM,
    /// since it isn't UDP any more,
    Transformed = uapi::KOPI_PATH_TRANSFORMED,
    /// since there is more to it than a driver is given,
    Extras = uapi::KOPI_PATH_EXTRAS,
    /// or since the stack has had earlier ones for too long.
    Behind = uapi::KOPI_PATH_BEHIND,
}

/// Which way what comes takes, as `uapi/kopi_netlink.h` numbers them.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum RxPath {
    /// Redirected by the device's XDP program.
    Direct = uapi::KOPI_RECEIVE_PATH_DIRECT,
    /// By the stack, since the program is not one that does,
    NoProgram = uapi::KOPI_RECEIVE_PATH_NO_PROGRAM,
    /// since the device that it would be redirected to is down,
    Down = uapi::KOPI_RECEIVE_PATH_DOWN,
    /// since the program can't see the tags of VLANs,
    Vlan = uapi::KOPI_RECEIVE_PATH_VLAN,
    /// or since the flow that it is for takes no GSO packets.
    NoGro = uapi::KOPI_RECEIVE_PATH_NO_GRO,
}

/// Why a packet doesn't leave directly, where others could.
fn why_not(offer: &EgressSkb<'_>) -> TxPath {
    if !offer.is_udp() {
        TxPath::Transformed
    } else if offer.has_extras() || offer.is_gso() {
        TxPath::Extras
    } else {
        TxPath::Datagram
    }
}

/// What happened at a port.
#[derive(Default)]
pub(crate) struct Counters {
    /// Datagrams that the driver took.
    pub(crate) packets: AtomicU64,
    /// GSO packets of them.
    pub(crate) gso_packets: AtomicU64,
    /// GSO packets that the stack got.
    pub(crate) passed: AtomicU64,
    /// Datagrams that were dropped: there were too many, no memory, the driver took no more, or the device went
    /// down.
    pub(crate) dropped: AtomicU64,
    /// Datagrams that were redirected.
    pub(crate) received: AtomicU64,
    /// GSO packets that were made of them.
    pub(crate) gro_packets: AtomicU64,
    /// Those that were dropped for want of memory.
    pub(crate) receive_dropped: AtomicU64,
    /// Until when the driver isn't offered any, since it took none for too long, in nanoseconds.
    refused_until: AtomicU64,
}

impl Counters {
    fn is_refused(&self) -> bool {
        match self.refused_until.load(Relaxed) {
            0 => false,
            until => now() < until,
        }
    }
}

/// What the direct path knows of a flow.
#[derive(Default)]
pub(crate) struct Direct {
    /// Number of the port that its packets go directly by, where they can; 0 for none.
    port: AtomicU32,
    /// The stack may still have some that came before.
    entering: AtomicBool,
    /// The CPU whose queue has those that were taken.
    cpu: AtomicU16,
    /// Packets that were taken, and not let go of yet.
    in_flight: AtomicU32,
    /// Of these, those that the driver was given.
    with_driver: AtomicU32,
    /// Bytes that its sock is charged for them.
    charge: AtomicU32,
    /// Not to be tried before this time.
    pause: AtomicU64,
    /// Datagrams since the last GSO packet, as [`DATAGRAMS_MAX`] counts them.
    singles: AtomicU8,
    /// By which port's device the last packet left that left by one, and which way; 0 if none has.
    last_device: AtomicU32,
    last_path: AtomicU8,
}

impl Direct {
    /// Notes which way a packet goes.
    fn note_path(&self, device: &Device, way: TxPath) {
        if self.last_path.load(Relaxed) != way as u8 {
            self.last_path.store(way as u8, Relaxed);
        }
        if self.last_device.load(Relaxed) != device.ifindex() {
            self.last_device.store(device.ifindex(), Relaxed);
        }
    }

    /// Which way the flow's last packet took that left by a port, as `TxPath` numbers them, and the device: `None`
    /// if none has.
    pub(crate) fn last(&self) -> Option<(u32, u32)> {
        let device = self.last_device.load(Relaxed);
        (device != 0).then_some((self.last_path.load(Relaxed).into(), device))
    }

    fn goes_by(&self, port: u32) -> bool {
        self.port.load(Relaxed) == port
    }

    /// Whether packets may go by a port now, for the first time perhaps.
    fn may_go_by(&self, port: u32) -> bool {
        if !self.goes_by(port) {
            if self.pause.load(Relaxed) > now() {
                return false;
            }
            self.entering.store(true, Relaxed);
            self.port.store(port, Relaxed);
        }
        true
    }

    /// Whether a single datagram goes by a port, too, when none is held.
    fn takes_single(&self, port: u32) -> bool {
        if !self.goes_by(port) {
            return false;
        }
        let singles = self.singles.load(Relaxed);
        if singles >= DATAGRAMS_MAX {
            self.leave();
            return false;
        }
        self.singles.store(singles.saturating_add(1), Relaxed);
        true
    }

    /// A GSO packet goes by a port.
    fn note_gso(&self) {
        if self.singles.load(Relaxed) != 0 {
            self.singles.store(0, Relaxed);
        }
    }

    fn leave(&self) {
        self.port.store(0, Relaxed);
    }

    fn take(&self, packet: &TakenSkb) {
        self.in_flight.fetch_add(1, Relaxed);
        self.charge.fetch_add(packet.charge(), Relaxed);
    }

    fn complete(&self, packet: &TakenSkb) {
        self.with_driver
            .fetch_sub(u32::from(packet.has_begun()), Relaxed);
        self.in_flight.fetch_sub(1, Relaxed);
        self.charge.fetch_sub(packet.charge(), Relaxed);
    }

    /// Whether the stack, or a driver that it gave them to, has none of the flow's packets.
    fn is_alone(&self, sk: &Sock) -> bool {
        sk.sending() <= self.charge.load(Relaxed)
    }
}

/// A device whose driver is given frames.
pub(crate) struct AttachedDevice {
    /// Not that of any other, earlier ones included.
    number: u32,
    device: Arc<Device>,
    queues: KVec<Pin<KBox<Timer<Queue>>>>,
    /// It takes nothing more.
    closing: AtomicBool,
    /// What takes the packets that are redirected, if the program was said to.
    receiving: Option<RedirectDevice<Receiver>>,
    pub(crate) counters: Arc<Counters>,
}

impl AttachedDevice {
    /// Under RTNL.
    fn new(device: Device, wanted: Option<PortMap>) -> Result<Self> {
        let number = NUMBER.fetch_add(1, Relaxed);
        let device = Arc::new(device, GFP_KERNEL_ACCOUNT)?;
        let counters = Arc::new(Counters::default(), GFP_KERNEL_ACCOUNT)?;
        let mut queues = KVec::with_capacity(nr_cpu_ids() as usize, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..nr_cpu_ids() {
            let queue = Queue::new(number, device.clone(), counters.clone())?;
            let queue = KBox::try_pin_init(Timer::new(queue), GFP_KERNEL_ACCOUNT)?;
            queues.push_within_capacity(queue).map_err(|_| ENOMEM)?;
        }
        let receiving = match wanted {
            None => None,
            Some(wanted) => {
                let receiver = Receiver::new(device.clone(), wanted, counters.clone())?;
                Some(RedirectDevice::new(receiver)?)
            }
        };
        Ok(Self {
            number,
            device,
            queues,
            closing: AtomicBool::new(false),
            receiving,
            counters,
        })
    }

    /// Takes nothing more. Any context.
    fn close(&self) {
        self.closing.store(true, Relaxed);
    }

    /// Whether all that was taken has left. Process context.
    fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| {
            let _softirqs = BottomHalvesOff::new();
            queue.queue.is_empty()
        })
    }

    /// Which way GSO packets take now. In an RCU read-side section, with softirqs off.
    pub(crate) fn tx_path(&self) -> TxPath {
        if !self.device.takes_frames() {
            TxPath::NoProgram
        } else if !self.device.is_ready() {
            TxPath::Down
        } else if self.counters.is_refused() {
            TxPath::Refused
        } else if self.device.has_tc_egress() {
            TxPath::Tc
        } else if !self.device.asks_last(self) {
            TxPath::Hook
        } else if self.device.is_tapped() {
            TxPath::Tap
        } else if self.device.net().state().monitors.is_any_up() {
            TxPath::Monitor
        } else if !self.device.queues_can_be_bypassed() {
            TxPath::Qdisc
        } else {
            TxPath::Direct
        }
    }

    /// Which way a packet takes, if its flow's others don't matter. Softirqs are off.
    fn path_of(&self, offer: &EgressSkb<'_>) -> TxPath {
        match self.tx_path() {
            TxPath::Direct if !offer.is_plain() => why_not(offer),
            way => way,
        }
    }

    /// Which way what comes takes now.
    pub(crate) fn rx_path(&self) -> RxPath {
        match &self.receiving {
            None => RxPath::NoProgram,
            // Somebody has taken it off, or put another one in its place.
            Some(_) if !self.device.runs(PROGRAM) => RxPath::NoProgram,
            Some(target) if !target.is_up() => RxPath::Down,
            Some(_) if self.device.strips_vlans() => RxPath::Vlan,
            Some(_) => RxPath::Direct,
        }
    }

    fn count_passed(&self, offer: &EgressSkb<'_>) {
        if offer.is_gso() {
            self.counters.passed.fetch_add(1, Relaxed);
        }
    }

    /// Drops what waits, and lets go of what the driver has. Process context.
    fn empty(&self) {
        for queue in &self.queues {
            let _softirqs = BottomHalvesOff::new();
            queue.queue.empty();
        }
    }
}

impl Egress for AttachedDevice {
    /// Its device.
    fn device(&self) -> &Device {
        &self.device
    }

    fn egress(&self, offer: EgressSkb<'_>) -> Verdict {
        let Some((_, flow)) = offer.flow::<Flow>() else {
            return Verdict::Pass;
        };
        let direct = &flow.direct;
        let held = direct.in_flight.load(Relaxed);
        if offer.is_gso() {
            direct.note_gso();
        } else if held == 0 && !direct.takes_single(self.number) {
            direct.note_path(&self.device, why_not(&offer));
            return Verdict::Pass;
        }
        let way = self.path_of(&offer);
        let can = !self.closing.load(Relaxed) && way == TxPath::Direct;
        if held == 0 && !(can && direct.may_go_by(self.number)) {
            let way = if can { TxPath::Behind } else { way };
            direct.note_path(&self.device, way);
            direct.leave();
            self.count_passed(&offer);
            return Verdict::Pass;
        }
        direct.note_path(&self.device, way);
        // Behind what the stack is to have, the stack is to have this one, too.
        let directly = can && direct.goes_by(self.number);
        if !directly {
            self.count_passed(&offer);
        }
        let here = CpuId::current().as_u32();
        let Some(own) = self.queues.get(here as usize) else {
            return Verdict::Pass;
        };
        if directly {
            offer.count(&self.device, here % self.device.queues().max(1));
        }
        let mut packet = offer.take(!directly);
        direct.take(&packet);
        // Behind those that were taken before, on another CPU perhaps.
        let cpu = direct.cpu.load(Relaxed);
        if held != 0 && u32::from(cpu) != here {
            match self
                .queues
                .get(cpu as usize)
                .map(|queue| queue.queue.join(packet))
            {
                Some(Err(back)) => packet = back,
                _ => return Verdict::Taken,
            }
        }
        direct.cpu.store(here as u16, Relaxed);
        own.queue.add(packet);
        own.poll();
        Verdict::Taken
    }
}

impl Drop for AttachedDevice {
    fn drop(&mut self) {
        self.empty();
    }
}

/// What a CPU has of a port.
#[pin_data]
pub(crate) struct Queue {
    /// The port's.
    number: u32,
    device: Arc<Device>,
    counters: Arc<Counters>,
    #[pin]
    lists: SpinLock<Lists>,
}

struct Lists {
    /// Packets that are to be sent, in order, and the number of datagrams.
    waiting: List,
    datagrams: u32,
    /// Packets that the driver has frames of.
    with_driver: List,
    /// From when on it has waited as [`PATIENCE`] says, in nanoseconds; `None` if it doesn't.
    patient_from: Option<u64>,
    /// The queue will be looked at.
    awake: bool,
    /// When, in nanoseconds.
    tick: u64,
    /// As below, while the lock isn't held.
    done: Option<Done>,
}

/// What is to be freed, or passed on, without the lock.
struct Done {
    sent: List,
    dropped: List,
    to_stack: List,
}

impl Done {
    fn new() -> Result<Self> {
        Ok(Self {
            sent: List::new()?,
            dropped: List::new()?,
            to_stack: List::new()?,
        })
    }
}

/// What became of the first of those that waited.
enum Step {
    Given,
    ToStack,
    Drop,
}

/// Whether a packet can be given to the driver.
enum Turn {
    Now,
    Later,
    /// The stack is to have it.
    Never,
}

impl Polled for Queue {
    fn reap(&self) {
        self.device.reap();
    }

    /// Sends what can be sent, and completes what has left. On the queue's CPU.
    fn poll(&self) -> Option<u64> {
        let done = {
            let mut lists = self.lists.lock();
            // Else somebody is at it, further up on this CPU.
            let mut done = lists.done.take()?;
            lists.awake = true;
            let moved = self.complete(&mut lists, &mut done) | self.send(&mut lists, &mut done);
            lists.tick = if moved {
                TICK
            } else {
                TICK_MAX.min(lists.tick.saturating_mul(2))
            };
            done
        };
        let done = self.finish(done);
        let mut lists = self.lists.lock();
        lists.done = Some(done);
        lists.awake = !lists.is_empty();
        lists.awake.then_some(lists.tick)
    }
}

impl Queue {
    fn new(
        number: u32,
        device: Arc<Device>,
        counters: Arc<Counters>,
    ) -> Result<impl PinInit<Self, Error>> {
        let lists = Lists {
            waiting: List::new()?,
            datagrams: 0,
            with_driver: List::new()?,
            patient_from: None,
            awake: false,
            tick: TICK,
            done: Some(Done::new()?),
        };
        Ok(try_pin_init!(Self {
            number,
            device,
            counters,
            lists <- new_spinlock!(lists, "kopi::Queue::lists"),
        }))
    }

    fn is_empty(&self) -> bool {
        self.lists.lock().is_empty()
    }

    /// Appends a packet, which the caller has looked at then; one too many is dropped. Softirqs are off.
    fn add(&self, packet: TakenSkb) {
        let refused = self.lists.lock().add(packet);
        if let Some(packet) = refused {
            self.drop(packet);
        }
    }

    /// As above, from another CPU: gives the packet back if nobody is going to look.
    fn join(&self, packet: TakenSkb) -> core::result::Result<(), TakenSkb> {
        let refused = {
            let mut lists = self.lists.lock();
            if !lists.awake {
                return Err(packet);
            }
            lists.add(packet)
        };
        if let Some(packet) = refused {
            self.drop(packet);
        }
        Ok(())
    }

    fn drop(&self, packet: TakenSkb) {
        packet.with_flow(|_, flow: &Flow| flow.direct.complete(&packet));
        let datagrams = u64::from(packet.datagrams_left());
        self.counters.dropped.fetch_add(datagrams, Relaxed);
    }

    /// Lets go of what the driver has let go of; says whether that was any.
    fn complete(&self, lists: &mut Lists, done: &mut Done) -> bool {
        let mut any = false;
        let now = now();
        let is_sent =
            |packet: &mut TakenSkb| packet.has_returned() || packet.given_for(now) > DRIVER_MAX;
        while lists.with_driver.first(is_sent) == Some(true) {
            let Some(packet) = lists.with_driver.pop() else {
                break;
            };
            packet.with_flow(|_, flow: &Flow| flow.direct.complete(&packet));
            done.sent.push(packet);
            any = true;
        }
        any
    }

    /// Sends those that wait, as far as they can be sent now; says whether any could.
    fn send(&self, lists: &mut Lists, done: &mut Done) -> bool {
        let mut any = false;
        loop {
            let patient_from = &mut lists.patient_from;
            let step = lists
                .waiting
                .first(|packet| self.step(packet, patient_from));
            let Some(step) = step.flatten() else {
                break;
            };
            let Some(mut packet) = lists.pop_waiting() else {
                break;
            };
            any = true;
            match step {
                Step::Given => {
                    lists.patient_from = None;
                    packet.given_at(now());
                    lists.with_driver.push(packet);
                }
                Step::ToStack => {
                    packet.with_flow(|_, flow: &Flow| {
                        // Those behind it wait until that has sent it.
                        flow.direct.entering.store(true, Relaxed);
                        flow.direct.complete(&packet);
                    });
                    done.to_stack.push(packet);
                }
                Step::Drop => done.dropped.push(packet),
            }
        }
        if lists.waiting.first(|_| ()).is_none() {
            lists.patient_from = None;
        }
        any
    }

    /// Sends the first one, if its turn has come; `None` if it has to wait.
    fn step(&self, packet: &mut TakenSkb, patient_from: &mut Option<u64>) -> Option<Step> {
        if packet.is_to_stack() {
            return self.may_pass_on(packet);
        }
        let begun = packet.has_begun();
        let turn = match begun {
            true => None,
            false => packet.with_flow(|sk, flow: &Flow| self.turn(sk, flow, patient_from)),
        };
        match turn.unwrap_or(Turn::Now) {
            Turn::Now => {}
            Turn::Later => return None,
            Turn::Never => {
                packet.leave_to_stack();
                return self.may_pass_on(packet);
            }
        }
        let sent = packet.send(&self.device);
        if !begun && packet.has_begun() {
            packet.with_flow(|_, flow: &Flow| flow.direct.with_driver.fetch_add(1, Relaxed));
        }
        match sent {
            Sent::All => {
                let datagrams = packet.datagrams();
                let counters = &self.counters;
                counters.packets.fetch_add(u64::from(datagrams), Relaxed);
                counters
                    .gso_packets
                    .fetch_add(u64::from(datagrams > 1), Relaxed);
                Some(Step::Given)
            }
            Sent::Some => {
                packet.refused(now(), true);
                None
            }
            // In its midst the program was taken away, say, or there is no memory: that may change.
            Sent::None | Sent::Failed if packet.has_begun() || sent == Sent::None => {
                let now = now();
                if packet.refused(now, false) < DRIVER_MAX {
                    return None;
                }
                if sent == Sent::None {
                    let until = now.saturating_add(REFUSED_PAUSE);
                    self.counters.refused_until.store(until, Relaxed);
                }
                if packet.has_begun() {
                    return Some(Step::Drop);
                }
                packet.leave_to_stack();
                self.may_pass_on(packet)
            }
            Sent::None | Sent::Failed => {
                packet.leave_to_stack();
                self.may_pass_on(packet)
            }
        }
    }

    /// Whether a packet of a flow can be given to the driver; never if the stack has had another one of the
    /// flow for too long, or if somebody looks at what leaves who didn't when the packet came.
    fn turn(&self, sk: &Sock, flow: &Flow, patient_from: &mut Option<u64>) -> Turn {
        let direct = &flow.direct;
        if !direct.goes_by(self.number) || self.device.is_tapped() || self.counters.is_refused() {
            return Turn::Never;
        }
        if !direct.entering.load(Relaxed) {
            return Turn::Now;
        }
        if direct.is_alone(sk) {
            direct.entering.store(false, Relaxed);
            return Turn::Now;
        }
        let now = now();
        if now.saturating_sub(*patient_from.get_or_insert(now)) < PATIENCE {
            return Turn::Later;
        }
        direct.leave();
        direct.pause.store(now.wrapping_add(PAUSE), Relaxed);
        Turn::Never
    }

    /// Whether the stack can have a packet: not before the driver has sent all that came earlier.
    fn may_pass_on(&self, packet: &TakenSkb) -> Option<Step> {
        match packet.with_flow(|_, flow: &Flow| flow.direct.with_driver.load(Relaxed)) {
            None | Some(0) => Some(Step::ToStack),
            Some(_) => None,
        }
    }

    /// Frees, or passes on. Without the lock: who waits for room may be woken.
    fn finish(&self, mut done: Done) -> Done {
        while let Some(packet) = done.sent.pop() {
            packet.finish();
        }
        while let Some(packet) = done.dropped.pop() {
            self.drop(packet);
        }
        while let Some(packet) = done.to_stack.pop() {
            packet.pass_on();
        }
        done
    }

    /// Drops what waits, and lets go of what the driver has. Softirqs are off.
    fn empty(&self) {
        let given = || self.lists.lock().with_driver.pop();
        while let Some(packet) = given() {
            packet.with_flow(|_, flow: &Flow| flow.direct.complete(&packet));
            packet.finish();
        }
        let waiting = || self.lists.lock().pop_waiting();
        while let Some(packet) = waiting() {
            self.drop(packet);
        }
    }
}

impl Lists {
    /// Appends a packet; gives it back if there are too many.
    fn add(&mut self, packet: TakenSkb) -> Option<TakenSkb> {
        let all = self.datagrams.saturating_add(packet.datagrams());
        if all > WAITING_MAX {
            return Some(packet);
        }
        self.datagrams = all;
        self.waiting.push(packet);
        None
    }

    /// Takes the first of those that wait.
    fn pop_waiting(&mut self) -> Option<TakenSkb> {
        let packet = self.waiting.pop()?;
        self.datagrams = self.datagrams.saturating_sub(packet.datagrams());
        Some(packet)
    }

    fn is_empty(&mut self) -> bool {
        self.waiting.first(|_| ()).is_none() && self.with_driver.first(|_| ()).is_none()
    }
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
