// SPDX-License-Identifier: GPL-2.0

//! System calls on KOPI's sockets in any order, from threads that share the descriptors.

use crate::{coverage::Coverage, pick, random, sys, Run};
use kopi::pure::abi::{
    ChannelReq, IOC_DOORBELL, OPT_CHANNEL, OPT_INFO, OPT_JOIN, OPT_STATS, PROTO_UDP, PROTO_UDP6,
    SOL_KOPI,
};
use rand::{rngs::SmallRng, Rng};
use std::{
    io,
    net::SocketAddr,
    ptr,
    sync::{
        atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed},
        Mutex,
    },
    thread,
};

const SLOTS: usize = 12;

/// What the threads of a round share. A slot is -1 while it has nothing.
struct Round {
    family: i32,
    fds: [AtomicI32; SLOTS],
    /// Mappings, as address and size; nobody looks into them but the kernel.
    maps: Mutex<Vec<(usize, usize)>>,
    /// Ports that sockets were bound to, to send to.
    port: AtomicUsize,
    /// To pass descriptors through.
    pair: (i32, i32),
}

const OPERATIONS: [fn(&Round, &mut SmallRng); 20] = [
    open, open, channel, join, map, unmap, protect, remap, bind, connect, poll, send, receive,
    doorbell, option, option, pass, duplicate, fork, close,
];

/// Rounds until the time is over.
pub(crate) fn run(run: &Run) -> io::Result<()> {
    let family = kopi::family()?;
    let mut coverage = Coverage::new(run.coverage.as_deref())?;
    let rounds = run.repeat(|seed| {
        let round = Round::new(family)?;
        thread::scope(|scope| {
            let workers: Vec<_> = (0..run.threads)
                .map(|number| {
                    let (round, trace) = (&round, coverage.tracer());
                    scope.spawn(move || match trace {
                        Some(trace) => trace
                            .record(|| work(round, random(seed, number + 1), run.operations / 10)),
                        None => {
                            work(round, random(seed, number + 1), run.operations / 10);
                            Ok(Vec::new())
                        }
                    })
                })
                .collect();
            for worker in workers {
                let reached = worker
                    .join()
                    .map_err(|_| io::Error::other("a thread panicked"))??;
                coverage.add(reached);
            }
            Ok(())
        })
    })?;
    println!(
        "{rounds} rounds of {} threads, {} calls",
        run.threads,
        rounds * run.threads * (run.operations / 10)
    );
    coverage.save()
}

fn work(round: &Round, mut random: SmallRng, operations: u64) {
    for _ in 0..operations {
        pick(&mut random, &OPERATIONS)(round, &mut random);
    }
}

impl Round {
    fn new(family: i32) -> io::Result<Self> {
        let mut pair = [0; 2];
        // SAFETY: Room for two descriptors.
        sys::check(unsafe {
            libc::socketpair(
                libc::AF_UNIX,
                libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
                0,
                pair.as_mut_ptr(),
            )
        })?;
        Ok(Self {
            family,
            fds: [const { AtomicI32::new(-1) }; SLOTS],
            maps: Mutex::new(Vec::new()),
            port: AtomicUsize::new(9),
            pair: (pair[0], pair[1]),
        })
    }

    /// One of the sockets, which another thread may be closing.
    fn fd(&self, random: &mut SmallRng) -> i32 {
        pick_slot(&self.fds, random).load(Relaxed)
    }

    /// Puts a descriptor in a slot, and closes what was there.
    fn keep(&self, fd: i32, random: &mut SmallRng) {
        let old = pick_slot(&self.fds, random).swap(fd, Relaxed);
        if old >= 0 {
            sys::close(old);
        }
    }

    /// Takes a mapping away from the others.
    fn take_map(&self, random: &mut SmallRng) -> Option<(usize, usize)> {
        let mut maps = self.maps.lock().ok()?;
        if maps.is_empty() {
            return None;
        }
        let at = random.random_range(0..maps.len());
        Some(maps.swap_remove(at))
    }

