// SPDX-License-Identifier: GPL-2.0

//! A channel: a region of frames and four rings, and the flows that use it.
//!
//! Locks, in the order in which they may be taken:
//!
//! 1. `sender`, a mutex: the TX ring and the table of flows. Held while the stack sends.
//! 2. `receiver`, a spinlock that softirqs take: the FILL and RX rings.
//! 3. `completions`, a spinlock taken with interrupts off, since skbs are freed anywhere: the
//!    COMPLETION ring.
//!
//! Those of `engine.rs` are taken last of all.

use crate::engine;
use crate::flow::{Counter, FlowCounters};
use crate::identity::User;
use crate::limits::Charge;
use crate::pure::{
    abi::{self, Desc, Layout, Stats},
    geometry::Geometry,
    quota::Holding,
    ring::{Consumer, Producer}, //
};
use crate::rx::Receiver;
use crate::sys::{
    lock::{SpinLockBh, SpinLockIrq},
    pernet::NetRef,
    reaper::SharedRegion,
    region::{Region, RegionRing, Vma},
    sock::Sock,
    socket::Socket,
    wait::{PollTable, RoomEntry, WaitQueue, POLL_IN, POLL_OUT, POLL_WRBAND}, //
};
use crate::tx::{Sender, SenderCounters};
use kernel::{
    list::{
        impl_list_arc_safe,
        impl_list_item,
        AtomicTracker,
        ListLinks,
        TryNewListArc, //
    },
    new_mutex,
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Full, Relaxed},
            Atomic,
        },
        Arc,
        Mutex, //
    }, //
};

/// Sending goes on as soon as the doorbell rings.
const STALL_NONE: u32 = 0;
/// A flow's send buffer is full.
const STALL_BUFFER: u32 = 1;
/// The COMPLETION ring has no room for what is in flight.
const STALL_COMPLETION: u32 = 2;

/// The COMPLETION ring, and what will go there.
struct Completions {
    ring: RegionRing<Producer<Desc>>,
    /// Descriptors that the stack has, each of which will need an entry.
    pending: u32,
    broken: u64,
}

impl Completions {
    /// Number of descriptors that can be taken: each will find room for its completion.
    fn room(&mut self) -> u32 {
        // All the room, as the program may just have made some.
        match self.ring.room(u32::MAX) {
            Ok(room) => room.saturating_sub(self.pending),
            Err(_) => {
                self.broken = self.broken.wrapping_add(1);
                0
            }
        }
    }
}

/// See the module's documentation.
#[pin_data]
pub(crate) struct Channel {
    _charge: Charge,
    /// The number of the flow that made it.
    id: u32,
    /// The user of that flow.
    owner: u32,
    /// Who uses it, and so has all of its flows.
    user: Arc<User>,
    geometry: Geometry,
    region: Arc<SharedRegion>,
    #[pin]
    pub(crate) sender: Mutex<Sender>,
    /// What the sender counts, and where its ring is, for those who don't wait for it.
    sent: Arc<SenderCounters>,
    tx: RegionRing<Consumer<Desc>>,
    /// Flows on the channel; written under `sender`.
    flows: Atomic<u32>,
    #[pin]
    pub(crate) receiver: SpinLockBh<Receiver>,
    #[pin]
    completions: SpinLockIrq<Completions>,
    /// Who waits for a ring.
    #[pin]
    wait: WaitQueue,
    /// Why the sender stopped: `STALL_*`.
    stall: Atomic<u32>,
    /// With `STALL_BUFFER`: has room told of; used under `sender`.
    #[pin]
    room: RoomEntry,
    /// With `STALL_COMPLETION`: the room that the next packet needs.
    needed: Atomic<u32>,
    /// A send buffer that was full has room again.
    got_room: Atomic<bool>,
    /// An engine looks at the TX ring; written under `sender`.
    polled: Atomic<bool>,
    /// An engine that has ended asks that none be said to look any more.
    unpoll: Atomic<bool>,
    /// A doorbell has the sender; written under `sender`.
    ringing: Atomic<bool>,
    /// The packet that the receiver is dropping, which it has shown to monitors; 0 for none.
    refused: Atomic<usize>,
    /// Nanoseconds that engines have worked for it; written under `sender`.
    pub(crate) engine_time: Counter,
    /// Its place with an engine, and whether it has one.
    #[pin]
    links: ListLinks,
    #[pin]
    tracker: AtomicTracker,
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Channel { tracked_by tracker: AtomicTracker; }
}
impl_list_item! {
    impl ListItem<0> for Channel { using ListLinks { self.links }; }
}

