// SPDX-License-Identifier: GPL-2.0

//! Sleep until there is something to do, in the channel or in a poll of the program's own.

use super::{Bell, Channel};
use crate::sys;
use std::{io, ops::BitOr, os::fd::AsRawFd, time::Duration};

/// What [`Channel::wait`] waits for; sets of it are made with `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(u8);

impl Interest {
    /// A packet to receive.
    pub const READABLE: Self = Self(1);
    /// Room to send.
    pub const WRITABLE: Self = Self(2);
    /// A completion.
    pub const COMPLETION: Self = Self(4);

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Interest {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What [`Channel::wait`] found; nothing of it after a timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// There are packets.
    pub readable: bool,
    /// There is room to send.
    pub writable: bool,
    /// There are completions.
    pub completion: bool,
    /// The channel's first flow has an error to [take](crate::Flow::take_error): an ICMP message came,
    /// say, or a rule stopped the flow. As long as it isn't taken, no wait sleeps.
    pub error: bool,
}

impl Ready {
    /// Whether there is anything.
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

impl Channel {
    /// Asks the kernel to wake this side for packets and completions, or not to take the trouble.
    ///
    /// So it is from the start; after [`Channel::wait`] it is so no more. A program that sleeps in a
    /// poll of its own (epoll, an executor) calls this with `true` before each sleep, and sleeps
    /// only if it gives `false`: there is nothing to receive, and what was sent needs no
    /// [flush](Channel::flush) to go on. It asks for POLLWRBAND, too: what an engine has not sent yet
    /// may need the room of completions, and what comes may need their frames. POLLERR stays until the
    /// first flow's error is [taken](crate::Flow::take_error).
    pub fn arm(&self, want: bool) -> io::Result<bool> {
        if !want {
            return self.want_wakeups(false);
        }
        let short = {
            let mut rx = self.rx.borrow_mut();
            // Without a frame there nothing comes, and nobody is woken.
            self.refill(&mut rx)?;
            rx.is_short()
        };
        if self.want_wakeups(true)? {
            return Ok(true);
        }
        // An engine may have let go of the channel since it was flushed.
        self.show()?;
        let tx = &mut *self.tx.borrow_mut();
        Ok((short || tx.ring.is_unread()) && tx.completion.available(1)? > 0)
    }

    /// Asks to be woken or not; says whether there is something to receive.
    fn want_wakeups(&self, want: bool) -> io::Result<bool> {
        self.tx.borrow().completion.want_wakeup(want);
        let mut rx = self.rx.borrow_mut();
        rx.ring.want_wakeup(want);
        Ok(rx.ring.available(1)? > 0)
    }

    /// Shows the kernel what was sent, and sleeps until there is something of `interest` or the time
    /// is over.
    ///
    /// Completions are left for the next [flush](Channel::flush). They end other waits, too, when
    /// they are what is needed to go on (frames for what comes, room for what goes): so flush
    /// before each wait.
    ///
    /// The first flow's pending error ends the sleep, too: [`Ready::error`]. As long as it isn't
    /// [taken](crate::Flow::take_error), no wait sleeps. A signal ends it with
    /// [`io::ErrorKind::Interrupted`].
    pub fn wait(&self, interest: Interest, timeout: Option<Duration>) -> io::Result<Ready> {
        self.show()?;
        let mut events = 0;
        if interest.has(Interest::READABLE) {
            let mut rx = self.rx.borrow_mut();
            self.refill(&mut rx)?;
            events |= libc::POLLIN;
            // Packets need frames, which completions give back.
            if rx.is_short() {
                events |= libc::POLLWRBAND;
            }
        }
        if interest.has(Interest::WRITABLE) {
            events |= libc::POLLOUT;
        }
        if interest.has(Interest::COMPLETION) || interest.has(Interest::WRITABLE) {
            events |= libc::POLLWRBAND;
        }
        if self.tx.borrow().ring.is_unread() {
            // The kernel may stop there until completions are taken.
            events |= libc::POLLWRBAND;
        }
        let received = self.want_wakeups(true)?;
        if received && interest.has(Interest::READABLE) {
            self.want_wakeups(false)?;
            return Ok(Ready {
                readable: true,
                ..Ready::default()
            });
        }
        let polled = self.poll(events, timeout);
        self.want_wakeups(false)?;
        let polled = polled?;
        Ok(Ready {
            readable: polled & libc::POLLIN != 0,
            writable: polled & libc::POLLOUT != 0,
            completion: polled & libc::POLLWRBAND != 0,
            error: polled & libc::POLLERR != 0,
        })
    }

