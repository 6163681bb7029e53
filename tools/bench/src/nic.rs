// SPDX-License-Identifier: GPL-2.0

//! What a NIC has sent and received, and its address; other namespaces.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::Path,
};

/// What has left, or come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl Count {
    /// What has gone since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            packets: self.packets - earlier.packets,
            bytes: self.bytes - earlier.bytes,
        }
    }
}

/// A network device of this namespace.
pub(crate) struct Nic {
    name: String,
    index: u32,
    counters: File,
}

impl Nic {
    /// The device of this name.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        let c_name = CString::new(name)?;
        // SAFETY: A string with its end.
        let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::other(format!("no device {name}")));
        }
        Ok(Self {
            name: name.to_owned(),
            index,
            counters: File::open("/proc/thread-self/net/dev")?,
        })
    }

    /// Its number.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// What it has sent.
    pub(crate) fn sent(&self) -> io::Result<Count> {
        self.count(8)
    }

    /// What it has received.
    pub(crate) fn received(&self) -> io::Result<Count> {
        self.count(0)
    }

    fn count(&self, column: usize) -> io::Result<Count> {
        let mut buffer = [0; 4096];
        let len = self.counters.read_at(&mut buffer, 0)?;
        parse(&String::from_utf8_lossy(&buffer[..len]), &self.name, column)
            .ok_or_else(|| io::Error::other(format!("no counters of {}", self.name)))
    }

    /// Its Ethernet address.
    pub(crate) fn mac(&self, socket: &impl AsRawFd) -> io::Result<[u8; 6]> {
        // SAFETY: Zeroes are a valid request, whose name has room and an end; the kernel fills in
        // the address, which is of bytes.
        unsafe {
            let mut request: libc::ifreq = std::mem::zeroed();
            for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes().take(15)) {
                *to = from as libc::c_char;
            }
            if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &mut request) != 0 {
                return Err(io::Error::last_os_error());
            }
            let address = request.ifr_ifru.ifru_hwaddr.sa_data;
            Ok(std::array::from_fn(|at| address[at] as u8))
        }
    }
}

/// Does something in another network namespace.
pub(crate) fn within<T>(netns: &Path, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let home = File::open("/proc/thread-self/ns/net")?;
    enter(&File::open(netns)?)?;
    let done = act();
    enter(&home)?;
    done
}

fn enter(netns: &File) -> io::Result<()> {
    // SAFETY: Concerns nothing but which namespace this thread makes things in.
    match unsafe { libc::setns(netns.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A line of /proc/net/dev: eight columns of what was received, then those of what was sent.
fn parse(text: &str, name: &str, column: usize) -> Option<Count> {
    let columns = text.lines().find_map(|line| {
        let (device, columns) = line.split_once(':')?;
        (device.trim() == name).then_some(columns)
    })?;
    let mut columns = columns.split_ascii_whitespace().skip(column);
    Some(Count {
        bytes: columns.next()?.parse().ok()?,
        packets: columns.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_of_the_device() {
        let text = "Inter-|   Receive  |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo:       1       2    3    4    5     6          7         8        9       10   11
  eth2:     100       2    0    0    0     0          0         0     5300       50    0
";
        let count = parse(text, "eth2", 8).unwrap();
        assert_eq!((count.packets, count.bytes), (50, 5300));
        let received = parse(text, "eth2", 0).unwrap();
        assert_eq!((received.packets, received.bytes), (2, 100));
        assert_eq!(parse(text, "lo", 8).unwrap().packets, 10);
        assert_eq!(parse(text, "eth", 8), None);
        let earlier = Count {
            packets: 20,
            bytes: 300,
        };
        assert_eq!(
            (count.since(earlier).packets, count.since(earlier).bytes),
            (30, 5000)
        );
    }
}
