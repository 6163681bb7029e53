// SPDX-License-Identifier: GPL-2.0

//! A host on the wire that sends to flows what no host should.

use crate::{pick, random, raw::Raw, sys, Ends, Run, PORTS};
use rand::{rngs::SmallRng, Rng};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

/// Between two bursts: others have the CPU, too.
const PAUSE: Duration = Duration::from_millis(5);
const BURST: u32 = 20;

/// Rounds until the time is over.
pub(crate) fn run(run: &Run, ends: &Ends) -> io::Result<()> {
    let raw = Raw::open();
    let done = run.repeat(|seed, _| {
        let random = &mut random(seed, 0);
        // A valid one, which can be coalesced to GSO packets.
        let plain = sys::socket(
            pick(random, &[libc::AF_INET, libc::AF_INET6]),
            libc::IPPROTO_UDP,
        )?;
        let size = random.random_range(1..1200);
        let _ = sys::set(
            plain,
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            &i32::to_ne_bytes(size),
        );
        let gso = vec![0; size as usize * random.random_range(1..20)];
        for _ in 0..run.operations / u64::from(BURST) {
            for _ in 0..BURST {
                let (near, far) = ends.pair(random);
                let from = SocketAddr::new(near, random.random());
                raw.send(
                    from,
                    SocketAddr::new(far, random.random_range(PORTS)),
                    random,
                );
            }
            let to = SocketAddr::new(ends.pair(random).1, random.random_range(PORTS));
            sys::send_to(plain, &gso, &sys::name(to));
            thread::sleep(PAUSE);
        }
        sys::close(plain);
        Ok(())
    })?;
    println!("{} rounds", done.rounds);
    Ok(())
}

impl Ends {
    /// Two ends of the same version.
    fn pair(&self, random: &mut SmallRng) -> (IpAddr, IpAddr) {
        let near = if self.near.is_empty() {
            sys::loopback(random.random())
        } else {
            pick(random, &self.near)
        };
        let fitting: Vec<_> = self
            .far
            .iter()
            .copied()
            .filter(|far| far.is_ipv6() == near.is_ipv6())
            .collect();
        let far = if fitting.is_empty() {
            near
        } else {
            pick(random, &fitting)
        };
        (near, far)
    }
}
