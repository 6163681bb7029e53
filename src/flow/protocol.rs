// SPDX-License-Identifier: GPL-2.0

//! The calls of a flow's socket, where they differ from those of a UDP or TCP socket.

use super::corking::Corking;
use super::judge::caller;
use super::{Flow, FlowCounters};
use crate::channel::Channel;
use crate::direct::Direct;
use crate::events::{notify, Event};
use crate::limits::{Charge, OneFlow};
use crate::monitor;
use crate::pure::{
    abi,
    peer::Peer,
    rule::{Direction, Received}, //
};
use crate::rules::{Counting, Outcome, Packets, Policy, Traffic};
use crate::sys::{
    context::SoftirqsOff,
    cred::AllowedCreds,
    errno::{enobufs, enoprotoopt, eopnotsupp},
    family::{self, Cork, Name, Protocol, ReaderLock},
    pernet::NetRef,
    plain_message::PlainMessage,
    region::Vma,
    sock::{LockedSock, LockedStream, Sock},
    socket::Socket,
    user::{OptionIn, OptionOut},
    wait::PollTable, //
};
use crate::tx::Destination;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::{Full, Relaxed},
            Atomic,
        },
        Arc,
        SetOnce, //
    }, //
};

#[expect(unsafe_code, reason = "the type of the sockets' state")]
// SAFETY: `Flow` is the module's only type that implements `Protocol`.
unsafe impl Protocol for Flow {
    fn new(net: &NetRef) -> impl Init<Self, Error> {
        init!(Self {
            charge: Charge::new(net, OneFlow)?,
            policy: {
                let net = net.state();
                Policy::new(net.policy.clone(), net.opener()?)?
            },
            id: Atomic::new(0),
            place: SetOnce::new(),
            counters: FlowCounters::default(),
            direct: Direct::default(),
            redirected: Atomic::new(0),
            corking: Corking::new(),
            busy: Atomic::new(0),
            channel_errno: Atomic::new(0),
            polled_early: Atomic::new(false),
            may_map: AllowedCreds::new(),
            moved: Atomic::new(false),
        }? Error)
    }

    fn after_open(&self, socket: &Socket) -> Result {
        // accept() may have waited since the policy was made.
        self.policy.identify(socket.sk())?;
        let net = socket.sk().net().state();
        // SAFETY: `release` calls `close`, and the family calls `release` before it releases the
        // socket.
        let id = unsafe { net.open(socket, self.policy.owner()) }?;
        self.id.store(id, Relaxed);
        notify(self, socket.sk(), Event::Opened);
        Ok(())
    }

    fn release(&self, socket: &Socket) {
        if self.id() == 0 {
            // The flow was never opened.
            return;
        }
        let net = socket.sk().net().state();
        if let Some(place) = self.place.as_ref() {
            if Channel::remove_flow(&place.channel, place.number) == 0 {
                net.unlist(&place.channel);
            }
        }
        if self.redirected.load(Relaxed) != 0 {
            self.redirect(socket.sk(), 0);
        }
        notify(self, socket.sk(), Event::Closed);
        net.close(self.id(), &self.stats(socket.sk()));
    }

    fn may_bind(&self, socket: &Socket, name: &Name) -> Result {
        let policy = self.policy();
        let caller = policy.identify(socket.sk())?;
        match name.peer() {
            // The port that the kernel chooses is known afterwards.
            Some(end) if end.port != 0 => {
                let decision = policy.may_bind(Some(&caller), socket.sk(), end.port);
                self.permit(socket, decision, |stopped| Event::BindDenied(stopped, end))
            }
            _ => Ok(()),
        }
    }

    fn after_bind(&self, socket: &Socket) -> Result {
        let policy = self.policy();
        let port = u16::from_be(socket.sk().local_port());
        let decision = policy.may_bind(None, socket.sk(), port);
        self.permit(socket, decision, Event::Denied)?;
        self.update_redirected_port(socket.sk());
        notify(self, socket.sk(), Event::Bound);
        Ok(())
    }

    fn may_connect(&self, socket: &Socket, name: &Name) -> Result {
        let policy = self.policy();
        let caller = policy.identify(socket.sk())?;
        match name.peer().and_then(|peer| socket.sk().reached(peer)) {
            Some(peer) => {
                let decision = policy.may_connect(Some(&caller), socket.sk(), &peer);
                self.permit(socket, decision, |stopped| {
                    Event::ConnectDenied(stopped, peer)
                })
            }
            None => Ok(()),
        }
    }

