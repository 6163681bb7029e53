// SPDX-License-Identifier: GPL-2.0

//! Telling listeners what happens to flows, and what ordinary sockets are refused.
//!
//! An event that finds no memory is lost, as netlink's are.

use crate::describe::{put_socket, put_stats};
use crate::pure::peer::Peer;
use crate::rules::{Denial, Policy};
use crate::subject::Subject;
use crate::sys::{
    cgroup,
    context,
    genl::{self, Message},
    ordinary::SocketCall,
    pernet::NetRef,
    sock::{Ends, Sock},
    task,
    uapi, //
};
use kernel::{
    prelude::*,
    str::CStr, //
};

/// What happened to a flow.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    Opened,
    Bound,
    Connected,
    Closed,
    /// Rules stop a direction of the flow. Any context but hard interrupts: a packet may show it,
    /// also one that leaves a queue in a softirq.
    Denied(Denial),
    /// bind() to that address, or connect() to it, was refused.
    BindDenied(Denial, Peer),
    ConnectDenied(Denial, Peer),
    /// No room in its RX ring, or no frame in its FILL ring. Softirq.
    Overrun,
}

impl Event {
    fn command(self) -> u32 {
        match self {
            Self::Opened => uapi::KOPI_CMD_FLOW_OPENED_NTF,
            Self::Bound => uapi::KOPI_CMD_FLOW_BOUND_NTF,
            Self::Connected => uapi::KOPI_CMD_FLOW_CONNECTED_NTF,
            Self::Closed => uapi::KOPI_CMD_FLOW_CLOSED_NTF,
            Self::Denied(_) | Self::BindDenied(..) | Self::ConnectDenied(..) => {
                uapi::KOPI_CMD_FLOW_DENIED_NTF
            }
            Self::Overrun => uapi::KOPI_CMD_OVERRUN_NTF,
        }
    }

    /// Whether only calls of processes tell it, in contexts that may sleep.
    fn may_sleep(self) -> bool {
        !matches!(self, Self::Overrun | Self::Denied(_))
    }
}

/// Notes an event that listeners weren't told of.
fn note_lost(notified: Result) {
    if let Err(error) = notified {
        pr_debug!("an event is lost: {}\n", error.to_errno());
    }
}

/// Tells listeners. Process context, but for events that say otherwise.
pub(crate) fn notify(flow: &impl Subject, sk: &Sock, event: Event) {
    if !genl::has_listeners(sk.net()) {
        return;
    }
    note_lost(try_notify(flow, sk, event));
}

fn try_notify(flow: &impl Subject, sk: &Sock, event: Event) -> Result {
    let policy = flow.policy();
    let ends = match &event {
        Event::BindDenied(_, end) => sk.ends().with_local(end),
        Event::ConnectDenied(_, end) => sk.ends().with_remote(end),
        _ => sk.ends(),
    };
    genl::send_event(sk.net(), event.command(), event.may_sleep(), |message| {
        message.u32(uapi::KOPI_A_FLOW_ID, flow.id())?;
        put_socket_and_owner(message, policy, sk, &ends)?;
        if let Some((channel, number)) = flow.place() {
            message.u32(uapi::KOPI_A_FLOW_CHANNEL, channel)?;
            message.u32(uapi::KOPI_A_FLOW_NUMBER, number)?;
        }
        match event {
            Event::Closed => {
                put_stats(message, uapi::KOPI_A_FLOW_STATS, &flow.stats(sk))?;
            }
            Event::Denied(stopped)
            | Event::BindDenied(stopped, _)
            | Event::ConnectDenied(stopped, _) => {
                put_stopped(message, stopped)?;
            }
            _ => {}
        }
        Ok(())
    })
}

