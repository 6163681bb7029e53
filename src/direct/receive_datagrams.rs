// SPDX-License-Identifier: GPL-2.0

//! Redirected datagrams that go from the driver's frames to their flows, without the stack.
//!
//! Whatever looks at a packet before UDP does is asked, or the stack has the packet: hooks of
//! netfilter see an skb around the frame, and so do the sock's filters; for all else, the device
//! says anew for each bulk whether there is something. The route and the sock are the kernel's own
//! choice. A datagram for which the ring has no room goes to the sock's queue, by the stack.

use crate::channel::Channel;
use crate::flow::Flow;
use crate::pure::ip::IpVersion;
use crate::rx::Delivery;
use crate::sys::{
    context::SoftirqsOff,
    direct::{
        datagram_ends::{DatagramEnds, Receives},
        incoming::{Incoming, SpareSkb},
        input_routes::InputRoutes,
        redirected::XdpFrame, //
    },
    netdev::Device,
    sock::Sock, //
};
use kernel::{prelude::*, sync::rcu};

/// A flow on a channel, as long as RCU keeps it.
#[derive(Clone, Copy)]
struct Target<'a> {
    sk: &'a Sock,
    flow: &'a Flow,
    channel: &'a Channel,
}

/// What one CPU keeps for the next bulk of frames.
pub(super) struct Kept {
    spare: SpareSkb,
    routes: InputRoutes,
}

impl Kept {
    /// `ENOMEM`. Process context.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            spare: SpareSkb::NONE,
            routes: InputRoutes::new()?,
        })
    }
}

/// How the datagrams of a bulk are received.
#[derive(Clone, Copy)]
enum Method {
    /// By the stack: something looks at packets that isn't asked here.
    Stack,
    /// By an skb that netfilter's hooks see.
    Hooks,
    /// Without hooks.
    Plain,
}

/// How those of each version of IP are; `None` before the first one.
#[derive(Default)]
struct Methods {
    v4: Option<Method>,
    v6: Option<Method>,
}

impl Methods {
    fn of(&mut self, version: IpVersion) -> &mut Option<Method> {
        match version {
            IpVersion::V4 => &mut self.v4,
            IpVersion::V6 => &mut self.v6,
        }
    }
}

/// Receives the datagrams of a bulk of frames.
pub(super) struct DatagramReceiver<'a> {
    device: &'a Device,
    kept: &'a mut Kept,
    /// The id of the NAPI that has received the frames.
    napi_id: Option<u32>,
    rcu: &'a rcu::Guard,
    softirqs: &'a SoftirqsOff,
    methods: Methods,
    /// The receiver of the previous datagram, the ends of that datagram, and which others the receiver gets.
    last: Option<(Target<'a>, DatagramEnds, Receives)>,
    /// What that receiver gets of this bulk.
    open: Option<Delivery<'a>>,
    /// Number of datagrams that didn't go by the stack.
    received: u64,
}

impl<'a> DatagramReceiver<'a> {
    /// One for a bulk of frames of a device.
    pub(super) fn new(
        device: &'a Device,
        kept: &'a mut Kept,
        rcu: &'a rcu::Guard,
        softirqs: &'a SoftirqsOff,
    ) -> Self {
        Self {
            device,
            kept,
            napi_id: None,
            rcu,
            softirqs,
            methods: Methods::default(),
            last: None,
            open: None,
            received: 0,
        }
    }

    /// How datagrams of a version of IP are received now.
    fn choose_method(&mut self, version: IpVersion) -> Method {
        self.kept.routes.check(version, self.device, self.rcu);
        let method = if self.device.rx_observer(self.rcu).is_some() {
            Method::Stack
        } else if self.device.has_input_hooks(version, self.rcu) {
            Method::Hooks
        } else {
            Method::Plain
        };
        *self.methods.of(version).insert(method)
    }

    /// Delivers a datagram of a version of IP, with that many bytes of right headers and payload, or gives
    /// it back if the stack is to have it.
    #[inline]
    pub(super) fn take(
        &mut self,
        frame: XdpFrame,
        datagram: (IpVersion, usize),
    ) -> core::result::Result<(), XdpFrame> {
        let (version, _) = datagram;
        let method = match *self.methods.of(version) {
            Some(method) => method,
            None => self.choose_method(version),
        };
        if matches!(method, Method::Stack) {
            return Err(frame);
        }
        let napi_id = *self.napi_id.get_or_insert_with(|| frame.napi_id());
        let datagram = Incoming::wrap(&mut self.kept.spare, frame, self.device, datagram, napi_id)?;
        if matches!(method, Method::Hooks) {
            self.ask_hooks(datagram);
            return Ok(());
        }
        let ends = datagram.ends();
        let left = match datagram.route_here(&ends, &mut self.kept.routes, self.rcu) {
            true => self.deliver(datagram, &ends),
            false => Some(datagram),
        };
        match left {
            Some(datagram) => Err(datagram.into_frame(&mut self.kept.spare)),
            None => Ok(()),
        }
    }

    /// Delivers a datagram that the hooks let pass. The stack has what they have kept or changed, and
    /// what has to be queued.
    fn ask_hooks(&mut self, datagram: Incoming) {
        self.pause();
        let passed = datagram.ask_hooks(&mut self.kept.routes, self.rcu);
        let left = passed.and_then(|datagram| {
            let ends = datagram.ends();
            self.deliver(datagram, &ends)
        });
        if let Some(datagram) = left {
            self.pause();
            datagram.go_on(self.rcu);
        }
    }

    /// Delivers a datagram for this host, or gives it back if it isn't for a flow that can take it
    /// now.
    fn deliver(&mut self, datagram: Incoming, ends: &DatagramEnds) -> Option<Incoming> {
        let target = match self.last {
            _ if !datagram.is_whole() => None,
            Some((target, last, receives)) if last.include(ends, receives) => Some(target),
            _ => self.look_up_target(&datagram, ends),
        };
        let Some(target) = target else {
            return Some(datagram);
        };
        let is_open = |open: &Delivery<'_>| open.is_for(target.sk);
        if !self.open.as_ref().is_some_and(is_open) {
            self.end();
        }
        let Target { channel, flow, sk } = target;
        let new = || Delivery::new(channel, flow, sk, self.softirqs);
        let open = self.open.get_or_insert_with(new);
        let left = open.take(datagram, &mut self.kept.spare);
        self.received = self.received.wrapping_add(u64::from(left.is_none()));
        left
    }

    /// Looks up, and remembers, the flow that receives a datagram, if it is on a channel and no cgroup's program
    /// looks at what it reads.
    fn look_up_target(&mut self, datagram: &Incoming, ends: &DatagramEnds) -> Option<Target<'a>> {
        let (sk, flow, receives) = datagram.receiver::<Flow>(self.rcu)?;
        let channel = flow.ring_receiver()?;
        if sk.has_receive_hook() {
            return None;
        }
        let target = Target { sk, flow, channel };
        self.last = Some((target, *ends, receives));
        Some(target)
    }

    /// To be called before the stack gets a packet, which it may deliver to the same flow.
    pub(super) fn pause(&mut self) {
        if let Some(open) = &mut self.open {
            open.pause();
        }
    }

    fn end(&mut self) {
        if let Some(open) = self.open.take() {
            open.end();
        }
    }

    /// Ends the bulk: gives the number of datagrams that didn't go by the stack.
    pub(super) fn finish(mut self) -> u64 {
        self.end();
        self.received
    }
}