    fn after_connect(&self, socket: &Socket) -> Result {
        let policy = self.policy();
        let Some(peer) = socket.sk().peer() else {
            // The port may be gone, too.
            self.update_redirected_port(socket.sk());
            return Ok(());
        };
        // By the local port that it has now.
        self.permit(
            socket,
            policy.may_connect(None, socket.sk(), &peer),
            Event::Denied,
        )?;
        self.update_redirected_port(socket.sk());
        self.apply_rules_to_connection(socket.sk(), &peer);
        notify(self, socket.sk(), Event::Connected);
        Ok(())
    }

    fn after_ends_change(&self) {
        self.interrupt_ring();
    }

    fn may_listen(&self, socket: &Socket) -> Result {
        let policy = self.policy();
        let caller = policy.identify(socket.sk())?;
        let decision = policy.may_listen(Some(&caller), socket.sk());
        self.permit(socket, decision, Event::Denied)
    }

    fn after_listen(&self, socket: &Socket) -> Result {
        let policy = self.policy();
        // By the local port that it has now.
        let decision = policy.may_listen(None, socket.sk());
        self.permit(socket, decision, Event::Denied)?;
        notify(self, socket.sk(), Event::Bound);
        Ok(())
    }

    fn may_accept(&self, socket: &Socket) -> Result {
        let Some(policy) = self.policy_in_force() else {
            return Ok(());
        };
        let caller = caller(policy, socket)?;
        let decision = policy.may_listen(Some(&caller), socket.sk());
        self.permit(socket, decision, Event::Denied)
    }

    fn may_use(&self, socket: &Socket) -> Result {
        self.may_use_stream(socket)
    }

    fn on_locked(&self, locked: &LockedStream<'_>) {
        self.apply_new_rules_locked(locked);
    }

    fn begin_cork(&self, by: Cork) -> Result {
        self.cork(by)
    }

    fn end_cork(&self) {
        self.corking.end_message();
    }

    fn begin_option(&self) {
        self.begin_busy();
    }

    fn end_option(&self) {
        self.end_busy();
    }

    fn note_move(&self) {
        self.moved.store(true, Relaxed);
    }

    fn may_send(&self, socket: &Socket, name: Option<&Name>, bytes: usize) -> Result {
        let Some(policy) = self.policy_in_force() else {
            return Ok(());
        };
        let caller = caller(policy, socket)?;
        let peer = match name {
            Some(name) => name.peer().and_then(|peer| socket.sk().reached(peer)),
            None => socket.sk().peer(),
        };
        // Without a peer the stack gives the error, or the packet is judged that the call becomes.
        let Some(peer) = peer else {
            return Ok(());
        };
        // What passes is judged, and counted, when it is a packet; what is refused never becomes
        // one.
        let judge = |counting| {
            let packets = Packets {
                datagrams: 1,
                bytes: bytes as u64,
                counting,
            };
            let traffic = Traffic {
                direction: Direction::Out,
                peer,
                packets,
            };
            self.decide_for(policy, &caller, socket.sk(), &traffic)
        };
        let outcome = judge(Counting::Elsewhere);
        let Err(refusal) = outcome.result(enobufs) else {
            return Ok(());
        };
        if outcome == Outcome::Denied {
            judge(Counting::Now);
        }
        let len = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.show_refused(socket.sk(), outcome, peer, len, 0);
        Err(refusal)
    }

    fn send_plain(
        &self,
        socket: &Socket,
        message: impl FnOnce() -> Option<PlainMessage>,
    ) -> Option<i32> {
        let channel = self.channel()?;
        // An engine that ends waits for the holder of the sender, and other calls wait in line.
        if channel.wants_engine() || channel.is_sender_wanted() {
            return None;
        }
        let mut message = message()?;
        // Another thread sends by the channel: UDP doesn't wait for it.
        let mut sender = channel.sender.try_lock()?;
        sender.send_message(Destination { socket, flow: self }, &mut message)
    }

    fn poll(&self, socket: &Socket, table: &PollTable, inner: u32) -> u32 {
        if self.channel().is_some_and(|channel| channel.is_tx_only()) {
            return inner;
        }
        if self.channel().is_none() {
            // Full order, as the fence in needs_wakeup(): either this sees the channel now, or the
            // channel sees this.
            self.polled_early.xchg(true, Full);
        }
        match self.channel() {
            Some(channel) => {
                bring_in(channel, socket);
                channel.poll(socket.sk(), table, inner)
            }
            None => inner,
        }
    }

