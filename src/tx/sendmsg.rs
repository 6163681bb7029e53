// SPDX-License-Identifier: GPL-2.0

//! sendmsg() of a flow on a channel: by the routes that the channel remembers, as what comes by the ring.

use super::{count_sent, output::Destination, Sender};
use crate::sys::{plain_message::PlainMessage, region::Bytes};
use kernel::prelude::*;

/// Bytes of the longest datagram that is sent so.
const LONGEST: usize = 2048;

/// Memory for the data of one message, made when it is needed.
pub(super) struct MessageBuffer(KVec<u8>);

impl MessageBuffer {
    pub(super) const NONE: Self = Self(KVec::new());

    /// The memory: `ENOMEM`. Process context.
    fn get(&mut self) -> Result<&mut [u8]> {
        if self.0.is_empty() {
            self.0 = KVec::from_elem(0, LONGEST, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(&mut self.0)
    }
}

impl Sender {
    /// Sends a message of sendmsg() by a remembered route: gives the result, or `None` if UDP has to
    /// send it. Doesn't wait for room. Process context.
    pub(crate) fn send_message(
        &mut self,
        Destination { socket, flow }: Destination<'_>,
        message: &mut PlainMessage,
    ) -> Option<i32> {
        let sk = socket.sk();
        let (routes, number) = (&mut self.output.routes, flow.number());
        routes.begin();
        // UDP waits for room, or counts that there was none.
        if !sk.can_send()
            || !flow.sends_by_ring()
            || !routes.prepare_for(number, flow, sk, &message.meta)
        {
            return None;
        }
        let data = message.copy(self.message.get().ok()?)?;
        let sent = routes
            .datagram(number, flow, sk, &message.meta, Bytes::of(data))
            .and_then(|datagram| datagram.send_by(socket));
        let Some(sent) = sent else {
            message.give_back();
            return None;
        };
        let result = kernel::error::to_result(sent.min(0));
        count_sent(flow, result, (1, message.len() as u32), false);
        Some(sent)
    }
}
