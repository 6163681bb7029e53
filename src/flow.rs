// SPDX-License-Identifier: GPL-2.0

//! A flow: what a KOPI socket is beyond the UDP socket that it is.

use crate::channel::Channel;
use crate::direct::{Direct, Room};
use crate::limits::Charge;
use crate::monitor::{self, Unsent};
use crate::netlink::events::{tell, Event};
use crate::pure::{
    abi,
    geometry::Geometry,
    quota::Holding,
    rule::{Direction, Peer}, //
};
use crate::rules::{Outcome, Packets, Policy, Stopped};
use crate::sys::{
    context::SoftirqsOff,
    cred::AllowedCreds,
    errno::{
        enobufs,
        enoprotoopt,
        enotconn,
        eopnotsupp, //
    },
    family::{self, Name, Protocol},
    pernet::NetRef,
    region::Vma,
    sock::{LockedSock, Sock},
    socket::{Socket, SocketFile},
    user::{OptionIn, OptionOut},
    wait::PollTable, //
};
use crate::tx;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use kernel::{
    prelude::*,
    rbtree::RBTreeNode,
    sync::{
        atomic::{
            ordering::{Full, Relaxed},
            Atomic,
        },
        Arc,
        Mutex,
        SetOnce, //
    }, //
};

/// A counter that has one writer at a time.
///
/// Of `core`, and not of the `kernel` crate: there a load or a store is a call.
pub(crate) struct Counter(AtomicU64);

impl Default for Counter {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Counter {
    /// Adds, where the caller holds the lock that goes with the counter.
    pub(crate) fn add(&self, n: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(n),
            Ordering::Relaxed,
        );
    }

    /// The count. Any context.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What happened to a flow's packets.
///
/// Those named `tx` are written under the channel's sender, those named `rx` under its receiver, or
/// without a channel by the one who reads.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) tx_packets: Counter,
    pub(crate) tx_bytes: Counter,
    pub(crate) tx_errors: Counter,
    pub(crate) tx_zerocopy: Counter,
    pub(crate) tx_taken: Counter,
    pub(crate) tx_drop_denied: Counter,
    pub(crate) tx_drop_unreachable: Counter,
    pub(crate) tx_drop_too_long: Counter,
    pub(crate) tx_drop_no_buffer: Counter,
    pub(crate) tx_drop_invalid: Counter,
    pub(crate) tx_drop_other: Counter,
    pub(crate) tx_drop_rule: Counter,
    pub(crate) tx_drop_rate: Counter,
    pub(crate) rx_taken: Counter,
    pub(crate) rx_packets: Counter,
    pub(crate) rx_bytes: Counter,
    pub(crate) rx_drop_ring_full: Counter,
    pub(crate) rx_drop_no_frame: Counter,
    pub(crate) rx_drop_too_long: Counter,
    pub(crate) rx_drop_rule: Counter,
    pub(crate) rx_drop_rate: Counter,
}

impl Counters {
    /// Gives those of sending, which agree with each other under the channel's sender.
    pub(crate) fn fill_sent(&self, stats: &mut abi::Stats) {
        stats.tx_packets = self.tx_packets.get();
        stats.tx_bytes = self.tx_bytes.get();
        stats.tx_errors = self.tx_errors.get();
        stats.tx_zerocopy = self.tx_zerocopy.get();
        stats.tx_taken = self.tx_taken.get();
        stats.tx_drop_denied = self.tx_drop_denied.get();
        stats.tx_drop_unreachable = self.tx_drop_unreachable.get();
        stats.tx_drop_too_long = self.tx_drop_too_long.get();
        stats.tx_drop_no_buffer = self.tx_drop_no_buffer.get();
        stats.tx_drop_invalid = self.tx_drop_invalid.get();
        stats.tx_drop_other = self.tx_drop_other.get();
        stats.tx_drop_rule = self.tx_drop_rule.get();
        stats.tx_drop_rate = self.tx_drop_rate.get();
    }

    /// Gives those of receiving, which agree with each other under the channel's receiver.
    pub(crate) fn fill_received(&self, stats: &mut abi::Stats) {
        stats.rx_taken = self.rx_taken.get();
        stats.rx_packets = self.rx_packets.get();
        stats.rx_bytes = self.rx_bytes.get();
        stats.rx_drop_ring_full = self.rx_drop_ring_full.get();
        stats.rx_drop_no_frame = self.rx_drop_no_frame.get();
        stats.rx_drop_too_long = self.rx_drop_too_long.get();
        stats.rx_drop_rule = self.rx_drop_rule.get();
        stats.rx_drop_rate = self.rx_drop_rate.get();
    }
}

