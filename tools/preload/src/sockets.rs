// SPDX-License-Identifier: GPL-2.0

//! The functions that make, copy and close descriptors.

use crate::{
    process,
    real::{self, errno, keeping_errno},
    settings,
    table::{self, Slot},
};
use kopi::pure::abi::{
    Info, ABI_VERSION, OPT_INFO, PROTO_TCP, PROTO_TCP6, PROTO_UDP, PROTO_UDP6, SOL_KOPI,
};
use libc::{c_int, c_uint, c_ulong};
use std::{
    mem::{size_of, MaybeUninit},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

/// What of a socket's type is not a flag.
const TYPE_MASK: c_int = 0xf;

/// A socket that can be a flow.
#[derive(Clone, Copy)]
struct Wanted {
    tcp: bool,
    ipv6: bool,
}

impl Wanted {
    fn of(domain: c_int, kind: c_int, protocol: c_int) -> Option<Self> {
        let ipv6 = match domain {
            libc::AF_INET => false,
            libc::AF_INET6 => true,
            _ => return None,
        };
        let tcp = match (kind & TYPE_MASK, protocol) {
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => false,
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) if settings::tcp() => true,
            _ => return None,
        };
        Some(Self { tcp, ipv6 })
    }

    /// The protocol, as AF_KOPI calls it.
    fn protocol(self) -> c_int {
        match (self.tcp, self.ipv6) {
            (false, false) => PROTO_UDP,
            (false, true) => PROTO_UDP6,
            (true, false) => PROTO_TCP,
            (true, true) => PROTO_TCP6,
        }
    }

    fn name(self) -> &'static str {
        if self.tcp {
            "TCP"
        } else {
            "UDP"
        }
    }

    /// Makes a flow, or says that it can't be.
    fn flow(self, kind: c_int) -> Option<c_int> {
        let family = settings::family()?;
        if !is_kopi(family) {
            return None;
        }
        // SAFETY: A new socket.
        let fd = unsafe { real::socket(family, kind, self.protocol()) };
        let name = self.name();
        if fd < 0 {
            let error = errno();
            let reason = settings::Reason(error);
            settings::explain(format_args!("an ordinary {name} socket: {reason}"));
            return None;
        }
        if self.tcp {
            settings::explain(format_args!("socket {fd}: a TCP flow"));
            note(fd, Slot::Other);
        } else {
            process::begin();
            let ipv6 = self.ipv6;
            note(fd, Slot::Flow { ipv6, sent: 0 });
        }
        Some(fd)
    }
}

/// Whether sockets of the family are KOPI's: of the first one, one is asked.
fn is_kopi(family: c_int) -> bool {
    static KNOWN: AtomicBool = AtomicBool::new(false);
    if KNOWN.load(Relaxed) {
        return true;
    }
    match ask(family) {
        Ok(version) if version == ABI_VERSION => {
            KNOWN.store(true, Relaxed);
            return true;
        }
        // There is no memory or no descriptor just now. The next socket may be a flow.
        Err(error) if !kopi::is_absence(error) => settings::explain(format_args!(
            "an ordinary socket: {}",
            settings::Reason(error)
        )),
        // For good.
        _ => settings::stop("this process gets no KOPI sockets, but ordinary ones"),
    }
    false
}

/// The version of the interface that the family's sockets speak, or an errno. By functions that a signal
/// handler may call, and at which no thread is cancelled.
fn ask(family: c_int) -> Result<u32, c_int> {
    // SAFETY: A new socket.
    let fd = unsafe { real::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, PROTO_UDP) };
    if fd < 0 {
        return Err(errno());
    }
    let version = info(fd).map(|info| info.abi_version);
    // SAFETY: The socket is this function's.
    unsafe { real::syscall(libc::SYS_close, fd.into(), 0, 0, 0, 0, 0) };
    version
}

/// What a flow says of itself, or an errno.
fn info(fd: c_int) -> Result<Info, c_int> {
    let mut info = Info::default();
    let mut len = size_of::<Info>() as libc::socklen_t;
    let at = std::ptr::from_mut(&mut info).cast();
    // SAFETY: `info` has room for `len` bytes, and any bytes make one.
    let got = unsafe { libc::getsockopt(fd, SOL_KOPI, OPT_INFO, at, &mut len) };
    if got < 0 {
        return Err(errno());
    }
    Ok(info)
}

