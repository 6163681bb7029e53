// SPDX-License-Identifier: GPL-2.0

//! Ordinary sockets, which the rules judge like flows while a namespace enforces its rules.
//!
//! The owner of one is the process that used it last, by a system call that is asked about here. One
//! that a listener made has the listener's owner until then. Nothing is known of sockets of the
//! kernel, and of those that nobody used since the rules are enforced: their user and group are those
//! that made them, and no rule for a program matches.

use crate::events::{notify_refused, Refused};
use crate::flow::{Flow, OutPacket};
use crate::identity::Owner;
use crate::netns::Net;
use crate::pure::{
    peer::Peer,
    rule::{Direction, Received}, //
};
use crate::rules::{self, Counting, Outcome, Policy, Traffic};
use crate::sys::{
    errno::enobufs,
    family,
    ordinary::{self, JudgesOrdinary, SocketCall},
    pernet::NetRef,
    sock::Sock,
    task::Task, //
};
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        rcu,
        Arc, //
    }, //
};

ordinary::serve!(Ordinary);

/// What is known of an ordinary socket.
#[pin_data]
pub(crate) struct Ordinary {
    #[pin]
    policy: Policy,
    /// [`NetPolicy::enforced_since`](rules::NetPolicy::enforced_since) of the time when this was noted: if
    /// that is another one now, the rules weren't enforced in between, and who used the socket isn't known.
    noted_generation: u64,
    /// A system call on it was judged, or on the listener that it was made by.
    used: Atomic<bool>,
}

/// What the module keeps of a socket's network namespace, if that isn't ending.
fn net_of(net: &NetRef) -> Option<Arc<Net>> {
    net.state_if_alive(&rcu::read_lock())
}

impl Ordinary {
    fn new(sk: &Sock, owner: Owner, flags: Flags) -> Result<Arc<Self>> {
        let net = net_of(sk.net()).ok_or(ENODEV)?;
        Self::of(net.policy.clone(), owner, false, flags)
    }

    fn of(net: Arc<rules::NetPolicy>, owner: Owner, used: bool, flags: Flags) -> Result<Arc<Self>> {
        let noted_generation = net.enforced_since();
        let policy = Policy::of_ordinary(net, owner);
        Arc::pin_init(
            try_pin_init!(Self { policy <- policy, noted_generation, used: Atomic::new(used) }? Error),
            flags,
        )
    }

    /// Judges the packets of a call, which has no peer if the socket has none.
    fn may_exchange(&self, sk: &Sock, call: SocketCall, peer: Option<Peer>) -> Result {
        let direction = match call {
            SocketCall::Send => Direction::Out,
            _ => Direction::In,
        };
        let policy = &self.policy;
        let caller = policy.identify_if_new(sk)?;
        if !policy.net().are_enforced() {
            return Ok(());
        }
        let judged = peer.and_then(|peer| sk.reached(peer));
        let permission = policy.may_exchange(&caller, sk, direction, judged.as_ref());
        permission.map_err(|_| {
            notify_refused(policy, sk, Refused::Call(call, peer), || {
                policy.note_told(sk, direction, judged.as_ref())
            });
            EACCES
        })
    }

    /// Tells listeners of a packet that is refused.
    fn tell_of_packet(&self, sk: &Sock, direction: Direction, peer: &Peer) {
        notify_refused(&self.policy, sk, Refused::Packet(*peer), || {
            self.policy.note_told(sk, direction, Some(peer))
        });
    }

    /// Judges a packet that leaves by `via`, and gives it the rule's mark and priority.
    fn judge_sent(&self, sk: &Sock, sent: &mut OutPacket, via: &Peer) -> Outcome {
        let peer = sent.peer;
        let denied_hop =
            (*via != peer && self.policy.denies(sk, Direction::Out, via)).then_some(via);
        if denied_hop.is_some() || sk.is_stream() && self.policy.denies(sk, Direction::In, &peer) {
            self.policy.net().count_denied(None);
            self.tell_of_packet(sk, Direction::Out, denied_hop.unwrap_or(&peer));
            return Outcome::Denied;
        }
        let (outcome, _) = self.policy.decide(None, sk, &sent.traffic());
        match outcome {
            Outcome::Pass => sent.set_mark_and_priority(self.policy.mark_and_priority(sk, &peer)),
            Outcome::Denied => self.tell_of_packet(sk, Direction::Out, &peer),
            Outcome::TooFast => {}
        }
        outcome
    }
}

impl JudgesOrdinary for Ordinary {
    type Family = Flow;

    fn are_judged(net: &NetRef) -> bool {
        net_of(net).is_some_and(|net| net.policy.are_enforced())
    }

    fn are_noted(net: &NetRef) -> bool {
        net_of(net).is_some_and(|net| net.policy.enforced_since() != 0)
    }

    fn is_noted(&self) -> bool {
        self.noted_generation != 0 && self.policy.net().enforced_since() == self.noted_generation
    }

    fn was_used(&self) -> bool {
        self.used.load(Relaxed)
    }

    fn follow(&self, owner: &Self) {
        self.policy.follow(&owner.policy);
    }

    fn of_current(sk: &Sock) -> Result<Arc<Self>> {
        Self::new(sk, Owner::first_of(sk)?, GFP_KERNEL_ACCOUNT)
    }

    fn of_task(sk: &Sock, task: &Task, flags: Flags) -> Result<Arc<Self>> {
        Self::new(sk, Owner::of(task, sk, flags)?, flags)
    }

