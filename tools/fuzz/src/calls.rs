// SPDX-License-Identifier: GPL-2.0

//! System calls on KOPI's sockets in any order, from threads that share the descriptors.

use crate::{coverage::Coverage, is_over, options, pick, random, raw::Raw, sys, Run, PORTS};
use kopi::pure::abi::{
    ChannelReq, Layout, RingLayout, CHANNEL_ENGINE, CHANNEL_TX_ONLY, DESC_META, IOC_DOORBELL,
    OPT_CHANNEL, OPT_INFO, OPT_JOIN, OPT_STATS, PROTO_TCP, PROTO_TCP6, PROTO_UDP, PROTO_UDP6,
    SOL_KOPI,
};
use rand::{rngs::SmallRng, Rng};
use std::{
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsRawFd,
    path::Path,
    ptr,
    sync::{
        atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed},
        RwLock,
    },
    thread,
    time::Duration,
};

const SLOTS: usize = 12;
/// As much of the slow file as is mapped.
const SLOW: usize = 1 << 39;
/// How long a call may wait at most.
const PATIENCE: [Duration; 3] = [
    Duration::from_millis(30),
    Duration::from_millis(300),
    Duration::from_secs(5),
];

/// A mapping of a channel's region, into which nobody looks but the kernel. While it is in a round's
/// list, all of it is mapped.
#[derive(Clone, Copy)]
struct Map {
    address: usize,
    size: usize,
    layout: Layout,
    /// Of the flow by which it was mapped, unless that has been closed.
    fd: i32,
}

/// What the threads of a round share. A slot is -1 while it has nothing.
struct Round<'a> {
    family: i32,
    /// The addresses of sockets, and of what they send.
    at: &'a [IpAddr],
    /// Where memory is whose pages come late, if there is such.
    slow: Option<usize>,
    raw: Raw,
    patience: Duration,
    fds: [AtomicI32; SLOTS],
    maps: RwLock<Vec<Map>>,
    /// Ports that sockets were bound to, to send to.
    port: AtomicUsize,
    /// To pass descriptors through.
    pair: (i32, i32),
}

const OPERATIONS: [fn(&Round, &mut SmallRng); 29] = [
    open,
    open,
    channel,
    join,
    map,
    unmap,
    protect,
    remap,
    bind,
    connect,
    listen,
    accept,
    accept,
    poll,
    send,
    send,
    receive,
    doorbell,
    option,
    option,
    known_option,
    known_option,
    post,
    fake,
    hold,
    pass,
    duplicate,
    fork,
    close,
];