    fn add_map(&self, address: *mut libc::c_void, size: usize) {
        if address != libc::MAP_FAILED {
            if let Ok(mut maps) = self.maps.lock() {
                maps.push((address as usize, size));
            }
        }
    }

    fn name(&self, random: &mut SmallRng) -> Vec<u8> {
        let port = if random.random() {
            self.port.load(Relaxed) as u16
        } else {
            0
        };
        let mut name = sys::name(SocketAddr::new(sys::loopback(random.random()), port));
        if random.random_ratio(1, 8) {
            let at = random.random_range(0..name.len());
            name[at] = random.random();
        }
        if random.random_ratio(1, 8) {
            name.truncate(random.random_range(0..name.len()));
        }
        name
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        for slot in &self.fds {
            let fd = slot.load(Relaxed);
            if fd >= 0 {
                sys::close(fd);
            }
        }
        sys::close(self.pair.0);
        sys::close(self.pair.1);
        if let Ok(maps) = self.maps.lock() {
            for &(address, size) in maps.iter() {
                unmap_at(address, size);
            }
        }
    }
}

fn pick_slot<'a>(slots: &'a [AtomicI32; SLOTS], random: &mut SmallRng) -> &'a AtomicI32 {
    &slots[random.random_range(0..SLOTS)]
}

fn unmap_at(address: usize, size: usize) {
    // SAFETY: A mapping of KOPI's that was taken from the list, or what is left of it; nothing in
    // this process looks into it.
    unsafe { libc::munmap(address as *mut _, size) };
}

fn open(round: &Round, random: &mut SmallRng) {
    let protocol = pick(random, &[0, PROTO_UDP, PROTO_UDP6, PROTO_UDP6, 1, 132]);
    if let Ok(fd) = sys::socket(round.family, protocol) {
        round.keep(fd, random);
    }
}

fn close(round: &Round, random: &mut SmallRng) {
    round.keep(-1, random);
}

fn channel(round: &Round, random: &mut SmallRng) {
    let mut request = ChannelReq {
        flags: pick(random, &[0, 1, 3, 2, 4, 5, 8]),
        frame_size: pick(random, &[512, 2048, 2048, 4096, 65536, 1000, 0]),
        frame_count: pick(random, &[1, 16, 64, 0, u32::MAX]),
        tx_entries: pick(random, &[1, 16, 64, 256, 3, 0]),
        completion_entries: 16,
        fill_entries: 16,
        rx_entries: 16,
        ..ChannelReq::default()
    };
    if random.random_ratio(1, 8) {
        request.reserved[0] = 1;
    }
    let _ = sys::make_channel(round.fd(random), &request);
}

fn join(round: &Round, random: &mut SmallRng) {
    let _ = sys::join(round.fd(random), round.fd(random));
}

fn map(round: &Round, random: &mut SmallRng) {
    let fd = round.fd(random);
    let Ok(layout) = sys::layout(fd) else { return };
    let mut size = layout.region_size as usize;
    if random.random_ratio(1, 4) {
        size = random.random_range(1..2 * size);
    }
    let protection = pick(random, &[1, 2, 3, 3, 3, 0, 7]);
    let flags = pick(
        random,
        &[libc::MAP_SHARED, libc::MAP_SHARED, libc::MAP_PRIVATE],
    ) | pick(random, &[0, 0, libc::MAP_POPULATE, libc::MAP_LOCKED]);
    let offset = pick(random, &[0, 0, 0, 4096, 1 << 40]);
    // SAFETY: A new mapping, which replaces none.
    let address = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, fd, offset) };
    round.add_map(address, size);
}

fn unmap(round: &Round, random: &mut SmallRng) {
    if let Some((address, size)) = round.take_map(random) {
        if random.random() && size > 4096 {
            // The first page only: the rest stays.
            unmap_at(address, 4096);
            round.add_map((address + 4096) as *mut _, size - 4096);
        } else {
            unmap_at(address, size);
        }
    }
}

