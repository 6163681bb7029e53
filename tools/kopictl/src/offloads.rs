// SPDX-License-Identifier: GPL-2.0

//! Offloads of a network device, over ethtool's netlink family
//! (Documentation/networking/ethtool-netlink.rst of the kernel).

use crate::{
    attributes::attributes,
    netlink::{Connection, Error},
};
use nix::errno::Errno;

/// The family, and what it can be asked.
const FAMILY: &str = "ethtool";
const FEATURES_GET: u8 = 11;
const FEATURES_SET: u8 = 12;
/// ETHTOOL_FLAG_OMIT_REPLY: what has changed needn't be answered.
const OMIT_REPLY: u32 = 2;

attributes! {
    /// Which device a request is about.
    Header {
        /// Index of the device.
        1 ifindex: Option<u32>,
        /// How to answer.
        3 flags: Option<u32>,
    }
}

attributes! {
    /// An offload.
    Bit {
        /// Its name.
        2 name: Option<String>,
        /// Whether it is to be on.
        3 value: bool,
    }
}

attributes! {
    /// A list of offloads.
    Bits {
        /// One of them.
        1 bit: Vec<Bit>,
    }
}

attributes! {
    /// Offloads that are on, or those to be changed.
    Bitset {
        /// The list.
        3 bits: Option<Bits>,
    }
}

attributes! {
    /// The offloads of a device.
    Features {
        /// The device.
        1 header: Option<Header>,
        /// Those that can be changed.
        2 changeable: Option<Bitset>,
        /// Those to be changed.
        3 wanted: Option<Bitset>,
        /// Those that are on.
        4 active: Option<Bitset>,
    }
}

impl Bitset {
    fn has(set: Option<&Self>, name: &str) -> bool {
        let bits = set.and_then(|set| set.bits.as_ref());
        let mut names = bits.into_iter().flat_map(|bits| &bits.bit);
        names.any(|bit| bit.name.as_deref() == Some(name))
    }
}

/// The offloads of a device.
pub(crate) struct Offloads {
    /// None in a kernel without the family, where none can be changed.
    connection: Option<Connection>,
    ifindex: u32,
}

impl Offloads {
    pub(crate) fn of(ifindex: u32) -> Result<Self, Error> {
        let connection = match Connection::to(FAMILY) {
            Err(error) if error.is(Errno::ENOENT) => None,
            connection => Some(connection?),
        };
        Ok(Self {
            connection,
            ifindex,
        })
    }

    /// Turns on, or off, those of `names` that aren't and can be changed; gives those for which the driver
    /// did so.
    pub(crate) fn turn<'n>(
        &mut self,
        names: impl IntoIterator<Item = &'n str>,
        on: bool,
    ) -> Result<Vec<&'n str>, Error> {
        let Some(connection) = &mut self.connection else {
            return Ok(Vec::new());
        };
        let question = |flags, wanted| Features {
            header: Some(Header {
                ifindex: Some(self.ifindex),
                flags: Some(flags),
            }),
            wanted,
            ..Features::default()
        };
        let before: Features = one(connection.ask(FEATURES_GET, &question(0, None), 0)?);
        let can = |name: &&str| {
            Bitset::has(before.changeable.as_ref(), name)
                && Bitset::has(before.active.as_ref(), name) != on
        };
        let names: Vec<_> = names.into_iter().filter(can).collect();
        if names.is_empty() {
            return Ok(names);
        }
        let bit = names.iter().map(|&name| Bit {
            name: Some(name.to_owned()),
            value: on,
        });
        let wanted = Bitset {
            bits: Some(Bits { bit: bit.collect() }),
        };
        let changed = question(OMIT_REPLY, Some(wanted));
        let _: Vec<Features> = connection.ask(FEATURES_SET, &changed, 0)?;
        let after: Features = one(connection.ask(FEATURES_GET, &question(0, None), 0)?);
        let is_done = |name: &&str| Bitset::has(after.active.as_ref(), name) == on;
        Ok(names.into_iter().filter(is_done).collect())
    }
}

/// The only answer; a device of which nothing is said has no offloads.
fn one(answers: Vec<Features>) -> Features {
    answers.into_iter().next().unwrap_or_default()
}