/// A packet, or several as one, that a flow sends.
pub(crate) struct Sent {
    pub(crate) peer: Peer,
    /// Of each datagram, where it is several; else 0.
    pub(crate) gso_size: u16,
    /// Of payload.
    pub(crate) bytes: u32,
    pub(crate) mark: u32,
    pub(crate) priority: u32,
}

/// A flow's place on a channel.
struct Attachment {
    channel: Arc<Channel>,
    number: u32,
}

/// UDP_CORK was set once; the option may be on, or be set and taken back while a message is under way.
const CORKED: u32 = 1 << 30;
/// The flow is on a channel, or about to be: it can't be corked.
const ON_CHANNEL: u32 = 1 << 31;

/// A KOPI socket.
pub(crate) struct Flow {
    /// Who has it, and what the rules come to for it. Set when it is opened.
    policy: SetOnce<Pin<KBox<Policy>>>,
    /// Its number in its network namespace, from then on.
    id: AtomicU32,
    /// Set once: a flow stays on its channel until it is closed.
    attachment: SetOnce<Attachment>,
    pub(crate) counters: Counters,
    /// What the direct path knows of it.
    pub(crate) direct: Direct,
    /// The local port that programs of XDP redirect for it; 0 for none.
    redirected: AtomicU16,
    /// Messages under way that may cork the socket, with [`CORKED`] and [`ON_CHANNEL`].
    corking: AtomicU32,
    /// Somebody may have come to wait for the socket, as epoll does once and for all, before it had
    /// a channel.
    polled_early: Atomic<bool>,
    /// Who was last let receive when asking where the rings lie.
    may_map: AllowedCreds,
    _charge: Charge,
}

impl Flow {
    pub(crate) fn channel(&self) -> Option<&Arc<Channel>> {
        Some(&self.attachment.as_ref()?.channel)
    }

    /// Who has it, and what the rules come to for it.
    pub(crate) fn policy(&self) -> Option<&Policy> {
        Some(self.policy.as_ref()?)
    }

    /// The same, if rules can refuse or mark a packet, or did. Any context.
    pub(crate) fn policy_in_force(&self) -> Option<&Policy> {
        self.policy().filter(|policy| policy.is_in_force())
    }

    /// The flow's number in its network namespace.
    pub(crate) fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    /// What the rules say of datagrams. Any context but hard interrupts.
    pub(crate) fn decide(
        &self,
        sk: &Sock,
        direction: Direction,
        peer: impl FnOnce() -> Peer,
        packets: Packets,
    ) -> Outcome {
        let Some(policy) = self.policy_in_force() else {
            return Outcome::Pass;
        };
        let (outcome, stopped) = policy.decide(sk, direction, &peer(), packets);
        if let Some(stopped) = stopped {
            sk.set_error(EACCES);
            tell(
                self,
                sk,
                match direction {
                    Direction::Out => Event::Denied(stopped),
                    Direction::In => Event::DeniedReceiving(stopped),
                },
            );
        }
        outcome
    }

    /// Judges what leaves, and gives it the rule's mark and priority. `again` says that it was counted
    /// before. Any context but hard interrupts.
    pub(crate) fn sends(&self, sk: &Sock, sent: &mut Sent, again: bool) -> Outcome {
        let Some(policy) = self.policy_in_force() else {
            return Outcome::Pass;
        };
        let packets = Packets {
            datagrams: u64::from(match sent.gso_size {
                0 => 1,
                size => sent.bytes.div_ceil(u32::from(size)).max(1),
            }),
            bytes: u64::from(sent.bytes),
            again,
        };
        let peer = sent.peer;
        let outcome = self.decide(sk, Direction::Out, || peer, packets);
        if outcome == Outcome::Pass {
            let (mark, priority) = policy.changes(sk, &peer);
            sent.mark = mark.unwrap_or(sent.mark);
            sent.priority = priority.unwrap_or(sent.priority);
        } else {
            self.show_refused(sk, outcome, peer, sent.bytes, sent.gso_size.into());
        }
        outcome
    }

