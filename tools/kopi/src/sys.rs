// SPDX-License-Identifier: GPL-2.0

//! The system calls that `std` and `socket2` lack: KOPI's socket options, doorbell and mapping.
//!
//! This and `region` are the only places that know how the kernel is spoken to.

use crate::pure::abi::{
    ChannelReq, Info, Join, Layout, Stats, AF_KOPI, BELL_SEND, BELL_TX, BELL_WAIT_RX, IOC_DOORBELL,
    OPT_INFO, PROTO_UDP, PROTO_UDP6, SOL_KOPI,
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    env, fs, io,
    mem::size_of,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    sync::OnceLock,
    time::Duration,
};

/// Structs of the interface: any bytes make one, and none of theirs is padding.
///
/// # Safety
///
/// The type must be `repr(C)`, of integers only, without padding.
pub(crate) unsafe trait Plain: Copy + Default {}

// SAFETY: `repr(C)`, sixteen `u32`.
unsafe impl Plain for Info {}
// SAFETY: `repr(C)`, sixteen `u32`.
unsafe impl Plain for ChannelReq {}
// SAFETY: `repr(C)`, an `i32` and three `u32`.
unsafe impl Plain for Join {}
// SAFETY: `repr(C)`, a `u64`, six `u32`, and four times eight `u32`.
unsafe impl Plain for Layout {}
// SAFETY: `repr(C)`, sixteen `u64`.
unsafe impl Plain for Stats {}

