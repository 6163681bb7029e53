// SPDX-License-Identifier: GPL-2.0

//! A hostile process, for tests: it shares rings with the kernel and keeps to no rule.
//!
//! What each thread does follows from the seed alone; how threads interleave does not.

use clap::{Args, Parser, Subcommand};
use rand::{rngs::SmallRng, Rng, SeedableRng};
use std::{
    net::IpAddr,
    ops::Range,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

mod calls;
mod coverage;
mod host;
mod options;
mod raw;
mod rings;
mod shared;
mod sys;
mod wire;

/// Of flows that another process, or a host, is to find.
const PORTS: Range<u16> = 9200..9208;

/// Does to KOPI what no program should, repeatably.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  kopi-fuzz rings --seconds 60               # prints its seed
  kopi-fuzz rings --seed 7 --rounds 1        # that round again
  kopi-fuzz rings --near 192.0.2.1 --far 192.0.2.2    # by a NIC
  kopi-fuzz rings --coverage /tmp/reached    # on a kernel with KCOV

Exit status: 0 at the end, 2 after an error of its own. Whether the kernel stood
it, its log says, and the processes beside this one."
)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Scribble over all that is shared: indices, flags, descriptors, metadata, frames
    Rings {
        #[command(flatten)]
        run: Run,

        #[command(flatten)]
        ends: Ends,
    },
    /// Call what sockets have, from several threads, on the same few descriptors
    Calls {
        #[command(flatten)]
        run: Run,

        #[command(flatten)]
        calls: calls::Calls,
    },
    /// Send to flows, by raw sockets, what no host should
    Host {
        #[command(flatten)]
        run: Run,

        #[command(flatten)]
        ends: Ends,
    },
    /// Send frames of all kinds to a flow and to a UDP socket, and compare what they are told
    Frames {
        #[command(flatten)]
        run: Run,

        #[command(flatten)]
        wire: wire::Wire,
    },
}

/// Sources and destinations of packets; one address of each version of IP.
#[derive(Args)]
struct Ends {
    /// Have flows at this address, and not at loopback's
    #[arg(long, value_name = "ADDRESS")]
    near: Vec<IpAddr>,

    /// Send to this one, too, where another such process is
    #[arg(long, value_name = "ADDRESS", requires = "near")]
    far: Vec<IpAddr>,
}

/// How long, and from which seed.
#[derive(Args, Clone)]
struct Run {
    /// Seed of the first round; each round's is one more (default: from the clock)
    #[arg(long)]
    seed: Option<u64>,

    /// End after this many seconds
    #[arg(long, default_value_t = 10)]
    seconds: u64,

    /// End after this many rounds
    #[arg(long)]
    rounds: Option<u64>,

    /// Threads that work at the same time
    #[arg(long, default_value_t = 4)]
    threads: u64,

    /// What each thread does in a round, a number of operations
    #[arg(long, default_value_t = 2000)]
    operations: u64,

    /// Write the module's instructions that were reached, by KCOV, as offsets
    #[arg(long, value_name = "FILE")]
    coverage: Option<PathBuf>,
}

impl Run {
    /// Calls `round` with the seed of each round until the time is over, and with that moment, at which
    /// its threads stop.
    fn repeat(
        &self,
        mut round: impl FnMut(u64, Option<Instant>) -> std::io::Result<()>,
    ) -> std::io::Result<Done> {
        let first = self.seed.unwrap_or_else(|| {
            std::time::UNIX_EPOCH
                .elapsed()
                .map_or(1, |since| since.as_secs())
        });
        println!("seed {first}");
        let start = Instant::now();
        let end = start + Duration::from_secs(self.seconds);
        // A round that was asked for is done to its end, as it was the first time.
        let deadline = self.rounds.is_none().then_some(end);
        let mut done = 0;
        while Instant::now() < end && self.rounds.is_none_or(|rounds| done < rounds) {
            round(first.wrapping_add(done), deadline).map_err(|error| {
                std::io::Error::other(format!("seed {}: {error}", first.wrapping_add(done)))
            })?;
            done += 1;
        }
        Ok(Done {
            seed: first,
            rounds: done,
            seconds: start.elapsed().as_secs(),
        })
    }
}

/// What was run.
struct Done {
    seed: u64,
    rounds: u64,
    seconds: u64,
}

impl Done {
    /// Says it in a line of JSON, which `qemu/runs` keeps, with what it came to.
    fn tell(&self, counts: &[(&str, u64)]) {
        let Self {
            seed,
            rounds,
            seconds,
        } = self;
        let counts: Vec<_> = counts
            .iter()
            .map(|(what, count)| format!("\"{what}\": {count}"))
            .collect();
        println!(
            "run: {{\"seed\": {seed}, \"rounds\": {rounds}, \"seconds\": {seconds}, \"counts\": {{{}}}}}",
            counts.join(", ")
        );
    }
}

/// Whether a round's time is over.
fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// The numbers of one thread in one round.
fn random(seed: u64, thread: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ thread)
}

/// One of them.
fn pick<T: Copy>(random: &mut SmallRng, from: &[T]) -> T {
    from[random.random_range(0..from.len())]
}

fn main() -> ExitCode {
    let result = match Options::parse().command {
        Command::Rings { run, ends } => rings::run(&run, &ends),
        Command::Calls { run, calls } => calls::run(&run, &calls),
        Command::Host { run, ends } => host::run(&run, &ends),
        Command::Frames { run, wire } => wire::run(&run, &wire),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kopi-fuzz: {error}");
            ExitCode::from(2)
        }
    }
}
