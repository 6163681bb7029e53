// SPDX-License-Identifier: GPL-2.0

//! What sockets of AF_XDP have in common: frames and rings, which both sides have mapped.

use crate::option;
use socket2::{Domain, Socket, Type};
use std::{
    io,
    marker::PhantomData,
    os::fd::AsRawFd,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Bytes of a frame.
pub(crate) const FRAME: usize = 2048;
/// Frames, and entries of each ring.
pub(crate) const FRAMES: u32 = 2048;
const FILL_PAGE: libc::off_t = libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t;
const COMPLETION_PAGE: libc::off_t = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;
/// How long the device may be another socket's.
const PATIENCE: Duration = Duration::from_secs(2);
const NAP: Duration = Duration::from_millis(1);
/// There is nothing to wait for but time while the device is full.
pub(crate) const FULL: Duration = Duration::from_micros(50);
const REGION: usize = FRAME * FRAMES as usize;

/// A socket with its frames, not bound yet.
pub(crate) struct Xsk {
    pub(crate) socket: Socket,
    frames: NonNull<u8>,
}

impl Xsk {
    /// With these rings besides FILL and COMPLETION, without which no socket can be bound.
    pub(crate) fn new(rings: &[libc::c_int]) -> io::Result<Self> {
        let xsk = Self {
            socket: Socket::new(Domain::from(libc::AF_XDP), Type::RAW, None)?,
            frames: map(REGION, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)?,
        };
        // SAFETY: Zeroes are a valid request.
        let mut region: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
        region.addr = xsk.frames.as_ptr() as u64;
        region.len = REGION as u64;
        region.chunk_size = FRAME as u32;
        option::set(&xsk.socket, libc::SOL_XDP, libc::XDP_UMEM_REG, region)?;
        let always = [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING];
        for &ring in always.iter().chain(rings) {
            option::set(&xsk.socket, libc::SOL_XDP, ring, FRAMES)?;
        }
        Ok(xsk)
    }

    /// Its FILL ring, with these frames.
    pub(crate) fn fill(&self, frames: impl Iterator<Item = u64>) -> io::Result<Ring<u64>> {
        let fill = Ring::new(&self.socket, FILL_PAGE, offsets(&self.socket)?.fr)?;
        fill.put(frames);
        Ok(fill)
    }

    /// Binds it to the device's first queue: copied, or by the device itself.
    pub(crate) fn bind(&self, device: u32, zero_copy: bool) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.try_bind(device, zero_copy) {
                // An earlier socket goes some time after it was closed.
                Err(error)
                    if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline =>
                {
                    thread::sleep(NAP);
                }
                result => return result,
            }
        }
    }

    fn try_bind(&self, device: u32, zero_copy: bool) -> io::Result<()> {
        // SAFETY: Zeroes are a valid address, whose length is right.
        let status = unsafe {
            let mut address: libc::sockaddr_xdp = std::mem::zeroed();
            address.sxdp_family = libc::AF_XDP as u16;
            address.sxdp_flags = match zero_copy {
                true => libc::XDP_ZEROCOPY,
                false => libc::XDP_COPY,
            };
            address.sxdp_ifindex = device;
            let len = size_of_val(&address) as libc::socklen_t;
            let address = ptr::from_ref(&address).cast();
            libc::bind(self.socket.as_raw_fd(), address, len)
        };
        match status {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Has the kernel look at the TX ring.
    fn call(&self) -> io::Result<()> {
        let (fd, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: Nothing to read.
        let sent = unsafe { libc::sendto(fd, ptr::null(), 0, flags, ptr::null(), 0) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // Also when it took as many as one call may.
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS) => Ok(()),
            _ => Err(error),
        }
    }

    /// The place of the byte at an offset that a descriptor has.
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        assert!(offset < REGION as u64);
        // SAFETY: In the region, as just seen.
        unsafe { self.frames.as_ptr().add(offset as usize) }
    }

    /// Where each frame begins.
    pub(crate) fn all_frames() -> impl Iterator<Item = u64> {
        (0..u64::from(FRAMES)).map(|number| number * FRAME as u64)
    }
}

impl Drop for Xsk {
    fn drop(&mut self) {
        // SAFETY: The mapping is this one's, and the kernel has the pages for itself.
        unsafe { libc::munmap(self.frames.as_ptr().cast(), REGION) };
    }
}

