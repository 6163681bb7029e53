// SPDX-License-Identifier: GPL-2.0

//! Where clients come from, and who may.

use crate::{commands::Usage, http::Listener, names::gid, runtime};
use anyhow::bail;
use nix::unistd::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    fmt,
    fs::{self, File, Permissions},
    io::ErrorKind,
    net::{SocketAddr, TcpListener},
    os::{
        fd::OwnedFd,
        unix::{
            fs::{lchown, FileTypeExt, MetadataExt, PermissionsExt},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
    str::FromStr,
};

/// Clients that are not served yet.
const BACKLOG: i32 = 64;

/// Where clients come from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Place {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Self::Unix(text.into()));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Self::Tcp(address)),
            Ok(_) => Err("only this machine's own addresses, as 127.0.0.1, are served".to_owned()),
            Err(_) => Err("an absolute path, or an address and port were expected".to_owned()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(out),
            Self::Tcp(address) => address.fmt(out),
        }
    }
}

/// A group on the command line, by name or number.
pub(super) fn group(text: &str) -> Result<u32, String> {
    gid(text).ok_or_else(|| format!("there is no group {text}"))
}

/// Listens, and says where.
pub(super) fn listen(place: &Place, group: Option<u32>) -> anyhow::Result<(Listener, String)> {
    match place {
        Place::Unix(path) => {
            if path.parent() == Some(Path::new(runtime::FOLDER)) {
                runtime::folder()?;
            }
            let listener = listen_at(path, group)?;
            Ok((listener, format!("{}", path.display())))
        }
        Place::Tcp(_) if group.is_some() => {
            bail!(Usage("--group is of a Unix socket".to_owned()))
        }
        Place::Tcp(address) => {
            let listener = TcpListener::bind(address)?;
            let url = format!("http://{}/metrics", listener.local_addr()?);
            Ok((Listener::Tcp(listener), url))
        }
    }
}

/// A Unix socket, which only its owner can connect to, and the group if there is one.
fn listen_at(path: &Path, group: Option<u32>) -> anyhow::Result<Listener> {
    // Or the file that is given to the group could be another by then.
    let folder = fs::metadata(path.parent().unwrap_or(Path::new("/")))?;
    if folder.mode() & 0o022 != 0 && folder.mode() & 0o1000 == 0 {
        bail!("others can write to the folder");
    }
    if group.is_some() && ![0, geteuid().as_raw()].contains(&folder.uid()) {
        bail!("the folder is another user's, who could put a link in the socket's place: for --group it has to be root's or yours");
    }
    // One that nobody listens at was left behind.
    let is_socket = |file: fs::Metadata| file.file_type().is_socket();
    if fs::symlink_metadata(path).is_ok_and(is_socket)
        && UnixStream::connect(path)
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    {
        fs::remove_file(path)?;
    }
    let file = File::from(OwnedFd::from(Socket::new(
        Domain::UNIX,
        Type::STREAM,
        None,
    )?));
    // The file that bind() makes has this mode, less the umask.
    file.set_permissions(Permissions::from_mode(0o600))?;
    let socket = Socket::from(OwnedFd::from(file));
    socket.bind(&SockAddr::unix(path)?)?;
    if let Some(group) = group {
        lchown(path, None, Some(group))?;
        fs::set_permissions(path, Permissions::from_mode(0o660))?;
    }
    // Nobody could connect before.
    socket.listen(BACKLOG)?;
    Ok(Listener::Unix(OwnedFd::from(socket).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_served() {
        for (text, place) in [
            ("/run/x", Some(Place::Unix("/run/x".into()))),
            (
                "127.0.0.1:9",
                Some(Place::Tcp("127.0.0.1:9".parse().unwrap())),
            ),
            ("[::1]:9", Some(Place::Tcp("[::1]:9".parse().unwrap()))),
            ("0.0.0.0:9", None),
            ("[::]:9", None),
            ("192.0.2.1:9", None),
            ("x", None),
        ] {
            assert_eq!(text.parse().ok(), place, "{text}");
        }
    }

    #[test]
    fn sockets_are_their_owners() {
        let folder = std::env::temp_dir().join(format!("kopictl-metrics-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("socket");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        let first = listen_at(&path, None).unwrap();
        assert_eq!(mode(), 0o600);
        assert!(listen_at(&path, None).is_err(), "it is in use");
        drop(first);
        // It was left behind.
        let group = fs::metadata(&folder).unwrap().gid();
        let second = listen_at(&path, Some(group)).unwrap();
        assert_eq!(mode(), 0o660);
        drop(second);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(listen_at(&path, None).is_err(), "no socket");
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        assert!(listen_at(&folder.join("other"), None).is_err());
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        // Who isn't root can't give it away.
        if lchown(&folder, Some(geteuid().as_raw() + 1), None).is_ok() {
            let Err(error) = listen_at(&folder.join("other"), Some(group)) else {
                panic!("another user's folder");
            };
            assert!(error.to_string().contains("another user's"), "{error}");
            assert!(listen_at(&folder.join("other"), None).is_ok());
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