fn protect(round: &Round, random: &mut SmallRng) {
    let Some((address, size)) = round.take_map(random) else {
        return;
    };
    let part = random.random_range(1..=size);
    let advice = pick(
        random,
        &[
            libc::MADV_DONTNEED,
            libc::MADV_DONTFORK,
            libc::MADV_DOFORK,
            libc::MADV_REMOVE,
            libc::MADV_FREE,
            libc::MADV_HUGEPAGE,
            libc::MADV_PAGEOUT,
            libc::MADV_MERGEABLE,
        ],
    );
    // SAFETY: A mapping of KOPI's, into which nothing in this process looks.
    unsafe {
        match random.random_range(0..4) {
            0 => libc::mprotect(address as *mut _, part, random.random_range(0..8)),
            1 => libc::madvise(address as *mut _, part, advice),
            2 => libc::mlock(address as *const _, part),
            _ => libc::msync(address as *mut _, part, libc::MS_SYNC),
        };
    }
    round.add_map(address as *mut _, size);
}

fn remap(round: &Round, random: &mut SmallRng) {
    let Some((address, size)) = round.take_map(random) else {
        return;
    };
    let new = random.random_range(1..=2 * size);
    let old = if random.random_ratio(1, 8) { 0 } else { size };
    // SAFETY: A mapping of KOPI's, into which nothing in this process looks; it moves to where there
    // is none.
    let moved = unsafe { libc::mremap(address as *mut _, old, new, libc::MREMAP_MAYMOVE) };
    if moved == libc::MAP_FAILED {
        round.add_map(address as *mut _, size);
    } else {
        round.add_map(moved, new);
        if old == 0 {
            round.add_map(address as *mut _, size);
        }
    }
}

fn bind(round: &Round, random: &mut SmallRng) {
    let fd = round.fd(random);
    let _ = sys::bind(fd, &round.name(random));
    if let Ok(port) = sys::port(fd) {
        round.port.store(port.into(), Relaxed);
    }
}

fn connect(round: &Round, random: &mut SmallRng) {
    let mut name = round.name(random);
    if random.random_ratio(1, 4) {
        // AF_UNSPEC: no more.
        name = vec![0; 16];
    }
    let _ = sys::connect(round.fd(random), &name);
}

fn poll(round: &Round, random: &mut SmallRng) {
    sys::poll(round.fd(random), random.random());
}

fn send(round: &Round, random: &mut SmallRng) {
    let mut name = round.name(random);
    let mut data = vec![0u8; random.random_range(0..3000)];
    let mut control = vec![0u8; random.random_range(0..64)];
    random.fill(&mut control[..]);
    let mut part = libc::iovec {
        iov_base: data.as_mut_ptr().cast(),
        iov_len: data.len(),
    };
    // SAFETY: Zeroes are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    if random.random() {
        message.msg_name = name.as_mut_ptr().cast();
        message.msg_namelen = name.len() as u32;
    }
    if random.random_ratio(1, 4) {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = control.len();
    }
    let flags =
        random.random::<i32>() & !libc::MSG_WAITALL | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let flags = if random.random() {
        libc::MSG_DONTWAIT
    } else {
        flags
    };
    // SAFETY: All pointers are to so many bytes.
    unsafe { libc::sendmsg(round.fd(random), &message, flags) };
}

fn receive(round: &Round, random: &mut SmallRng) {
    let mut data = vec![0u8; random.random_range(0..3000)];
    let flags = if random.random() {
        0
    } else {
        random.random::<i32>()
    };
    // SAFETY: The pointer is to so many bytes, and no name is wanted.
    unsafe {
        libc::recv(
            round.fd(random),
            data.as_mut_ptr().cast(),
            data.len(),
            flags | libc::MSG_DONTWAIT,
        );
    }
    if random.random_ratio(1, 16) {
        // SAFETY: Takes no pointers.
        unsafe { libc::shutdown(round.fd(random), random.random_range(0..4)) };
    }
}