/// Puts the ends of a sock, and its owner.
fn put_socket_and_owner(message: &mut Message, policy: &Policy, sk: &Sock, ends: &Ends) -> Result {
    let identity = policy.identity();
    put_socket(message, ends, &identity, cgroup::of(sk))?;
    message.u32(uapi::KOPI_A_FLOW_UID, sk.net().show_uid(identity.uid))?;
    message.u32(uapi::KOPI_A_FLOW_GID, sk.net().show_gid(identity.gid))?;
    message.u32(
        uapi::KOPI_A_FLOW_PID,
        identity.process.pid().shown_in(sk.net()),
    )
}

fn put_stopped(message: &mut Message, stopped: Denial) -> Result {
    message.u32(uapi::KOPI_A_FLOW_RULE, stopped.rule)?;
    message.u32(uapi::KOPI_A_FLOW_DIRECTION, stopped.direction as u32)
}

/// What an ordinary socket was refused.
#[derive(Clone, Copy)]
pub(crate) enum Refused {
    /// A call, with the address that it names. Process context.
    Call(SocketCall, Option<Peer>),
    /// A packet to or from a peer. Any context but hard interrupts.
    Packet(Peer),
}

impl Refused {
    fn operation(self) -> u32 {
        match self {
            Self::Call(SocketCall::Bind, _) => uapi::KOPI_OPERATION_BIND,
            Self::Call(SocketCall::Connect, _) => uapi::KOPI_OPERATION_CONNECT,
            Self::Call(SocketCall::Listen, _) => uapi::KOPI_OPERATION_LISTEN,
            Self::Call(SocketCall::Accept, _) => uapi::KOPI_OPERATION_ACCEPT,
            Self::Call(SocketCall::Send, _) => uapi::KOPI_OPERATION_SEND,
            Self::Call(SocketCall::Receive, _) => uapi::KOPI_OPERATION_RECEIVE,
            Self::Packet(_) => uapi::KOPI_OPERATION_PACKET,
        }
    }

    /// The ends of the sock, with those of the call or the packet.
    fn ends(self, sk: &Sock) -> Ends {
        match self {
            Self::Call(SocketCall::Bind, Some(end)) => sk.ends().with_local(&end),
            Self::Call(_, Some(end)) | Self::Packet(end) => sk.ends().with_remote(&end),
            Self::Call(_, None) => sk.ends(),
        }
    }
}

/// Tells listeners what an ordinary socket was refused, if `stopped` gives something to tell, which is
/// asked if there are listeners.
pub(crate) fn notify_refused(
    policy: &Policy,
    sk: &Sock,
    refused: Refused,
    stopped: impl FnOnce() -> Option<Denial>,
) {
    if !genl::has_listeners(sk.net()) {
        return;
    }
    let Some(stopped) = stopped() else {
        return;
    };
    let may_sleep = matches!(refused, Refused::Call(..));
    let command = uapi::KOPI_CMD_SOCKET_DENIED_NTF;
    let notified = genl::send_event(sk.net(), command, may_sleep, |message| {
        put_socket_and_owner(message, policy, sk, &refused.ends(sk))?;
        put_stopped(message, stopped)?;
        message.u32(uapi::KOPI_A_FLOW_OPERATION, refused.operation())
    });
    note_lost(notified);
}

/// Tells listeners that a limit refused the current process something. Process context.
pub(crate) fn notify_limit(net: &NetRef, limit: &'static CStr) {
    if !genl::has_listeners(net) {
        return;
    }
    let notified = task::Pid::current().and_then(|pid| {
        genl::send_event(net, uapi::KOPI_CMD_LIMIT_NTF, true, |message| {
            message.u32(uapi::KOPI_A_FLOW_UID, net.show_uid(context::current_uid()))?;
            message.u32(uapi::KOPI_A_FLOW_PID, pid.shown_in(net))?;
            message.string(uapi::KOPI_A_FLOW_COMMAND, &task::current_command())?;
            message.string(uapi::KOPI_A_FLOW_LIMIT, limit.to_bytes())
        })
    });
    note_lost(notified);
}
