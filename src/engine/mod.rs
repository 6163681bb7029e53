// SPDX-License-Identifier: GPL-2.0

//! Engines: kernel threads that poll the TX rings of busy channels, so that these need no doorbell.
//!
//! A channel that asked for it is with an engine while it is busy. The doorbell brings it there, as
//! does room in a full send buffer. It leaves when its ring was empty for the idle time; its
//! `need_wakeup` is clear in between. An engine without channels sleeps. So idle channels cost
//! nothing, whatever their number.
//!
//! An engine takes turns by bytes ([`Deficit`]), of which a rule may give a flow more. It sends
//! what the doorbell would, by the same code, and with the credentials that the channel's owner has
//! at that moment. So a security module or a missing capability stops the same packets, and their
//! owner doesn't depend on the running process.
//!
//! The maker of a channel's `ListArc` gives it to an engine. The engine alone has it from then on,
//! sets and clears `need_wakeup` under the channel's `sender`, and gives it up. Locks: [`ENGINES`],
//! then an engine's `pending`, both with interrupts off.

mod leaving;

use crate::channel::Channel;
use crate::counter::Counter;
use crate::flow::Flow;
use crate::pure::drr::Deficit;
use crate::sys::{
    context::{now, smp_mb},
    family,
    kthread::{Running, Thread, Work},
    lock::{LockIrq, SpinLockIrq},
    wait::WaitQueue, //
};
use crate::tx::Sender;
use kernel::{
    list::{List, ListArc},
    new_spinlock,
    prelude::*,
    str::CStr,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        global_lock,
        Arc, //
    },
};

/// What a descriptor costs besides its payload, in bytes: about a packet's headers.
const DESCRIPTOR_COST: u64 = 64;
/// The longest time of a visit that has sent something, in nanoseconds, whatever is left of its
/// share; and of all visits of a user's channels in one round.
const VISIT_MAX: u64 = 5_000_000;
/// Users whose time is counted apart in a round. Two users of the same number modulo this share
/// their time.
const USERS: usize = 64;

global_lock! {
    // SAFETY: `Engines::register` initializes it, before there is any socket.
    /// The engines that channels can be given to.
    unsafe(uninit) static ENGINES: SpinLock<KVec<Arc<Engine>>> = KVec::new();
}

global_lock! {
    // SAFETY: `Engines::register` initializes it, before there is any socket.
    /// The engines' threads. Held while they are exchanged.
    unsafe(uninit) static THREADS: Mutex<KVec<Thread<Engine>>> = KVec::new();
}

/// How often the engines were exchanged. Changed under the lock of their threads.
static GENERATION: Atomic<u64> = Atomic::new(0);

/// Whether there are engines.
static ANY: Atomic<bool> = Atomic::new(false);

/// What an engine knows of a channel, under its `sender`.
#[derive(Default)]
pub(crate) struct Schedule {
    deficit: Deficit,
    /// When something was in the ring last, in ns.
    since: u64,
    /// An engine has the channel, and polls it.
    pub(crate) polled: bool,
}

/// What administrators set.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    /// The time for which an empty ring is polled, in nanoseconds.
    pub(crate) idle: u64,
    /// The share of a channel in a round, in bytes.
    pub(crate) budget: u32,
}

/// An engine.
#[pin_data]
pub(crate) struct Engine {
    pub(crate) cpu: u32,
    pub(crate) settings: Settings,
    /// Channels that were given to it, and that it hasn't visited yet.
    #[pin]
    pending: SpinLockIrq<List<Channel>>,
    /// Where it sleeps.
    #[pin]
    wait: WaitQueue,
    /// Number of its channels.
    pub(crate) channels: Atomic<u32>,
    /// Until when, in ns, it sends what is left in rings, once it is retired; else 0.
    leave_until: Atomic<u64>,
    /// Written by its thread.
    pub(crate) counters: EngineCounters,
}

/// What an engine did.
#[derive(Default)]
pub(crate) struct EngineCounters {
    /// Visits of channels that had something to send.
    pub(crate) visits: Counter,
    /// Times that it was woken.
    pub(crate) wakeups: Counter,
    /// Nanoseconds in visits, without looks at empty rings.
    pub(crate) busy: Counter,
    /// Nanoseconds awake.
    pub(crate) awake: Counter,
}