fn doorbell(round: &Round, random: &mut SmallRng) {
    let request = pick(
        random,
        &[
            u64::from(IOC_DOORBELL),
            u64::from(IOC_DOORBELL),
            0x541b,
            0x8906,
            0xcb02,
        ],
    );
    let argument = if request == u64::from(IOC_DOORBELL) {
        random.random_range(0..10)
    } else {
        8
    };
    let _ = sys::ioctl(round.fd(random), request, argument);
}

fn option(round: &Round, random: &mut SmallRng) {
    let fd = round.fd(random);
    let level = pick(
        random,
        &[
            SOL_KOPI,
            SOL_KOPI,
            libc::SOL_SOCKET,
            libc::SOL_IP,
            libc::SOL_IPV6,
            libc::SOL_UDP,
        ],
    );
    let name = match level {
        SOL_KOPI => pick(random, &[OPT_INFO, OPT_CHANNEL, OPT_JOIN, OPT_STATS, 0, 5]),
        _ => random.random_range(0..110),
    };
    // Options that would have calls wait.
    if level == libc::SOL_SOCKET && name == libc::SO_LINGER {
        return;
    }
    let mut value = vec![0u8; random.random_range(0..80)];
    match random.random_range(0..3) {
        0 => {
            let _ = sys::get(fd, level, name, &mut value);
        }
        1 => {
            let number: i32 = pick(random, &[0, 1, 2, 4096, -1, 1 << 30]);
            let _ = sys::set(fd, level, name, &number.to_ne_bytes());
        }
        _ => {
            random.fill(&mut value[..]);
            let _ = sys::set(fd, level, name, &value);
        }
    }
}

/// Sends a socket to this very process, where it may stay in flight until the end.
fn pass(round: &Round, random: &mut SmallRng) {
    let mut byte = [0u8; 1];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control = [0u64; 3];
    // SAFETY: Zeroes are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = 24;
    // SAFETY: A control buffer with room for one header and one descriptor.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = 20;
        libc::CMSG_DATA(header)
            .cast::<i32>()
            .write_unaligned(round.fd(random));
        message.msg_controllen = 24;
        libc::sendmsg(round.pair.0, &message, libc::MSG_DONTWAIT);
        if random.random() {
            return;
        }
        message.msg_controllen = 24;
        if libc::recvmsg(round.pair.1, &mut message, libc::MSG_DONTWAIT) == 1
            && message.msg_controllen >= 20
        {
            round.keep(
                libc::CMSG_DATA(libc::CMSG_FIRSTHDR(&message))
                    .cast::<i32>()
                    .read_unaligned(),
                random,
            );
        }
    }
}

fn duplicate(round: &Round, random: &mut SmallRng) {
    // SAFETY: Takes no pointers.
    let fd = unsafe { libc::dup(round.fd(random)) };
    if fd >= 0 {
        round.keep(fd, random);
    }
}

/// A child with all descriptors and mappings, which ends, is killed, or becomes another program.
fn fork(round: &Round, random: &mut SmallRng) {
    if !random.random_ratio(1, 8) {
        return;
    }
    let (fd, end) = (round.fd(random), random.random_range(0..3));
    let program = c"/bin/true";
    let arguments = [program.as_ptr(), ptr::null()];
    // SAFETY: The child makes system calls only, as it must after the fork of a process with threads.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::ioctl(fd, IOC_DOORBELL as libc::Ioctl, 1);
            match end {
                0 => libc::_exit(0),
                1 => libc::kill(libc::getpid(), libc::SIGKILL),
                _ => libc::execv(program.as_ptr(), arguments.as_ptr()),
            };
            libc::_exit(1);
        }
        if child > 0 {
            libc::waitpid(child, ptr::null_mut(), 0);
        }
    }
}
