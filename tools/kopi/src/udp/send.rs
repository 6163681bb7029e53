// SPDX-License-Identifier: GPL-2.0

//! A datagram by one call, which sleeps as send(2) would.

use super::{patience::Patience, verdicts::refusal, Shared, UdpSocket};
use crate::{channel::Channel, message::Message};
use std::{io, net::ToSocketAddrs};

/// The longest payload that the length field of UDP allows, and more than any packet holds.
pub(super) const PAYLOAD_MAX: usize = 65535;
/// Poll's events of room to send, or of frames that came back.
pub(super) const WRITABLE: i16 = libc::POLLOUT | libc::POLLWRBAND;

/// What became of a datagram, or of several, that a call had to send.
pub(crate) enum Sent<T, L> {
    /// The kernel has taken all.
    Taken(T),
    /// Some are in the ring, from where a later call sends them.
    Left(L),
    /// Nothing was sent. One of these events of poll(2) comes first.
    Blocked(i16),
}

impl UdpSocket {
    /// Sends a datagram to the first of these addresses.
    pub fn send_to(&self, data: &[u8], addresses: impl ToSocketAddrs) -> io::Result<usize> {
        match addresses.to_socket_addrs()?.next() {
            Some(address) => self.transmit(data, &Message::to(address)),
            None => Err(no_address()),
        }
    }

    /// Sends a datagram to the connected peer.
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        self.transmit(data, &Message::connected())
    }

    /// Sends a datagram with a TOS, a source address or what else a [`Message`] can say.
    pub fn send_message(&self, data: &[u8], message: &Message) -> io::Result<usize> {
        self.transmit(data, message)
    }

    fn transmit(&self, data: &[u8], message: &Message) -> io::Result<usize> {
        let mut patience = Patience::new(self, Self::write_timeout);
        let ticket = loop {
            match self.attempt(data, message)? {
                Sent::Taken(()) => return Ok(data.len()),
                Sent::Left(ticket) => break ticket,
                Sent::Blocked(events) => {
                    if let Some(error) = patience.sleep(events)? {
                        return Err(error);
                    }
                }
            }
        };
        let left = self.leave(Some(ticket), &mut patience);
        self.lock().sends.end(ticket);
        left.map(|()| data.len())
    }

    /// Sends a datagram as soon as there is nothing before it. Of one that is left, gives a ticket, which
    /// the caller has to end.
    pub(crate) fn attempt(&self, data: &[u8], message: &Message) -> io::Result<Sent<(), u64>> {
        self.take_late_error()?;
        if data.len() > PAYLOAD_MAX {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        if let Some(sent) = self.send_past_ring(data, message)? {
            return Ok(sent);
        }
        let shared = &mut *self.lock();
        if !self.flush(shared)? {
            return Ok(Sent::Blocked(WRITABLE));
        }
        let Some(last) = self.queue(&shared.channel, data, message)? else {
            return Ok(Sent::Blocked(libc::POLLWRBAND));
        };
        let ticket = shared.sends.begin(last);
        let taken = self.flush_queued(shared);
        let verdict = shared.sends.verdict(ticket);
        if verdict.is_none() && !taken {
            return Ok(Sent::Left(ticket));
        }
        shared.sends.end(ticket);
        // Without a verdict it went by reference.
        refusal(verdict).map(Sent::Taken)
    }

    /// As `flush`, of what a call has just queued, which counts as sent whatever the doorbell says: an error that
    /// lasts is the next call's. Whoever got it of this one would send again what is queued.
    pub(super) fn flush_queued(&self, shared: &mut Shared) -> bool {
        self.flush(shared).unwrap_or(false)
    }

    /// Sends a datagram by sendmsg(2), which costs less than a doorbell for one: `None` if that can't say
    /// how it is to be sent, if earlier ones wait in the ring, or if there is no room for it now.
    fn send_past_ring(&self, data: &[u8], message: &Message) -> io::Result<Option<Sent<(), u64>>> {
        let Some(peer) = message.only_peer() else {
            return Ok(None);
        };
        {
            let shared = &mut *self.lock();
            #[cfg(test)]
            if shared.channel.is_fake() {
                return Ok(None);
            }
            if !self.flush(shared)? || shared.channel.has_unsent() {
                return Ok(None);
            }
        }
        let (socket, flags) = (self.flow.socket(), libc::MSG_DONTWAIT);
        let sent = match peer {
            Some(peer) => socket.send_to_with_flags(data, &peer.into(), flags),
            None => socket.send_with_flags(data, flags),
        };
        match sent {
            Ok(_) => Ok(Some(Sent::Taken(()))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Puts a packet into the ring, and gives its last frame; `None` while there are too few frames.
    pub(super) fn queue(
        &self,
        channel: &Channel,
        data: &[u8],
        message: &Message,
    ) -> io::Result<Option<u32>> {
        let needed = data.len().div_ceil(channel.frame_capacity()).max(1);
        if channel.spare_frames() < needed {
            return Ok(None);
        }
        let Some(payload) = channel.payload(data) else {
            return Ok(None);
        };
        let last = payload.frames().last().map(|frame| frame.id());
        channel.send(self.id, message, payload)?;
        Ok(last)
    }

    /// Sleeps as send(2) would until a packet, or else all of them, has left the ring, which it will do
    /// come what may.
    pub(super) fn leave(&self, ticket: Option<u64>, patience: &mut Patience<'_>) -> io::Result<()> {
        loop {
            match patience.sleep(WRITABLE) {
                Ok(None) => {}
                // It isn't this packet's.
                Ok(Some(error)) => self.keep_another(&error),
                Err(_) => return Ok(()),
            }
            let shared = &mut *self.lock();
            let Ok(taken) = self.flush(shared) else {
                // As in `flush_queued`.
                return Ok(());
            };
            let verdict = ticket.and_then(|ticket| shared.sends.verdict(ticket));
            if taken || verdict.is_some() {
                return refusal(verdict);
            }
        }
    }
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "no addresses to send data to")
}
