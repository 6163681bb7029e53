// SPDX-License-Identifier: GPL-2.0

//! System calls on KOPI's sockets in any order, from threads that share the descriptors.

mod control;
mod descriptors;
mod hold;
mod messages;
mod post;
mod regions;
mod round;
mod sockets;

use self::round::Round;
use crate::{coverage::Coverage, is_over, pick, random, sys, Run};
use rand::rngs::SmallRng;
use std::{
    fs::File,
    io,
    net::IpAddr,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    ptr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// As much of the slow file as is mapped.
const SLOW: usize = 1 << 39;
/// How long a call may wait at most.
const PATIENCE: [Duration; 3] = [
    Duration::from_millis(30),
    Duration::from_millis(300),
    Duration::from_secs(5),
];

/// What is called, and where.
#[derive(clap::Args)]
pub(crate) struct Calls {
    /// Have sockets at these addresses, and send to them, as to loopback's
    #[arg(long, value_name = "ADDRESS")]
    at: Vec<IpAddr>,

    /// A file whose pages come slowly: calls are given memory of it
    #[arg(long, value_name = "FILE")]
    slow: Option<PathBuf>,

    /// Of sixteen sockets, so many are no flows, but UDP's, TCP's or MPTCP's own
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(..=16))]
    ordinary: u32,
}

const OPERATIONS: [fn(&Round, &mut SmallRng); 29] = [
    sockets::open,
    sockets::open,
    regions::channel,
    regions::join,
    regions::map,
    regions::unmap,
    regions::protect,
    regions::remap,
    sockets::bind,
    sockets::connect,
    sockets::listen,
    sockets::accept,
    sockets::accept,
    messages::poll,
    messages::send,
    messages::send,
    messages::receive,
    control::doorbell,
    control::option,
    control::option,
    control::known_option,
    control::known_option,
    post::post,
    messages::fake,
    hold::hold,
    descriptors::pass,
    descriptors::duplicate,
    descriptors::fork,
    descriptors::close,
];

/// Rounds until the time is over.
pub(crate) fn run(run: &Run, calls: &Calls) -> io::Result<()> {
    let mut places = vec![sys::loopback(false), sys::loopback(true)];
    places.extend(&calls.at);
    let slow = calls.slow.as_deref().map(map_slow).transpose()?;
    let family = kopi::family()?;
    let ordinary = calls.ordinary;
    let mut coverage = Coverage::new(run.coverage.as_deref())?;
    let calls = AtomicU64::new(0);
    let done = run.repeat(|seed, deadline| {
        let patience = pick(&mut random(seed, 0), &PATIENCE);
        let round = Round::new(family, ordinary, &places, slow, patience)?;
        coverage.threads(run.threads, |number| {
            let random = random(seed, number + 1);
            calls.fetch_add(work(&round, random, run.operations / 10, deadline), Relaxed);
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
