// SPDX-License-Identifier: GPL-2.0

//! AF_PACKET's TX ring, version 2.

use super::{set_mark, Sender};
use crate::traffic::{Traffic, HEADERS};
use socket2::{Domain, Socket, Type};
use std::{
    io,
    os::fd::AsRawFd,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, Ordering},
};

const FRAME: usize = 2048;
const FRAMES: usize = 512;
const BLOCK: usize = 65536;
/// Where the packet begins in a frame: tpacket_snd() looks behind the header, without the address.
const DATA: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);
/// Nothing takes so long, but for an error.
const PATIENCE_MS: libc::c_int = 1000;

/// A batch of packets by each system call, through the device's qdisc.
pub(crate) struct PacketRing {
    socket: Socket,
    ring: NonNull<u8>,
    next: usize,
    batch: usize,
}

impl PacketRing {
    pub(crate) fn new(device: u32, mark: u32, batch: usize) -> io::Result<Self> {
        // Protocol 0: receives nothing.
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        set_mark(&socket, mark)?;
        set(
            &socket,
            libc::PACKET_VERSION,
            libc::tpacket_versions::TPACKET_V2 as libc::c_int,
        )?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: (FRAMES * FRAME / BLOCK) as u32,
            tp_frame_size: FRAME as u32,
            tp_frame_nr: FRAMES as u32,
        };
        set(&socket, libc::PACKET_TX_RING, request)?;
        // SAFETY: A new mapping, of the ring that was just made; zeroes are a valid address, whose
        // length is right.
        let ring = unsafe {
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_ifindex = device as libc::c_int;
            let len = size_of_val(&address) as libc::socklen_t;
            if libc::bind(socket.as_raw_fd(), ptr::from_ref(&address).cast(), len) != 0 {
                return Err(io::Error::last_os_error());
            }
            libc::mmap(
                ptr::null_mut(),
                FRAMES * FRAME,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                socket.as_raw_fd(),
                0,
            )
        };
        if ring == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            socket,
            ring: NonNull::new(ring.cast()).expect("a mapping isn't at 0"),
            next: 0,
            batch,
        })
    }

    /// The header of a frame.
    fn header(&self, number: usize) -> NonNull<libc::tpacket2_hdr> {
        // SAFETY: The frame is in the ring, and its start is aligned.
        unsafe { self.ring.add(number * FRAME).cast() }
    }

    /// The word by which a frame changes hands.
    fn status(&self, number: usize) -> &AtomicU32 {
        // SAFETY: The header is mapped as long as `self`, and its status is aligned and accessed in
        // no other way.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.header(number).as_ptr()).tp_status) }
    }

    /// Has the kernel look at the ring.
    fn ring(&self) -> io::Result<()> {
        // SAFETY: Nothing to read.
        let sent = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::send(self.socket.as_raw_fd(), ptr::null(), 0, flags)
        };
        match sent {
            0.. => Ok(()),
            // Its send buffer is full; poll() tells when it isn't.
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                error => Err(error),
            },
        }
    }

    /// Sleeps until the socket has room.
    fn sleep(&self) -> io::Result<()> {
        let mut poll = libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: One entry.
        match unsafe { libc::poll(&mut poll, 1, PATIENCE_MS) } {
            1.. => Ok(()),
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until the kernel is done with a frame.
    fn wait_for(&self, number: usize) -> io::Result<()> {
        loop {
            match self.status(number).load(Ordering::Acquire) {
                libc::TP_STATUS_AVAILABLE => return Ok(()),
                libc::TP_STATUS_WRONG_FORMAT => {
                    return Err(io::Error::other("the kernel refused a packet of the ring"))
                }
                _ => {
                    self.sleep()?;
                    self.ring()?;
                }
            }
        }
    }
}

impl Sender for PacketRing {
    fn send(&mut self, traffic: &mut Traffic, mut count: usize) -> io::Result<()> {
        let len = HEADERS + traffic.payload();
        while count > 0 {
            let batch = count.min(self.batch);
            for _ in 0..batch {
                self.wait_for(self.next)?;
                let header = self.header(self.next).as_ptr();
                // SAFETY: The frame is the program's until the status says otherwise, and the packet
                // fits into it behind the header.
                unsafe {
                    (*header).tp_len = len as u32;
                    let data = header.cast::<u8>().add(DATA);
                    traffic.frame(std::slice::from_raw_parts_mut(data, len));
                }
                let wanted = libc::TP_STATUS_SEND_REQUEST;
                self.status(self.next).store(wanted, Ordering::Release);
                self.next = (self.next + 1) % FRAMES;
            }
            self.ring()?;
            count -= batch;
        }
        // What was left for want of room.
        let last = (self.next + FRAMES - 1) % FRAMES;
        while self.status(last).load(Ordering::Acquire) == libc::TP_STATUS_SEND_REQUEST {
            self.sleep()?;
            self.ring()?;
        }
        Ok(())
    }
}

impl Drop for PacketRing {
    fn drop(&mut self) {
        // SAFETY: The mapping is this one's, and nothing refers to it any more.
        unsafe { libc::munmap(self.ring.as_ptr().cast(), FRAMES * FRAME) };
    }
}

/// Sets an option of AF_PACKET.
pub(crate) fn set<T>(socket: &Socket, option: libc::c_int, value: T) -> io::Result<()> {
    // SAFETY: The value is of the length that is said.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            ptr::from_ref(&value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
