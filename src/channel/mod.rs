// SPDX-License-Identifier: GPL-2.0

//! A channel: a region of frames and four rings, and the flows that use it.
//!
//! Its locks, which docs/architecture.md puts in an order with all others:
//!
//! - `sender`, a mutex: the TX ring and the table of flows. Held while the stack sends.
//! - `receiver`, a spinlock that softirqs take: the FILL and RX rings.
//! - `completions`, a spinlock taken with interrupts off, since skbs are freed anywhere: the
//!   COMPLETION ring.

mod completions;
mod doorbell;
mod polling;
mod stall;
mod stats;

use crate::counter::Counter;
use crate::identity::ChannelOwner;
use crate::limits::Charge;
use crate::pure::{
    abi::{self, Desc, Layout},
    geometry::Geometry,
    ip::IpVersion,
    quota::Holding,
    ring::Consumer, //
};
use crate::routes::RoutePlaces;
use crate::rx::Receiver;
use crate::sys::{
    lock::{SpinLockBh, SpinLockIrq},
    pernet::NetRef,
    reaper::SharedRegion,
    region::{Region, RegionRing, Vma},
    socket::{Socket, TableReservation},
    wait::{self, WaitQueue, WriteSpaceEntry}, //
};
use crate::tx::{Sender, SenderCounters};
use completions::Completions;
use core::sync::atomic::{AtomicU32, Ordering};
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
        atomic::{ordering::Relaxed, Atomic},
        Arc,
        Mutex,
        MutexGuard, //
    }, //
};
use stall::STALL_NONE;