    /// Whether the rules deny the first hop of a source route; counts it then. Any context but hard
    /// interrupts.
    pub(crate) fn denies_hop(&self, sk: &Sock, hop: Peer, sent: &Sent) -> bool {
        let mut by_hop = Sent { peer: hop, ..*sent };
        let look = Packets {
            datagrams: 1,
            bytes: u64::from(sent.bytes),
            again: true,
        };
        self.decide(sk, Direction::Out, || hop, look) == Outcome::Denied
            && self.sends(sk, &mut by_hop, false) == Outcome::Denied
    }

    /// Shows what isn't sent to who looks.
    fn show_refused(&self, sk: &Sock, outcome: Outcome, peer: Peer, len: u32, gso_size: u32) {
        if monitor::is_watched(self) {
            let unsent = Unsent {
                peer,
                begins: &[],
                len,
                gso_size,
            };
            monitor::show_unsent(self, sk, outcome, &unsent);
        }
    }

    /// Follows rules that have changed, and tells the process what they stop. Process context.
    pub(crate) fn follow_rules(&self, socket: &Socket) {
        let Some(policy) = self.policy() else {
            return;
        };
        let sk = socket.sk();
        let stopped = policy.sweep(sk);
        // One error for both directions: who waits takes it, and another would be the next call's.
        if stopped.iter().any(Option::is_some) {
            sk.set_error(EACCES);
            if let Some(channel) = self.channel() {
                channel.wake_readers();
            }
        }
        for stopped in stopped.into_iter().flatten() {
            tell(self, sk, Event::Denied(stopped));
        }
    }

    /// Passes on what the rules say of a call, and tells who listens if they deny it.
    fn permit(
        &self,
        socket: &Socket,
        judged: core::result::Result<(), Stopped>,
        event: impl FnOnce(Stopped) -> Event,
    ) -> Result {
        judged.map_err(|stopped| {
            tell(self, socket.sk(), event(stopped));
            EACCES
        })
    }

    /// Has programs of XDP redirect what comes to the flow's port, which may be another than before, if its
    /// channel takes GRO packets. Process context.
    pub(crate) fn follow_port(&self, sk: &Sock) {
        let port = u16::from_be(sk.local_port());
        if port != self.redirected.load(Ordering::Relaxed)
            && self.channel().is_some_and(|channel| channel.has_gro())
        {
            self.redirect(port);
        }
    }

    /// Whether programs of XDP are to redirect what comes to its port.
    pub(crate) fn is_redirected(&self) -> bool {
        self.redirected.load(Ordering::Relaxed) != 0
    }

    /// Has them redirect what comes to one port and no other; 0 for none.
    fn redirect(&self, port: u16) {
        let Some(policy) = self.policy() else {
            return;
        };
        // Had before others wait for it, RTNL in hand.
        let room = match port {
            0 => None,
            _ => match Room::new() {
                Ok(room) => Some(room),
                // It comes by the stack, as it would without a program.
                Err(_) => return,
            },
        };
        let mut listening = policy.net().listening.lock();
        if let Some(room) = room {
            listening.add(port, room);
        }
        match self.redirected.swap(port, Ordering::Relaxed) {
            0 => {}
            before => listening.remove(before),
        }
    }

    /// The flow's number on its channel; 0 without one.
    pub(crate) fn number(&self) -> u32 {
        self.attachment.as_ref().map_or(0, |at| at.number)
    }

    /// Makes a channel for the flow.
    fn open_channel(&self, socket: &Socket, request: &abi::ChannelReq) -> Result {
        let geometry = Geometry::new(request).map_err(|_| EINVAL)?;
        if self.channel().is_some() {
            return Err(EBUSY);
        }
        let owner = self.policy().ok_or(EINVAL)?.identity().uid;
        let channel = Channel::new(geometry, socket.sk().net(), self.id(), owner)?;
        self.attach(socket, channel)
    }

