// SPDX-License-Identifier: GPL-2.0

//! An attached device: its egress hook, a queue for each CPU, and what receives.

use super::{
    counters::Counters,
    path::{why_not, RxPath, TxPath},
    queue::Queue,
    receive::Receiver, //
};
use crate::flow::Flow;
use crate::sys::{
    context::BottomHalvesOff,
    direct::{egress::EgressSkb, port_map::PortMap, redirect_device::RedirectDevice},
    netdev::{Device, Egress, Timer, Verdict}, //
};
use core::sync::atomic::{
    AtomicBool,
    AtomicU32,

    Ordering::Relaxed, //
};
use kernel::{
    cpu::{nr_cpu_ids, CpuId},
    prelude::*,
    sync::Arc,
};

/// What `kopictl attach` has a driver run, and shows in its lists of programs.
const PROGRAM: &CStr = c"kopi_redirect";
/// The next port's number.
static NUMBER: AtomicU32 = AtomicU32::new(1);

/// A device whose driver is given frames.
pub(crate) struct AttachedDevice {
    /// Not that of any other, earlier ones included.
    pub(super) number: u32,
    pub(super) device: Arc<Device>,
    pub(super) queues: KVec<Pin<KBox<Timer<Queue>>>>,
    /// It takes nothing more.
    pub(super) closing: AtomicBool,
    /// What takes the packets that are redirected, if the program was said to.
    pub(super) receiving: Option<RedirectDevice<Receiver>>,
    pub(crate) counters: Arc<Counters>,
}

impl AttachedDevice {
    /// Under RTNL.
    pub(super) fn new(device: Device, wanted: Option<PortMap>) -> Result<Self> {
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
    pub(super) fn close(&self) {
        self.closing.store(true, Relaxed);
    }

    /// Whether all that was taken has left. Process context.
    pub(super) fn is_empty(&self) -> bool {
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
        } else if self.device.net().state().policy.monitors.is_any_up() {
            TxPath::Monitor
        } else if !self.device.queues_can_be_bypassed() {
            TxPath::Qdisc
        } else {
            TxPath::Direct
        }
    }

    /// Which way a packet takes, if its flow's others don't matter. Softirqs are off.
    pub(super) fn path_of(&self, offer: &EgressSkb<'_>) -> TxPath {
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

    pub(super) fn count_passed(&self, offer: &EgressSkb<'_>) {
        if offer.is_gso() {
            self.counters.passed.fetch_add(1, Relaxed);
        }
    }

    /// Drops what waits, and lets go of what the driver has. Process context.
    pub(super) fn empty(&self) {
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