/// Reads a socket option of KOPI's; what the kernel doesn't know of it is zero.
pub(crate) fn get_option<T: Plain>(fd: RawFd, name: i32) -> io::Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` has room for `len` bytes, and any bytes make a `T`.
    let result = unsafe {
        libc::getsockopt(
            fd,
            SOL_KOPI,
            name,
            std::ptr::from_mut(&mut value).cast(),
            &mut len,
        )
    };
    check(result)?;
    Ok(value)
}

/// Sets a socket option of KOPI's.
pub(crate) fn set_option<T: Plain>(fd: RawFd, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: `value` is of that size, and none of its bytes is padding.
    let result = unsafe {
        libc::setsockopt(
            fd,
            SOL_KOPI,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    check(result).map(drop)
}

/// Rings the doorbell: gives the number of TX descriptors taken.
fn doorbell(fd: RawFd, flags: u32) -> io::Result<u32> {
    // SAFETY: The request takes a number, no pointer.
    let result =
        unsafe { libc::ioctl(fd, IOC_DOORBELL as libc::Ioctl, libc::c_ulong::from(flags)) };
    check(result).map(|taken| taken.unsigned_abs())
}

/// Sets a socket option that is an `int`.
#[cfg(feature = "quinn")]
pub(crate) fn set_int(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: `value` is of that size.
    let result = unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            std::ptr::from_ref(&value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    check(result).map(drop)
}

/// Has the kernel take what is in the TX ring.
pub(crate) fn ring_tx(fd: RawFd) -> io::Result<u32> {
    doorbell(fd, BELL_TX)
}

/// Has the kernel send what is in the TX ring, as sendmmsg(2) on this descriptor.
pub(crate) fn ring_send(fd: RawFd) -> io::Result<u32> {
    doorbell(fd, BELL_TX | BELL_SEND)
}

/// Sleeps until there is something in the RX ring, as the socket's mode and timeout say.
pub(crate) fn wait_rx(fd: RawFd) -> io::Result<()> {
    doorbell(fd, BELL_WAIT_RX).map(drop)
}

/// poll(2) of one descriptor; gives `revents`, 0 after the timeout.
pub(crate) fn poll(fd: RawFd, events: i16, timeout: Option<Duration>) -> io::Result<i16> {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let time = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: One entry, and a time or none; the signal mask stays.
    check(unsafe { libc::ppoll(&mut entry, 1, time, std::ptr::null()) })?;
    Ok(entry.revents)
}

/// Whether the descriptor has O_NONBLOCK.
pub(crate) fn is_nonblocking(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: The request takes no argument.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    Ok(flags & libc::O_NONBLOCK != 0)
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Makes a KOPI socket for IPv4 or IPv6.
pub(crate) fn socket(ipv6: bool) -> io::Result<Socket> {
    let protocol = if ipv6 { PROTO_UDP6 } else { PROTO_UDP };
    open(family()?, protocol)
}

/// Makes a KOPI socket where the number of the family is known.
pub(crate) fn open(family: i32, protocol: i32) -> io::Result<Socket> {
    Socket::new(
        Domain::from(family),
        Type::DGRAM,
        Some(Protocol::from(protocol)),
    )
}

/// The number of AF_KOPI on this machine.
///
/// The environment variable `KOPI_FAMILY` goes first, then what the module says in sysfs, then the
/// default. Which number it is can't be taken on trust, so a socket of it is asked.
pub(crate) fn family() -> io::Result<i32> {
    static FAMILY: OnceLock<i32> = OnceLock::new();
    if let Some(&family) = FAMILY.get() {
        return Ok(family);
    }
    let family = find_family()?;
    Ok(*FAMILY.get_or_init(|| family))
}

fn find_family() -> io::Result<i32> {
    if let Ok(value) = env::var("KOPI_FAMILY") {
        let family = value.trim().parse().map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("KOPI_FAMILY is no number: {value:?}"),
            )
        })?;
        return probe(family).map(|()| family);
    }
    let family = told().unwrap_or(AF_KOPI as i32);
    probe(family).map(|()| family)
}

/// The number that the module says in sysfs: there is none unless it is loaded.
fn told() -> Option<i32> {
    let text = fs::read_to_string("/sys/module/kopi/parameters/family").ok()?;
    text.trim().parse().ok()
}

/// Whether sockets of that family are KOPI's.
fn probe(family: i32) -> io::Result<()> {
    let info: io::Result<Info> =
        open(family, PROTO_UDP).and_then(|socket| get_option(socket.as_raw_fd(), OPT_INFO));
    match info {
        Ok(info) if info.abi_version == crate::pure::abi::ABI_VERSION => Ok(()),
        Ok(info) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "the kopi module speaks version {} of the interface, this program version {}",
                info.abi_version,
                crate::pure::abi::ABI_VERSION
            ),
        )),
        Err(error) if error.raw_os_error().is_some_and(is_absence) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("{} (family {family}: {error})", absence(family, told())),
        )),
        Err(error) => Err(error),
    }
}

/// Why there are no sockets of that family, where the module, if it is loaded, has the `told` one.
fn absence(family: i32, told: Option<i32>) -> String {
    match told {
        None => {
            "the kopi module is not loaded: as root, `modprobe kopi`, or `insmod kopi.ko` where it \
                 was built"
                .to_owned()
        }
        Some(told) if told != family => {
            format!("KOPI_FAMILY is not the number that the kopi module has, {told}")
        }
        // The module would not refuse one.
        Some(_) => "this process may not open KOPI sockets, though the kopi module is loaded: \
                    RestrictAddressFamilies=, seccomp or the like is in the way, of which `kopictl \
                    doctor` says more"
            .to_owned(),
    }
}

/// Whether an errno of socket(2), or of asking a new socket what it is, says that the family isn't there, that it
/// isn't KOPI's, or that something keeps the process from it, for good.
///
/// Only of these two: other calls give EACCES, say, by a rule.
pub fn is_absence(errno: i32) -> bool {
    matches!(
        errno,
        libc::EAFNOSUPPORT
            | libc::EPROTONOSUPPORT
            | libc::ESOCKTNOSUPPORT
            | libc::ENOPROTOOPT
            | libc::EOPNOTSUPP
            | libc::EINVAL
            // Of security modules.
            | libc::EACCES
            | libc::EPERM
            // Of the seccomp filters of containers.
            | libc::ENOSYS
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_module_is_named() {
        // Family 0 has no sockets anywhere.
        let error = probe(0).unwrap_err();
        let expected = absence(0, told());
        assert!(error.to_string().contains(&expected), "{error}");
        assert!(absence(19, None).contains("not loaded: as root, `modprobe kopi`"));
    }

    #[test]
    fn what_is_in_the_way_of_a_loaded_module_is_told_apart() {
        assert!(absence(19, Some(21)).ends_with("has, 21"));
        let kept = absence(19, Some(19));
        assert!(!kept.contains("not loaded"), "{kept}");
        assert!(kept.contains("may not open KOPI sockets"), "{kept}");
    }

    #[test]
    fn what_lasts_is_an_absence() {
        for errno in [libc::EAFNOSUPPORT, libc::EACCES, libc::EPERM, libc::ENOSYS] {
            assert!(is_absence(errno), "{errno}");
        }
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS] {
            assert!(!is_absence(errno), "{errno}");
        }
    }

    #[test]
    fn other_families_are_told_apart() {
        let error = probe(libc::AF_INET).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn poll_of_nothing_times_out() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let ready = poll(
            socket.as_raw_fd(),
            libc::POLLIN,
            Some(Duration::from_millis(1)),
        );
        assert_eq!(ready.unwrap(), 0);
    }
}
