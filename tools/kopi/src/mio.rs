// SPDX-License-Identifier: GPL-2.0

//! Sockets and channels as event sources of mio's.
//!
//! Events are edges: after one, receive (or send) until
//! [`WouldBlock`](std::io::ErrorKind::WouldBlock), or `None`, before the next poll.

use crate::{channel::Channel, flow::Flow, udp::UdpSocket};
use ::mio::{event::Source, unix::SourceFd, Interest, Registry, Token};
use std::{io, os::fd::AsRawFd};

/// A source whose events are those of its file descriptor.
macro_rules! source {
    ($(#[$doc:meta])* $type:ty) => {
        $(#[$doc])*
        impl Source for $type {
            fn register(
                &mut self,
                registry: &Registry,
                token: Token,
                interests: Interest,
            ) -> io::Result<()> {
                SourceFd(&self.as_raw_fd()).register(registry, token, interests)
            }

            fn reregister(
                &mut self,
                registry: &Registry,
                token: Token,
                interests: Interest,
            ) -> io::Result<()> {
                SourceFd(&self.as_raw_fd()).reregister(registry, token, interests)
            }

            fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
                SourceFd(&self.as_raw_fd()).deregister(registry)
            }
        }
    };
}

source! {
    /// After [`set_nonblocking`](UdpSocket::set_nonblocking), or a call may sleep. What is there already
    /// when it is registered is an event, too. While the last call gave
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) for a send, or may have left a datagram, wait for
    /// [`Interest::WRITABLE`]: it also comes when frames have come back.
    UdpSocket
}
source! {
    /// Before each poll call [`arm`](Channel::arm) with `true`, and poll only if that gives `false`.
    ///
    /// [`Interest::WRITABLE`] comes when there is room to send, and with completions. mio knows no
    /// POLLWRBAND, so a channel with frames of large packets under way needs a COMPLETION ring with an
    /// entry for each frame ([`tx_entries`](crate::Builder::tx_entries)), as it has by default.
    Channel
}
source! {
    /// Once it is on its channel: what was registered before isn't told of the channel's other flows.
    Flow
}
