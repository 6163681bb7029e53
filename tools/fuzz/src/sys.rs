// SPDX-License-Identifier: GPL-2.0

//! System calls whose failure is no surprise.

use kopi::pure::abi::{
    ChannelReq, Join, Layout, Stats, IOC_DOORBELL, OPT_CHANNEL, OPT_JOIN, OPT_STATS, SOL_KOPI,
};
use std::{
    io,
    mem::{size_of, zeroed},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

/// An errno as an error.
pub(crate) fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// While it lives, what this thread waits for in the kernel is interrupted now and then.
pub(crate) struct Interrupted(libc::timer_t);

impl Interrupted {
    pub(crate) fn every(period: Duration) -> io::Result<Self> {
        extern "C" fn nothing(_: i32) {}
        let part = libc::timespec {
            tv_sec: period.as_secs() as i64,
            tv_nsec: period.subsec_nanos().into(),
        };
        let value = libc::itimerspec {
            it_interval: part,
            it_value: part,
        };
        // SAFETY: Zeroes are values of these types, and all pointers are to such. The handler does nothing.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
            check(libc::sigaction(
                libc::SIGALRM,
                &action,
                std::ptr::null_mut(),
            ))?;
            let mut event: libc::sigevent = zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGALRM;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = zeroed();
            check(libc::timer_create(
                libc::CLOCK_MONOTONIC,
                &mut event,
                &mut timer,
            ))?;
            let timer = Self(timer);
            check(libc::timer_settime(
                timer.0,
                0,
                &value,
                std::ptr::null_mut(),
            ))?;
            Ok(timer)
        }
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        // SAFETY: The timer is this object's.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Copies into a mapping that may be protected, without a fault.
pub(crate) fn poke(address: usize, bytes: &[u8]) {
    let from = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let to = libc::iovec {
        iov_base: address as *mut _,
        iov_len: bytes.len(),
    };
    // SAFETY: What is written to is a mapping that the caller keeps, no memory of Rust's; the kernel sees
    // whether it can be written to.
    unsafe { libc::process_vm_writev(libc::getpid(), &from, 1, &to, 1, 0) };
}

/// Reads a word from a mapping that may be protected.
pub(crate) fn peek(address: usize) -> u32 {
    let mut word = 0u32;
    let to = libc::iovec {
        iov_base: std::ptr::from_mut(&mut word).cast(),
        iov_len: 4,
    };
    let from = libc::iovec {
        iov_base: address as *mut _,
        iov_len: 4,
    };
    // SAFETY: As in `poke`; there is room for a word.
    unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
    word
}

/// socket(2), without blocking.
pub(crate) fn socket(family: i32, protocol: i32) -> io::Result<i32> {
    // SAFETY: Takes no pointers.
    check(unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, protocol) })
}

/// socket(2) with SOCK_STREAM, without blocking.
pub(crate) fn stream(family: i32, protocol: i32) -> io::Result<i32> {
    // SAFETY: Takes no pointers.
    check(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, protocol) })
}

/// setsockopt(2), with any bytes.
pub(crate) fn set(fd: i32, level: i32, name: i32, value: &[u8]) -> io::Result<i32> {
    // SAFETY: The pointer is to as many bytes as the length says.
    check(unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), value.len() as u32) })
}

/// getsockopt(2), for as much as there is room.
pub(crate) fn get(fd: i32, level: i32, name: i32, value: &mut [u8]) -> io::Result<u32> {
    let mut len = value.len() as u32;
    // SAFETY: The pointers are to as many bytes as the length says, and to the length.
    check(unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut len) })?;
    Ok(len)
}

/// Makes a channel.
pub(crate) fn make_channel(fd: i32, request: &ChannelReq) -> io::Result<i32> {
    // SAFETY: A struct of integers, which has no padding.
    let bytes = unsafe {
        std::slice::from_raw_parts(
            std::ptr::from_ref(request).cast::<u8>(),
            size_of::<ChannelReq>(),
        )
    };
    set(fd, SOL_KOPI, OPT_CHANNEL, bytes)
}

/// Puts a flow on another's channel.
pub(crate) fn join(fd: i32, other: i32) -> io::Result<i32> {
    let mut bytes = [0; size_of::<Join>()];
    bytes[..4].copy_from_slice(&other.to_ne_bytes());
    set(fd, SOL_KOPI, OPT_JOIN, &bytes)
}

