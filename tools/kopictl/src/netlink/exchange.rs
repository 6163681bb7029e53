// SPDX-License-Identifier: GPL-2.0

//! A message to the kernel, and all that it answers.

use super::{
    error::{Error, Result},
    refusal::{ack_of, refusal},
    transport::Transport,
};
use crate::attributes::Attribute;
use netlink_packet_core::{
    NetlinkBuffer, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST,
};
use std::fmt::Debug;

/// Sends a message, with flags or to be acknowledged, and reads until the kernel has said all; `set` is
/// what the message has of attributes.
pub(crate) fn exchange<M>(
    transport: &impl Transport,
    sequence: u32,
    message: M,
    flags: u16,
    set: &'static [Attribute],
) -> Result<Vec<M>>
where
    M: NetlinkSerializable + NetlinkDeserializable + Debug,
    NetlinkPayload<M>: From<M>,
{
    let ack = if flags & NLM_F_DUMP == NLM_F_DUMP {
        0
    } else {
        NLM_F_ACK
    };
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | ack | flags;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let mut request = vec![0; message.buffer_len()];
    message.serialize(&mut request);
    transport.send(&request)?;

    let (mut answers, mut unsteady) = (Vec::new(), false);
    loop {
        for (header, payload) in messages::<M>(&transport.receive()?)? {
            // Events, and what was left of a dump that failed.
            if header.sequence_number != sequence {
                continue;
            }
            unsteady |= header.flags & NLM_F_DUMP_INTR != 0;
            let (code, ack) = match payload {
                NetlinkPayload::InnerMessage(answer) => {
                    answers.push(answer);
                    continue;
                }
                NetlinkPayload::Error(error) => (
                    error.raw_code(),
                    ack_of(header.flags, &error.header).to_vec(),
                ),
                NetlinkPayload::Done(done) => (done.code, done.extended_ack),
                _ => continue,
            };
            return match code {
                ..0 => Err(Error::Refused(refusal(
                    code.saturating_neg(),
                    &ack,
                    &request,
                    set,
                ))),
                _ if unsteady => Err(Error::Unsteady),
                _ => Ok(answers),
            };
        }
    }
}

pub(super) type Message<M> = (NetlinkHeader, NetlinkPayload<M>);

/// The messages of what was received.
pub(super) fn messages<M: NetlinkDeserializable + Debug>(
    mut bytes: &[u8],
) -> Result<Vec<Message<M>>> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let length =
            usize::try_from(NetlinkBuffer::new_checked(bytes)?.length()).unwrap_or(usize::MAX);
        messages.push(NetlinkMessage::deserialize(bytes)?.into_parts());
        bytes = length
            .checked_next_multiple_of(4)
            .and_then(|next| bytes.get(next..))
            .unwrap_or_default();
    }
    Ok(messages)
}
