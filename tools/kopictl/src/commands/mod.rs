// SPDX-License-Identifier: GPL-2.0

//! The commands, a file each.

pub(crate) mod capture;
pub(crate) mod config;
pub(crate) mod direct;
pub(crate) mod doctor;
pub(crate) mod engine;
pub(crate) mod info;
pub(crate) mod limit;
pub(crate) mod location;
pub(crate) mod metrics;
pub(crate) mod ps;
pub(crate) mod rule;
pub(crate) mod show;
pub(crate) mod stats;
pub(crate) mod top;
pub(crate) mod watch;

use crate::{names::uid, netlink};
use std::{fmt, io, time::Duration};

/// What was asked makes no sense.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Whether something would have been done for somebody else.
pub(crate) fn is_permission(error: &anyhow::Error) -> bool {
    let mut causes = error.chain();
    match causes.find_map(|cause| cause.downcast_ref::<netlink::Error>()) {
        Some(netlink) => netlink.is_permission(),
        None => error.chain().any(|cause| {
            let io = cause.downcast_ref::<io::Error>();
            io.is_some_and(|io| io.kind() == io::ErrorKind::PermissionDenied)
        }),
    }
}

/// The longest time on the command line: a year.
const SECONDS_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Seconds on the command line, with or without a fraction.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds
        .filter(|seconds| !seconds.is_zero() && *seconds <= SECONDS_MAX)
        .ok_or_else(|| "a number of seconds was expected, at most those of a year".to_owned())
}

/// A user on the command line, by name or number.
pub(crate) fn user(text: &str) -> Result<u32, String> {
    uid(text).ok_or_else(|| format!("there is no user {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(seconds("31536000").is_ok());
        for wrong in [
            "0", "-1", "31536001", "1e19", "1e400", "nan", "inf", "x", "",
        ] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
