// SPDX-License-Identifier: GPL-2.0

//! Instructions that the machine executed, idle time left out.
//!
//! Under `-icount shift=0,sleep=off` the guest's clock advances a nanosecond with each instruction of
//! its one CPU, so the time that passed is the number of instructions. So that idle time counts in
//! instructions, too, a thread of the class SCHED_IDLE counts loops whenever nothing else runs; how
//! many instructions a loop is comes from an interval in which nothing else does.

use std::{
    arch::asm,
    io,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Loops of the idle thread.
static LOOPS: AtomicU64 = AtomicU64::new(0);
/// How many nanoseconds a loop of two instructions may take: more are no instructions, or a machine
/// that isn't idle.
const PER_LOOP: std::ops::Range<f64> = 1.99..2.05;

/// How often that is tried.
const TRIES: u32 = 10;

/// Instructions that do nothing, and tell `qemu/count.c` what is measured.
#[derive(Clone, Copy)]
enum Mark {
    /// A row begins.
    Row,
    /// So does what is taken out of rows.
    Cost,
    End,
}

fn mark(mark: Mark) {
    // SAFETY: Does nothing.
    unsafe {
        match mark {
            Mark::Row => asm!("nop dword ptr [rax + 0x6b6f7001]", options(nomem, nostack)),
            Mark::Cost => asm!("nop dword ptr [rax + 0x6b6f7002]", options(nomem, nostack)),
            Mark::End => asm!("nop dword ptr [rax + 0x6b6f7003]", options(nomem, nostack)),
        }
    }
}

/// Time and loops at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    time: Instant,
    loops: u64,
}

impl Moment {
    fn now() -> Self {
        Self {
            time: Instant::now(),
            loops: LOOPS.load(Ordering::Relaxed),
        }
    }
}

/// Counts the instructions between two moments.
pub(crate) struct Clock {
    per_loop: f64,
}

impl Clock {
    /// Starts the idle thread, and finds out what its loops are worth.
    pub(crate) fn new() -> io::Result<Self> {
        thread::spawn(idle);
        // Something may be running yet that the machine's start has left.
        let mut tries = 0;
        loop {
            tries += 1;
            match calibrated([idle_loop(), idle_loop()]) {
                Ok(per_loop) => return Ok(Self { per_loop }),
                Err(error) if tries == TRIES => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Instructions of one loop of the idle thread, those of the timer's ticks among them.
    pub(crate) fn per_loop(&self) -> f64 {
        self.per_loop
    }

    /// Instructions of each of a number of calls.
    pub(crate) fn each(
        &self,
        calls: u32,
        mut call: impl FnMut() -> io::Result<()>,
    ) -> io::Result<f64> {
        mark(Mark::Cost);
        let start = Moment::now();
        for _ in 0..calls {
            call()?;
        }
        Ok(self.since(start) / f64::from(calls))
    }

    /// Begins to count.
    pub(crate) fn start(&self) -> Moment {
        mark(Mark::Row);
        Moment::now()
    }

    /// Instructions since `start` that weren't idle ones.
    pub(crate) fn since(&self, start: Moment) -> f64 {
        let end = Moment::now();
        mark(Mark::End);
        busy(
            (end.time - start.time).as_nanos() as f64,
            end.loops - start.loops,
            self.per_loop,
        )
    }
}

/// Nanoseconds of a loop while nothing else runs: for so long that there are many of the timer's
/// ticks, which are then left out of idle time.
fn idle_loop() -> f64 {
    let start = Moment::now();
    thread::sleep(Duration::from_millis(200));
    let end = Moment::now();
    (end.time - start.time).as_nanos() as f64 / (end.loops - start.loops) as f64
}

/// What of `elapsed` wasn't spent in the idle thread.
fn busy(elapsed: f64, loops: u64, per_loop: f64) -> f64 {
    elapsed - loops as f64 * per_loop
}

/// The value of a loop, if both measurements are right and agree.
fn calibrated(seen: [f64; 2]) -> io::Result<f64> {
    let per_loop = (seen[0] + seen[1]) / 2.0;
    if !seen.iter().all(|each| PER_LOOP.contains(each)) {
        return Err(io::Error::other(format!(
            "a loop of two instructions took {} and {} ns: this needs qemu/vm --icount, and a machine \
             that does nothing else",
            seen[0], seen[1]
        )));
    }
    if (seen[0] - seen[1]).abs() > per_loop / 1000.0 {
        return Err(io::Error::other(format!(
            "loops of the idle thread took {} and {} ns: something else is running",
            seen[0], seen[1]
        )));
    }
    Ok(per_loop)
}

/// Counts loops whenever nothing else has something to do. bench/functions.py knows it by its name.
#[inline(never)]
fn idle() {
    // SAFETY: Zeroes are a valid `sched_param`, the only one for this class.
    let status = unsafe {
        let param: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &param)
    };
    assert_eq!(status, 0, "no SCHED_IDLE: {}", io::Error::last_os_error());
    // SAFETY: Only adds to the counter, which lives for ever and is written nowhere else; an aligned
    // addition is read whole. Ends with the process.
    unsafe {
        asm!(
            "2:",
            "inc qword ptr [{counter}]",
            "jmp 2b",
            counter = in(reg) LOOPS.as_ptr(),
            options(noreturn, nostack),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_loops_are_left_out() {
        assert_eq!(busy(1000.0, 0, 2.0), 1000.0);
        assert_eq!(busy(1000.0, 400, 2.0), 200.0);
        assert_eq!(busy(1000.0, 400, 2.5), 0.0);
    }

    #[test]
    fn calibration_is_of_two_that_agree() {
        assert_eq!(calibrated([2.004, 2.006]).unwrap(), 2.005);
        assert!(calibrated([2.0, 2.01]).is_err());
    }

    #[test]
    fn a_clock_that_counts_no_instructions_is_refused() {
        assert!(calibrated([1.1, 1.1]).is_err());
        assert!(calibrated([2.3, 2.3]).is_err());
        assert!(calibrated([f64::NAN, 2.0]).is_err());
        assert!(calibrated([f64::INFINITY, 2.0]).is_err());
    }
}
