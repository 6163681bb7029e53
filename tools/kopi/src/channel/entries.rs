// SPDX-License-Identifier: GPL-2.0

//! Frames by their numbers, for what has no lifetimes: libraries for other languages.
//!
//! A frame of the program's is here the offset of its first byte. The user of this module knows which
//! frames are the program's: those from [`Channel::take_frame`] and [`Channel::recv_entries`], until
//! they are given away. One that is forgotten is lost to the channel, and harms nobody.

use super::{flush::Shown, Channel};
use crate::pure::{abi::Desc, ring::Broken};
use std::{io, ptr::NonNull};

impl Channel {
    /// The mapping's first byte, from which offsets count.
    pub fn base(&self) -> NonNull<u8> {
        // SAFETY: A region isn't empty.
        unsafe { self.region.at(0) }
    }

    /// The frame of which `len` bytes at `offset` are payload, if that is so.
    #[inline]
    pub fn frame_of_payload(&self, offset: u32, len: u32) -> Option<u32> {
        self.region.frame_of_payload(offset, len)
    }

    /// Takes a free frame, which is the caller's from now on.
    #[inline]
    pub fn take_frame(&self) -> Option<u32> {
        self.free.borrow_mut().pop()
    }

    /// Makes a frame free, or the kernel's if that has few.
    ///
    /// # Safety
    ///
    /// The caller must own it, and not touch it any more.
    #[inline]
    pub unsafe fn give_frame(&self, start: u32) {
        self.put_free(start);
        // Of a broken ring the next call that receives tells.
        let _ = self.refill_if_short();
    }

    /// Takes the next packet, if it has no more than `room` entries, and tells of each; their frames
    /// are the caller's from now on.
    ///
    /// Gives the packet's number of entries: 0 while there is none. If that is over `room`, nothing
    /// was taken. `take` may give frames back, and must not receive.
    #[inline]
    pub fn recv_entries(&self, room: u32, mut take: impl FnMut(Desc)) -> io::Result<u32> {
        let rx = &mut *self.rx.borrow_mut();
        let Some((_, count)) = self.next_entries(rx)? else {
            return Ok(0);
        };
        if count > room {
            return Ok(count);
        }
        for ahead in 0..count {
            let desc = rx.ring.peek(ahead);
            self.region
                .frame_of_payload(desc.offset, desc.len)
                .ok_or(Broken)?;
        }
        for ahead in 0..count {
            take(rx.ring.peek(ahead));
        }
        self.taken(rx, count)?;
        Ok(count)
    }

    /// Queues the entries of one packet, as [`Channel::send`]; with `DESC_META` the first one's
    /// metadata is in the frame. Their frames are the kernel's, unless this gives an error.
    ///
    /// # Safety
    ///
    /// The caller must own the frames, and not touch them any more.
    #[inline]
    pub unsafe fn send_entries(&self, entries: &[Desc]) -> io::Result<()> {
        let needed = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        self.room_for(needed)?;
        let mut tx = self.tx.borrow_mut();
        for entry in entries {
            tx.ring.write(*entry);
        }
        Ok(())
    }

    /// Shows the kernel what was sent, and leaves completions where they are.
    ///
    /// Gives `true` if the kernel has taken everything. If it stopped, there is no room for
    /// completions, or a flow's send buffer is full.
    pub fn doorbell(&self) -> io::Result<bool> {
        Ok(self.show()? == Shown::All)
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        fake,
        pure::abi::{Desc, DESC_MORE, FRAME_HEADROOM},
        Channel,
    };

    fn small() -> Channel {
        fake::channel(
            Channel::builder()
                .frame_size(512)
                .frames(128)
                .rx_frames(32)
                .tx_entries(16)
                .rx_entries(64),
        )
    }

    /// Queues a packet of these lengths, one a frame.
    fn send(channel: &Channel, lengths: &[u32]) -> std::io::Result<()> {
        let entries: Vec<Desc> = (1..)
            .zip(lengths)
            .map(|(number, len)| Desc {
                offset: channel.take_frame().unwrap() + FRAME_HEADROOM,
                len: *len,
                flags: if number < lengths.len() { DESC_MORE } else { 0 },
                ..Desc::default()
            })
            .collect();
        // SAFETY: Taken just now.
        unsafe { channel.send_entries(&entries) }
    }

    #[test]
    fn entries_go_and_come() {
        let channel = small();
        for _ in 0..100 {
            send(&channel, &[448, 448, 10]).unwrap();
            send(&channel, &[7]).unwrap();
            assert!(channel.doorbell().unwrap());
            let mut lengths = vec![];
            let mut take = |desc: Desc| {
                lengths.push(desc.len);
                let start = channel.frame_of_payload(desc.offset, desc.len).unwrap();
                // SAFETY: This closure owns it, and doesn't touch it any more.
                unsafe { channel.give_frame(start) };
            };
            assert_eq!(channel.recv_entries(2, &mut take).unwrap(), 3);
            assert_eq!(channel.recv_entries(3, &mut take).unwrap(), 3);
            assert_eq!(channel.recv_entries(3, &mut take).unwrap(), 1);
            assert_eq!(channel.recv_entries(3, &mut take).unwrap(), 0);
            assert_eq!(lengths, [448, 448, 10, 7]);
            channel.reap(|_| {}).unwrap();
        }
        assert_eq!(channel.free_frames(), 96);
    }

    #[test]
    fn completions_are_taken_by_the_piece() {
        let channel = small();
        for _ in 0..10 {
            send(&channel, &[1]).unwrap();
        }
        channel.doorbell().unwrap();
        let mut count = 0;
        assert_eq!(channel.reap_up_to(4, |_| count += 1).unwrap(), 4);
        assert_eq!(channel.reap_up_to(0, |_| count += 1).unwrap(), 0);
        assert_eq!(channel.reap_up_to(100, |_| count += 1).unwrap(), 6);
        assert_eq!(count, 10);
    }

    #[test]
    fn frames_given_back_are_there_to_receive_into() {
        let builder = Channel::builder().frame_size(512).frames(2).rx_frames(1);
        let channel = fake::channel(builder.tx_entries(16).rx_entries(32));
        for _ in 0..3 {
            send(&channel, &[1]).unwrap();
            channel.doorbell().unwrap();
            channel.reap(|_| {}).unwrap();
            let mut held = vec![];
            let received = channel.recv_entries(1, |desc| held.push(desc)).unwrap();
            assert_eq!(received, 1);
            let start = channel.frame_of_payload(held[0].offset, held[0].len);
            // SAFETY: Received just now, and touched no more.
            unsafe { channel.give_frame(start.unwrap()) };
        }
    }

    #[test]
    fn room_is_for_whole_packets() {
        let channel = small();
        channel.fake().borrow_mut().appetite = 0;
        for _ in 0..5 {
            send(&channel, &[448, 448, 448]).unwrap();
        }
        let full = send(&channel, &[448, 1]).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);
        send(&channel, &[448]).unwrap();
        let long = send(&channel, &[1; 17]).unwrap_err();
        assert_eq!(long.raw_os_error(), Some(libc::EMSGSIZE));
        assert!(!channel.doorbell().unwrap());
    }
}