    fn poll(&self, events: i16, timeout: Option<Duration>) -> io::Result<i16> {
        match &self.bell {
            Bell::Socket(socket) => sys::poll(socket.as_raw_fd(), events, timeout),
            #[cfg(test)]
            Bell::Fake(kernel) => Ok(events & kernel.borrow().ready()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fake, flow::FlowId, message::Message};

    /// One frame to receive into, and one to send.
    fn scant() -> Channel {
        let builder = Channel::builder().frame_size(512).frames(2).rx_frames(1);
        fake::channel(builder.tx_entries(16).rx_entries(32))
    }

    /// Has a datagram come, which goes out to that end.
    fn arrive(channel: &Channel) {
        let to = Message::to("192.0.2.9:99".parse().unwrap());
        let payload = channel.payload(b"x").unwrap();
        channel.send(FlowId(3), &to, payload).unwrap();
        channel.flush().unwrap();
    }

    /// Whether a datagram that comes is received.
    fn receives(channel: &Channel) -> bool {
        arrive(channel);
        channel.recv().unwrap().is_some()
    }

    /// Sends on what comes, with all other frames, until no frame is free or the kernel's; then it is done
    /// with them.
    fn send_all_frames(channel: &Channel) {
        arrive(channel);
        let packet = channel.recv().unwrap().unwrap();
        channel.fake().borrow_mut().keeps = true;
        let back = Message::reply_to(&packet);
        channel.send(packet.flow(), &back, packet).unwrap();
        arrive(channel);
        assert!(channel.recv().unwrap().is_none());
        assert_eq!(channel.free_frames(), 0);
        let kernel = &mut *channel.fake().borrow_mut();
        kernel.keeps = false;
        kernel.complete();
    }

    #[test]
    fn frames_that_came_back_are_there_to_receive_into() {
        let channel = scant();
        send_all_frames(&channel);
        assert!(channel.arm(true).unwrap(), "completions are to be taken");
        channel.flush().unwrap();
        assert!(!channel.arm(true).unwrap());
        assert!(receives(&channel));
    }

    #[test]
    fn flushing_is_enough_for_loops_that_arm_nothing() {
        let channel = scant();
        send_all_frames(&channel);
        channel.flush().unwrap();
        assert!(receives(&channel));
    }

    #[test]
    fn arming_gives_frames_of_dropped_packets_back() {
        let channel = scant();
        arrive(&channel);
        drop(channel.recv().unwrap().unwrap());
        assert!(!channel.arm(true).unwrap());
        assert!(receives(&channel));
    }

    #[test]
    fn no_wait_leaves_the_channel_armed() {
        let channel = scant();
        arrive(&channel);
        channel.arm(true).unwrap();
        assert!(channel.fake().borrow().is_to_wake());
        // There is something already.
        let ready = channel.wait(Interest::READABLE, None).unwrap();
        assert!(ready.readable);
        assert!(!channel.fake().borrow().is_to_wake());
        // And now there is nothing.
        while channel.recv().unwrap().is_some() {}
        assert!(!channel.wait(Interest::READABLE, None).unwrap().any());
        assert!(!channel.fake().borrow().is_to_wake());
    }
}
