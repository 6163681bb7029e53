// SPDX-License-Identifier: GPL-2.0

//! Files that are replaced as a whole.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, OpenOptions},
    io::{self, ErrorKind, Write},
    os::unix::fs::{fchown, MetadataExt},
    path::{Path, PathBuf},
};

/// How many names are tried for the new file.
const TRIES: usize = 10;

/// Writes a file: all of it or nothing, and it lasts. Where there is a link, the file that it leads to
/// is meant; mode and owner stay.
pub(crate) fn write(file: &Path, text: &str) -> io::Result<()> {
    let before = match fs::metadata(file) {
        Ok(before) if before.is_file() => Some(before),
        // A pipe, say.
        Ok(_) => {
            return OpenOptions::new()
                .write(true)
                .open(file)?
                .write_all(text.as_bytes())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let file = match fs::symlink_metadata(file) {
        Ok(link) if link.is_symlink() => fs::canonicalize(file)?,
        _ => file.to_owned(),
    };
    let name = file.file_name().ok_or(ErrorKind::InvalidInput)?;
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let (new, mut out) = create(folder, name)?;
    let written = out
        .write_all(text.as_bytes())
        .and_then(|()| match &before {
            Some(before) => {
                fchown(&out, Some(before.uid()), Some(before.gid()))?;
                out.set_permissions(before.permissions())
            }
            None => Ok(()),
        })
        .and_then(|()| out.sync_all())
        .and_then(|()| fs::rename(&new, &file));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written?;
    // And the name of it.
    fs::File::open(folder)?.sync_all()
}

/// Makes a file that wasn't there, which nobody can have put there to be written to.
fn create(folder: &Path, name: &OsStr) -> io::Result<(PathBuf, fs::File)> {
    let mut last = ErrorKind::AlreadyExists.into();
    for number in 0..TRIES {
        let mut new = OsString::from(".");
        new.push(name);
        new.push(format!(".{}.{number}", std::process::id()));
        let new = folder.join(new);
        match OpenOptions::new().write(true).create_new(true).open(&new) {
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
