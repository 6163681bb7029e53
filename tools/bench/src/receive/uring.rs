// SPDX-License-Identifier: GPL-2.0

//! io_uring: one request, which receives again and again into buffers of a ring.

use super::{Receiver, Tally, PATIENCE};
use io_uring::{cqueue, opcode, types, IoUring};
use socket2::Socket;
use std::{
    io,
    os::fd::AsRawFd,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU16, Ordering},
};

/// Buffers, of which the ring is of a page's size.
pub(super) const BUFFERS: u16 = 256;
const RING: usize = BUFFERS as usize * size_of::<types::BufRingEntry>();
/// What the kernel calls them.
pub(super) const GROUP: u16 = 1;

/// Memory for what comes, and the ring by which the kernel gets it.
pub(super) struct Buffers {
    entries: NonNull<types::BufRingEntry>,
    tail: u16,
    memory: Vec<u8>,
    each: usize,
}

impl Buffers {
    pub(super) fn new(each: usize) -> io::Result<Self> {
        // SAFETY: A new mapping.
        let entries = unsafe {
            libc::mmap(
                ptr::null_mut(),
                RING,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if entries == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            entries: NonNull::new(entries.cast()).expect("a mapping isn't at 0"),
            tail: 0,
            memory: vec![0; usize::from(BUFFERS) * each],
            each,
        })
    }

    /// Registers the ring, with all buffers. Neither may go before `uring` does.
    pub(super) fn register(&mut self, uring: &IoUring) -> io::Result<()> {
        let address = self.entries.as_ptr() as u64;
        // SAFETY: The memory is there until the ring is gone, and has room for that number of entries.
        unsafe {
            let submitter = uring.submitter();
            submitter.register_buf_ring_with_flags(address, BUFFERS, GROUP, 0)?;
        }
        for number in 0..BUFFERS {
            self.give(number);
        }
        self.publish();
        Ok(())
    }

    pub(super) fn get(&self, number: u16) -> &[u8] {
        &self.memory[usize::from(number) * self.each..][..self.each]
    }

    /// Gives a buffer to the kernel, without saying so.
    pub(super) fn give(&mut self, number: u16) {
        let address = self.get(number).as_ptr() as u64;
        // SAFETY: An entry of the ring that is this side's: there are as many as buffers.
        let entry = unsafe { &mut *self.entries.as_ptr().add((self.tail % BUFFERS).into()) };
        entry.set_addr(address);
        entry.set_len(self.each as u32);
        entry.set_bid(number);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel which were given.
    pub(super) fn publish(&self) {
        // SAFETY: The place of the tail, in the ring's first entry, aligned and written by this side
        // only.
        let tail = unsafe {
            let tail = types::BufRingEntry::tail(self.entries.as_ptr());
            AtomicU16::from_ptr(tail.cast_mut())
        };
        tail.store(self.tail, Ordering::Release);
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: The mapping is this one's, and the kernel doesn't know of it any more.
        unsafe { libc::munmap(self.entries.as_ptr().cast(), RING) };
    }
}

/// A ring of one thread, with the socket as its first file.
pub(super) fn ring(socket: &Socket, requests: u32) -> io::Result<IoUring> {
    let ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_cqsize(4 * u32::from(BUFFERS))
        .build(requests)?;
    ring.submitter().register_files(&[socket.as_raw_fd()])?;
    Ok(ring)
}

/// Shows the kernel all requests, and sleeps until one has completed.
pub(super) fn wait(ring: &IoUring) -> io::Result<()> {
    let patience = types::Timespec::from(PATIENCE);
    let patience = types::SubmitArgs::new().timespec(&patience);
    ring.submitter().submit_with_args(1, &patience).map(drop)
}

/// The buffer, and the length, of what a request that receives again and again has got; `None` if buffers were
/// short.
pub(super) fn received(completion: &cqueue::Entry) -> io::Result<Option<(u16, usize)>> {
    let len = completion.result();
    match cqueue::buffer_select(completion.flags()) {
        Some(number) if len >= 0 => Ok(Some((number, len as usize))),
        _ if len == -libc::ENOBUFS => Ok(None),
        _ => Err(io::Error::from_raw_os_error(-len)),
    }
}

/// What has completed, by each system call.
pub(super) struct Multishot {
    /// Before what it points to. Goes some time after it was dropped, and keeps the port as long.
    ring: IoUring,
    _socket: Socket,
    buffers: Buffers,
}

impl Multishot {
    pub(super) fn new(socket: Socket, each: usize) -> io::Result<Self> {
        let mut this = Self {
            ring: ring(&socket, 8)?,
            _socket: socket,
            buffers: Buffers::new(each)?,
        };
        this.buffers.register(&this.ring)?;
        this.request()?;
        Ok(this)
    }

    fn request(&mut self) -> io::Result<()> {
        let request = opcode::RecvMulti::new(types::Fixed(0), GROUP).build();
        // SAFETY: The buffers live longer than the ring.
        unsafe { self.ring.submission().push(&request) }.map_err(io::Error::other)
    }
}

impl Receiver for Multishot {
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        wait(&self.ring)?;
        let mut ended = false;
        for completion in self.ring.completion() {
            ended |= !cqueue::more(completion.flags());
            if let Some((number, len)) = received(&completion)? {
                tally.add(len, self.buffers.get(number));
                self.buffers.give(number);
            }
        }
        self.buffers.publish();
        if ended {
            self.request()?;
        }
        Ok(())
    }
}
