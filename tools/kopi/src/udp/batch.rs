// SPDX-License-Identifier: GPL-2.0

//! Many datagrams by one call.

use super::{
    patience::Patience,
    send::{PAYLOAD_MAX, WRITABLE},
    Sent, UdpSocket,
};
use crate::{channel::Channel, message::Message, packet::Packet};
use std::io;

impl UdpSocket {
    /// Receives up to `limit` datagrams, one at least, and shows them where the kernel put them, without
    /// a copy; gives their number. Sleeps only for the first one.
    ///
    /// `show` must not use the socket, which is locked meanwhile: it would wait for itself.
    pub fn recv_batch(&self, limit: usize, mut show: impl FnMut(&Packet<'_>)) -> io::Result<usize> {
        let received = self.receive(|channel| take_batch(channel, limit, &mut show))?;
        Ok(received.unwrap_or(0))
    }

    /// Sends datagrams by one doorbell, as many of the first ones as there is room for now, and gives
    /// their number. Sleeps while there is room for none.
    ///
    /// The error with which one of them is refused comes with the next call. One that can't be sent at all
    /// (EMSGSIZE) is an error of this call if it is the first, and else ends the batch before it.
    pub fn send_batch(&self, datagrams: &[(&[u8], Message)]) -> io::Result<usize> {
        let mut patience = Patience::new(self, Self::write_timeout);
        loop {
            match self.attempt_batch(datagrams)? {
                Sent::Taken(count) => return Ok(count),
                Sent::Left(count) => return self.leave(None, &mut patience).map(|()| count),
                Sent::Blocked(events) => {
                    if let Some(error) = patience.sleep(events)? {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// As [`UdpSocket::send_batch`], without sleeping.
    pub(crate) fn attempt_batch(
        &self,
        datagrams: &[(&[u8], Message)],
    ) -> io::Result<Sent<usize, usize>> {
        self.take_late_error()?;
        let shared = &mut *self.lock();
        if !self.flush(shared)? {
            return Ok(Sent::Blocked(WRITABLE));
        }
        let mut count = 0;
        for (data, message) in datagrams {
            let queued = if data.len() > PAYLOAD_MAX {
                Err(io::Error::from_raw_os_error(libc::EMSGSIZE))
            } else {
                self.queue(&shared.channel, data, message)
            };
            match queued {
                Ok(Some(_)) => count += 1,
                Ok(None) if count == 0 => return Ok(Sent::Blocked(libc::POLLWRBAND)),
                Err(error) if count == 0 => return Err(error),
                Ok(None) | Err(_) => break,
            }
        }
        Ok(if self.flush_queued(shared) {
            Sent::Taken(count)
        } else {
            Sent::Left(count)
        })
    }
}

/// Takes what is there; `None` if that is nothing.
fn take_batch(
    channel: &Channel,
    limit: usize,
    show: &mut impl FnMut(&Packet<'_>),
) -> io::Result<Option<usize>> {
    let mut count = 0;
    while count < limit {
        match channel.recv() {
            Ok(Some(packet)) => show(&packet),
            Ok(None) if count == 0 => return Ok(None),
            Err(error) if count == 0 => return Err(error),
            // An error comes again.
            Ok(None) | Err(_) => break,
        }
        count += 1;
    }
    Ok(Some(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::fake_socket;
    use std::io::ErrorKind;

    fn to() -> Message {
        Message::to("192.0.2.9:99".parse().unwrap())
    }

    fn numbers(socket: &UdpSocket, limit: usize) -> io::Result<Vec<u8>> {
        let mut numbers = vec![];
        let count = socket.recv_batch(limit, |packet| numbers.push(packet.bytes()[0]))?;
        assert_eq!(count, numbers.len());
        Ok(numbers)
    }

    #[test]
    fn batches_take_one_doorbell() {
        let socket = fake_socket();
        let data: Vec<[u8; 300]> = (0..10).map(|number| [number; 300]).collect();
        let batch: Vec<_> = data.iter().map(|data| (&data[..], to())).collect();
        assert_eq!(socket.send_batch(&batch).unwrap(), 10);
        assert_eq!(socket.lock().channel.fake().borrow().bells, 1);
        assert_eq!(numbers(&socket, 4).unwrap(), [0, 1, 2, 3]);
        assert_eq!(numbers(&socket, 100).unwrap(), [4, 5, 6, 7, 8, 9]);
        let nothing = numbers(&socket, 100).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        assert_eq!(socket.send_batch(&[]).unwrap(), 0);
    }

    #[test]
    fn batches_end_where_room_does() {
        let socket = fake_socket();
        // 16 frames are there to send, and a datagram takes three.
        let batch = [(&[7; 1000][..], to()); 8];
        assert_eq!(socket.send_batch(&batch).unwrap(), 5);
        // The kernel has them for now.
        socket.lock().channel.fake().borrow_mut().keeps = true;
        assert_eq!(socket.send_batch(&batch).unwrap(), 5);
        let blocked = socket.send_batch(&batch).unwrap_err();
        assert_eq!(blocked.kind(), ErrorKind::WouldBlock);
        socket.lock().channel.fake().borrow_mut().complete();
        assert_eq!(socket.send_batch(&batch).unwrap(), 5);
    }

    #[test]
    fn too_long_ends_a_batch() {
        let socket = fake_socket();
        let long = vec![0; 65536];
        let batch = [(&b"a"[..], to()), (&long, to()), (b"b", to())];
        assert_eq!(socket.send_batch(&batch).unwrap(), 1);
        let error = socket.send_batch(&batch[1..]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    }

    #[test]
    fn refusals_come_with_the_next_call() {
        let socket = fake_socket();
        let errors = [0, 1, 0];
        socket
            .lock()
            .channel
            .fake()
            .borrow_mut()
            .errors
            .extend(errors);
        let batch = [(&b"x"[..], to()); 3];
        assert_eq!(socket.send_batch(&batch).unwrap(), 3);
        let error = socket.send_batch(&batch).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert_eq!(socket.send_batch(&batch).unwrap(), 3);
    }

    /// Else nothing could come while what was sent is under way.
    #[test]
    fn frames_to_receive_into_are_left() {
        let socket = fake_socket();
        socket.lock().channel.fake().borrow_mut().keeps = true;
        while socket.send_batch(&[(b"x", to())]).is_ok() {
            numbers(&socket, 1).unwrap();
        }
        let shared = socket.lock();
        assert_eq!(shared.channel.spare_frames(), 0);
        // Of the frames to receive into all are the kernel's, or about to be.
        assert!(shared.channel.recv().unwrap().is_none());
        assert_eq!(shared.channel.free_frames(), 0);
        assert_eq!(shared.channel.layout().frame_count, 48);
    }

    /// Who heard of an error would send again what is queued.
    #[test]
    fn an_error_of_the_doorbell_is_the_next_calls() {
        let socket = fake_socket();
        let refuse = |errno| socket.lock().channel.fake().borrow_mut().refusal = errno;
        for nonblocking in [true, false] {
            socket.set_nonblocking(nonblocking).unwrap();
            refuse(libc::ENOMEM);
            assert_eq!(socket.send_to(b"x", "192.0.2.9:99").unwrap(), 1);
            let error = socket.send_to(b"y", "192.0.2.9:99").unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
            refuse(0);
            assert_eq!(socket.send_batch(&[(b"z", to())]).unwrap(), 1);
            assert_eq!(numbers(&socket, 9).unwrap(), b"xz");
            refuse(libc::ENOMEM);
            assert_eq!(socket.send_batch(&[(&b"x"[..], to()); 2]).unwrap(), 2);
            let error = socket.send_batch(&[(b"y", to())]).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
            refuse(0);
            assert_eq!(socket.send_to(b"z", "192.0.2.9:99").unwrap(), 1);
            assert_eq!(numbers(&socket, 9).unwrap(), b"xxz");
        }
    }

    #[test]
    fn one_datagram_is_left_and_no_more() {
        let socket = fake_socket();
        socket.lock().channel.fake().borrow_mut().appetite = 0;
        assert_eq!(socket.send_to(b"left", "192.0.2.9:99").unwrap(), 4);
        let blocked = socket.send_to(b"not sent", "192.0.2.9:99").unwrap_err();
        assert_eq!(blocked.kind(), ErrorKind::WouldBlock);
        socket.lock().channel.fake().borrow_mut().appetite = u32::MAX;
        let mut buffer = [0; 10];
        // Receiving sends it, too.
        assert!(socket.recv(&mut buffer).is_err());
        assert_eq!(socket.recv(&mut buffer).unwrap(), 4);
        assert_eq!(&buffer[..4], b"left");
        assert!(socket.recv(&mut buffer).is_err());
    }
}