/// The result of a visit.
enum Visit {
    /// It sent something.
    Sent,
    /// The channel has packets, and must wait for its turn.
    Waits,
    /// Nothing is to be sent, or another task has the sender.
    Nothing,
    /// The channel is to be given up.
    Over,
}

impl Engine {
    fn new(cpu: u32, settings: Settings) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                cpu,
                settings,
                pending <- SpinLockIrq::new(new_spinlock!(List::new(), "kopi::Engine::pending")),
                wait <- WaitQueue::new(),
                channels: Atomic::new(0),
                leave_until: Atomic::new(0),
                counters: EngineCounters::default(),
            }),
            GFP_KERNEL,
        )
    }

    /// Gives it a channel. Any context but hard interrupts.
    fn enqueue(&self, channel: ListArc<Channel>) {
        self.channels.fetch_add(1, Relaxed);
        self.pending.lock().push_back(channel);
        self.wait.wake(0);
    }

    /// Takes in what it was given.
    fn take_pending(&self, active: &mut List<Channel>) {
        active.push_all_back(&mut self.pending.lock());
    }

    fn has_pending(&self) -> bool {
        !self.pending.lock().is_empty()
    }

    /// Visits each channel once, as long as its user has had less than [`VISIT_MAX`]; says whether
    /// any had something to send.
    fn round(&self, thread: &Running, active: &mut List<Channel>, now: u64) -> bool {
        let mut busy = false;
        let mut kept = List::new();
        let mut passed_over = List::new();
        let mut spent = [0u64; USERS];
        while let Some(channel) = active.pop_front() {
            let user = channel.charged_user() as usize % USERS;
            if spent.get(user).is_some_and(|spent| *spent >= VISIT_MAX) {
                busy = true;
                passed_over.push_back(channel);
                continue;
            }
            let (visit, time) = self.visit(thread, channel.as_arc(), now);
            if let Some(spent) = spent.get_mut(user) {
                *spent = spent.saturating_add(time);
            }
            match visit {
                Visit::Sent | Visit::Waits => busy = true,
                Visit::Nothing => {}
                Visit::Over => {
                    self.give_up(channel);
                    continue;
                }
            }
            kept.push_back(channel);
            if self.is_over(thread) {
                break;
            }
            thread.cond_resched_tasks_rcu_qs();
        }
        // Channels that weren't reached come first.
        active.push_all_back(&mut passed_over);
        active.push_all_back(&mut kept);
        busy
    }

    /// Visits a channel; gives the nanoseconds that it took, too.
    fn visit(&self, thread: &Running, channel: &Arc<Channel>, now: u64) -> (Visit, u64) {
        // A channel whose program rings, or whose counters are read, doesn't hold up the others.
        let Some(mut sender) = channel.sender.try_lock() else {
            return (Visit::Nothing, 0);
        };
        self.count_time(channel, || {
            self.visit_locked(thread, channel, &mut sender, now)
        })
    }

    /// Does something for a channel whose sender is locked, and counts the time; gives that, too.
    fn count_time(&self, channel: &Channel, act: impl FnOnce() -> Visit) -> (Visit, u64) {
        let start = now();
        let visit = act();
        let time = now().saturating_sub(start);
        // To look at an empty ring is no work for the channel.
        if !matches!(visit, Visit::Nothing) {
            channel.engine_time.add(time);
            self.counters.busy.add(time);
        }
        (visit, time)
    }

    fn visit_locked(
        &self,
        thread: &Running,
        channel: &Arc<Channel>,
        sender: &mut Sender,
        now: u64,
    ) -> Visit {
        if sender.sockets.len() == 0 || !channel.owner().is_running() {
            // Either no flow is left, or the channel's process has ended. `got_room` is cleared, because it would bring
            // the channel back to an engine.
            channel.clear_got_room();
            channel.set_polled(sender, false);
            return Visit::Over;
        }
        if !sender.schedule.polled {
            sender.schedule.since = now;
            channel.set_polled(sender, true);
        }
        let visit = self.serve(channel, sender, || self.is_over(thread));
        match visit {
            Visit::Sent | Visit::Waits => {
                sender.schedule.since = now;
                return visit;
            }
            // A stalled channel comes back when there is room.
            Visit::Nothing
                if !channel.is_stalled_by_flow()
                    && now.saturating_sub(sender.schedule.since) < self.settings.idle =>
            {
                return visit;
            }
            Visit::Nothing | Visit::Over => {}
        }
        channel.clear_got_room();
        channel.set_polled(sender, false);
        // What was written before the program could see that is still this engine's to send.
        let last = self.serve(channel, sender, || self.is_over(thread));
        if matches!(last, Visit::Sent | Visit::Waits) {
            sender.schedule.since = now;
            channel.set_polled(sender, true);
            return last;
        }
        Visit::Over
    }

    /// Sends what a channel may send now, until `is_over` returns true.
    fn serve(
        &self,
        channel: &Arc<Channel>,
        sender: &mut Sender,
        is_over: impl Fn() -> bool,
    ) -> Visit {
        if !channel.owner().is_running() {
            // There is no user to act for, until a process rings.
            return Visit::Over;
        }
        if channel.is_stalled() {
            return Visit::Nothing;
        }
        let waiting = match sender.waiting() {
            Ok((0, _)) => return Visit::Nothing,
            Ok((waiting, _)) => waiting,
            Err(_) => return Visit::Over,
        };
        let share = u64::from(self.settings.budget).saturating_mul(u64::from(weight(sender)));
        if !sender.schedule.deficit.visit(share) {
            return Visit::Waits;
        }
        let end = now().saturating_add(VISIT_MAX);
        self.send(channel, sender, waiting, |deficit, cost| {
            deficit.spend(cost) && now() < end && !is_over()
        })
    }

    /// Sends the first `waiting` descriptors of a channel as long as `go_on` returns true. That
    /// gets the cost of each packet or GSO packet.
    fn send(
        &self,
        channel: &Arc<Channel>,
        sender: &mut Sender,
        waiting: u32,
        go_on: impl Fn(&mut Deficit, u64) -> bool,
    ) -> Visit {
        // After the ring was read, which isn't read again: its writer had these credentials, then
        // or later.
        let Some(credentials) = channel.owner().credentials() else {
            return Visit::Over;
        };
        if channel.owner().restamp().is_err() {
            return Visit::Nothing;
        }
        let mut deficit = sender.schedule.deficit;
        let taken = {
            let _assumed = credentials.assume();
            sender.take(channel, waiting, |count, bytes| {
                let cost = DESCRIPTOR_COST
                    .saturating_mul(u64::from(count))
                    .saturating_add(u64::from(bytes));
                go_on(&mut deficit, cost)
            })
        };
        sender.schedule.deficit = deficit;
        match taken {
            0 => Visit::Nothing,
            _ => {
                self.counters.visits.add(1);
                if sender
                    .waiting()
                    .is_ok_and(|(waiting, size)| waiting <= size / 2)
                {
                    channel.wake_writers();
                }
                Visit::Sent
            }
        }
    }

    /// Gives up a channel, which is not polled any more. Its program rings the doorbell for what is left in the ring.
    fn give_up(&self, channel: ListArc<Channel>) {
        let channel = channel.into_arc();
        self.channels.fetch_sub(1, Relaxed);
        // Pairs with that in kick(): either on_write_space() can give the channel to an engine, or
        // it is seen here that there is room.
        smp_mb();
        if !(channel.got_room() && kick(&channel)) {
            channel.wake_if_must_ring();
        }
    }
}