    /// Puts the flow on the channel of another one.
    fn join_channel(&self, socket: &Socket, request: &abi::Join) -> Result {
        if request.reserved.iter().any(|&word| word != 0) {
            return Err(EINVAL);
        }
        let file = SocketFile::get(request.fd)?;
        let other = file.socket().ok_or_else(eopnotsupp)?;
        if core::ptr::eq(other, socket) {
            return Err(EINVAL);
        }
        if self.channel().is_some() {
            return Err(EBUSY);
        }
        let flow = family::protocol::<Flow>(other).ok_or_else(enotconn)?;
        let channel = flow.channel().ok_or_else(enotconn)?;
        if !socket.sk().same_net(other.sk()) {
            return Err(EXDEV);
        }
        if !socket.sk().same_user(other.sk()) && !socket.sk().net_admin() {
            return Err(EPERM);
        }
        // Whoever has the channel has what the other one receives.
        other.may_receive()?;
        self.attach(socket, channel.clone())
    }

    /// Puts the flow on a channel: `EBUSY` if it is corked, or has another.
    fn attach(&self, socket: &Socket, channel: Arc<Channel>) -> Result {
        self.corking
            .compare_exchange(0, ON_CHANNEL, Ordering::AcqRel, Ordering::Relaxed)
            .map_err(|_| EBUSY)?;
        let attached = if socket.sk().is_corked() {
            Err(EBUSY)
        } else {
            self.attach_uncorked(socket, channel)
        };
        if attached.is_err() {
            self.corking.store(0, Ordering::Release);
        }
        attached
    }

    #[expect(unsafe_code, reason = "a list of sockets trusts its owner")]
    fn attach_uncorked(&self, socket: &Socket, channel: Arc<Channel>) -> Result {
        socket.may_receive()?;
        let policy = self.policy().ok_or(EINVAL)?;
        // Before others can send by it.
        policy.identify_if_new()?;
        // SAFETY: Removed below, or by `release`, which comes before the socket's.
        let number = unsafe { channel.add_flow(socket) }?;
        // Last of what may fail: a socket that is refused would be left with it.
        if channel.has_gro() {
            if let Err(error) = socket.enable_gro() {
                Channel::remove_flow(&channel, number);
                return Err(error);
            }
        }
        let attached = self.attachment.populate(Attachment {
            channel: channel.clone(),
            number,
        });
        if !attached {
            // Another thread was faster.
            Channel::remove_flow(&channel, number);
            return Err(EBUSY);
        }
        policy.join(channel.user());
        if channel.id() == self.id() {
            // Made before others wait for it.
            match RBTreeNode::new(channel.id(), channel.clone(), GFP_KERNEL_ACCOUNT) {
                Ok(node) => {
                    policy.net().channels.lock().insert(node);
                }
                // It works, and can't be shown.
                Err(error) => pr_debug!("a channel isn't listed: {}\n", error.to_errno()),
            }
        }
        self.follow_port(socket.sk());
        family::install_callbacks::<Flow>(socket);
        // What came before goes to the ring, too.
        family::drain::<Flow>(socket);
        Ok(())
    }

    /// Whether somebody may wait on the socket's own queue, and not on the channel's. To be asked
    /// after a full fence.
    pub(crate) fn was_polled_early(&self) -> bool {
        self.polled_early.load(Relaxed)
    }

    /// Whether its channel's receiver is dropping this packet. On the CPU where it does.
    pub(crate) fn is_refusing(&self, packet: usize) -> bool {
        self.channel()
            .is_some_and(|channel| channel.is_refusing(packet))
    }

    fn info(&self) -> abi::Info {
        abi::Info {
            abi_version: abi::ABI_VERSION,
            family: u32::try_from(family::wanted_number()).unwrap_or(0),
            flow: self.number(),
            has_channel: u32::from(self.channel().is_some()),
            frame_headroom: abi::FRAME_HEADROOM,
            frame_size_min: abi::FRAME_SIZE_MIN,
            frame_size_max: abi::FRAME_SIZE_MAX,
            frames_max: abi::FRAMES_MAX,
            ring_entries_max: abi::RING_ENTRIES_MAX,
            region_size_max: abi::REGION_SIZE_MAX,
            chain_max: abi::CHAIN_MAX,
            copybreak: tx::copybreak(),
            reserved: [0; 4],
        }
    }

    /// The flow's counters, and its channel's. Process context.
    pub(crate) fn stats(&self) -> abi::Stats {
        let mut stats = abi::Stats::default();
        match self.channel() {
            Some(channel) => channel.fill_stats(&self.counters, &mut stats),
            None => self.counters.fill_received(&mut stats),
        }
        stats
    }
}

