// SPDX-License-Identifier: GPL-2.0

//! The functions that this library stands in front of: the C library's, or those of another
//! preloaded library.
//!
//! They may end their thread (pthread_cancel()), so that no value with a destructor, and no
//! catch_unwind(), may be around them.

use libc::{
    c_char, c_int, c_long, c_short, c_uint, c_ulong, c_void, iovec, mmsghdr, msghdr, size_t,
    ssize_t,
};
use std::{
    mem::MaybeUninit,
    sync::atomic::{AtomicPtr, Ordering::Relaxed},
    time::Duration,
};

/// Sets errno.
pub(crate) fn set_errno(error: c_int) {
    // SAFETY: The place of the thread's errno.
    unsafe { *libc::__errno_location() = error };
}

/// The thread's errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: The place of the thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Runs something without a trace in errno.
pub(crate) fn keeping_errno<R>(run: impl FnOnce() -> R) -> R {
    let before = errno();
    let result = run();
    set_errno(before);
    result
}

mod cancellation {
    use libc::c_int;

    pub(super) const DISABLE: c_int = 1;

    extern "C-unwind" {
        pub(super) fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
        pub(super) fn pthread_testcancel();
    }
}

/// Runs something during which the thread isn't cancelled. What closes a descriptor of the library's, or
/// catches panics, would else be where that happens: it can't pass through catch_unwind().
pub(crate) fn without_cancellation<R>(run: impl FnOnce() -> R) -> R {
    let mut before = 0;
    // SAFETY: A place for the state.
    unsafe { cancellation::pthread_setcancelstate(cancellation::DISABLE, &mut before) };
    let result = run();
    // SAFETY: The state that was there. The place may be null.
    unsafe { cancellation::pthread_setcancelstate(before, std::ptr::null_mut()) };
    result
}

mod waiting {
    use libc::{c_int, nfds_t, pollfd, sigset_t, timespec};

    extern "C-unwind" {
        pub(super) fn ppoll(
            asked: *mut pollfd,
            count: nfds_t,
            timeout: *const timespec,
            mask: *const sigset_t,
        ) -> c_int;
    }
}

/// A time as the C library takes it.
fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Waits until a socket can be written to, or has an error, for as long as is said. Gives the events; `None` if a
/// signal has ended it, also one whose handler has SA_RESTART. The thread may be cancelled here.
pub(crate) fn poll_writable(fd: c_int, timeout: Duration) -> Option<c_short> {
    let mut asked = libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: A place for the answer, and a time; the mask of signals stays.
    let count = unsafe { waiting::ppoll(&mut asked, 1, &timespec(timeout), std::ptr::null()) };
    (count >= 0).then_some(asked.revents)
}

/// Sleeps for as long as is said; whether no signal has ended it. The thread may be cancelled here.
pub(crate) fn sleep(time: Duration) -> bool {
    // SAFETY: Nothing is asked about; a time; the mask of signals stays.
    let count =
        unsafe { waiting::ppoll(std::ptr::null_mut(), 0, &timespec(time), std::ptr::null()) };
    count == 0
}

/// Runs something during which no signal is handled. A handler that leaves by siglongjmp() would leave locks
/// locked, and the thread as [`without_cancellation`] has it.
pub(crate) fn without_signals<R>(run: impl FnOnce() -> R) -> R {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: Places for sets of signals, which are filled. The C library keeps those that it uses itself.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = run();
    // SAFETY: The set that was there.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

/// Ends the thread here if it is to be cancelled: no value with a destructor may be alive.
pub(crate) fn test_cancellation() {
    // SAFETY: Callable wherever a thread may end.
    unsafe { cancellation::pthread_testcancel() };
}

fn find(at: &AtomicPtr<c_void>, name: *const c_char) -> *mut c_void {
    let known = at.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: A string that ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
    at.store(found, Relaxed);
    found
}

/// Whether socket() is the C library's. Another preloaded library that has one decides about sockets of IP, or does
/// something to them, as torsocks does: it would not know what a flow is.
pub(crate) fn is_socket_the_c_librarys() -> bool {
    // SAFETY: Strings that end with a zero. The C library stays loaded.
    unsafe {
        let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        library.is_null()
            || libc::dlsym(library, c"socket".as_ptr()) == find(&at::socket, c"socket".as_ptr())
    }
}

macro_rules! real {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// Where they are.
        #[allow(non_upper_case_globals)]
        mod at {
            use super::{c_void, AtomicPtr};
            $(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)*
        }

        $(
            /// The next one of that name; ENOSYS if there is none.
            ///
            /// # Safety
            ///
            /// As for that function.
            pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
                let at = find(&at::$name, concat!(stringify!($name), "\0").as_ptr().cast());
                if at.is_null() {
                    set_errno(libc::ENOSYS);
                    return -1;
                }
                // SAFETY: The function of that name has these arguments. The rest is the caller's.
                unsafe {
                    let real: unsafe extern "C-unwind" fn($($type),*) -> $result =
                        std::mem::transmute(at);
                    real($($argument),*)
                }
            }
        )*

        /// Finds all of them, so that a signal handler needn't.
        pub(crate) fn find_all() {
            $(find(&at::$name, concat!(stringify!($name), "\0").as_ptr().cast());)*
        }
    };
}

real! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(from: c_int, to: c_int) -> c_int;
    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    fn send(fd: c_int, data: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn sendto(
        fd: c_int,
        data: *const c_void,
        len: size_t,
        flags: c_int,
        name: *const libc::sockaddr,
        name_len: libc::socklen_t
    ) -> ssize_t;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn write(fd: c_int, data: *const c_void, len: size_t) -> ssize_t;
    fn writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    fn syscall(
        number: c_long,
        a: c_long,
        b: c_long,
        c: c_long,
        d: c_long,
        e: c_long,
        f: c_long
    ) -> c_long;
}
