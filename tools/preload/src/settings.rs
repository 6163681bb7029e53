// SPDX-License-Identifier: GPL-2.0

//! What `kopi run` says to the library, by environment variables, and what the library says.

use crate::{process, real};
use libc::{c_char, c_int, c_long};
use std::{
    ffi::CStr,
    fmt::{self, Write},
    mem::MaybeUninit,
    sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicU8, Ordering::Relaxed},
};

/// Times that channels are made anew before sockets have to send more for one.
const ANEW_OFTEN: u32 = 16;
/// The most that they have to send then.
const DATAGRAMS_MAX: u32 = 1 << 14;
/// Bytes of a line that is said.
const LINE_MAX: usize = 256;

/// The number of AF_KOPI; 0 for none.
static FAMILY: AtomicI32 = AtomicI32::new(0);
/// Datagrams that a socket sends before it is put on a channel.
static MIN_DATAGRAMS: AtomicU32 = AtomicU32::new(0);
/// Whether TCP sockets become flows, too.
static TCP: AtomicBool = AtomicBool::new(false);
/// 1: `--verbose`, 2: `--explain`.
static TALK: AtomicU8 = AtomicU8::new(0);
/// What standard error was at the start: the file's device and number, or zeroes if it was closed.
static FILE: (AtomicU64, AtomicU64) = (AtomicU64::new(0), AtomicU64::new(0));
/// No further socket becomes a flow, and none sends by a ring.
static STOPPED: AtomicBool = AtomicBool::new(false);

#[used]
#[link_section = ".init_array"]
static INIT: extern "C" fn() = init;

extern "C" fn init() {
    real::keeping_errno(|| {
        // A panic must not leave the library. There is nothing to undo.
        let _ = std::panic::catch_unwind(read);
    });
}

fn number(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.parse().ok()
}

fn read() {
    let Some(family) = number("KOPI_FAMILY").and_then(|family| i32::try_from(family).ok()) else {
        return;
    };
    real::find_all();
    process::start();
    MIN_DATAGRAMS.store(number("KOPI_RUN_MIN_DATAGRAMS").unwrap_or(0), Relaxed);
    TCP.store(number("KOPI_RUN_TCP") == Some(1), Relaxed);
    let (device, file) = file_of(libc::STDERR_FILENO).unwrap_or((0, 0));
    FILE.0.store(device, Relaxed);
    FILE.1.store(file, Relaxed);
    TALK.store(number("KOPI_RUN_TALK").unwrap_or(0) as u8, Relaxed);
    FAMILY.store(family, Relaxed);
    if !real::is_socket_the_c_librarys() {
        stop("another preloaded library has a socket() of its own");
    }
}

/// The number of AF_KOPI, if sockets are to become flows.
pub(crate) fn family() -> Option<i32> {
    let family = FAMILY.load(Relaxed);
    (family != 0 && !is_stopped()).then_some(family)
}

/// Whether TCP sockets are to become flows, too.
pub(crate) fn tcp() -> bool {
    TCP.load(Relaxed)
}

/// Datagrams that a socket sends before it is put on a channel.
pub(crate) fn min_datagrams() -> u32 {
    MIN_DATAGRAMS.load(Relaxed)
}

/// A channel is made anew, since no socket is open any more that was on the last one. Where that happens often, sockets
/// are short-lived, and channels would cost more than they save: each time sockets have to send twice as many for it.
pub(crate) fn count_anew() {
    static TIMES: AtomicU32 = AtomicU32::new(0);
    if TIMES.fetch_add(1, Relaxed) >= ANEW_OFTEN {
        let more = |now: u32| Some(now.max(1).saturating_mul(2).min(DATAGRAMS_MAX.max(now)));
        let _ = MIN_DATAGRAMS.fetch_update(Relaxed, Relaxed, more);
    }
}

/// Whether all that follows is the program's own.
pub(crate) fn is_stopped() -> bool {
    STOPPED.load(Relaxed)
}

/// From now on nothing is done that the program wouldn't do by itself.
pub(crate) fn stop(why: &str) {
    if !STOPPED.swap(true, Relaxed) && FAMILY.load(Relaxed) != 0 {
        say(format_args!("no flows or rings from here on: {why}"));
    }
}

/// With `--verbose` or `--explain`, says something.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    if TALK.load(Relaxed) >= 1 {
        line(what);
    }
}