/// The weight of a channel, which is that of the flow that sends next.
fn weight(sender: &Sender) -> u32 {
    let flow = sender
        .first_flow()
        .and_then(|socket| Some((family::protocol::<Flow>(socket)?.policy(), socket)));
    flow.map_or(1, |(policy, socket)| policy.weight(socket.sk()))
}

impl Work for Engine {
    const NAME: &'static CStr = c"kopi-engine/%u";

    fn run(&self, thread: &Running) {
        let mut active = List::new();
        let mut woken = now();
        while !self.is_over(thread) {
            self.take_pending(&mut active);
            let time = now();
            self.counters.awake.add(time.saturating_sub(woken));
            woken = time;
            if active.is_empty() {
                self.wait
                    .sleep_until(|| self.is_over(thread) || self.has_pending());
                self.counters.wakeups.add(1);
                woken = now();
            } else if !self.round(thread, &mut active, time) {
                // All other tasks need the CPU more than a poller.
                thread.yield_cpu();
            }
        }
        self.leave(&mut active);
        self.wait.sleep_until(|| thread.should_stop());
    }
}

/// Gives a channel that asked for it to an engine; says whether one has it. Any context but hard
/// interrupts.
pub(crate) fn kick(channel: &Arc<Channel>) -> bool {
    if !channel.wants_engine() || !ANY.load(Relaxed) {
        return false;
    }
    // Pairs with those in give_up() and leave().
    smp_mb();
    let Ok(entry) = ListArc::try_from_arc(channel.clone()) else {
        // An engine has it.
        return true;
    };
    let engines = ENGINES.lock_irq();
    let idlest = engines
        .iter()
        .min_by_key(|engine| engine.channels.load(Relaxed));
    match idlest {
        Some(engine) => engine.enqueue(entry),
        None => {
            drop(entry);
            return false;
        }
    }
    true
}