/// What the family answers to an option.
///
/// # Safety
///
/// Any bytes must make a `T`, and it must have no padding.
unsafe fn answer<T: Default>(fd: i32, name: i32) -> io::Result<T> {
    let mut answer = T::default();
    // SAFETY: The caller says that `T` is bytes.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(std::ptr::from_mut(&mut answer).cast::<u8>(), size_of::<T>())
    };
    get(fd, SOL_KOPI, name, bytes)?;
    Ok(answer)
}

/// Where everything lies.
pub(crate) fn layout(fd: i32) -> io::Result<Layout> {
    // SAFETY: A struct of integers without padding.
    unsafe { answer(fd, OPT_CHANNEL) }
}

/// A flow's counters.
pub(crate) fn stats(fd: i32) -> io::Result<Stats> {
    // SAFETY: A struct of 64-bit integers.
    unsafe { answer(fd, OPT_STATS) }
}

/// Rings the doorbell.
pub(crate) fn doorbell(fd: i32, flags: u32) -> io::Result<i32> {
    ioctl(fd, u64::from(IOC_DOORBELL), u64::from(flags))
}

/// ioctl(2) with a number.
pub(crate) fn ioctl(fd: i32, request: u64, argument: u64) -> io::Result<i32> {
    // SAFETY: KOPI's takes a number; others are called with 0 or an address that isn't mapped.
    check(unsafe { libc::ioctl(fd, request as libc::Ioctl, argument) })
}

/// An address of the loopback device.
pub(crate) fn loopback(ipv6: bool) -> IpAddr {
    if ipv6 {
        Ipv6Addr::LOCALHOST.into()
    } else {
        Ipv4Addr::LOCALHOST.into()
    }
}

/// The bytes of a struct sockaddr_in or sockaddr_in6.
pub(crate) fn name(address: SocketAddr) -> Vec<u8> {
    let mut name = Vec::new();
    let family = if address.is_ipv6() {
        libc::AF_INET6
    } else {
        libc::AF_INET
    };
    name.extend((family as u16).to_ne_bytes());
    name.extend(address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(address) => {
            name.extend(address.octets());
            name.extend([0; 8]);
        }
        IpAddr::V6(address) => {
            name.extend([0; 4]);
            name.extend(address.octets());
            name.extend([0; 4]);
        }
    }
    name
}

/// bind(2) to any bytes.
pub(crate) fn bind(fd: i32, name: &[u8]) -> io::Result<i32> {
    // SAFETY: The pointer is to as many bytes as the length says.
    check(unsafe { libc::bind(fd, name.as_ptr().cast(), name.len() as u32) })
}

/// connect(2) to any bytes.
pub(crate) fn connect(fd: i32, name: &[u8]) -> io::Result<i32> {
    // SAFETY: The pointer is to as many bytes as the length says.
    check(unsafe { libc::connect(fd, name.as_ptr().cast(), name.len() as u32) })
}

/// sendto(2) to any bytes, without waiting.
pub(crate) fn send_to(fd: i32, data: &[u8], name: &[u8]) {
    // SAFETY: The pointers are to as many bytes as the lengths say.
    unsafe {
        libc::sendto(
            fd,
            data.as_ptr().cast(),
            data.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            name.as_ptr().cast(),
            name.len() as u32,
        )
    };
}

/// The local port.
pub(crate) fn port(fd: i32) -> io::Result<u16> {
    let mut name = [0u8; 28];
    let mut len = 28;
    // SAFETY: The pointers are to as many bytes as the length says, and to the length.
    check(unsafe { libc::getsockname(fd, name.as_mut_ptr().cast(), &mut len) })?;
    Ok(u16::from_be_bytes([name[2], name[3]]))
}

/// poll(2), without waiting.
pub(crate) fn poll(fd: i32, events: i16) -> i16 {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: One entry.
    unsafe { libc::poll(&mut entry, 1, 0) };
    entry.revents
}

/// close(2).
pub(crate) fn close(fd: i32) {
    // SAFETY: No file of Rust's is among the descriptors that are given here.
    unsafe { libc::close(fd) };
}