/// The rings for sending: TX, and COMPLETION.
pub(crate) struct Outgoing {
    tx: Ring<libc::xdp_desc>,
    completion: Ring<u64>,
}

impl Outgoing {
    /// Of a socket that isn't bound yet.
    pub(crate) fn new(xsk: &Xsk) -> io::Result<Self> {
        let at = offsets(&xsk.socket)?;
        Ok(Self {
            tx: Ring::new(&xsk.socket, libc::XDP_PGOFF_TX_RING, at.tx)?,
            completion: Ring::new(&xsk.socket, COMPLETION_PAGE, at.cr)?,
        })
    }

    /// Has the driver, or the kernel, send frames that are the program's: by one system call, or as many as the
    /// kernel needs.
    pub(crate) fn send(
        &self,
        xsk: &Xsk,
        frames: impl Iterator<Item = libc::xdp_desc>,
    ) -> io::Result<()> {
        let end = self.tx.put(frames);
        let mut taken = self.tx.consumer().load(Ordering::Acquire);
        while taken != end {
            xsk.call()?;
            let before = std::mem::replace(&mut taken, self.tx.consumer().load(Ordering::Acquire));
            if taken == before {
                thread::sleep(FULL);
            }
        }
        Ok(())
    }

    /// The frames that have been sent, and are the program's again.
    pub(crate) fn reap(&self) -> Taken<'_, u64> {
        self.completion.take()
    }
}

/// A ring that both sides have mapped, whose entries are an address or a descriptor.
pub(crate) struct Ring<T> {
    map: NonNull<u8>,
    len: usize,
    at: libc::xdp_ring_offset,
    entries: PhantomData<T>,
}

impl<T> Ring<T> {
    /// `T` is what the kernel has in the ring at that page.
    pub(crate) fn new(
        socket: &Socket,
        page: libc::off_t,
        at: libc::xdp_ring_offset,
    ) -> io::Result<Self> {
        let len = at.desc as usize + FRAMES as usize * size_of::<T>();
        Ok(Self {
            map: map(
                len,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                socket.as_raw_fd(),
                page,
            )?,
            len,
            at,
            entries: PhantomData,
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
    fn entry(&self, number: u32) -> *mut T {
        let offset = self.at.desc as usize + (number % FRAMES) as usize * size_of::<T>();
        // SAFETY: In the mapping, which has that number of entries.
        unsafe { self.map.as_ptr().add(offset).cast() }
    }

    /// Gives the kernel entries, each of another frame of the program's; gives the index behind them.
    #[inline]
    pub(crate) fn put(&self, entries: impl Iterator<Item = T>) -> u32 {
        let mut end = self.producer().load(Ordering::Relaxed);
        for entry in entries {
            // SAFETY: The entry is this side's: the ring has room for as many as there are frames.
            unsafe { self.entry(end).write(entry) };
            end = end.wrapping_add(1);
        }
        self.producer().store(end, Ordering::Release);
        end
    }

    /// What the kernel has given.
    #[inline]
    pub(crate) fn take(&self) -> Taken<'_, T> {
        Taken {
            ring: self,
            at: self.consumer().load(Ordering::Relaxed),
            end: self.producer().load(Ordering::Acquire),
        }
    }
}

/// Entries that the kernel has given. When it is dropped, the kernel may use those anew that were read.
pub(crate) struct Taken<'r, T> {
    ring: &'r Ring<T>,
    at: u32,
    end: u32,
}

impl<T> Iterator for Taken<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        if self.at == self.end {
            return None;
        }
        // SAFETY: The entry is this side's, as the kernel's index says, and a plain number or descriptor.
        let entry = unsafe { self.ring.entry(self.at).read() };
        self.at = self.at.wrapping_add(1);
        Some(entry)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.end.wrapping_sub(self.at) as usize;
        (len, Some(len))
    }
}

impl<T> ExactSizeIterator for Taken<'_, T> {}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        self.ring.consumer().store(self.at, Ordering::Release);
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: The mapping is this one's, and nothing refers to it any more.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.len) };
    }
}

/// Maps memory that may be read and written.
pub(crate) fn map(
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
pub(crate) fn offsets(socket: &Socket) -> io::Result<libc::xdp_mmap_offsets> {
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
