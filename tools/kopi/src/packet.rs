// SPDX-License-Identifier: GPL-2.0

//! Packets as they arrive.

use crate::{
    flow::FlowId,
    frame::Payload,
    message,
    pure::abi::{Meta, META_MARK, META_TIMESTAMP},
};
use std::{
    borrow::Cow,
    net::{IpAddr, SocketAddr},
    time::{Duration, SystemTime},
};

/// A received packet, in the frames into which the kernel put it.
///
/// When it is dropped the frames go back to the channel, and at the next
/// [`Channel::recv`](crate::Channel::recv) to the kernel.
/// It can also be sent, as it is or changed, without a copy: it turns into a [`Payload`].
#[derive(Debug)]
pub struct Packet<'c> {
    flow: FlowId,
    payload: Payload<'c>,
}

impl<'c> Packet<'c> {
    pub(crate) fn new(flow: FlowId, payload: Payload<'c>) -> Self {
        Self { flow, payload }
    }

    /// The flow to which it came.
    pub fn flow(&self) -> FlowId {
        self.flow
    }

    /// Number of bytes of payload.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.payload.len()
    }

    /// What the kernel says of the packet.
    pub fn meta(&self) -> Meta {
        let first = self.payload.first();
        // SAFETY: The frame is the program's, by way of `first`.
        unsafe { first.channel().region().read_meta(first.start()) }
    }

    /// Its source address.
    pub fn peer(&self) -> SocketAddr {
        let meta = self.meta();
        message::address(&meta, &meta.peer, meta.peer_port)
    }

    /// Where it went: this side's address.
    pub fn local(&self) -> SocketAddr {
        let meta = self.meta();
        message::address(&meta, &meta.local, meta.local_port)
    }

    /// The destination's address alone.
    pub fn local_ip(&self) -> IpAddr {
        self.local().ip()
    }

    /// When it came, if the flow has SO_TIMESTAMPNS or the like.
    pub fn timestamp(&self) -> Option<SystemTime> {
        let meta = self.meta();
        (meta.flags & META_TIMESTAMP != 0)
            .then(|| SystemTime::UNIX_EPOCH + Duration::from_nanos(meta.timestamp))
    }

    /// Its mark, if the flow has SO_RCVMARK.
    pub fn mark(&self) -> Option<u32> {
        let meta = self.meta();
        (meta.flags & META_MARK != 0).then_some(meta.mark)
    }

    /// Bytes of each datagram if this is a GSO packet of them, on a channel with
    /// [`gro_merged`](crate::Builder::gro_merged).
    pub fn segment_size(&self) -> Option<usize> {
        let size = self.meta().gso_size;
        (size != 0).then_some(size.into())
    }

    /// The payload, frame by frame.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.payload.frames().map(|frame| &**frame)
    }

    /// The payload in one piece: borrowed if it lies in one frame, else copied.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        if self.payload.count() == 1 {
            Cow::Borrowed(self.payload.first())
        } else {
            Cow::Owned(self.chunks().collect::<Vec<_>>().concat())
        }
    }

    /// Copies as much payload as `buffer` has room for, and says how much that was.
    pub fn copy_to(&self, buffer: &mut [u8]) -> usize {
        self.payload.copy_to(buffer)
    }

    /// The payload, frame by frame, to be changed in place.
    pub fn frames_mut(&mut self) -> impl Iterator<Item = &mut [u8]> + use<'_, 'c> {
        self.payload.frames_mut()
    }

    /// Puts `data` in place of the payload, as [`Payload::replace`].
    pub fn replace(&mut self, data: &[u8]) -> usize {
        self.payload.replace(data)
    }

    /// The payload by itself, to be sent.
    pub fn into_payload(self) -> Payload<'c> {
        self.payload
    }
}

impl<'c> From<Packet<'c>> for Payload<'c> {
    fn from(packet: Packet<'c>) -> Self {
        packet.payload
    }
}