/// The number of a flow on its channel, if it is on one.
pub(crate) fn number(fd: c_int) -> Option<u32> {
    info(fd)
        .ok()
        .and_then(|info| (info.has_channel == 1).then_some(info.flow))
}

/// An option of a descriptor's socket, at SOL_SOCKET.
fn socket_option<T: Copy>(fd: c_int, option: c_int) -> Option<T> {
    let mut answer = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    let at = answer.as_mut_ptr().cast();
    // SAFETY: There is room for `len` bytes. Callers ask for numbers, of which any bytes make one.
    unsafe {
        (libc::getsockopt(fd, libc::SOL_SOCKET, option, at, &mut len) == 0)
            .then(|| answer.assume_init())
    }
}

/// The number that no other socket has or will have; `None` if the descriptor is no socket.
pub(crate) fn cookie(fd: c_int) -> Option<u64> {
    socket_option(fd, libc::SO_COOKIE)
}

/// Whether calls of the descriptor wait for room in the send buffer.
pub(crate) fn waits_for_room(fd: c_int) -> bool {
    // SAFETY: It takes no argument.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_NONBLOCK == 0
}

/// How long a call waits for room: SO_SNDTIMEO. `None`: as long as it takes.
pub(crate) fn send_timeout(fd: c_int) -> Option<Duration> {
    let time: libc::timeval = socket_option(fd, libc::SO_SNDTIMEO)?;
    let (seconds, micros) = (time.tv_sec.try_into().ok()?, time.tv_usec.try_into().ok()?);
    let time = Duration::from_secs(seconds) + Duration::from_micros(micros);
    (!time.is_zero()).then_some(time)
}

/// Whether a send buffer has room for a message: sock_alloc_send_pskb() asks for no more (net/core/sock.c, 7.3.4).
pub(crate) fn has_room(fd: c_int) -> bool {
    let mut used: c_int = 0;
    // SAFETY: The place for the answer.
    let known = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &mut used) } == 0;
    known && socket_option::<c_int>(fd, libc::SO_SNDBUF).is_some_and(|size| used < size)
}

/// Notes what a descriptor of this process is from now on.
fn note(fd: c_int, what: Slot) {
    if table::get(fd) != what && process::is_own() {
        table::set(fd, what);
    }
}

/// socket(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn socket(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    if let Some(wanted) = Wanted::of(domain, kind, protocol) {
        if let Some(fd) = keeping_errno(|| wanted.flow(kind)) {
            return fd;
        }
    }
    // SAFETY: The caller's arguments.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    note(fd, Slot::Other);
    fd
}

/// close(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // Before the number is another file's.
    note(fd, Slot::Other);
    // SAFETY: The caller's arguments.
    unsafe { real::close(fd) }
}

/// close_range(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn close_range(
    first: c_uint,
    last: c_uint,
    flags: c_int,
) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 && process::is_own() {
        table::forget(first, last);
    }
    // SAFETY: The caller's arguments.
    unsafe { real::close_range(first, last, flags) }
}

/// Notes a copy of a descriptor, which stands for the same socket; gives it.
fn note_copy(from: c_int, to: c_int) -> c_int {
    if to >= 0 && to != from {
        note(to, table::get(from));
    }
    to
}

/// dup(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: The caller's arguments.
    note_copy(fd, unsafe { real::dup(fd) })
}

/// dup2(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: The caller's arguments.
    note_copy(from, unsafe { real::dup2(from, to) })
}

/// dup3(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: The caller's arguments.
    note_copy(from, unsafe { real::dup3(from, to, flags) })
}

/// Notes the copy that fcntl() has made, if it was to make one; gives its result.
fn after_fcntl(fd: c_int, command: c_int, result: c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => note_copy(fd, result),
        _ => result,
    }
}

/// fcntl(2).
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn fcntl(
    fd: c_int,
    command: c_int,
    argument: c_ulong,
) -> c_int {
    // SAFETY: The caller's arguments.
    after_fcntl(fd, command, unsafe { real::fcntl(fd, command, argument) })
}

/// fcntl(2), as programs with 64-bit offsets call it.
///
/// # Safety
///
/// As there.
#[no_mangle]
pub(crate) unsafe extern "C-unwind" fn fcntl64(
    fd: c_int,
    command: c_int,
    argument: c_ulong,
) -> c_int {
    // SAFETY: The caller's arguments.
    after_fcntl(fd, command, unsafe { real::fcntl64(fd, command, argument) })
}
