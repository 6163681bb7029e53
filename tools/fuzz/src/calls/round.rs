// SPDX-License-Identifier: GPL-2.0

//! A round: sockets and mappings that its threads share, and the addresses that they use.

use super::{
    regions::{unmap_at, Map},
    SLOW,
};
use crate::{options, pick, raw::Raw, sys, PORTS};
use rand::{rngs::SmallRng, Rng};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed},
        RwLock,
    },
    time::Duration,
};

const SLOTS: usize = 12;

/// What the threads of a round share. A slot is -1 while it has nothing.
pub(super) struct Round<'a> {
    pub(super) family: i32,
    /// So many of 16 sockets are IP's own.
    pub(super) ordinary: u32,
    /// The addresses of sockets, and of what they send.
    pub(super) at: &'a [IpAddr],
    /// Where memory is whose pages come late, if there is such.
    pub(super) slow: Option<usize>,
    pub(super) raw: Raw,
    pub(super) patience: Duration,
    fds: [AtomicI32; SLOTS],
    maps: RwLock<Vec<Map>>,
    /// Ports that sockets were bound to, to send to.
    pub(super) port: AtomicUsize,
    /// To pass descriptors through.
    pub(super) pair: (i32, i32),
}

impl<'a> Round<'a> {
    pub(super) fn new(
        family: i32,
        ordinary: u32,
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
            ordinary,
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
    pub(super) fn fd(&self, random: &mut SmallRng) -> i32 {
        pick_slot(&self.fds, random).load(Relaxed)
    }

    /// Puts a descriptor in a slot, and closes what was there.
    pub(super) fn keep(&self, fd: i32, random: &mut SmallRng) {
        let old = pick_slot(&self.fds, random).swap(fd, Relaxed);
        if old >= 0 {
            sys::close(old);
        }
    }

    /// Takes a mapping away from the others.
    pub(super) fn take_map(&self, random: &mut SmallRng) -> Option<Map> {
        let mut maps = self.maps.write().ok()?;
        if maps.is_empty() {
            return None;
        }
        let at = random.random_range(0..maps.len());
        Some(maps.swap_remove(at))
    }

    /// Calls a function with one of them, which stays mapped meanwhile: what lies there next may be
    /// memory of Rust's, such as a thread's stack.
    pub(super) fn with_map(&self, random: &mut SmallRng, act: impl FnOnce(&Map, &mut SmallRng)) {
        let Ok(maps) = self.maps.read() else { return };
        if !maps.is_empty() {
            act(&maps[random.random_range(0..maps.len())], random);
        }
    }

    pub(super) fn add_map(&self, map: Map) {
        if let Ok(mut maps) = self.maps.write() {
            maps.push(map);
        }
    }

    pub(super) fn address(&self, random: &mut SmallRng) -> SocketAddr {
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

    pub(super) fn name(&self, random: &mut SmallRng) -> Vec<u8> {
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
    pub(super) fn would_hold_rtnl(&self, level: i32, name: i32) -> bool {
        self.slow.is_some() && options::holds_rtnl(level, name)
    }

    /// Where the bytes are, or, now and then, where pages come late.
    pub(super) fn or_slow(&self, bytes: *mut u8, random: &mut SmallRng) -> *mut libc::c_void {
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