impl Channel {
    /// Makes a channel on behalf of a flow of that number and user: `EMFILE` over a
    /// limit of channels, `ENOBUFS` over one of frames or RLIMIT_MEMLOCK, `ENOMEM`. Process context.
    pub(crate) fn new(geometry: Geometry, net: &NetRef, id: u32, owner: u32) -> Result<Arc<Self>> {
        let held = Holding {
            channels: 1,
            frames: geometry.layout().frame_count,
            ..Holding::default()
        };
        let charge = Charge::new(net, held)?;
        let region = Arc::new(
            SharedRegion::new(Region::new(geometry.pages())?)?,
            GFP_KERNEL_ACCOUNT,
        )?;
        let layout = geometry.layout();
        let sent = Arc::new(SenderCounters::default(), GFP_KERNEL_ACCOUNT)?;
        let sender = Sender::new(
            SharedRegion::consumer(&region, &layout.tx)?,
            layout.completion.size,
            sent.clone(),
        )?;
        let tx = SharedRegion::consumer(&region, &layout.tx)?;
        let receiver = Receiver::new(
            SharedRegion::consumer(&region, &layout.fill)?,
            SharedRegion::producer(&region, &layout.rx)?,
        )?;
        let completions = Completions {
            ring: SharedRegion::producer(&region, &layout.completion)?,
            pending: 0,
            broken: 0,
        };
        completions.ring.preset_wakeup();
        let user = User::new()?;
        Arc::pin_init(
            pin_init!(Self {
                _charge: charge,
                id,
                owner,
                user,
                geometry,
                region,
                sender <- new_mutex!(sender, "kopi::Channel::sender"),
                sent,
                tx,
                flows: Atomic::new(0),
                receiver <- SpinLockBh::new(new_spinlock!(receiver, "kopi::Channel::receiver")),
                completions <- SpinLockIrq::new(
                    new_spinlock!(completions, "kopi::Channel::completions")
                ),
                wait <- WaitQueue::new(),
                stall: Atomic::new(STALL_NONE),
                room <- RoomEntry::new(),
                needed: Atomic::new(0),
                refused: Atomic::new(0),
                got_room: Atomic::new(false),
                polled: Atomic::new(false),
                unpoll: Atomic::new(false),
                ringing: Atomic::new(false),
                engine_time: Counter::default(),
                links <- ListLinks::new(),
                tracker <- AtomicTracker::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The number of the flow that made it, in its network namespace.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// The user of that flow, of the initial user namespace.
    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    /// Who uses it.
    pub(crate) fn user(&self) -> &Arc<User> {
        &self.user
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// The layout, as programs get it.
    pub(crate) fn layout(&self) -> &Layout {
        self.geometry.layout()
    }

    /// Whether runs of packets travel as one.
    pub(crate) fn has_gso(&self) -> bool {
        self.layout().flags & abi::CHANNEL_GSO != 0
    }

    /// Whether what its flows receive may be coalesced.
    pub(crate) fn has_gro(&self) -> bool {
        self.layout().flags & abi::CHANNEL_GRO != 0
    }

    /// Whether a GRO packet is delivered as one packet.
    pub(crate) fn merges_received(&self) -> bool {
        self.layout().flags & abi::CHANNEL_GRO_MERGED != 0
    }

    /// Whether engines are to look at the TX ring.
    pub(crate) fn wants_engine(&self) -> bool {
        self.layout().flags & abi::CHANNEL_ENGINE != 0
    }

    /// From now on an engine looks at the TX ring, or none; the caller has the sender.
    pub(crate) fn set_polled(&self, sender: &mut Sender, polled: bool) {
        sender.schedule.polled = polled;
        self.polled.store(polled, Relaxed);
        sender.want_doorbell(!polled);
    }

    /// From now on no engine is to look at the TX ring: whoever has the sender, or gets it next, is to
    /// see to that. The caller tries that itself, unless the channel [`Channel::is_ringing`].
    pub(crate) fn ask_to_unpoll(&self) {
        // Full order: pairs with that in stop_ringing(). Either this is seen there, or the end of the
        // ringing here.
        self.unpoll.xchg(true, Full);
    }

    /// Whether a doorbell has the sender, which looks at what was asked before it gives that back.
    pub(crate) fn is_ringing(&self) -> bool {
        self.ringing.load(Relaxed)
    }

    /// Says that a doorbell has the sender, which the caller is.
    pub(crate) fn start_ringing(&self) {
        if self.wants_engine() {
            self.ringing.store(true, Relaxed);
        }
    }

    /// Says that it is about to give it back. To be followed by [`Channel::unpoll_if_asked`].
    pub(crate) fn stop_ringing(&self) {
        if self.wants_engine() {
            self.ringing.xchg(false, Full);
        }
    }

    /// Has the program ring from now on, if that was asked for; says whether it was. The TX ring is to be
    /// looked at once more then.
    pub(crate) fn unpoll_if_asked(&self, sender: &mut Sender) -> bool {
        let asked = self.unpoll.load(Relaxed);
        if asked {
            self.unpoll.store(false, Relaxed);
            self.set_polled(sender, false);
        }
        asked
    }

    /// Gives a flow's socket a number on the channel.
    ///
    /// # Safety
    ///
    /// [`Channel::remove_flow`] must be called before the socket is released.
    pub(crate) unsafe fn add_flow(&self, socket: &Socket) -> Result<u32> {
        let mut sender = self.sender.lock();
        // SAFETY: As required of the caller.
        let number = unsafe { sender.sockets.insert(socket) }?;
        self.flows.store(sender.sockets.len(), Relaxed);
        Ok(number)
    }

    /// Takes a flow's number back, and says how many are left. No packet of it is being sent when
    /// this returns.
    pub(crate) fn remove_flow(this: &Arc<Self>, number: u32) -> u32 {
        let mut sender = this.sender.lock();
        sender.sockets.remove(number);
        // Perhaps of this flow. Also where the room has come: that may be being told.
        this.room.leave();
        if this.is_stalled_by_buffer() {
            // The others are tried anew.
            Self::room_came(this);
        }
        // Options of a flow that is gone, and numbers are used again.
        sender.output.routes.begin();
        sender.forget_passed();
        let left = sender.sockets.len();
        this.flows.store(left, Relaxed);
        if left == 0 {
            sender.output.routes.forget();
        }
        left
    }

    /// Maps the region into the current process.
    pub(crate) fn map(this: &Arc<Self>, vma: &Vma) -> Result {
        this.user.note_current()?;
        this.region.map(vma, this.clone())
    }

    /// Carries out the doorbell. Process context.
    pub(crate) fn doorbell(this: &Arc<Self>, socket: &Socket, flags: u32) -> Result<i32> {
        if flags & !abi::BELL_FLAGS != 0 {
            return Err(EINVAL);
        }
        let taken = if flags & abi::BELL_TX != 0 {
            let taken = Self::transmit(this)?;
            // More may come soon.
            engine::call(this);
            taken
        } else {
            0
        };
        if flags & (abi::BELL_WAIT_RX | abi::BELL_WAIT_COMPLETION) != 0 {
            this.wait_for(socket, flags)?;
        }
        Ok(i32::try_from(taken)?)
    }

    /// Sleeps as the doorbell's flags say.
    fn wait_for(&self, socket: &Socket, flags: u32) -> Result {
        let sk = socket.sk();
        let ready = || {
            flags & abi::BELL_WAIT_RX != 0 && self.has_received()
                || flags & abi::BELL_WAIT_COMPLETION != 0 && self.has_completed()
        };
        let over = || ready() || sk.has_error() || sk.is_receive_shutdown();
        let nonblocking = socket.is_nonblocking();
        if flags & abi::BELL_WAIT_RX != 0 && !over() {
            sk.busy_poll(nonblocking, over);
        }
        let timeout = sk.receive_timeout(nonblocking);
        let mut events = 0;
        if flags & abi::BELL_WAIT_RX != 0 {
            events |= POLL_IN;
        }
        if flags & abi::BELL_WAIT_COMPLETION != 0 {
            events |= POLL_WRBAND;
        }
        self.wait
            .wait(socket, events, timeout, over)
            .map_err(|error| {
                if error == ERESTARTSYS {
                    sk.interrupted(timeout)
                } else {
                    error
                }
            })?;
        if !ready() {
            sk.take_error()?;
        }
        Ok(())
    }

    /// The events to report for a flow of which UDP would report `inner`. Process context.
    pub(crate) fn poll(&self, sk: &Sock, table: &PollTable, inner: u32) -> u32 {
        self.wait.register(table);
        let mut events = inner & !(POLL_IN | POLL_OUT | POLL_WRBAND);
        if self.has_received() || sk.is_receive_shutdown() {
            events |= POLL_IN;
        }
        if self.has_completed() {
            events |= POLL_WRBAND;
        }
        if self.can_send() {
            events |= POLL_OUT;
        }
        events
    }

    fn has_received(&self) -> bool {
        self.receiver.lock().has_unread()
    }

    fn has_completed(&self) -> bool {
        self.completions.lock().ring.is_unread()
    }

    /// Whether the doorbell would take more from the TX ring; where there is no need of one, whether
    /// half of that is empty. Process context.
    fn can_send(&self) -> bool {
        if self.is_stalled() {
            return false;
        }
        if !self.polled.load(Relaxed) {
            return true;
        }
        let mut sender = self.sender.lock();
        sender
            .waiting()
            .is_ok_and(|(waiting, size)| waiting <= size / 2)
    }

    /// Whether sending stopped, and can't go on yet.
    pub(crate) fn is_stalled(&self) -> bool {
        match self.stall.load(Relaxed) {
            STALL_NONE => false,
            STALL_COMPLETION => self.completion_room() < self.needed.load(Relaxed),
            _ => true,
        }
    }

    /// Whether sending goes on when [`Channel::room_came`] is called.
    pub(crate) fn is_stalled_by_buffer(&self) -> bool {
        self.stall.load(Relaxed) == STALL_BUFFER
    }

    /// Notes the packet that the receiver is dropping; 0 for none. Under the receiver's lock.
    pub(crate) fn refuse(&self, packet: usize) {
        self.refused.store(packet, Relaxed);
    }

    /// Whether the receiver is dropping this packet. On the CPU where it does.
    pub(crate) fn is_refusing(&self, packet: usize) -> bool {
        self.refused.load(Relaxed) == packet
    }

    /// Wakes who waits for the RX ring. Any context.
    pub(crate) fn wake_readers(&self) {
        self.wait.wake(POLL_IN);
    }

    /// From now on it is to be known whether a full send buffer got room.
    pub(crate) fn forget_room(&self) {
        // Full order: room that comes before lets sending go on, which is tried after this.
        self.got_room.xchg(false, Full);
    }

    /// Whether one did.
    pub(crate) fn got_room(&self) -> bool {
        self.got_room.load(Relaxed)
    }

    /// Wakes who waits for room in the TX ring. Any context.
    pub(crate) fn wake_writers(&self) {
        self.wait.wake(POLL_OUT);
    }

    /// Number of TX descriptors that can be taken.
    pub(crate) fn completion_room(&self) -> u32 {
        self.completions.lock().room()
    }

    /// Sets aside room for completions of descriptors that the stack gets; the caller knows from
    /// [`Channel::completion_room`] that there is some.
    pub(crate) fn reserve_completions(&self, count: u32) {
        let mut completions = self.completions.lock();
        completions.pending = completions.pending.saturating_add(count);
    }

    /// Gives back room that [`Channel::reserve_completions`] set aside.
    pub(crate) fn cancel_completions(&self, count: u32) {
        let mut completions = self.completions.lock();
        completions.pending = completions.pending.saturating_sub(count);
    }

    /// Gives frames back to the program, each with its errno or 0, by room that is known to be
    /// there, of which so much was `reserved`. Any context but hard interrupts.
    pub(crate) fn complete(&self, descs: impl Iterator<Item = Desc>, reserved: u32) {
        let wake = {
            let mut completions = self.completions.lock();
            for desc in descs {
                completions.ring.write(desc);
            }
            completions.pending = completions.pending.saturating_sub(reserved);
            completions.ring.submit();
            completions.ring.needs_wakeup()
        };
        if wake {
            self.wait.wake(POLL_WRBAND | POLL_OUT);
        }
    }

    /// The sender stops until the COMPLETION ring has room for `needed` entries.
    pub(crate) fn stall_completion(&self, needed: u32) {
        self.needed.store(needed, Relaxed);
        self.stall.store(STALL_COMPLETION, Relaxed);
    }

    /// The sender, which calls this, stops if the send buffer of a flow's socket is full; says whether it is.
    pub(crate) fn stall_buffer(this: &Arc<Self>, socket: &Socket) -> bool {
        this.stall.store(STALL_BUFFER, Relaxed);
        // SAFETY: The sender is alone with it. remove_flow() leaves before the socket is released, and
        // before its flow lets go of the channel.
        unsafe { this.room.join(socket, this) };
        if socket.sk().is_writeable() {
            this.unstall();
            return false;
        }
        true
    }

    /// The sender, which calls this, goes on.
    pub(crate) fn unstall(&self) {
        self.room.leave();
        self.stall.store(STALL_NONE, Relaxed);
    }

    /// The send buffer has room for which [`Channel::stall_buffer`] stopped. Any context but hard interrupts.
    pub(crate) fn room_came(this: &Arc<Self>) {
        this.stall.store(STALL_NONE, Relaxed);
        this.got_room.store(true, Relaxed);
        engine::call(this);
        this.wake_writers();
    }

    /// Fills in the channel's counters and those of a flow on it.
    pub(crate) fn fill_stats(&self, counters: &FlowCounters, stats: &mut Stats) {
        self.fill(Some(counters), stats);
    }

    /// Fills in the channel's counters, and says where its rings are.
    pub(crate) fn fill_own_stats(&self, stats: &mut Stats) -> Positions {
        self.fill(None, stats)
    }

    fn fill(&self, counters: Option<&FlowCounters>, stats: &mut Stats) -> Positions {
        let mut at = Positions::default();
        {
            // Counters agree with each other while nothing is sent. While something is, nobody waits: it
            // may take long, and a dump has all sockets of the namespace wait.
            let _sender = self.sender.try_lock();
            if let Some(counters) = counters {
                counters.fill_sent(stats);
            }
            stats.tx_invalid = self.sent.invalid.get();
            stats.ring_broken = self.sent.broken.get();
            stats.flows = u64::from(self.flows.load(Relaxed));
            stats.engine_time = self.engine_time.get();
            at.tx = self.tx.positions();
        }
        {
            let receiver = self.receiver.lock();
            if let Some(counters) = counters {
                counters.fill_received(stats);
            }
            stats.fill_invalid = receiver.invalid;
            stats.ring_broken = stats.ring_broken.wrapping_add(receiver.broken);
            (at.fill, at.rx) = receiver.positions();
        }
        let completions = self.completions.lock();
        stats.ring_broken = stats.ring_broken.wrapping_add(completions.broken);
        stats.tx_pending = u64::from(completions.pending);
        at.completion = completions.ring.positions();
        at
    }
}

/// Where the rings of a channel are: the producer's index and the consumer's.
#[derive(Default)]
pub(crate) struct Positions {
    pub(crate) tx: (u32, u32),
    pub(crate) completion: (u32, u32),
    pub(crate) fill: (u32, u32),
    pub(crate) rx: (u32, u32),
}