    fn of_child(&self) -> Result<Arc<Self>> {
        let net = self.policy.shared_net();
        Self::of(
            net,
            self.policy.owner(),
            self.was_used(),
            GFP_ATOMIC | __GFP_NOWARN,
        )
    }

    fn judge_call(&self, sk: &Sock, call: SocketCall, to: Option<Peer>) -> Result {
        let policy = &self.policy;
        // Seldom written: threads that use a socket at once share its cache line.
        if !self.was_used() {
            self.used.store(true, Relaxed);
        }
        let judged = match call {
            SocketCall::Bind => {
                let caller = policy.identify(sk)?;
                // A port that the kernel chooses is judged with the packets.
                match to.map_or(0, |to| to.port) {
                    0 => Ok(()),
                    port => policy.may_bind(Some(&caller), sk, port),
                }
            }
            SocketCall::Connect => {
                let caller = policy.identify(sk)?;
                to.and_then(|to| sk.reached(to))
                    .map_or(Ok(()), |to| policy.may_connect(Some(&caller), sk, &to))
            }
            SocketCall::Listen => {
                let caller = policy.identify(sk)?;
                policy.may_listen(Some(&caller), sk)
            }
            SocketCall::Accept => {
                let caller = policy.identify_if_new(sk)?;
                policy.may_listen(Some(&caller), sk)
            }
            SocketCall::Send => {
                // TCP sends to its peer, whatever the call names.
                if let Some(peer) = sk.peer().filter(|_| sk.is_stream()) {
                    self.may_exchange(sk, call, Some(peer))?;
                }
                return self.may_exchange(sk, call, to.or_else(|| sk.peer()));
            }
            SocketCall::Receive => return self.may_exchange(sk, call, sk.peer()),
        };
        judged.map_err(|stopped| {
            notify_refused(policy, sk, Refused::Call(call, to), || Some(stopped));
            EACCES
        })
    }

    fn judge_received(known: Option<&Self>, sk: &Sock, from: &Peer, size: Received) -> Result {
        let traffic = Traffic::received(*from, size, Counting::Now);
        let port = sk.local_port();
        let outcome = match known {
            // Rules would take it for one of the IPv4 host.
            _ if size.is_mapped => {
                count_unjudged(sk);
                Outcome::Denied
            }
            None => judge_unknown(sk, u16::from_be(port), Direction::In, from),
            Some(Self { policy, .. }) if !sk.is_stream() => policy.decide(None, sk, &traffic).0,
            Some(Self { policy, .. }) if policy.denies(sk, Direction::In, from) => Outcome::Denied,
            Some(_) => Outcome::Pass,
        };
        if let Some(known) = known.filter(|_| outcome == Outcome::Denied) {
            known.tell_of_packet(sk, Direction::In, from);
        }
        outcome.result(enobufs)?;
        // connect() to AF_UNSPEC took the port meanwhile, by which it should have been judged.
        if !sk.is_stream() && (port == 0 || sk.local_port() != port) {
            count_unjudged(sk);
            return Err(EACCES);
        }
        Ok(())
    }
}

/// Counts a packet that is refused since rules can't judge it.
fn count_unjudged(sk: &Sock) {
    if let Some(net) = net_of(sk.net()) {
        net.policy.count_denied(None);
    }
}

/// Judges a packet of a socket of which nothing is known, of this local port.
///
/// A connection without a socket passes: a flow's, before accept() or after close(), whose handshake
/// was judged, or one that was closed before the rules were enforced. So does one of a flow that is
/// being accepted or closed: close() sends before it takes the socket away.
fn judge_unknown(sk: &Sock, port: u16, direction: Direction, peer: &Peer) -> Outcome {
    // In this order, as close() takes the socket away.
    if sk.is_stream() && (family::has_our_socket(sk) || !sk.has_socket()) {
        return Outcome::Pass;
    }
    match net_of(sk.net()) {
        Some(net) if !rules::is_denied_to_process(&net.policy, None, sk, port, direction, peer) => {
            Outcome::Pass
        }
        _ => Outcome::Denied,
    }
}

/// Forgets the sockets of namespaces that don't enforce their rules any more. Process context.
pub(crate) fn forget_unnoted() {
    ordinary::forget_unnoted::<Ordinary>();
}

/// Judges a packet that an ordinary socket sends by `via`, and gives it the rule's mark and priority.
/// In an RCU read-side section.
pub(crate) fn judge_sent(sk: &Sock, sent: &mut OutPacket, via: &Peer) -> Outcome {
    if !Ordinary::are_judged(sk.net()) {
        return Outcome::Pass;
    }
    // The kernel's own need no port: soft-RoCE gives each packet one of its own choice (rxe_send()). The segments of
    // a handshake have the port to which the SYN came, as TPROXY may have it.
    if !sk.is_stream() && !sk.is_kernels() && sent.is_from_elsewhere(sk) {
        count_unjudged(sk);
        return Outcome::Denied;
    }
    if let Some(known) = ordinary::look_up::<Ordinary>(sk) {
        return known.judge_sent(sk, sent, via);
    }
    // A flow that was closed since its VRF, where it was judged, had the packet.
    if sent.counted_before && !sk.is_stream() && !sk.has_socket() {
        return Outcome::Pass;
    }
    let port = match sk.is_stream() {
        true => u16::from_be(sk.local_port()),
        false => sent.from_port,
    };
    if *via != sent.peer && judge_unknown(sk, port, Direction::Out, via) == Outcome::Denied {
        return Outcome::Denied;
    }
    judge_unknown(sk, port, Direction::Out, &sent.peer)
}
