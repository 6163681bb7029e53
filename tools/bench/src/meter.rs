// SPDX-License-Identifier: GPL-2.0

//! What sending costs until the last packet has left, in runs that must agree.

use crate::{
    clock::Clock,
    nic::{Count, Nic},
    row::{agreed, mean_of_last},
};
use std::{
    fs, io, thread,
    time::{Duration, Instant},
};

/// How often something is run until two runs after each other agree.
const RUNS_MAX: usize = 4;
/// Between two looks at the NIC's counters.
const NAP: Duration = Duration::from_micros(100);
/// How long packets may take to leave.
const PATIENCE: Duration = Duration::from_secs(1);
/// Looks at the NIC's counters from which their cost is had.
const LOOKS: u32 = 32;

/// Counts what sending by a NIC costs.
pub(crate) struct Meter {
    nic: Nic,
    clock: Clock,
    /// Instructions of a look at the NIC's counters and a nap.
    cost_of_look: f64,
}

/// What the runs have shown.
pub(crate) struct Runs {
    /// Instructions per packet, the mean of the last two, which agree.
    pub(crate) mean: f64,
    /// Instructions per packet, of each.
    pub(crate) each: Vec<f64>,
    /// How often the program slept.
    pub(crate) sleeps: u64,
    /// What left, by the NIC's own count.
    pub(crate) left: Count,
}

impl Meter {
    pub(crate) fn open(nic: &str) -> io::Result<Self> {
        let nic = Nic::open(nic)?;
        let clock = Clock::new()?;
        let cost_of_look = clock.each(LOOKS, || {
            nic.sent()?;
            thread::sleep(NAP);
            Ok(())
        })?;
        eprintln!(
            "# an idle loop is {:.4} instructions, a look at the NIC's counters {cost_of_look:.0}",
            clock.per_loop()
        );
        Ok(Self {
            nic,
            clock,
            cost_of_look,
        })
    }

    /// The NIC.
    pub(crate) fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Has a number of packets sent, again and again until two runs agree. `expected` is what the NIC has to
    /// count of a run; nothing if it counts none of them, and `send` ends when they have left.
    pub(crate) fn runs(
        &self,
        packets: usize,
        expected: Option<Count>,
        mut send: impl FnMut() -> io::Result<()>,
    ) -> io::Result<Runs> {
        let mut each = Vec::new();
        let mut sleeps = 0;
        let mut left = Count {
            packets: 0,
            bytes: 0,
        };
        // Now and then the kernel has something else to do in between; all runs are shown.
        while each.len() < 2 || (agreed(&each[each.len() - 2..]).is_none() && each.len() < RUNS_MAX)
        {
            let (instructions, slept) = self.run(expected, &mut send)?;
            each.push(instructions / packets as f64);
            sleeps += slept;
            if let Some(expected) = expected {
                left.packets += expected.packets;
                left.bytes += expected.bytes;
            }
        }
        Ok(Runs {
            mean: mean_of_last(&each, "a packet")?,
            each,
            sleeps,
            left,
        })
    }

    /// Has packets sent until the NIC has sent what is expected, as above: gives instructions, and how often
    /// the program slept.
    pub(crate) fn run(
        &self,
        expected: Option<Count>,
        send: &mut impl FnMut() -> io::Result<()>,
    ) -> io::Result<(f64, u64)> {
        let before = self.nic.sent()?;
        let slept = sleeps();
        let start = self.clock.start();
        send()?;
        let sleeps = sleeps() - slept;
        let Some(expected) = expected else {
            return Ok((self.clock.since(start), sleeps));
        };
        let deadline = Instant::now() + PATIENCE;
        let mut looks = 0;
        let left = loop {
            let left = self.nic.sent()?.since(before);
            looks += 1;
            if left.packets >= expected.packets || Instant::now() > deadline {
                break left;
            }
            thread::sleep(NAP);
        };
        let instructions = self.clock.since(start) - f64::from(looks) * self.cost_of_look;
        if left != expected {
            return Err(io::Error::other(format!(
                "of {expected:?} the NIC sent {left:?}"
            )));
        }
        Ok((instructions, sleeps))
    }
}

/// The kernel's release.
pub(crate) fn kernel() -> io::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(text.trim().to_owned())
}

/// How often this thread has slept.
pub(crate) fn sleeps() -> u64 {
    // SAFETY: Zeroes are a valid place to write to.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    usage.ru_nvcsw as u64
}
