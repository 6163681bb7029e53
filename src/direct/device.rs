// SPDX-License-Identifier: GPL-2.0

//! An attached device: its egress hook, a queue for each CPU, and what receives.

use super::{
    counters::Counters,
    flow::Direct,
    path::{why_not, RxPath, TxPath},
    queue::Queue,
    receive::RedirectReceiver, //
};
use crate::flow::Flow;
use crate::sys::{
    context::{BottomHalvesOff, SoftirqsOff},
    direct::{
        egress::EgressSkb, port_map::PinnedPortMap, redirect_device::RedirectDevice,
        taken::TakenSkb,
    },
    netdev::{Device, Egress, EgressVerdict, Rtnl, Timer}, //
};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use kernel::{
    cpu::{nr_cpu_ids, CpuId},
    prelude::*,
    sync::{
        atomic::{ordering, Atomic},
        rcu,
        Arc, //
    },
};

/// Name of the XDP program that `kopictl attach` attaches to a driver.
const PROGRAM: &CStr = c"kopi_redirect";
/// The number of the next attached device.
static NUMBER: Atomic<u32> = Atomic::new(1);

/// A device whose driver KOPI gives frames to.
pub(crate) struct AttachedDevice {
    /// Unique among all attached devices, including earlier ones.
    pub(crate) number: u32,
    pub(super) device: Arc<Device>,
    pub(super) queues: KVec<Pin<KBox<Timer<Queue>>>>,
    /// It takes no more packets.
    closing: AtomicBool,
    /// The target of redirected frames, if the device was attached with a port map.
    pub(super) receiving: Option<RedirectDevice<RedirectReceiver>>,
    pub(crate) counters: Arc<Counters>,
}

