// SPDX-License-Identifier: GPL-2.0

//! A program's file as the kernel knows it: by device and inode. What stat() says differs where files
//! are of several layers or volumes, as on overlayfs and btrfs.

use std::{
    fs::{self, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::Path,
};

/// Device and inode of a file.
pub(super) fn identify(path: &Path) -> io::Result<(u32, u64)> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path)?;
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let inode = field(&about, "ino").and_then(|inode| inode.parse().ok());
    let device = field(&about, "mnt_id").and_then(|mount| device(&mounts, mount));
    device
        .zip(inode)
        .ok_or_else(|| io::Error::other("its device and inode can't be found in /proc"))
}

/// A field of /proc/PID/fdinfo/FD.
fn field<'a>(about: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = about.lines().filter_map(|line| line.split_once(':'));
    fields.find_map(|(key, value)| (key == name).then(|| value.trim()))
}

/// The device of a mount by its number, of /proc/PID/mountinfo.
fn device(mounts: &str, number: &str) -> Option<u32> {
    let mut mounts = mounts.lines().map(|line| line.split(' '));
    let device = mounts.find_map(|mut mount| {
        let found = mount.next()? == number;
        found.then(|| mount.nth(1))?
    });
    let (major, minor) = device?.split_once(':')?;
    Some(encode(major.parse().ok()?, minor.parse().ok()?))
}

/// As the kernel's new_encode_dev().
fn encode(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn files_are_identified() {
        let (_, inode) = identify(Path::new("/proc/self/stat")).unwrap();
        assert_ne!(inode, 0);
        let proc = fs::metadata("/proc/filesystems").unwrap();
        let (device, inode) = identify(Path::new("/proc/filesystems")).unwrap();
        assert_eq!((u64::from(device), inode), (proc.dev(), proc.ino()));
        let error = identify(Path::new("/nowhere")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn devices_are_of_mounts() {
        let mounts =
            "22 1 0:21 / /proc rw - proc proc rw\n30 1 259:70000 / / rw - ext4 /dev/x rw\n";
        assert_eq!(device(mounts, "22"), Some(21));
        assert_eq!(device(mounts, "30"), Some(0x1110_0000 | (259 << 8) | 0x70));
        assert_eq!(device(mounts, "3"), None);
        assert_eq!(device("30\n30 1 x", "30"), None);
    }

    #[test]
    fn fields_are_found() {
        let about = "pos:\t0\nflags:\t012000000\nmnt_id:\t29\nino:\t4711\n";
        assert_eq!(
            (field(about, "ino"), field(about, "mnt_id")),
            (Some("4711"), Some("29"))
        );
        assert_eq!(field(about, "no"), None);
    }
}
