// SPDX-License-Identifier: GPL-2.0

//! Handing a packet over to the stack: by a remembered route, or by the flow's `sendmsg`; its
//! payload copied, or by reference to the channel's pages.

use super::completion::{in_flight, InFlight, MadeGso, StackAnswer};
use super::judge::CountedPass;
use super::packet::TxPacket;
use crate::channel::Channel;
use crate::direct::DatagramSender;
use crate::flow::Flow;
use crate::pure::abi::{Meta, CHAIN_MAX};
use crate::routes::Routes;
use crate::sys::{
    family,
    msghdr::SendMsg,
    region::{Bytes, PageVec},
    socket::Socket,
    ubuf::{Notification, REFERENCES_MAX}, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The longest payload that any datagram or GSO packet can have, in bytes.
const PAYLOAD_MAX: u32 = 0xffff;

/// Pieces of pages of the longest payload, in the worst of all cases.
const PIECES_MAX: usize = 2 * CHAIN_MAX as usize + 32;

/// What gives packets to the stack.
pub(crate) struct Output {
    /// The pages that their descriptors name.
    pages: PageVec,
    /// The destination and the options, as `sendmsg` gets them.
    pub(super) message: SendMsg,
    /// Routes of packets without special options.
    pub(super) routes: Routes,
    /// Datagrams that leave directly.
    pub(super) direct: DatagramSender,
    /// No payload goes by reference.
    pub(super) copies_all: bool,
}

/// Where packets are handed over: a flow, and its socket.
#[derive(Clone, Copy)]
pub(crate) struct Destination<'a> {
    pub(crate) socket: &'a Socket,
    pub(crate) flow: &'a Flow,
}

impl<'a> Destination<'a> {
    /// The flow of a socket of the table.
    pub(super) fn of(socket: &'a Socket) -> Option<Self> {
        let flow = family::protocol(socket)?;
        Some(Self { socket, flow })
    }
}

/// How a packet is segmented into datagrams.
#[derive(Clone, Copy)]
pub(super) struct Segmentation {
    /// Bytes of each datagram, as the program or KOPI has it; 0 for none.
    pub(super) segment: u32,
    /// Bytes of each datagram: `segment`, or what the socket's option UDP_SEGMENT says.
    pub(super) size: u32,
}

impl Segmentation {
    /// How a packet is segmented whose datagrams are of `segment` bytes; 0 for none.
    pub(super) fn of(socket: &Socket, segment: u32) -> Self {
        let size = match segment {
            // The socket's option cuts the payload of a descriptor.
            0 => socket.sk().gso_size(),
            segment => segment,
        };
        Self { segment, size }
    }
}

impl Output {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            pages: PageVec::new(PIECES_MAX)?,
            message: SendMsg::new(CountedPass::NOTHING.judged()),
            routes: Routes::new(),
            direct: DatagramSender::new(),
            copies_all: false,
        })
    }

    /// Gives the packet to the stack: returns the answer, and if the packet goes by reference, what is notified when
    /// the stack has released it.
    pub(super) fn hand_over(
        &mut self,
        channel: &Arc<Channel>,
        to: Destination<'_>,
        packet: &TxPacket,
        meta: &Meta,
        segmentation: Segmentation,
    ) -> (StackAnswer, Option<Notification<InFlight>>) {
        let Destination { socket, .. } = to;
        self.message.address(meta, socket.sk().is_ipv6());
        // The size of a descriptor decides: each costs a reference, whatever the packet is
        // segmented into.
        let each = match packet.count() {
            // Nearly always, and a division is slow.
            1 => packet.bytes(),
            count => packet.bytes().checked_div(count).unwrap_or(0),
        };
        let copied = self.copies_all || each <= family::copybreak();
        let region = channel.region();
        // The socket's own option needs no message of its own: a call that changes it waits for
        // this one (see `Flow::begin_busy`).
        if segmentation.segment != 0 {
            if let Ok(size) = u16::try_from(segmentation.segment) {
                self.message.segment(size);
            }
        }
        if let ([desc], 0, true) = (packet.descs(), segmentation.size, copied) {
            if let Ok(data) = region.bytes(desc.offset, desc.len) {
                if let Some(result) = self.send_datagram(to, desc.flow, meta, data) {
                    return (self.answer(result), None);
                }
            }
        }
        self.direct.flush();
        self.pages.clear();
        let mut descs = packet.descs().iter();
        let pages = &mut self.pages;
        if packet.bytes() > PAYLOAD_MAX
            || !descs.all(|desc| pages.push(region, desc.offset, desc.len).is_ok())
        {
            return (self.answer(Err(EMSGSIZE)), None);
        }
        let few = pages.count() <= REFERENCES_MAX && packet.descs().len() <= REFERENCES_MAX;
        let notification = if !copied && few {
            in_flight(channel, packet.descs())
        } else {
            None
        };
        let result = self
            .message
            .send::<Flow, _>(socket, pages, notification.as_ref());
        (self.answer(result), notification)
    }

    /// The stack's answer to the message that was sent last.
    fn answer(&self, result: Result) -> StackAnswer {
        StackAnswer {
            result,
            was_full: result == Err(EAGAIN) && self.message.was_full,
        }
    }

    /// Whether KOPI makes a GSO packet of the datagrams, and how that is segmented.
    ///
    /// In IPv6, a hook may have a GSO packet take another route, for which its datagrams are too long: a shorter
    /// one at the end leaves, and the call says EMSGSIZE (ip6_finish_output_gso_slowpath_drop()). The same is
    /// said, before any has left, where they are too long for the route that UDP sees: then they go one by
    /// one. So where they may be, they have one length, and none has left.
    #[inline]
    pub(super) fn made_gso(
        &mut self,
        channel: &Channel,
        to: Destination<'_>,
        packet: &mut TxPacket,
        meta: &Meta,
        segmentation: Segmentation,
    ) -> (MadeGso, Segmentation) {
        if segmentation.segment == 0 || meta.gso_size != 0 {
            return (MadeGso::No, segmentation);
        }
        let Destination { socket, flow } = to;
        let (sk, first) = (socket.sk(), packet.first());
        if !sk.is_ipv6() {
            return (MadeGso::Yes, segmentation);
        }
        let data = channel.region().bytes(first.offset, first.len).ok();
        let by_route = data.and_then(|data| self.routes.datagram(first.flow, flow, sk, meta, data));
        if by_route.is_some_and(|datagram| datagram.is_ipv6() && datagram.fits_route()) {
            return (MadeGso::Fitting, segmentation);
        }
        packet.drop_shorter(segmentation.segment);
        match packet.count() {
            1 => (MadeGso::No, Segmentation::of(socket, 0)),
            _ => (MadeGso::Yes, segmentation),
        }
    }

    /// Sends a datagram by a remembered route: directly, or by the stack. `None` if there is no such route.
    fn send_datagram(
        &mut self,
        to: Destination<'_>,
        number: u32,
        meta: &Meta,
        data: Bytes<'_>,
    ) -> Option<Result> {
        let Destination { socket, flow } = to;
        let sk = socket.sk();
        let datagram = self.routes.datagram(number, flow, sk, meta, data)?;
        let frames = if self.direct.prepare_for(sk, flow, &datagram) {
            Some(self.direct.batch())
        } else {
            None
        };
        Some(self.message.send_copy::<Flow>(socket, &datagram, frames))
    }
}
