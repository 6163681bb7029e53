// SPDX-License-Identifier: GPL-2.0

//! What a process has from its parent that Rust changes before main(): SIGPIPE, which it ignores, and standard
//! descriptors that are closed, which it opens. The program is to have both as they were.

use libc::c_int;
use std::{
    io,
    os::unix::process::CommandExt,
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

const STANDARD: [c_int; 3] = [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO];

static IGNORED: AtomicBool = AtomicBool::new(false);
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

#[used]
#[link_section = ".init_array"]
static INIT: extern "C" fn() = note;

/// Notes it, before Rust has its turn.
extern "C" fn note() {
    // SAFETY: A place for the action, which is all zeroes at first, and numbers.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action);
        IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Relaxed);
        for (fd, closed) in STANDARD.iter().zip(&CLOSED) {
            closed.store(libc::fcntl(*fd, libc::F_GETFD) < 0, Relaxed);
        }
    }
}

/// Has a program be this process, with what was inherited. Returns only why it can't be.
pub(crate) fn exec(command: &mut Command) -> io::Error {
    // SAFETY: The calls are those that a child may make.
    unsafe { command.pre_exec(restore) }.exec()
}

fn restore() -> io::Result<()> {
    // SAFETY: Numbers. Nothing of this process uses what is closed.
    unsafe {
        if IGNORED.load(Relaxed) {
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        }
        for (fd, closed) in STANDARD.iter().zip(&CLOSED) {
            if closed.load(Relaxed) {
                libc::close(*fd);
            }
        }
    }
    Ok(())
}
