// SPDX-License-Identifier: GPL-2.0

//! What the administrator has installed, and whether it saw the packets.

use clap::{Args, ValueEnum};
use std::{io, process::Command};

/// What a policy counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Counts {
    /// A GSO packet as one packet
    Handed,
    /// Datagrams, by what device so ever
    Datagrams,
}

#[derive(Args)]
pub(crate) struct Policy {
    /// What is installed
    #[arg(long = "policy", default_value = "none")]
    pub(crate) name: String,

    /// A shell command that prints how many packets the policy has seen
    #[arg(long, requires = "counts")]
    count: Option<String>,

    /// What that counts
    #[arg(long)]
    counts: Option<Counts>,
}

/// What a row has of packets, those before its runs among them.
pub(crate) struct Packets {
    /// Whether they go by what policies look at.
    pub(crate) meet_hooks: bool,
    /// Whether they go by what looks at packets at the device.
    pub(crate) meet_device: bool,
    /// A GSO packet as one; `None` if that depends on chance.
    pub(crate) handed: Option<u64>,
    pub(crate) datagrams: u64,
}

impl Policy {
    /// How many packets it has seen, if it can tell.
    pub(crate) fn count(&self) -> io::Result<Option<u64>> {
        let Some(command) = &self.count else {
            return Ok(None);
        };
        let output = Command::new("sh").args(["-c", command]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        match text.trim().parse() {
            Ok(count) if output.status.success() => Ok(Some(count)),
            _ => Err(io::Error::other(format!("`{command}` printed {text:?}"))),
        }
    }

    /// Whether it saw what it had to see: all of a mode that goes by it, or nothing.
    pub(crate) fn holds(&self, seen: Option<u64>, packets: &Packets) -> io::Result<Option<bool>> {
        let (Some(seen), Some(counts)) = (seen, self.counts) else {
            let blind = self.name != "none" && !packets.meet_device;
            return Ok(blind.then_some(false));
        };
        let meets = match counts {
            Counts::Handed => packets.meet_hooks,
            Counts::Datagrams => packets.meet_device,
        };
        let right = match (counts, packets.handed) {
            _ if !meets => seen == 0,
            (Counts::Datagrams, _) => seen == packets.datagrams,
            (Counts::Handed, Some(handed)) => seen == handed,
            (Counts::Handed, None) => (1..=packets.datagrams).contains(&seen),
        };
        if !right {
            return Err(io::Error::other(format!(
                "the policy saw {seen} packets, and not {:?} (with GSO packets as one) of {}",
                packets.handed, packets.datagrams
            )));
        }
        Ok(Some(meets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(counts: Option<Counts>, command: &str) -> Policy {
        Policy {
            name: "test".to_owned(),
            count: Some(command.to_owned()),
            counts,
        }
    }

    #[test]
    fn policy_must_have_seen_all_or_nothing() {
        let handed = policy(Some(Counts::Handed), "echo 5");
        let mut packets = Packets {
            meet_hooks: true,
            meet_device: true,
            handed: Some(5),
            datagrams: 300,
        };
        assert_eq!(handed.count().unwrap(), Some(5));
        assert_eq!(handed.holds(Some(5), &packets).unwrap(), Some(true));
        assert!(handed.holds(Some(4), &packets).is_err());
        let datagrams = policy(Some(Counts::Datagrams), "echo 300");
        assert_eq!(datagrams.holds(Some(300), &packets).unwrap(), Some(true));
        assert!(datagrams.holds(Some(5), &packets).is_err());
        packets.handed = None;
        assert_eq!(handed.holds(Some(17), &packets).unwrap(), Some(true));
        assert!(handed.holds(Some(0), &packets).is_err());
        assert!(handed.holds(Some(301), &packets).is_err());
        packets.meet_hooks = false;
        assert_eq!(handed.holds(Some(0), &packets).unwrap(), Some(false));
        assert!(handed.holds(Some(1), &packets).is_err());
        assert_eq!(handed.holds(None, &packets).unwrap(), None);
        packets.meet_device = false;
        assert_eq!(datagrams.holds(Some(0), &packets).unwrap(), Some(false));
        assert_eq!(datagrams.holds(None, &packets).unwrap(), Some(false));
    }

    #[test]
    fn count_must_be_a_number() {
        assert!(policy(None, "echo none").count().is_err());
        assert!(policy(None, "echo 5; false").count().is_err());
    }
}
