// SPDX-License-Identifier: GPL-2.0

//! Which of the module's instructions were reached, by KCOV.
//!
//! See the kernel's Documentation/dev-tools/kcov.rst.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    ops::Range,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};

const KCOV_INIT_TRACE: u64 = 0x8008_6301;
const KCOV_ENABLE: u64 = 0x6364;
const KCOV_DISABLE: u64 = 0x6365;
/// Instructions that one thread can note in a round.
const WORDS: usize = 1 << 20;

/// What was reached so far.
pub(crate) struct Coverage {
    file: Option<PathBuf>,
    module: Range<u64>,
    reached: BTreeSet<u64>,
}

/// Has one thread's instructions noted.
struct Tracer {
    module: Range<u64>,
}

impl Coverage {
    /// Of the module that is loaded; nothing is noted without a file.
    pub(crate) fn new(file: Option<&Path>) -> io::Result<Self> {
        let mut module = 0..0;
        if file.is_some() {
            let start = fs::read_to_string("/sys/module/kopi/sections/.text")?;
            let start = u64::from_str_radix(start.trim().trim_start_matches("0x"), 16)
                .map_err(io::Error::other)?;
            let size: u64 = fs::read_to_string("/sys/module/kopi/coresize")?
                .trim()
                .parse()
                .map_err(io::Error::other)?;
            module = start..start + size;
        }
        Ok(Self {
            file: file.map(Path::to_owned),
            module,
            reached: BTreeSet::new(),
        })
    }

    /// Does the work of threads `0..count`, and notes what they reach.
    pub(crate) fn threads(&mut self, count: u64, work: impl Fn(u64) + Sync) -> io::Result<()> {
        let work = &work;
        thread::scope(|scope| {
            let workers: Vec<_> = (0..count)
                .map(|number| {
                    let trace = self.tracer();
                    scope.spawn(move || match trace {
                        Some(trace) => trace.record(|| work(number)),
                        None => {
                            work(number);
                            Ok(Vec::new())
                        }
                    })
                })
                .collect();
            for worker in workers {
                let reached = worker
                    .join()
                    .map_err(|_| io::Error::other("a thread panicked"))??;
                self.reached.extend(reached);
            }
            Ok(())
        })
    }

    /// For a thread that starts, if anything is to be noted.
    fn tracer(&self) -> Option<Tracer> {
        self.file.as_ref().map(|_| Tracer {
            module: self.module.clone(),
        })
    }

    /// Writes it, an offset from the start of .text a line.
    pub(crate) fn save(&self) -> io::Result<()> {
        let Some(path) = &self.file else {
            return Ok(());
        };
        let mut file = File::create(path)?;
        for address in &self.reached {
            writeln!(file, "{:x}", address - self.module.start)?;
        }
        println!("{} places reached", self.reached.len());
        Ok(())
    }
}

impl Tracer {
    /// Does the work, and gives the module's instructions that this thread reached by it.
    fn record(&self, work: impl FnOnce()) -> io::Result<Vec<u64>> {
        let file = File::options()
            .read(true)
            .write(true)
            .open("/sys/kernel/debug/kcov")?;
        let control = |request, argument| crate::sys::ioctl(file.as_raw_fd(), request, argument);
        control(KCOV_INIT_TRACE, WORDS as u64)?;
        // SAFETY: A new mapping, which replaces none.
        let area = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                WORDS * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if area == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: So many words are mapped, and aligned, until the end of this function.
        let words = unsafe { std::slice::from_raw_parts(area.cast::<AtomicU64>(), WORDS) };
        control(KCOV_ENABLE, 0)?;
        words[0].store(0, Relaxed);
        work();
        let count = words[0].load(Relaxed) as usize;
        control(KCOV_DISABLE, 0)?;
        let reached: BTreeSet<u64> = words[1..=count.min(WORDS - 1)]
            .iter()
            .map(|word| word.load(Relaxed))
            .filter(|address| self.module.contains(address))
            .collect();
        // SAFETY: It was mapped above, and `words` isn't used any more.
        unsafe { libc::munmap(area, WORDS * 8) };
        Ok(reached.into_iter().collect())
    }
}
