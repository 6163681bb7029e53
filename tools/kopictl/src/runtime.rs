// SPDX-License-Identifier: GPL-2.0

//! The folder of what there is as long as the machine runs. It is root's, so that nobody else can put
//! anything there.

use nix::fcntl::{Flock, FlockArg};
use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Where it is.
pub(crate) const FOLDER: &str = "/run/kopi";

/// The folder, which is made if need be.
pub(crate) fn folder() -> io::Result<PathBuf> {
    at(Path::new(FOLDER), 0)
}

/// Waits until no other kopictl has that lock of the folder, in whatever network namespace; none gets it as long
/// as this is there.
pub(crate) fn lock(lock: &str) -> io::Result<Flock<File>> {
    lock_at(&folder()?.join(lock))
}

fn lock_at(path: &Path) -> io::Result<Flock<File>> {
    let mut options = OpenOptions::new();
    // Nobody else can open it, and keep it.
    options.create(true).truncate(false).write(true).mode(0o600);
    Flock::lock(options.open(path)?, FlockArg::LockExclusive).map_err(|(_, errno)| errno.into())
}

/// A folder of that user's alone, which is made if need be: `PermissionDenied` if it is somebody else's, or a
/// link.
pub(crate) fn at(path: &Path, owner: u32) -> io::Result<PathBuf> {
    match DirBuilder::new().mode(0o755).create(path) {
        // Whatever the umask is.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o755))?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => (),
        Err(error) => return Err(error),
    }
    check(path, owner)?;
    Ok(path.to_owned())
}

/// Whether it is a folder of that user's alone: `PermissionDenied` if not.
pub(crate) fn check(path: &Path, owner: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() || found.uid() != owner || found.mode() & 0o022 != 0 {
        let text = format!("{} isn't a folder of root's alone", path.display());
        return Err(io::Error::new(ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_owners_folder_will_do() {
        let base = std::env::temp_dir().join(format!("kopictl-runtime-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let owner = fs::metadata(&base).unwrap().uid();
        let (folder, link) = (base.join("folder"), base.join("link"));
        assert!(at(&folder, owner).is_ok() && at(&folder, owner).is_ok());
        assert!(at(&folder, owner + 1).is_err());
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(at(&link, owner).is_err());
        fs::set_permissions(&folder, Permissions::from_mode(0o1777)).unwrap();
        assert!(at(&folder, owner).is_err());
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn one_at_a_time_has_the_lock() {
        let path = std::env::temp_dir().join(format!("kopictl-lock-{}", std::process::id()));
        let first = lock_at(&path).unwrap();
        let other = || Flock::lock(File::open(&path).unwrap(), FlockArg::LockExclusiveNonblock);
        assert!(other().is_err());
        drop(first);
        assert!(other().is_ok());
        fs::remove_file(&path).unwrap();
    }
}