/// See the module's documentation.
#[pin_data]
pub(crate) struct Channel {
    charge: Charge,
    /// The id of the flow that made it.
    id: u32,
    /// The user, as a number of the initial user namespace, whose process made it.
    maker_uid: u32,
    /// The process that used it last. It owns those of its flows that no other process has used since.
    owner: Arc<ChannelOwner>,
    geometry: Geometry,
    region: Arc<SharedRegion>,
    #[pin]
    pub(crate) sender: Mutex<Sender>,
    /// Number of calls that wait for the sender, for which its holder releases it early.
    sender_wanted: AtomicU32,
    /// The sender's counters and the position of its ring, for readers that don't wait for it.
    counters: Arc<SenderCounters>,
    tx: RegionRing<Consumer<Desc>>,
    /// Flows on the channel; written under `sender`.
    flows: Atomic<u32>,
    #[pin]
    pub(crate) receiver: SpinLockBh<Receiver>,
    #[pin]
    completions: SpinLockIrq<Completions>,
    /// Those that wait for a ring.
    #[pin]
    wait: WaitQueue,
    /// Why the sender stopped: `STALL_*`.
    stall: Atomic<u32>,
    /// With `STALL_FLOW`, if a send buffer is full: the notification of room; used under `sender`.
    #[pin]
    room_entry: WriteSpaceEntry<Self>,
    /// With `STALL_COMPLETION`: the room that the next packet needs. With `STALL_CHAIN`: the index up to which the TX
    /// ring was read.
    needed: Atomic<u32>,
    /// A send buffer that was full has room again.
    got_room: Atomic<bool>,
    /// An engine polls the TX ring; written under `sender`.
    polled: Atomic<bool>,
    /// An engine that has ended asks that the TX ring is said to be polled no more.
    unpoll_asked: Atomic<bool>,
    /// A doorbell has the sender; written under `sender`.
    ringing: Atomic<bool>,
    /// The packet that the receiver is dropping, which it has shown to monitors; 0 for none.
    dropping: Atomic<usize>,
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
    /// Makes a channel on behalf of a flow of that id, whose owner has that user: `EMFILE` over a limit of
    /// channels, `ENOBUFS` over one of frames or RLIMIT_MEMLOCK, `ENOMEM`. Process context.
    pub(crate) fn new(
        geometry: Geometry,
        net: &NetRef,
        id: u32,
        maker_uid: u32,
    ) -> Result<Arc<Self>> {
        let charge = Charge::new(net, Self::holding(&geometry))?;
        let region = Arc::new(
            SharedRegion::new(Region::new(geometry.pages())?)?,
            GFP_KERNEL_ACCOUNT,
        )?;
        let layout = geometry.layout();
        let counters = Arc::new(SenderCounters::default(), GFP_KERNEL_ACCOUNT)?;
        let sender = Sender::new(
            SharedRegion::consumer(&region, &layout.tx)?,
            layout.completion.size,
            counters.clone(),
        )?;
        let tx = SharedRegion::consumer(&region, &layout.tx)?;
        let receiver = Receiver::new(
            SharedRegion::consumer(&region, &layout.fill)?,
            SharedRegion::producer(&region, &layout.rx)?,
        )?;
        let completions = Completions::new(SharedRegion::producer(&region, &layout.completion)?);
        let owner = ChannelOwner::new()?;
        Arc::pin_init(
            pin_init!(Self {
                charge,
                id,
                maker_uid,
                owner,
                geometry,
                region,
                sender <- new_mutex!(sender, "kopi::Channel::sender"),
                sender_wanted: AtomicU32::new(0),
                counters,
                tx,
                flows: Atomic::new(0),
                receiver <- SpinLockBh::new(new_spinlock!(receiver, "kopi::Channel::receiver")),
                completions <- SpinLockIrq::new(
                    new_spinlock!(completions, "kopi::Channel::completions")
                ),
                wait <- WaitQueue::new(),
                stall: Atomic::new(STALL_NONE),
                room_entry <- WriteSpaceEntry::new(),
                needed: Atomic::new(0),
                dropping: Atomic::new(0),
                got_room: Atomic::new(false),
                polled: Atomic::new(false),
                unpoll_asked: Atomic::new(false),
                ringing: Atomic::new(false),
                engine_time: Counter::default(),
                links <- ListLinks::new(),
                tracker <- AtomicTracker::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// What a channel counts for against the limits.
    fn holding(geometry: &Geometry) -> Holding {
        Holding {
            channels: 1,
            frames: geometry.layout().frame_count,
            ..Holding::default()
        }
    }

    /// The id of the flow that made it, in its network namespace.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// The user, as a number of the initial user namespace, whose process made it.
    pub(crate) fn maker_uid(&self) -> u32 {
        self.maker_uid
    }

    /// The user whose limits the channel counts against. Any context.
    pub(crate) fn charged_user(&self) -> u32 {
        self.charge.user()
    }

    /// The process that used it last.
    pub(crate) fn owner(&self) -> &Arc<ChannelOwner> {
        &self.owner
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

    /// Whether packets in a row to one peer travel as one.
    pub(crate) fn has_gso(&self) -> bool {
        self.layout().flags & abi::CHANNEL_GSO != 0
    }

    /// Whether what its flows receive may be coalesced.
    pub(crate) fn has_gro(&self) -> bool {
        self.layout().flags & abi::CHANNEL_GRO != 0
    }

    /// Whether a GRO packet is delivered as one packet.
    pub(crate) fn has_gro_merged(&self) -> bool {
        self.layout().flags & abi::CHANNEL_GRO_MERGED != 0
    }

    /// Whether its rings only send, and its flows receive as without a channel.
    pub(crate) fn is_tx_only(&self) -> bool {
        self.layout().flags & abi::CHANNEL_TX_ONLY != 0
    }

    /// Whether engines are to poll the TX ring.
    pub(crate) fn wants_engine(&self) -> bool {
        self.layout().flags & abi::CHANNEL_ENGINE != 0
    }

    /// Gives a flow's socket a number on the channel.
    ///
    /// # Safety
    ///
    /// [`Channel::remove_flow`] must be called before the socket is released.
    #[expect(unsafe_code, reason = "a list of sockets trusts its owner")]
    pub(crate) unsafe fn add_flow(&self, socket: &Socket) -> Result<u32> {
        if self.wants_engine() {
            // Flows of IPv6 may have peers of IPv4.
            self.make_route_places(IpVersion::V4)?;
            if socket.sk().is_ipv6() {
                self.make_route_places(IpVersion::V6)?;
            }
        }
        loop {
            let mut sender = self.sender.lock();
            // SAFETY: The caller calls `remove_flow`, which removes the socket, before its release.
            if let Some(number) = unsafe { sender.sockets.insert(socket) }? {
                self.flows.store(sender.sockets.len(), Relaxed);
                return Ok(number);
            }
            let size = sender.sockets.next_size();
            drop(sender);
            let room = TableReservation::new(size)?;
            self.sender.lock().sockets.grow(room);
        }
    }

    /// Makes the places for an IP version's routes, which would be charged to nobody if an engine made them;
    /// without the sender's lock, for which others wait: `ENOMEM`.
    fn make_route_places(&self, version: IpVersion) -> Result {
        if !self.sender.lock().has_route_places(version) {
            let places = RoutePlaces::new(version)?;
            self.sender.lock().put_route_places(places);
        }
        Ok(())
    }

    /// Locks the sender, for a call that isn't to wait for all that a doorbell or an engine has to send:
    /// the holder releases it after the packet that is being sent. Process context.
    ///
    /// The last to close a flow may be anybody: a process that was passed it, or the kernel's worker
    /// that closes what is left in queues of messages.
    pub(crate) fn interrupt_sender(&self) -> MutexGuard<'_, Sender> {
        self.sender_wanted.fetch_add(1, Ordering::Relaxed);
        let sender = self.sender.lock();
        self.sender_wanted.fetch_sub(1, Ordering::Relaxed);
        sender
    }

    /// Whether somebody waits in [`Channel::interrupt_sender`].
    #[inline]
    pub(crate) fn is_sender_wanted(&self) -> bool {
        self.sender_wanted.load(Ordering::Relaxed) != 0
    }

    /// Takes a flow's number back, and says how many are left. No packet of it is being sent when
    /// this returns.
    pub(crate) fn remove_flow(this: &Arc<Self>, number: u32) -> u32 {
        let mut sender = this.interrupt_sender();
        sender.sockets.remove(number);
        // The channel may wait for room in this flow's send buffer. It leaves the wait queue also if there is room
        // by now: another CPU may be noting that.
        this.room_entry.leave();
        if this.is_stalled_by_flow() {
            // The other flows are tried anew.
            <Self as wait::WriteSpaceWaiter>::on_write_space(this);
        }
        sender.forget_flows();
        let left = sender.sockets.len();
        this.flows.store(left, Relaxed);
        left
    }

    /// Maps the region into the current process. Programs that only send may not know that they do: so
    /// no child of theirs reads and changes by that what they send.
    pub(crate) fn map(this: &Arc<Self>, vma: &Vma) -> Result {
        this.owner.record_current()?;
        this.region.map(vma, this.clone(), !this.is_tx_only())
    }

    /// Notes the packet that the receiver is dropping; 0 for none. Under the receiver's lock.
    pub(crate) fn set_dropping(&self, packet: usize) {
        self.dropping.store(packet, Relaxed);
    }

    /// Whether the receiver is dropping this packet. On the CPU where it does.
    pub(crate) fn is_dropping(&self, packet: usize) -> bool {
        self.dropping.load(Relaxed) == packet
    }
}
