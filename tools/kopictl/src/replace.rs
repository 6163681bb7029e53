// SPDX-License-Identifier: GPL-2.0

//! Files that are replaced as a whole.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{fchown, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

/// How many names are tried for the new file.
const TRIES: usize = 10;

/// Writes a file: all of it or nothing, and it lasts. Where there is a link, the file that it leads to
/// is meant; mode and owner stay.
///
/// Others may write to the folder, and put something else there at any time. So the name is looked up
/// once, by the kernel, which follows no link that another user has put into a folder such as /tmp.
pub(crate) fn write(file: &Path, text: &str) -> io::Result<()> {
    let (path, before) = match handle(file, 0) {
        Ok(found) if found.metadata()?.is_file() => {
            (fs::read_link(path_of(&found))?, Some(found.metadata()?))
        }
        // A pipe, say.
        Ok(found) => {
            return OpenOptions::new()
                .write(true)
                .open(path_of(&found))?
                .write_all(text.as_bytes())
        }
        // A link to nowhere isn't followed later, when it may lead somewhere.
        Err(error) if error.kind() == ErrorKind::NotFound => match fs::symlink_metadata(file) {
            Ok(_) => return Err(error),
            Err(_) => (file.to_owned(), None),
        },
        Err(error) => return Err(error),
    };
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let kept = handle(folder, libc::O_DIRECTORY)?;
    replace(&path_of(&kept), name, text, before.as_ref())?;
    // And the name of it.
    File::open(path_of(&kept))?.sync_all()
}

/// What a path leads to, whatever becomes of the path afterwards.
fn handle(path: &Path, flags: i32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_PATH | flags)
        .open(path)
}

/// A path to what is open.
fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Puts a new file in the place of the one that was there before, if one was: whatever has that name.
fn replace(
    folder: &Path,
    name: &OsStr,
    text: &str,
    before: Option<&fs::Metadata>,
) -> io::Result<()> {
    if let Some(before) = before {
        let now = fs::symlink_metadata(folder.join(name))?;
        if (now.dev(), now.ino()) != (before.dev(), before.ino()) {
            return Err(io::Error::other("it is another file by now"));
        }
    }
    // Whom the old one was kept from can't read the new one before it has the same mode.
    let mode = if before.is_some() { 0o600 } else { 0o666 };
    let (new, mut out) = create(folder, name, mode)?;
    let written = out
        .write_all(text.as_bytes())
        .and_then(|()| match before {
            Some(before) => {
                fchown(&out, Some(before.uid()), Some(before.gid()))?;
                out.set_permissions(before.permissions())
            }
            None => Ok(()),
        })
        .and_then(|()| out.sync_all())
        .and_then(|()| fs::rename(&new, folder.join(name)));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// Makes a file that wasn't there, which nobody can have put there to be written to.
fn create(folder: &Path, name: &OsStr, mode: u32) -> io::Result<(PathBuf, File)> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    let mut last = ErrorKind::AlreadyExists.into();
    for number in 0..TRIES {
        let mut new = OsString::from(".");
        new.push(name);
        new.push(format!(".{}.{number}", std::process::id()));
        let new = folder.join(new);
        match options.open(&new) {
            Ok(file) => return Ok((new, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, PermissionsExt};

    #[test]
    fn files_are_replaced_as_a_whole() {
        let folder = std::env::temp_dir().join(format!("kopictl-save-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let (real, link, planted) = (
            folder.join("real"),
            folder.join("link"),
            folder.join("real.new"),
        );
        fs::write(&real, "old").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("real", &link).unwrap();
        symlink("/dev/null", &planted).unwrap();
        // One of the names that are tried.
        let first = format!(".real.{}.0", std::process::id());
        symlink("victim", folder.join(&first)).unwrap();

        let (new, private) = create(&folder, OsStr::new("private"), 0o600).unwrap();
        assert_eq!(private.metadata().unwrap().mode() & 0o777, 0o600);
        fs::remove_file(new).unwrap();
        write(&link, "new").unwrap();
        assert_eq!(fs::read_to_string(&real).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&real).unwrap().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&planted).unwrap().is_symlink());
        assert!(!folder.join("victim").exists());
        write(&folder.join("another"), "x").unwrap();
        let error = write(Path::new("/dev/full"), "x").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(28));
        assert!(write(&folder.join("nowhere/file"), "x").is_err());
        assert!(
            write(&folder.join(&first), "x").is_err(),
            "a link to nowhere"
        );
        assert!(!folder.join("victim").exists());
        // What is there when it is looked up, and not what a name leads to later.
        let (other, before) = (folder.join("another"), fs::metadata(&real).unwrap());
        symlink("another", folder.join("swapped")).unwrap();
        let swapped = replace(&folder, OsStr::new("swapped"), "y", Some(&before));
        assert_eq!(swapped.unwrap_err().kind(), ErrorKind::Other);
        replace(&folder, OsStr::new("swapped"), "y", None).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "x");
        assert!(!fs::symlink_metadata(folder.join("swapped"))
            .unwrap()
            .is_symlink());
        fs::remove_file(folder.join("swapped")).unwrap();
        // Nothing is left besides.
        let mut names: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, [&*first, "another", "link", "real", "real.new"]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