#[expect(unsafe_code, reason = "the type of the sockets' state")]
// SAFETY: No other type implements it.
unsafe impl Protocol for Flow {
    fn new(net: &NetRef) -> Result<Self> {
        let one = Holding {
            flows: 1,
            ..Holding::default()
        };
        Ok(Self {
            policy: SetOnce::new(),
            id: AtomicU32::new(0),
            attachment: SetOnce::new(),
            counters: Counters::default(),
            direct: Direct::default(),
            redirected: AtomicU16::new(0),
            corking: AtomicU32::new(0),
            polled_early: Atomic::new(false),
            may_map: AllowedCreds::new(),
            _charge: Charge::new(net, one)?,
        })
    }

    fn opened(&self, socket: &Socket) -> Result {
        let policy = Policy::new(socket.sk())?;
        // SAFETY: `release` closes it, which comes before the socket's own.
        let id = unsafe { policy.net().open(socket) }?;
        self.id.store(id, Ordering::Relaxed);
        self.policy.populate(policy);
        tell(self, socket.sk(), Event::Opened);
        Ok(())
    }

    fn release(&self, socket: &Socket) {
        let Some(policy) = self.policy() else {
            return;
        };
        if let Some(at) = self.attachment.as_ref() {
            if Channel::remove_flow(&at.channel, at.number) == 0 {
                let unlisted = policy.net().channels.lock().remove(&at.channel.id());
                drop(unlisted);
            }
        }
        if self.redirected.load(Ordering::Relaxed) != 0 {
            self.redirect(0);
        }
        tell(self, socket.sk(), Event::Closed);
        policy.net().close(self.id(), &self.stats());
    }

    fn may_bind(&self, socket: &Socket, name: &Name) -> Result {
        let policy = self.policy().ok_or(EINVAL)?;
        policy.identify()?;
        match name.peer() {
            // Which port it gets is known afterwards.
            Some(end) if end.port != 0 => {
                let judged = policy.may_bind(socket.sk(), end.port);
                self.permit(socket, judged, |stopped| Event::BindDenied(stopped, end))
            }
            _ => Ok(()),
        }
    }

    fn bound(&self, socket: &Socket) -> Result {
        let policy = self.policy().ok_or(EINVAL)?;
        let port = u16::from_be(socket.sk().local_port());
        self.permit(socket, policy.may_bind(socket.sk(), port), Event::Denied)?;
        self.follow_port(socket.sk());
        tell(self, socket.sk(), Event::Bound);
        Ok(())
    }

    fn may_connect(&self, socket: &Socket, name: &Name) -> Result {
        let policy = self.policy().ok_or(EINVAL)?;
        policy.identify()?;
        match name.peer() {
            Some(peer) => {
                let judged = policy.may_connect(socket.sk(), &peer);
                self.permit(socket, judged, |stopped| {
                    Event::ConnectDenied(stopped, peer)
                })
            }
            None => Ok(()),
        }
    }

    fn connected(&self, socket: &Socket) -> Result {
        let policy = self.policy().ok_or(EINVAL)?;
        let Some(peer) = socket.sk().peer() else {
            // The port may be gone, too.
            self.follow_port(socket.sk());
            return Ok(());
        };
        // By the local port that it has now.
        self.permit(
            socket,
            policy.may_connect(socket.sk(), &peer),
            Event::Denied,
        )?;
        self.follow_port(socket.sk());
        tell(self, socket.sk(), Event::Connected);
        Ok(())
    }

