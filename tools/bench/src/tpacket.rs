// SPDX-License-Identifier: GPL-2.0

//! Rings of AF_PACKET, version 2: frames that the program and the kernel hand to each other.

use crate::{option, xdp::map};
use socket2::{Domain, Socket, Type};
use std::{
    io,
    os::fd::AsRawFd,
    ptr::{self, NonNull},
    sync::atomic::AtomicU32,
};

/// Bytes of a frame.
const FRAME: usize = 2048;
const BLOCK: usize = 65536;
/// Where the packet begins in a frame that is sent: tpacket_snd() looks behind the header, without the
/// address.
const DATA: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);

/// Binds a socket of AF_PACKET to a device and a protocol, in big-endian.
pub(crate) fn bind(socket: &Socket, device: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: Zeroes are a valid address, whose length is right.
    let status = unsafe {
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = device as libc::c_int;
        let len = size_of_val(&address) as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), ptr::from_ref(&address).cast(), len)
    };
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A socket with its ring.
pub(crate) struct Ring {
    socket: Socket,
    ring: NonNull<u8>,
    frames: usize,
    next: usize,
}

impl Ring {
    /// A socket without a ring, which receives nothing until it is bound.
    pub(crate) fn socket() -> io::Result<Socket> {
        Socket::new(Domain::PACKET, Type::RAW, None)
    }

    /// Gives it a ring, PACKET_TX_RING or PACKET_RX_RING, and binds it to a device, and a protocol, in
    /// big-endian, for what it receives.
    pub(crate) fn new(
        socket: Socket,
        ring: libc::c_int,
        frames: usize,
        device: u32,
        protocol: u16,
    ) -> io::Result<Self> {
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        option::set(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, version)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: (frames * FRAME / BLOCK) as u32,
            tp_frame_size: FRAME as u32,
            tp_frame_nr: frames as u32,
        };
        option::set(&socket, libc::SOL_PACKET, ring, request)?;
        bind(&socket, device, protocol)?;
        Ok(Self {
            ring: map(frames * FRAME, libc::MAP_SHARED, socket.as_raw_fd(), 0)?,
            socket,
            frames,
            next: 0,
        })
    }

    pub(crate) fn as_socket(&self) -> &Socket {
        &self.socket
    }

    fn header(&self, number: usize) -> *mut libc::tpacket2_hdr {
        // SAFETY: The frame is in the ring, and its start is aligned.
        unsafe { self.ring.as_ptr().add(number % self.frames * FRAME).cast() }
    }

    fn status_of(&self, number: usize) -> &AtomicU32 {
        // SAFETY: The header is mapped as long as `self`, and its status is aligned and accessed in
        // no other way.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.header(number)).tp_status) }
    }

    /// The word by which the next frame changes hands.
    pub(crate) fn status(&self) -> &AtomicU32 {
        self.status_of(self.next)
    }

    /// That of the frame before it.
    pub(crate) fn last_status(&self) -> &AtomicU32 {
        self.status_of(self.next + self.frames - 1)
    }

    /// Goes on to the frame after it.
    pub(crate) fn advance(&mut self) {
        self.next = (self.next + 1) % self.frames;
    }

    /// The packet in the next frame, which the kernel has filled.
    pub(crate) fn packet(&self) -> &[u8] {
        // SAFETY: The kernel has put that number of bytes there, and the frame is the program's until its status
        // says otherwise.
        unsafe {
            let header = self.header(self.next);
            let data = header.cast::<u8>().add((*header).tp_mac.into());
            std::slice::from_raw_parts(data, (*header).tp_snaplen as usize)
        }
    }

    /// Room for a packet of `len` bytes in the next frame, which is the program's.
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= FRAME - DATA);
        // SAFETY: The packet fits into the frame behind the header, and the frame is the program's until
        // its status says otherwise.
        unsafe {
            let header = self.header(self.next);
            (*header).tp_len = len as u32;
            std::slice::from_raw_parts_mut(header.cast::<u8>().add(DATA), len)
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: The mapping is this one's, and nothing refers to it any more.
        unsafe { libc::munmap(self.ring.as_ptr().cast(), self.frames * FRAME) };
    }
}