/// Rounds until the time is over.
pub(crate) fn run(run: &Run, at: &[IpAddr], slow: Option<&Path>) -> io::Result<()> {
    let family = kopi::family()?;
    let mut places = vec![sys::loopback(false), sys::loopback(true)];
    places.extend(at);
    let slow = slow.map(map_slow).transpose()?;
    let mut coverage = Coverage::new(run.coverage.as_deref())?;
    let calls = AtomicU64::new(0);
    let done = run.repeat(|seed, deadline| {
        let patience = pick(&mut random(seed, 0), &PATIENCE);
        let round = Round::new(family, &places, slow, patience)?;
        thread::scope(|scope| {
            let workers: Vec<_> = (0..run.threads)
                .map(|number| {
                    let (round, trace, calls) = (&round, coverage.tracer(), &calls);
                    let record = move || {
                        let random = random(seed, number + 1);
                        calls
                            .fetch_add(work(round, random, run.operations / 10, deadline), Relaxed);
                    };
                    scope.spawn(move || match trace {
                        Some(trace) => trace.record(record),
                        None => {
                            record();
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
    done.tell(&[("calls", calls.into_inner())]);
    coverage.save()
}

/// Maps the slow file, for as long as the process lives.
fn map_slow(path: &Path) -> io::Result<usize> {
    let file = File::open(path)?;
    // SAFETY: A new mapping, which replaces none.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            SLOW,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(address as usize)
}

/// Gives the number of calls that were made.
fn work(
    round: &Round,
    mut random: SmallRng,
    operations: u64,
    deadline: Option<std::time::Instant>,
) -> u64 {
    let Ok(_interrupted) = sys::Interrupted::every(round.patience) else {
        return 0;
    };
    for done in 0..operations {
        if is_over(deadline) {
            return done;
        }
        pick(&mut random, &OPERATIONS)(round, &mut random);
    }
    operations
}

impl<'a> Round<'a> {
    fn new(
        family: i32,
        at: &'a [IpAddr],
        slow: Option<usize>,
        patience: Duration,
    ) -> io::Result<Self> {
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
            at,
            slow,
            raw: Raw::open(),
            patience,
            fds: [const { AtomicI32::new(-1) }; SLOTS],
            maps: RwLock::new(Vec::new()),
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
    fn take_map(&self, random: &mut SmallRng) -> Option<Map> {
        let mut maps = self.maps.write().ok()?;
        if maps.is_empty() {
            return None;
        }
        let at = random.random_range(0..maps.len());
        Some(maps.swap_remove(at))
    }

    /// Calls a function with one of them, which stays mapped meanwhile: what lies there next may be
    /// memory of Rust's, such as a thread's stack.
    fn with_map(&self, random: &mut SmallRng, act: impl FnOnce(&Map, &mut SmallRng)) {
        let Ok(maps) = self.maps.read() else { return };
        if !maps.is_empty() {
            act(&maps[random.random_range(0..maps.len())], random);
        }
    }

    fn add_map(&self, map: Map) {
        if let Ok(mut maps) = self.maps.write() {
            maps.push(map);
        }
    }

    fn address(&self, random: &mut SmallRng) -> SocketAddr {
        let port = match random.random_range(0..4) {
            0 => 0,
            1 => random.random_range(PORTS),
            _ => self.port.load(Relaxed) as u16,
        };
        let ip = if random.random_ratio(1, 4) {
            pick(
                random,
                &[
                    Ipv4Addr::UNSPECIFIED.into(),
                    Ipv6Addr::UNSPECIFIED.into(),
                    Ipv4Addr::BROADCAST.into(),
                    Ipv4Addr::new(224, 0, 0, 1).into(),
                    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into(),
                    Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(),
                    Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().into(),
                ],
            )
        } else {
            pick(random, self.at)
        };
        SocketAddr::new(ip, port)
    }

    fn name(&self, random: &mut SmallRng) -> Vec<u8> {
        let mut name = sys::name(self.address(random));
        if random.random_ratio(1, 8) {
            // AF_UNSPEC, with an address.
            name[..2].fill(0);
        }
        if random.random_ratio(1, 16) {
            let at = random.random_range(0..name.len());
            name[at] = random.random();
        }
        if random.random_ratio(1, 16) {
            name.truncate(random.random_range(0..name.len()));
        }
        name
    }

    /// Whether an option would have others wait for RTNL, as long as memory comes late.
    fn would_hold_rtnl(&self, level: i32, name: i32) -> bool {
        self.slow.is_some() && options::holds_rtnl(level, name)
    }

    /// Where the bytes are, or, now and then, where pages come late.
    fn or_slow(&self, bytes: *mut u8, random: &mut SmallRng) -> *mut libc::c_void {
        match self.slow {
            Some(slow) if random.random_ratio(1, 256) => {
                let page = random.random_range(1..SLOW / 4096 - 1) * 4096;
                // Across two pages, or in one.
                (slow + page - pick(random, &[0, 4, 100])) as *mut _
            }
            _ => bytes.cast(),
        }
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        for slot in &self.fds {
            let fd = slot.load(Relaxed);
            if fd >= 0 {
                sys::close(fd);
            }
        }
        sys::close(self.pair.0);
        sys::close(self.pair.1);
        if let Ok(maps) = self.maps.read() {
            for map in maps.iter() {
                unmap_at(map.address, map.size);
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
    let is_stream = random.random_ratio(1, 3);
    let protocol = if is_stream {
        pick(random, &[0, PROTO_TCP, PROTO_TCP6, PROTO_TCP6, 132])
    } else {
        pick(random, &[0, PROTO_UDP, PROTO_UDP6, PROTO_UDP6, 1, 132])
    };
    // One of IP's own among them, with which they may meet.
    let (family, protocol) = match random.random_range(0..16) {
        0 => (libc::AF_INET, 0),
        1 => (libc::AF_INET6, 0),
        _ => (round.family, protocol),
    };
    let made = if is_stream {
        sys::stream(family, protocol)
    } else {
        sys::socket(family, protocol)
    };
    if let Ok(fd) = made {
        if random.random_ratio(1, 4) {
            // SAFETY: Takes no pointers.
            unsafe { libc::fcntl(fd, libc::F_SETFL, 0) };
        }
        round.keep(fd, random);
    }
}

fn close(round: &Round, random: &mut SmallRng) {
    round.keep(-1, random);
}

fn channel(round: &Round, random: &mut SmallRng) {
    let mut request = ChannelReq {
        flags: pick(random, &[0, 1, 2, 3, 6, 8, 9, 15, 4, 16]),
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
    let protection = pick(random, &[1, 2, 3, 3, 3, 0, 7]);
    let flags = pick(
        random,
        &[libc::MAP_SHARED, libc::MAP_SHARED, libc::MAP_PRIVATE],
    ) | pick(random, &[0, 0, libc::MAP_POPULATE, libc::MAP_LOCKED]);
    let offset = pick(random, &[0, 0, 0, 4096, 1 << 40]);
    let odd = random.random_ratio(1, 4);
    let fd = round.fd(random);
    map_as(round, fd, protection, flags, offset, |size| {
        if odd {
            random.random_range(1..2 * size)
        } else {
            size
        }
    });
}

/// Maps the flow's region, of which `size` says how much.
fn map_as(
    round: &Round,
    fd: i32,
    protection: i32,
    flags: i32,
    offset: i64,
    size: impl FnOnce(usize) -> usize,
) {
    let Ok(layout) = sys::layout(fd) else { return };
    let size = size(layout.region_size as usize);
    // SAFETY: A new mapping, which replaces none.
    let address = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, fd, offset) };
    if address != libc::MAP_FAILED {
        round.add_map(Map {
            address: address as usize,
            size,
            layout,
            fd,
        });
    }
}

fn unmap(round: &Round, random: &mut SmallRng) {
    let Some(map) = round.take_map(random) else {
        return;
    };
    if random.random() && map.size > 4096 {
        // The first page only: the rest stays.
        unmap_at(map.address, 4096);
        round.add_map(Map {
            address: map.address + 4096,
            size: map.size - 4096,
            ..map
        });
    } else {
        unmap_at(map.address, map.size);
    }
}

fn protect(round: &Round, random: &mut SmallRng) {
    let Some(map) = round.take_map(random) else {
        return;
    };
    let (address, size) = (map.address, map.size);
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
    round.add_map(map);
}

fn remap(round: &Round, random: &mut SmallRng) {
    let Some(map) = round.take_map(random) else {
        return;
    };
    let (address, size) = (map.address, map.size);
    let new = random.random_range(1..=2 * size);
    let old = if random.random_ratio(1, 8) { 0 } else { size };
    // SAFETY: A mapping of KOPI's, into which nothing in this process looks; it moves to where there
    // is none.
    let moved = unsafe { libc::mremap(address as *mut _, old, new, libc::MREMAP_MAYMOVE) };
    if moved != libc::MAP_FAILED {
        round.add_map(Map {
            address: moved as usize,
            size: new,
            ..map
        });
    }
    if moved == libc::MAP_FAILED || old == 0 {
        round.add_map(map);
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

fn listen(round: &Round, random: &mut SmallRng) {
    // SAFETY: Takes no pointers.
    unsafe { libc::listen(round.fd(random), pick(random, &[0, 1, 16, -1])) };
}

fn accept(round: &Round, random: &mut SmallRng) {
    let fd = round.fd(random);
    let flags = pick(random, &[libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC, 0]);
    let (mut name, mut len) = ([0u8; 28], 28);
    let address = round.or_slow(name.as_mut_ptr(), random);
    // SAFETY: The pointers are to as many bytes as said, of this function's or of the slow file's mapping.
    let made = unsafe { libc::accept4(fd, address.cast(), &mut len, flags) };
    if made >= 0 {
        round.keep(made, random);
    }
}

fn poll(round: &Round, random: &mut SmallRng) {
    sys::poll(round.fd(random), random.random());
}

/// Flags of a call: any, one bit, one of those that the call has, or none; seldom without MSG_DONTWAIT.
fn flags(random: &mut SmallRng, usual: &[i32]) -> i32 {
    let flags = match random.random_range(0..4) {
        0 => random.random(),
        1 => 1 << random.random_range(0..31),
        2 => pick(random, usual),
        _ => 0,
    };
    if random.random_ratio(31, 32) {
        flags | libc::MSG_DONTWAIT
    } else {
        flags
    }
}

/// A message of one part, and nothing else.
fn message_of(part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: Zeroes are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message
}

fn send(round: &Round, random: &mut SmallRng) {
    let mut name = round.name(random);
    let size = match random.random_range(0..8) {
        0 => random.random_range(0..65536),
        _ => random.random_range(0..3000),
    };
    let mut data = vec![0u8; size];
    let mut control = if random.random() {
        options::messages(random)
    } else {
        let mut bytes = vec![0u8; random.random_range(0..64)];
        random.fill(&mut bytes[..]);
        bytes
    };
    let mut part = libc::iovec {
        iov_base: round.or_slow(data.as_mut_ptr(), random),
        iov_len: data.len(),
    };
    let mut message = message_of(&mut part);
    if random.random() {
        message.msg_name = round.or_slow(name.as_mut_ptr(), random);
        message.msg_namelen = name.len() as u32;
    }
    if random.random() {
        message.msg_control = round.or_slow(control.as_mut_ptr(), random);
        message.msg_controllen = control.len();
    }
    let usual = [
        libc::MSG_MORE,
        libc::MSG_OOB,
        libc::MSG_ZEROCOPY,
        libc::MSG_FASTOPEN,
    ];
    let flags = flags(random, &usual);
    // SAFETY: All pointers are to as many bytes as said, of this function's or of the slow file's mapping.
    unsafe { libc::sendmsg(round.fd(random), &message, flags | libc::MSG_NOSIGNAL) };
}

fn receive(round: &Round, random: &mut SmallRng) {
    let mut data = vec![0u8; random.random_range(0..3000)];
    let mut name = [0u8; 28];
    let mut control = [0u64; 32];
    let usual = [libc::MSG_ERRQUEUE, libc::MSG_PEEK, libc::MSG_TRUNC];
    let flags = flags(random, &usual);
    let mut part = libc::iovec {
        iov_base: round.or_slow(data.as_mut_ptr(), random),
        iov_len: data.len(),
    };
    let mut message = message_of(&mut part);
    if random.random() {
        message.msg_name = name.as_mut_ptr().cast();
        message.msg_namelen = random.random_range(0..=28);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = random.random_range(0..=256);
    }
    // SAFETY: All pointers are to as many bytes as said, of this function's or of the slow file's mapping.
    unsafe { libc::recvmsg(round.fd(random), &mut message, flags) };
    if random.random_ratio(1, 16) {
        // SAFETY: Takes no pointers.
        unsafe { libc::shutdown(round.fd(random), random.random_range(0..4)) };
    }
}

/// What a well-behaved program writes into the rings: datagrams to send, frames to receive in.
fn post(round: &Round, random: &mut SmallRng) {
    let to = round.address(random);
    let mut fd = None;
    round.with_map(random, |map, random| {
        for _ in 0..random.random_range(1..8) {
            map.post(to, random);
        }
        fd = Some(map.fd);
    });
    if let Some(fd) = fd {
        let _ = sys::doorbell(fd, 1);
    }
}

impl Map {
    /// One datagram to send, and one frame to receive in.
    fn post(&self, to: SocketAddr, random: &mut SmallRng) {
        let layout = &self.layout;
        let (tx, fill) = (&layout.tx, &layout.fill);
        let frame = |number: u32| layout.frames + number % layout.frame_count * layout.frame_size;
        let entry = |ring: &RingLayout, index: u32| {
            ring.entries + (index & (ring.size - 1)) * ring.entry_size
        };
        let at = frame(random.random());
        self.poke(at, &meta(to));
        let index = self.peek(tx.producer);
        let len = random.random_range(0..layout.frame_size - 64);
        let mut desc = [0u8; 16];
        desc[..4].copy_from_slice(&(at + 64).to_ne_bytes());
        desc[4..8].copy_from_slice(&len.to_ne_bytes());
        desc[12..14].copy_from_slice(&pick(random, &[0, DESC_META]).to_ne_bytes());
        self.poke(entry(tx, index), &desc);
        self.poke(tx.producer, &index.wrapping_add(1).to_ne_bytes());
        let index = self.peek(fill.producer);
        let address = u64::from(frame(random.random()));
        self.poke(entry(fill, index), &address.to_ne_bytes());
        self.poke(fill.producer, &index.wrapping_add(1).to_ne_bytes());
    }

    /// Writes at this offset in bytes, unless the mapping ends before.
    fn poke(&self, offset: u32, bytes: &[u8]) {
        if offset as usize + bytes.len() <= self.size {
            sys::poke(self.address + offset as usize, bytes);
        }
    }

    /// A word at this offset in bytes, or 0 if the mapping ends before.
    fn peek(&self, offset: u32) -> u32 {
        if offset as usize + size_of::<u32>() <= self.size {
            sys::peek(self.address + offset as usize)
        } else {
            0
        }
    }
}

/// A descriptor's meta header with a destination.
fn meta(to: SocketAddr) -> [u8; 64] {
    let mut meta = [0u8; 64];
    let name = sys::name(to);
    let (ip, family) = if to.is_ipv6() {
        (&name[8..24], libc::AF_INET6 as u16)
    } else {
        (&name[4..8], libc::AF_INET as u16)
    };
    meta[..ip.len()].copy_from_slice(ip);
    meta[32..34].copy_from_slice(&to.port().to_be_bytes());
    meta[36..38].copy_from_slice(&family.to_ne_bytes());
    meta
}

/// A datagram that no socket sends, to one of them.
fn fake(round: &Round, random: &mut SmallRng) {
    for _ in 0..random.random_range(1..10) {
        let (from, to) = (round.address(random), round.address(random));
        round.raw.send(from, to, random);
    }
}

/// Has a socket locked for as long as the thread has patience: its buffer is full of what a slow
/// device keeps, or its payload is where pages come late.
fn hold(round: &Round, random: &mut SmallRng) {
    if !random.random_ratio(1, 16) {
        return;
    }
    let Ok(fd) = sys::socket(round.family, 0) else {
        return;
    };
    let _ = sys::set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &[0; 4]);
    let data = [0u8; 500];
    let first = random.random_range(0..round.at.len());
    for &ip in round.at[first..].iter().chain(&round.at[..first]) {
        let _ = sys::connect(fd, &sys::name(SocketAddr::new(ip, 9)));
        // Not for ever: most devices aren't slow.
        let full = (0..20).any(|_| {
            // SAFETY: The pointer is to as many bytes as the length says.
            let sent = unsafe { libc::send(fd, data.as_ptr().cast(), 500, libc::MSG_DONTWAIT) };
            sent < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
        });
        if full {
            break;
        }
    }
    // On a channel, of which others have flows.
    let _ = sys::join(fd, round.fd(random)).or_else(|_| {
        let request = ChannelReq {
            frame_size: 2048,
            frame_count: 16,
            tx_entries: 16,
            completion_entries: 16,
            fill_entries: 16,
            rx_entries: 16,
            flags: pick(random, &[0, CHANNEL_ENGINE, CHANNEL_TX_ONLY]),
            ..ChannelReq::default()
        };
        sys::make_channel(fd, &request)
    });
    map_as(round, fd, 3, libc::MAP_SHARED, 0, |size| size);
    // SAFETY: Takes no pointers.
    unsafe { libc::fcntl(fd, libc::F_SETFL, 0) };
    round.keep(fd, random);
    let from = match round.slow {
        Some(slow) if random.random() => {
            (slow + random.random_range(0..SLOW / 4096 - 1) * 4096) as *const _
        }
        _ => data.as_ptr().cast(),
    };
    // SAFETY: The pointer is to as many bytes as said, of this function's or of the slow file's mapping.
    unsafe { libc::send(fd, from, 500, libc::MSG_MORE | libc::MSG_NOSIGNAL) };
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
        random.random_range(0..18)
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
    if level == libc::SOL_SOCKET && name == libc::SO_LINGER || round.would_hold_rtnl(level, name) {
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

/// An option with a value that it takes, or nearly; given in memory whose pages come late, now and then.
fn known_option(round: &Round, random: &mut SmallRng) {
    let (level, name, mut value) = options::option(random);
    if round.would_hold_rtnl(level, name) {
        return;
    }
    let fd = round.fd(random);
    let mut len = value.len() as u32;
    let at = round.or_slow(value.as_mut_ptr(), random);
    // SAFETY: The pointers are to as many bytes as said, of this function's or of the slow file's mapping, and
    // to their number.
    unsafe {
        if random.random_ratio(1, 4) {
            libc::getsockopt(fd, level, name, at, &mut len);
        } else {
            libc::setsockopt(fd, level, name, at, len);
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
    let mut message = message_of(&mut part);
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
            while libc::waitpid(child, ptr::null_mut(), 0) < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
    }
}
