// SPDX-License-Identifier: GPL-2.0

//! AF_XDP, whose packets the kernel copies into skbs and hands to the driver.

use super::Sender;
use crate::traffic::{Traffic, HEADERS};
use socket2::{Domain, Socket, Type};
use std::{
    io,
    os::fd::AsRawFd,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

const FRAME: usize = 2048;
const FRAMES: u32 = 2048;
const REGION: usize = FRAME * FRAMES as usize;
const COMPLETION_PAGE: libc::off_t = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;
/// There is nothing to wait for but time while the device is full.
const NAP: Duration = Duration::from_micros(50);

/// A ring that both sides have mapped.
struct Ring {
    map: NonNull<u8>,
    len: usize,
    at: libc::xdp_ring_offset,
}

impl Ring {
    fn new(
        socket: &Socket,
        page: libc::off_t,
        at: libc::xdp_ring_offset,
        entry: usize,
    ) -> io::Result<Self> {
        let len = at.desc as usize + FRAMES as usize * entry;
        Ok(Self {
            map: map(
                len,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                socket.as_raw_fd(),
                page,
            )?,
            len,
            at,
        })
    }

    fn index(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: An aligned word of the mapping, by the kernel's word, that is accessed in no other
        // way.
        unsafe { AtomicU32::from_ptr(self.map.as_ptr().add(offset as usize).cast()) }
    }

    fn producer(&self) -> &AtomicU32 {
        self.index(self.at.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.index(self.at.consumer)
    }

    /// The place of an entry.
    fn entry<T>(&self, number: u32) -> *mut T {
        let offset = self.at.desc as usize + (number % FRAMES) as usize * size_of::<T>();
        // SAFETY: In the mapping, which has so many entries.
        unsafe { self.map.as_ptr().add(offset).cast() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: The mapping is this one's, and nothing refers to it any more.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.len) };
    }
}

/// A batch of packets by each system call, at the device's first queue.
pub(super) struct Xdp {
    tx: Ring,
    completion: Ring,
    socket: Socket,
    frames: NonNull<u8>,
    free: Vec<u64>,
    batch: usize,
}

impl Xdp {
    pub(super) fn new(device: u32, batch: usize) -> io::Result<Self> {
        let socket = Socket::new(Domain::from(libc::AF_XDP), Type::RAW, None)?;
        let frames = map(REGION, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)?;
        // SAFETY: Zeroes are a valid request.
        let mut region: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
        region.addr = frames.as_ptr() as u64;
        region.len = REGION as u64;
        region.chunk_size = FRAME as u32;
        set(&socket, libc::XDP_UMEM_REG, region)?;
        // Without a FILL ring no socket can be bound.
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_TX_RING,
        ] {
            set(&socket, ring, FRAMES)?;
        }
        let at = offsets(&socket)?;
        let completion = Ring::new(&socket, COMPLETION_PAGE, at.cr, 8)?;
        let entry = size_of::<libc::xdp_desc>();
        let tx = Ring::new(&socket, libc::XDP_PGOFF_TX_RING, at.tx, entry)?;
        // SAFETY: Zeroes are a valid address, whose length is right.
        let status = unsafe {
            let mut address: libc::sockaddr_xdp = std::mem::zeroed();
            address.sxdp_family = libc::AF_XDP as u16;
            address.sxdp_flags = libc::XDP_COPY;
            address.sxdp_ifindex = device;
            let len = size_of_val(&address) as libc::socklen_t;
            libc::bind(socket.as_raw_fd(), ptr::from_ref(&address).cast(), len)
        };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            tx,
            completion,
            socket,
            frames,
            free: (0..u64::from(FRAMES))
                .map(|number| number * FRAME as u64)
                .collect(),
            batch,
        })
    }

    /// Takes back the frames that have been sent.
    fn reap(&mut self) {
        let end = self.completion.producer().load(Ordering::Acquire);
        let mut at = self.completion.consumer().load(Ordering::Relaxed);
        while at != end {
            // SAFETY: The entry is this side's, as the kernel's index says.
            let frame = unsafe { self.completion.entry::<u64>(at).read() };
            self.free.push(frame);
            at = at.wrapping_add(1);
        }
        self.completion.consumer().store(at, Ordering::Release);
    }

    /// Has the kernel take all of the TX ring; a call takes some.
    fn ring(&self) -> io::Result<()> {
        let end = self.tx.producer().load(Ordering::Relaxed);
        let mut taken = self.tx.consumer().load(Ordering::Acquire);
        while taken != end {
            // SAFETY: Nothing to read.
            let sent = unsafe {
                let flags = libc::MSG_DONTWAIT;
                libc::sendto(
                    self.socket.as_raw_fd(),
                    ptr::null(),
                    0,
                    flags,
                    ptr::null(),
                    0,
                )
            };
            if sent < 0 {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    // Also when it took as many as one call may.
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS) => {}
                    _ => return Err(error),
                }
            }
            let before = std::mem::replace(&mut taken, self.tx.consumer().load(Ordering::Acquire));
            if taken == before {
                thread::sleep(NAP);
            }
        }
        Ok(())
    }
}

impl Sender for Xdp {
    fn send(&mut self, traffic: &mut Traffic, mut count: usize) -> io::Result<()> {
        let len = HEADERS + traffic.payload();
        while count > 0 {
            let batch = count.min(self.batch);
            self.reap();
            while self.free.len() < batch {
                thread::sleep(NAP);
                self.reap();
            }
            let mut at = self.tx.producer().load(Ordering::Relaxed);
            for addr in self.free.drain(self.free.len() - batch..) {
                // SAFETY: The frame is the program's and in the region; so is the entry of the
                // ring, which has room for as many as there are frames.
                unsafe {
                    let data = self.frames.as_ptr().add(addr as usize);
                    traffic.frame(std::slice::from_raw_parts_mut(data, len));
                    self.tx.entry::<libc::xdp_desc>(at).write(libc::xdp_desc {
                        addr,
                        len: len as u32,
                        options: 0,
                    });
                }
                at = at.wrapping_add(1);
            }
            self.tx.producer().store(at, Ordering::Release);
            self.ring()?;
            count -= batch;
        }
        Ok(())
    }
}

impl Drop for Xdp {
    fn drop(&mut self) {
        // SAFETY: The mapping is this one's, and the kernel has the pages for itself.
        unsafe { libc::munmap(self.frames.as_ptr().cast(), REGION) };
    }
}

fn map(
    len: usize,
    flags: libc::c_int,
    fd: libc::c_int,
    offset: libc::off_t,
) -> io::Result<NonNull<u8>> {
    // SAFETY: A new mapping, which replaces none.
    let map = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(ptr::null_mut(), len, access, flags, fd, offset)
    };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(map.cast()).expect("a mapping isn't at 0"))
}

/// Where the parts of the rings are.
fn offsets(socket: &Socket) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: Zeroes are valid offsets, and there is room for as many bytes as is said.
    unsafe {
        let mut at: libc::xdp_mmap_offsets = std::mem::zeroed();
        let mut len = size_of_val(&at) as libc::socklen_t;
        let value = ptr::from_mut(&mut at).cast();
        match libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            value,
            &mut len,
        ) {
            0 => Ok(at),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Sets an option of AF_XDP.
fn set<T>(socket: &Socket, option: libc::c_int, value: T) -> io::Result<()> {
    // SAFETY: The value is of the length that is said.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
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