    fn ioctl(&self, socket: &Socket, request: u32, argument: usize) -> Option<Result<i32>> {
        if request != abi::IOC_DOORBELL {
            return None;
        }
        Some((|| {
            refuse_stream(socket)?;
            let flags = u32::try_from(argument).map_err(|_| EINVAL)?;
            let channel = match flags & abi::BELL_SEND {
                0 => self.whole_channel()?,
                _ => self.channel_to_send_by(socket.sk())?,
            };
            if flags & abi::BELL_WAIT_RX != 0 {
                bring_in(channel, socket);
            }
            Channel::doorbell(channel, socket, self.number(), flags)
        })())
    }

    fn set_option(&self, socket: &Socket, name: i32, value: &OptionIn) -> Result {
        match name {
            abi::OPT_CHANNEL => {
                refuse_stream(socket)?;
                self.note_channel_request(self.open_channel(socket, &value.read()?))
            }
            abi::OPT_JOIN => {
                refuse_stream(socket)?;
                self.note_channel_request(self.join_channel(socket, &value.read()?))
            }
            _ => Err(enoprotoopt()),
        }
    }

    fn get_option(&self, socket: &Socket, name: i32, value: &OptionOut) -> Result {
        match name {
            abi::OPT_INFO => value.write(&self.info()),
            abi::OPT_CHANNEL => {
                let layout = self.whole_channel()?.layout();
                // A process that maps the rings reads packets without another check, and `map`
                // can't check.
                socket.may_receive()?;
                self.may_map.set_current();
                value.write(layout)
            }
            abi::OPT_STATS => value.write(&self.stats(socket.sk())),
            _ => Err(enoprotoopt()),
        }
    }

    fn may_read(&self, socket: &Socket) -> Result<Option<Arc<ReaderLock>>> {
        let policy = self.policy();
        if !policy.is_in_force() {
            // Monitors alone change nothing for a program that peeks further than the first
            // datagram.
            let is_shown = monitor::is_watched(self) && !socket.sk().peeks_on();
            return is_shown.then(|| policy.reader_lock()).transpose();
        }
        let caller = caller(policy, socket)?;
        let (_, denied) = policy.deciding_rules(Some(&caller), socket.sk())?;
        if denied & Direction::In as u32 != 0 {
            return Err(EACCES);
        }
        policy.reader_lock().map(Some)
    }

    fn reader_lock(&self) -> Result<Arc<ReaderLock>> {
        self.policy().reader_lock()
    }

    fn may_take(
        &self,
        socket: &Socket,
        peer: Peer,
        size: Received,
        counted_before: bool,
        peeks: bool,
    ) -> bool {
        let traffic = Traffic::received(peer, size, Counting::unless(counted_before));
        let sk = socket.sk();
        let judge = |policy: &Policy| {
            // Another process may have read since may_read().
            let caller = caller(policy, socket)?;
            let outcome = self.decide_for(policy, &caller, sk, &traffic);
            // Asked after the judgement, which used the port that the socket had at that moment.
            let cant_be = || self.cant_judge(size.is_mapped, || sk.is_first_of_old_end());
            Ok::<_, Error>(outcome.unless(cant_be))
        };
        let outcome = match self.policy_in_force() {
            None => Outcome::Pass,
            Some(policy) => judge(policy).unwrap_or(Outcome::Denied),
        };
        if monitor::is_watched(self) && !(peeks && matches!(outcome, Outcome::Pass)) {
            monitor::show_first(self, sk, outcome, &peer);
        }
        let counter = match outcome {
            Outcome::Pass => return true,
            Outcome::Denied => &self.counters.rx_drop_rule,
            Outcome::TooFast => &self.counters.rx_drop_rate,
        };
        self.counters.rx_taken.add(size.datagrams);
        counter.add(size.datagrams);
        false
    }

    fn has_queue(&self) -> bool {
        self.ring_receiver().is_none()
    }

    fn map(&self, vma: &Vma) -> Result {
        // Of a channel that only sends, others than its maker have no memory, as UDP sockets have none.
        let is_whole = |channel: &&Arc<Channel>| !channel.is_tx_only() || self.has_made_channel();
        let channel = self.channel().filter(is_whole).ok_or(ENODEV)?;
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
        let Some(channel) = self.channel() else {
            // It is coming to one, or was refused.
            sk.wake_readers();
            return false;
        };
        channel.receive(self, sk, locked, softirqs)
    }
}

/// Moves to the ring what has come before there were frames for it. Process context.
fn bring_in(channel: &Channel, socket: &Socket) {
    if !socket.sk().is_queue_empty() && channel.has_had_frames() {
        family::drain::<Flow>(socket);
    }
}

/// A stream has no channel: `EOPNOTSUPP`.
fn refuse_stream(socket: &Socket) -> Result {
    if socket.sk().is_stream() {
        return Err(eopnotsupp());
    }
    Ok(())
}