/// Replaces all engines by those of other CPUs, or by none: `EINVAL` for a CPU that isn't there,
/// `EEXIST` for one that is there twice. Process context.
///
/// When this returns, those before have ended.
pub(crate) fn set(cpus: impl Iterator<Item = u32>, settings: Settings) -> Result<(), (Error, u32)> {
    let mut engines: KVec<Arc<Engine>> = KVec::new();
    let mut threads = KVec::new();
    let mut changing = THREADS.lock();
    for cpu in cpus {
        let mut start = || {
            if engines.iter().any(|engine| engine.cpu == cpu) {
                return Err(EEXIST);
            }
            let engine = Engine::new(cpu, settings)?;
            let thread = Thread::start(engine.clone(), cpu)?;
            engines.push(engine, GFP_KERNEL)?;
            threads.push(thread, GFP_KERNEL)?;
            Ok(())
        };
        start().map_err(|error| (error, cpu))?;
    }
    let any = !engines.is_empty();
    let before = core::mem::replace(&mut *ENGINES.lock_irq(), engines);
    GENERATION.fetch_add(1, Relaxed);
    ANY.store(any, Relaxed);
    // Each old engine gives its channels to the new ones.
    Engine::retire(&before);
    drop(core::mem::replace(&mut *changing, threads));
    for engine in before.iter() {
        // Channels that a thread got which was stopped before it ever ran.
        engine.leave(&mut List::new());
    }
    Ok(())
}

/// All engines, and a number that changes when they are exchanged. Process context.
pub(crate) fn all() -> Result<(KVec<Arc<Engine>>, u64)> {
    // Keeps them from being exchanged, and their number from changing.
    let _changing = THREADS.lock();
    let count = ENGINES.lock_irq().len();
    let mut all = KVec::with_capacity(count, GFP_KERNEL)?;
    for engine in ENGINES.lock_irq().iter() {
        // There is room.
        let _ = all.push_within_capacity(engine.clone());
    }
    Ok((all, GENERATION.load(Relaxed)))
}

/// While it lives, there may be engines.
pub(crate) struct Engines(());

impl Engines {
    /// Gets ready for engines; only the module's init does, once.
    #[expect(unsafe_code, reason = "a global lock is initialised once")]
    pub(crate) fn register() -> Self {
        // SAFETY: Called once, by the module's init, before there is any socket.
        unsafe {
            ENGINES.init();
            THREADS.init();
        }
        Self(())
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        let settings = Settings { idle: 0, budget: 0 };
        // Without a CPU there is none that could be wrong.
        let _ = set(core::iter::empty(), settings);
    }
}
