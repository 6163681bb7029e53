// SPDX-License-Identifier: GPL-2.0

//! What `kopi run` says to the library, by environment variables, and what the library says.

use crate::real;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU8, Ordering::Relaxed};

/// The number of AF_KOPI; 0 for none.
static FAMILY: AtomicI32 = AtomicI32::new(0);
/// Datagrams that a socket sends before it gets to a channel.
static MIN_DATAGRAMS: AtomicU32 = AtomicU32::new(0);
/// Whether TCP sockets become flows, too.
static TCP: AtomicBool = AtomicBool::new(false);
/// 1: `--verbose`, 2: `--explain`.
static TALK: AtomicU8 = AtomicU8::new(0);
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
    MIN_DATAGRAMS.store(number("KOPI_RUN_MIN_DATAGRAMS").unwrap_or(0), Relaxed);
    TCP.store(number("KOPI_RUN_TCP") == Some(1), Relaxed);
    TALK.store(number("KOPI_RUN_TALK").unwrap_or(0) as u8, Relaxed);
    FAMILY.store(family, Relaxed);
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

/// Datagrams that a socket sends before it gets to a channel.
pub(crate) fn min_datagrams() -> u32 {
    MIN_DATAGRAMS.load(Relaxed)
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
pub(crate) fn say(what: std::fmt::Arguments<'_>) {
    if TALK.load(Relaxed) >= 1 {
        line(what);
    }
}

/// With `--explain`, says something.
pub(crate) fn explain(what: std::fmt::Arguments<'_>) {
    if TALK.load(Relaxed) >= 2 {
        line(what);
    }
}

/// One write, so that lines of several processes stay whole.
fn line(what: std::fmt::Arguments<'_>) {
    let text = format!("kopi run: {}: {what}\n", std::process::id());
    real::keeping_errno(|| {
        let (fd, len) = (libc::STDERR_FILENO.into(), text.len() as libc::c_long);
        // Not by write(), at which a thread may be cancelled. An error has nowhere to go.
        // SAFETY: The text's bytes.
        unsafe {
            real::syscall(
                libc::SYS_write,
                fd,
                text.as_ptr() as libc::c_long,
                len,
                0,
                0,
                0,
            )
        };
    });
}