    fn may_cork(&self, for_good: bool) -> Result {
        self.corking
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |corking| {
                let more = if for_good {
                    corking | CORKED
                } else {
                    corking.wrapping_add(1)
                };
                (corking & ON_CHANNEL == 0).then_some(more)
            })
            .map_err(|_| eopnotsupp())?;
        Ok(())
    }

    fn has_corked(&self) {
        self.corking.fetch_sub(1, Ordering::Release);
    }

    fn may_send(&self, socket: &Socket, name: Option<&Name>, bytes: usize) -> Result {
        let Some(policy) = self.policy_in_force() else {
            return Ok(());
        };
        policy.identify_if_new()?;
        let peer = match name {
            Some(name) => name.peer(),
            None => socket.sk().peer(),
        };
        // Without a peer the stack says what is wrong.
        let Some(peer) = peer else {
            return Ok(());
        };
        // What passes is judged, and counted, when it is a packet; an error that is known now needs none.
        let judge = |again| {
            let packets = Packets {
                datagrams: 1,
                bytes: bytes as u64,
                again,
            };
            self.decide(socket.sk(), Direction::Out, || peer, packets)
        };
        let outcome = judge(true);
        let refusal = match outcome {
            Outcome::Pass => return Ok(()),
            Outcome::Denied => {
                judge(false);
                EACCES
            }
            Outcome::TooFast => enobufs(),
        };
        let len = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.show_refused(socket.sk(), outcome, peer, len, 0);
        Err(refusal)
    }

    fn poll(&self, socket: &Socket, table: &PollTable, inner: u32) -> u32 {
        if self.channel().is_none() {
            // Full order, as the fence in needs_wakeup(): either this sees the channel now, or the
            // channel sees this.
            self.polled_early.xchg(true, Full);
        }
        match self.channel() {
            Some(channel) => channel.poll(socket.sk(), table, inner),
            None => inner,
        }
    }

    fn ioctl(&self, socket: &Socket, request: u32, argument: usize) -> Option<Result<i32>> {
        if request != abi::IOC_DOORBELL {
            return None;
        }
        Some((|| {
            let channel = self.channel().ok_or_else(enotconn)?;
            let flags = u32::try_from(argument).map_err(|_| EINVAL)?;
            Channel::doorbell(channel, socket, flags)
        })())
    }

    fn set_option(&self, socket: &Socket, name: i32, value: &OptionIn) -> Result {
        match name {
            abi::OPT_CHANNEL => self.open_channel(socket, &value.read()?),
            abi::OPT_JOIN => self.join_channel(socket, &value.read()?),
            _ => Err(enoprotoopt()),
        }
    }

    fn get_option(&self, socket: &Socket, name: i32, value: &OptionOut) -> Result {
        match name {
            abi::OPT_INFO => value.write(&self.info()),
            abi::OPT_CHANNEL => {
                let layout = self.channel().ok_or_else(enotconn)?.layout();
                // Who maps the rings reads packets without asking again, and `map` can't ask.
                socket.may_receive()?;
                self.may_map.set_current();
                value.write(layout)
            }
            abi::OPT_STATS => value.write(&self.stats()),
            _ => Err(enoprotoopt()),
        }
    }

    fn may_read(&self, socket: &Socket) -> Result<Option<&Mutex<bool>>> {
        let Some(policy) = self.policy() else {
            return Ok(None);
        };
        if !policy.is_in_force() {
            // Who only watches changes nothing for a program that looks further than at what is first.
            let is_shown = monitor::is_watched(self) && !socket.sk().peeks_on();
            return Ok(is_shown.then(|| policy.reading()));
        }
        policy.identify_if_new()?;
        let (_, denied) = policy.show(socket.sk());
        if denied & Direction::In as u32 != 0 {
            return Err(EACCES);
        }
        Ok(Some(policy.reading()))
    }

    fn reading(&self) -> Option<&Mutex<bool>> {
        Some(self.policy()?.reading())
    }

    fn may_take(
        &self,
        socket: &Socket,
        peer: Peer,
        bytes: usize,
        again: bool,
        peeks: bool,
    ) -> bool {
        let packets = Packets {
            datagrams: 1,
            bytes: bytes as u64,
            again,
        };
        let outcome = self.decide(socket.sk(), Direction::In, || peer, packets);
        if monitor::is_watched(self) && !(peeks && matches!(outcome, Outcome::Pass)) {
            monitor::show_first(self, socket.sk(), outcome, &peer);
        }
        let counter = match outcome {
            Outcome::Pass => return true,
            Outcome::Denied => &self.counters.rx_drop_rule,
            Outcome::TooFast => &self.counters.rx_drop_rate,
        };
        self.counters.rx_taken.add(1);
        counter.add(1);
        false
    }

    fn has_queue(&self) -> bool {
        self.channel().is_none()
    }

    fn map(&self, vma: &Vma) -> Result {
        let channel = self.channel().ok_or(ENODEV)?;
        if !self.may_map.are_current() {
            return Err(EACCES);
        }
        Channel::map(channel, vma)
    }

    fn data_ready(
        &self,
        sk: &Sock,
        locked: Option<LockedSock<'_>>,
        softirqs: &SoftirqsOff,
    ) -> bool {
        self.channel()
            .is_some_and(|channel| channel.receive(self, sk, locked, softirqs))
    }
}