/// With `--explain`, says something.
pub(crate) fn explain(what: fmt::Arguments<'_>) {
    if TALK.load(Relaxed) >= 2 {
        line(what);
    }
}

/// An errno in words, as perror(3) has them in English. What `std::io::Error` says of it takes memory.
pub(crate) struct Reason(pub(crate) c_int);

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        extern "C" {
            fn strerrordesc_np(error: c_int) -> *const c_char;
        }
        // SAFETY: It takes any number, and gives a constant string or null.
        let words = unsafe {
            let words = strerrordesc_np(self.0);
            (!words.is_null()).then(|| CStr::from_ptr(words))
        };
        if let Some(words) = words.and_then(|words| words.to_str().ok()) {
            write!(out, "{words} ")?;
        }
        write!(out, "(os error {})", self.0)
    }
}

/// A line on the stack: a signal handler can't have other memory. What is too long is cut off.
struct Line {
    text: [u8; LINE_MAX],
    len: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        // The last byte is for the newline.
        let room = LINE_MAX - 1 - self.len;
        let more = &more.as_bytes()[..more.len().min(room)];
        self.text[self.len..self.len + more.len()].copy_from_slice(more);
        self.len += more.len();
        Ok(())
    }
}

/// The file that a descriptor is: its device and number.
fn file_of(fd: c_int) -> Option<(u64, u64)> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: A place for it, which is filled unless the call fails.
    unsafe {
        (libc::fstat(fd, found.as_mut_ptr()) == 0).then(|| {
            let found = found.assume_init();
            (found.st_dev, found.st_ino)
        })
    }
}

/// One write, so that lines of several processes stay whole.
fn line(what: fmt::Arguments<'_>) {
    real::keeping_errno(|| {
        let first = (FILE.0.load(Relaxed), FILE.1.load(Relaxed));
        // A daemon closes its standard error, and its next file or connection has the number.
        if first == (0, 0) || file_of(libc::STDERR_FILENO) != Some(first) {
            return;
        }
        let mut line = Line {
            text: [0; LINE_MAX],
            len: 0,
        };
        let _ = write!(line, "kopi run: {}: {what}", std::process::id());
        line.text[line.len] = b'\n';
        if has_reader() {
            write_line(&line);
        }
    });
}

/// Whether somebody reads standard error, and has room: a line must not block the program, nor end it by SIGPIPE.
fn has_reader() -> bool {
    let mut asked = libc::pollfd {
        fd: libc::STDERR_FILENO,
        events: libc::POLLOUT,
        revents: 0,
    };
    // Not by poll(), at which a thread may be cancelled.
    // SAFETY: A place for the answer.
    let count = unsafe {
        let at = std::ptr::from_mut(&mut asked) as c_long;
        real::syscall(libc::SYS_poll, at, 1, 0, 0, 0, 0)
    };
    count == 1 && asked.revents == libc::POLLOUT
}

/// An error has nowhere to go.
fn write_line(line: &Line) {
    // Not by write(), at which a thread may be cancelled.
    // SAFETY: The line's bytes.
    unsafe {
        real::syscall(
            libc::SYS_write,
            libc::STDERR_FILENO.into(),
            line.text.as_ptr() as c_long,
            line.len as c_long + 1,
            0,
            0,
            0,
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, os::fd::AsRawFd};

    #[test]
    fn long_lines_are_cut_off() {
        let mut line = Line {
            text: [0; LINE_MAX],
            len: 0,
        };
        for _ in 0..LINE_MAX {
            write!(line, "abc and {}", std::hint::black_box(12)).unwrap();
        }
        assert_eq!(line.len, LINE_MAX - 1);
        assert!(line.text.starts_with(b"abc and 12abc"));
    }

    #[test]
    fn reasons_are_those_of_std() {
        for error in [libc::EBUSY, libc::ENOMEM, libc::EMFILE] {
            let std = std::io::Error::from_raw_os_error(error).to_string();
            assert_eq!(Reason(error).to_string(), std);
        }
        assert_eq!(Reason(12345).to_string(), "(os error 12345)");
    }

    #[test]
    fn files_are_told_apart() {
        let open = |name| File::open(name).unwrap();
        let (one, again, other) = (open("/dev/null"), open("/dev/null"), open("/dev/zero"));
        assert_eq!(file_of(one.as_raw_fd()), file_of(again.as_raw_fd()));
        assert_ne!(file_of(one.as_raw_fd()), file_of(other.as_raw_fd()));
        assert_eq!(file_of(-1), None);
    }
}
