// SPDX-License-Identifier: GPL-2.0

//! Why there is no answer, or none of use.

use super::{refusal::Refusal, DUMPS};
use crate::kernel::{release, way_to_module};
use nix::errno::Errno;
use std::{fmt, io};

/// What the kernel answered when it wouldn't.
#[derive(Debug)]
pub(crate) enum Error {
    /// There is no KOPI in this kernel.
    NoKopi,
    /// It said no.
    Refused(Refusal),
    /// The dump was interrupted each time.
    Unsteady,
    /// Events were lost.
    Lost,
    /// It was of no use.
    Malformed(String),
    /// The socket failed.
    Socket(&'static str, io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKopi => {
                write!(out, "no KOPI in this kernel: as root, `modprobe kopi`")?;
                match release() {
                    Ok(release) => {
                        write!(out, "; if there is no module: {}", way_to_module(&release))
                    }
                    Err(_) => Ok(()),
                }
            }
            Self::Refused(refusal) => write!(out, "{refusal}"),
            Self::Unsteady => write!(out, "it changed {DUMPS} times while it was read; try again"),
            Self::Lost => write!(
                out,
                "events were lost, they came faster than they were read"
            ),
            Self::Malformed(what) => write!(out, "the kernel's answer makes no sense: {what}"),
            Self::Socket(what, error) => write!(out, "{what}: {error}"),
        }?;
        // The kernel's own message says what it takes.
        let is_explained = matches!(self, Self::Refused(refusal) if refusal.message.is_some());
        match self.is_permission() && !is_explained {
            true => write!(
                out,
                ": needs CAP_NET_ADMIN in this network namespace, try sudo"
            ),
            false => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    /// Whether it would be done for somebody else.
    pub(crate) fn is_permission(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.errno == libc::EPERM,
            Self::Socket(_, error) => error.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }

    /// Whether it is this error of the kernel's.
    pub(crate) fn is(&self, errno: Errno) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.errno == errno as i32)
    }
}

impl From<netlink_packet_core::DecodeError> for Error {
    fn from(error: netlink_packet_core::DecodeError) -> Self {
        Self::Malformed(error.to_string())
    }
}

pub(super) type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_not_contradicted() {
        let refused = |message: Option<&str>| {
            let refusal = Refusal {
                errno: libc::EPERM,
                message: message.map(str::to_owned),
                ..Refusal::default()
            };
            Error::Refused(refusal).to_string()
        };
        let bare = refused(None);
        assert!(bare.ends_with("needs CAP_NET_ADMIN in this network namespace, try sudo"));
        let why = "that takes CAP_NET_ADMIN in the initial user namespace";
        assert_eq!(refused(Some(why)), format!("{why} (EPERM)"));
    }
}
