// SPDX-License-Identifier: GPL-2.0

//! AF_PACKET's RX ring, version 2: a copy of what the stack gets.

use super::{poll, Receiver, Tally};
use crate::traffic::HEADERS;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    os::fd::AsRawFd,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, Ordering},
};

const FRAME: usize = 2048;
const FRAMES: usize = 1024;
const BLOCK: usize = 65536;

/// What is in the ring.
pub(super) struct PacketRing {
    socket: Socket,
    ring: NonNull<u8>,
    next: usize,
}

impl PacketRing {
    pub(super) fn new(device: u32) -> io::Result<Self> {
        // Of all protocols: those of one come behind tc's ingress.
        let all = (libc::ETH_P_ALL as u16).to_be();
        // Not of other devices, until it is bound.
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?;
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        crate::send::set_packet_option(&socket, libc::PACKET_VERSION, version)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: (FRAMES * FRAME / BLOCK) as u32,
            tp_frame_size: FRAME as u32,
            tp_frame_nr: FRAMES as u32,
        };
        crate::send::set_packet_option(&socket, libc::PACKET_RX_RING, request)?;
        // SAFETY: A new mapping, of the ring that was just made; zeroes are a valid address, whose
        // length is right.
        let ring = unsafe {
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = all;
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
        })
    }

    /// The header of the next frame.
    fn header(&self) -> *mut libc::tpacket2_hdr {
        // SAFETY: The frame is in the ring, and its start is aligned.
        unsafe { self.ring.as_ptr().add(self.next * FRAME).cast() }
    }

    /// The word by which it changes hands.
    fn status(&self) -> &AtomicU32 {
        // SAFETY: The header is mapped as long as `self`, and its status is aligned and accessed in
        // no other way.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.header()).tp_status) }
    }
}

impl Receiver for PacketRing {
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        let mut any = false;
        while self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0 {
            any = true;
            // SAFETY: The frame is the program's until the status says otherwise, and the kernel has
            // put so many bytes there.
            let frame = unsafe {
                let header = self.header();
                let data = header.cast::<u8>().add((*header).tp_mac.into());
                std::slice::from_raw_parts(data, (*header).tp_snaplen as usize)
            };
            tally.add_frame(frame, HEADERS);
            self.status()
                .store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % FRAMES;
        }
        match any {
            true => Ok(()),
            false => poll(&self.socket),
        }
    }
}

impl Drop for PacketRing {
    fn drop(&mut self) {
        // SAFETY: The mapping is this one's, and nothing refers to it any more.
        unsafe { libc::munmap(self.ring.as_ptr().cast(), FRAMES * FRAME) };
    }
}
