// SPDX-License-Identifier: GPL-2.0

//! Packets on their way into the TX ring.

use super::Channel;
use crate::{
    flow::FlowId,
    frame::Payload,
    message::Message,
    pure::abi::{Desc, CHAIN_MAX, DESC_META, DESC_MORE},
};
use std::{fmt, io, ptr};

/// Why [`Channel::send`] didn't take a packet, and the packet.
#[derive(Debug)]
pub struct SendError<'c> {
    /// `WouldBlock` if there is no room now: [wait](Channel::wait) for
    /// [`Interest::WRITABLE`](crate::Interest::WRITABLE) or drop the packet.
    pub error: io::Error,
    /// What was to be sent.
    pub payload: Payload<'c>,
}

impl fmt::Display for SendError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for SendError<'_> {}

impl From<SendError<'_>> for io::Error {
    fn from(unsent: SendError<'_>) -> Self {
        unsent.error
    }
}

impl Channel {
    /// Queues a packet of `flow`; the kernel sees it at the next [`Channel::flush`].
    ///
    /// When the ring is full the kernel is shown what is there; what has been completed by then is
    /// left for the next flush.
    ///
    /// # Panics
    ///
    /// If the payload is of another channel.
    #[inline]
    pub fn send<'c>(
        &'c self,
        flow: FlowId,
        message: &Message,
        payload: impl Into<Payload<'c>>,
    ) -> Result<(), SendError<'c>> {
        let payload = payload.into();
        match self.room_for(payload.count() as u32) {
            Ok(()) => {
                self.queue(flow, message, payload);
                Ok(())
            }
            Err(error) => Err(SendError { error, payload }),
        }
    }

    /// Finds room in the TX ring.
    #[inline]
    pub(super) fn room_for(&self, needed: u32) -> io::Result<()> {
        if self.tx.borrow_mut().ring.room(needed)? >= needed {
            return Ok(());
        }
        self.make_room(needed)
    }

    /// Has the kernel take what is in the TX ring.
    #[cold]
    fn make_room(&self, needed: u32) -> io::Result<()> {
        let size = self.tx.borrow().ring.size();
        if needed > size.min(CHAIN_MAX) {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        self.show()?;
        if self.tx.borrow_mut().ring.room(needed)? >= needed {
            Ok(())
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    /// Writes descriptors for which there is room.
    #[inline]
    fn queue(&self, flow: FlowId, message: &Message, payload: Payload<'_>) {
        payload.for_each(|frame| {
            assert!(
                ptr::eq(frame.channel(), self),
                "a payload of another channel"
            );
        });
        let first = payload.first();
        let mut flags = 0;
        if let Some(meta) = message.meta() {
            // SAFETY: The frame is the program's, by way of `first`.
            unsafe { self.region.write_meta(first.start(), meta) };
            flags = DESC_META;
        }
        let mut tx = self.tx.borrow_mut();
        let mut left = payload.count();
        payload.for_each(|frame| {
            left -= 1;
            tx.ring.write(Desc {
                offset: frame.offset(),
                len: frame.len() as u32,
                flow: flow.0,
                flags: if left > 0 { flags | DESC_MORE } else { flags },
                error: 0,
            });
            flags = 0;
        });
        payload.into_kernel();
    }
}