impl AttachedDevice {
    /// A device that takes packets once it is hooked, and, with a port map, receives frames from now on:
    /// `ENOMEM`, or the kernel's own refusal.
    pub(super) fn new(
        device: Device,
        port_map: Option<PinnedPortMap>,
        rtnl: &Rtnl,
    ) -> Result<Self> {
        let number = NUMBER.fetch_add(1, ordering::Relaxed);
        let device = Arc::new(device, GFP_KERNEL_ACCOUNT)?;
        let counters = Arc::new(Counters::default(), GFP_KERNEL_ACCOUNT)?;
        let mut queues = KVec::with_capacity(nr_cpu_ids() as usize, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..nr_cpu_ids() {
            let queue = Queue::new(number, device.clone(), counters.clone())?;
            let queue = KBox::try_pin_init(Timer::new(queue), GFP_KERNEL_ACCOUNT)?;
            queues.push_within_capacity(queue).map_err(|_| ENOMEM)?;
        }
        let receiving = match port_map {
            None => None,
            Some(port_map) => {
                let receiver = RedirectReceiver::new(device.clone(), port_map, counters.clone())?;
                Some(RedirectDevice::new(receiver, rtnl)?)
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

    /// Makes it take no more packets. Any context.
    pub(super) fn close(&self) {
        self.closing.store(true, Relaxed);
    }

    /// Whether no packet is in flight. Process context.
    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| {
            let _softirqs = BottomHalvesOff::new();
            queue.queue.is_empty()
        })
    }

    /// The path of outgoing packets now, as far as the device decides.
    pub(crate) fn tx_path(&self, softirqs: &SoftirqsOff) -> TxPath {
        if !self.device.takes_frames() {
            TxPath::NoProgram
        } else if !self.device.is_ready() {
            TxPath::Down
        } else if self.device.lacks_queues(softirqs) || self.counters.is_stuck() {
            TxPath::Refused
        } else if self.device.has_tc_egress() {
            TxPath::Tc
        } else if !self.device.is_last_hook(self, softirqs) {
            TxPath::Hook
        } else if self.device.is_tapped(softirqs) {
            TxPath::Tap
        } else if self.device.net().state().policy.monitors.is_any_up() {
            TxPath::Monitor
        } else if !self.device.queues_can_be_bypassed(softirqs) {
            TxPath::Qdisc
        } else {
            TxPath::Direct
        }
    }

    /// Whether a packet may leave directly whose path is this one, as far as the device is concerned.
    pub(super) fn is_open(&self, path: TxPath) -> bool {
        path == TxPath::Direct && !self.closing.load(Relaxed)
    }

    /// The path of a packet, without regard to other packets of its flow.
    fn path_of(&self, packet: &EgressSkb<'_>, softirqs: &SoftirqsOff) -> TxPath {
        match self.tx_path(softirqs) {
            TxPath::Direct if !packet.is_plain() => why_not(packet),
            path => path,
        }
    }

    /// The path of incoming packets now.
    pub(crate) fn rx_path(&self) -> RxPath {
        match &self.receiving {
            None => RxPath::NoProgram,
            // Another process has detached the program, or replaced it.
            Some(_) if !self.device.runs_xdp(PROGRAM) => RxPath::NoProgram,
            Some(target) if !target.is_up() => RxPath::Down,
            Some(_) if self.device.strips_vlans() => RxPath::Vlan,
            Some(_) => {
                let observer = self.device.rx_observer(&rcu::read_lock());
                observer.map_or(RxPath::Direct, RxPath::from)
            }
        }
    }

    /// Passes a packet to the stack whose flow has packets in flight at another device: there is no
    /// order between devices, and this one's queue must not wait for the other's driver.
    fn pass_elsewhere(&self, direct: &Direct, packet: &EgressSkb<'_>) -> EgressVerdict {
        if direct.leaves_by(self.number) {
            direct.leave();
        }
        direct.record_path(self.number, TxPath::Behind);
        self.count_passed(packet);
        EgressVerdict::Pass
    }

    /// The transmit queue of this CPU, at whose qdisc packets are counted. Softirqs are off.
    pub(super) fn tx_queue(&self) -> u32 {
        CpuId::current().as_u32() % self.device.queues().max(1)
    }

    /// Counts a packet that is passed to the stack, if it is a GSO packet.
    pub(super) fn count_passed(&self, packet: &EgressSkb<'_>) {
        if packet.is_gso() {
            self.counters.passed.fetch_add(1, Relaxed);
        }
    }

    /// Puts a packet that was taken behind those that the flow has in flight, and sends what can be
    /// sent.
    pub(super) fn enqueue(
        &self,
        flow: &Flow,
        mut packet: TakenSkb,
        in_flight: u32,
        softirqs: &SoftirqsOff,
    ) {
        let (here, user) = (CpuId::current().as_u32(), flow.charged_user());
        // The flow's packets in flight may be on another CPU's queue.
        let cpu = u32::from(flow.direct.cpu.load(Relaxed));
        if in_flight != 0 && cpu != here {
            let Some(back) = self.join_queue(cpu, user, packet) else {
                return;
            };
            packet = back;
        }
        flow.direct.cpu.store(here as u16, Relaxed);
        self.enqueue_here(user, packet, softirqs);
    }

    /// Puts a user's packet into another CPU's queue; gives it back if that won't be polled.
    pub(super) fn join_queue(&self, cpu: u32, user: u32, packet: TakenSkb) -> Option<TakenSkb> {
        match self.queues.get(cpu as usize) {
            Some(theirs) => theirs.queue.join(user, packet).err(),
            // There is a queue for each CPU that can ever be.
            None => Some(packet),
        }
    }

    /// Puts a user's packet into this CPU's queue, and sends what can be sent.
    pub(super) fn enqueue_here(&self, user: u32, packet: TakenSkb, softirqs: &SoftirqsOff) {
        // There is a queue for each CPU that can ever be.
        if let Some(own) = self.queues.get(CpuId::current().as_u32() as usize) {
            own.queue.add(user, packet);
            own.poll(softirqs);
        }
    }

    /// Drops packets that wait, and completes packets with the driver. Process context.
    pub(super) fn empty(&self) {
        for queue in &self.queues {
            let _softirqs = BottomHalvesOff::new();
            queue.queue.empty();
        }
    }
}

impl Egress for AttachedDevice {
    fn device(&self) -> &Device {
        &self.device
    }

    fn egress(&self, skb: EgressSkb<'_>, softirqs: &SoftirqsOff) -> EgressVerdict {
        let Some((_, flow)) = skb.flow::<Flow>() else {
            return EgressVerdict::Pass;
        };
        let direct = &flow.direct;
        let Some(in_flight) = direct.in_flight_at(self.number) else {
            return self.pass_elsewhere(direct, &skb);
        };
        if skb.is_gso() {
            direct.end_datagram_run();
        } else if in_flight == 0 && !direct.admit_datagram(self.number) {
            direct.record_path(self.number, why_not(&skb));
            return EgressVerdict::Pass;
        }
        let path = self.path_of(&skb, softirqs);
        let can = self.is_open(path);
        if in_flight == 0 && !(can && direct.enter_by(self.number)) {
            let path = if can { TxPath::Behind } else { path };
            direct.record_path(self.number, path);
            direct.leave();
            self.count_passed(&skb);
            return EgressVerdict::Pass;
        }
        direct.record_path(self.number, path);
        // A flow that left the direct path has earlier packets in this queue that the stack is to
        // send. This packet has to go behind those, through the stack as well.
        let directly = can && direct.leaves_by(self.number);
        if !directly {
            self.count_passed(&skb);
        }
        if !direct.begin_flight(self.number, skb.charge()) {
            return self.pass_elsewhere(direct, &skb);
        }
        let packet = if directly {
            skb.count(&self.device, self.tx_queue());
            skb.take_for_driver()
        } else {
            skb.take_for_stack()
        };
        self.enqueue(flow, packet, in_flight, softirqs);
        EgressVerdict::Taken
    }
}

impl Drop for AttachedDevice {
    fn drop(&mut self) {
        self.empty();
    }
}
