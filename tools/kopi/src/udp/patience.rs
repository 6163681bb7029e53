// SPDX-License-Identifier: GPL-2.0

//! How long calls sleep, and for what.

use super::UdpSocket;
use crate::sys;
use socket2::Socket;
use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    thread,
    time::{Duration, Instant},
};

/// How often to look again where poll(2) can't sleep.
const NAP: Duration = Duration::from_millis(5);

/// How long a call may sleep, from its first sleep on.
pub(super) struct Patience<'s> {
    socket: &'s UdpSocket,
    timeout: fn(&UdpSocket) -> io::Result<Option<Duration>>,
    begun: Option<Instant>,
}

impl<'s> Patience<'s> {
    pub(super) fn new(
        socket: &'s UdpSocket,
        timeout: fn(&UdpSocket) -> io::Result<Option<Duration>>,
    ) -> Self {
        Self {
            socket,
            timeout,
            begun: None,
        }
    }

    /// The time runs from now on, unless it does already.
    pub(super) fn begin(&mut self) -> Instant {
        *self.begun.get_or_insert_with(Instant::now)
    }

    /// Sleeps until one of these events of poll(2), or gives the flow's error; `WouldBlock` if the call
    /// must not sleep any longer.
    pub(super) fn sleep(&mut self, events: i16) -> io::Result<Option<io::Error>> {
        let begun = self.begin();
        if sys::is_nonblocking(self.socket.as_fd())? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let timeout = (self.timeout)(self.socket)?;
        let deadline = timeout.and_then(|timeout| begun.checked_add(timeout));
        let socket = self.socket.flow.socket();
        let soon = Instant::now() + NAP;
        // Completions that another thread takes are no event for this one, which may go on by them.
        if events == libc::POLLWRBAND && deadline.is_none_or(|deadline| soon < deadline) {
            return match sleep_until(socket, events, Some(soon)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                done => done,
            };
        }
        sleep_until(socket, events, deadline)
    }
}

/// Sleeps until one of these events of poll(2), or gives the pending error; `WouldBlock` after the
/// deadline.
fn sleep_until(
    socket: &Socket,
    events: i16,
    deadline: Option<Instant>,
) -> io::Result<Option<io::Error>> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let ready = sys::poll(socket.as_raw_fd(), events, left)?;
        if ready & events != 0 {
            return Ok(None);
        }
        if ready & libc::POLLERR != 0 {
            if let Some(error) = socket.take_error()? {
                return Ok(Some(error));
            }
        }
        if ready == 0 || left == Some(Duration::ZERO) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // There is something in the error queue, say, which is no event of ours, and which poll(2)
        // can't be told to pass over.
        thread::sleep(left.map_or(NAP, |left| left.min(NAP)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::fake_listener;

    /// No event tells of completions that are taken already.
    #[test]
    fn frames_that_another_thread_took_back_end_a_sleep() {
        let (socket, _) = fake_listener();
        let to = "192.0.2.9:99";
        socket
            .set_write_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        socket.lock().channel.fake().borrow_mut().keeps = true;
        // As many as there are frames to send.
        for _ in 0..16 {
            socket.send_to(b"x", to).unwrap();
        }
        thread::scope(|scope| {
            let sender = scope.spawn(|| socket.send_to(b"more", to));
            thread::sleep(Duration::from_millis(50));
            {
                let shared = socket.lock();
                shared.channel.fake().borrow_mut().complete();
                shared.channel.reap(|_| {}).unwrap();
            }
            assert_eq!(sender.join().unwrap().unwrap(), 4);
        });
    }

    #[test]
    fn sleeps_for_frames_end_with_their_time() {
        let (socket, _) = fake_listener();
        let time = Duration::from_millis(30);
        socket.set_write_timeout(Some(time)).unwrap();
        let mut patience = Patience::new(&socket, UdpSocket::write_timeout);
        let begun = Instant::now();
        let over = loop {
            if let Err(error) = patience.sleep(libc::POLLWRBAND) {
                break error;
            }
        };
        assert_eq!(over.kind(), io::ErrorKind::WouldBlock);
        assert!(begun.elapsed() >= time);
    }

    /// Errors are given once; those in the error queue end no sleep before its time.
    #[test]
    fn error_queues_end_no_sleep() {
        let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let peer = nobody.local_addr().unwrap();
        drop(nobody);
        let socket = Socket::new(
            socket2::Domain::IPV4,
            socket2::Type::DGRAM,
            Some(socket2::Protocol::UDP),
        )
        .unwrap();
        let yes = 1_i32;
        // SAFETY: The option is an `int`.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_IP,
                libc::IP_RECVERR,
                std::ptr::from_ref(&yes).cast(),
                4,
            )
        };
        assert_eq!(set, 0);
        socket.connect(&peer.into()).unwrap();
        socket.send(b"x").unwrap();
        let soon = || Some(Instant::now() + Duration::from_secs(5));
        let error = sleep_until(&socket, libc::POLLIN, soon()).unwrap();
        assert_eq!(error.unwrap().kind(), io::ErrorKind::ConnectionRefused);
        let ready = sys::poll(socket.as_raw_fd(), libc::POLLIN, Some(Duration::ZERO)).unwrap();
        assert_eq!(ready, libc::POLLERR, "the error queue isn't empty");
        let (begun, time) = (Instant::now(), Duration::from_millis(100));
        let over = sleep_until(&socket, libc::POLLIN, Some(begun + time)).unwrap_err();
        assert_eq!(over.kind(), io::ErrorKind::WouldBlock);
        assert!(begun.elapsed() >= time);
        let writable = sleep_until(&socket, libc::POLLOUT, soon()).unwrap();
        assert!(writable.is_none());
    }
}
