// SPDX-License-Identifier: GPL-2.0

//! What there is: the module, and how many objects it has.

use crate::attributes::attributes;

attributes! {
    /// The module, and its objects in the network namespace.
    Info {
        /// KOPI_ABI_VERSION of the module's uapi/kopi.h.
        1 abi_version: Option<u32>,
        /// The address family's number, for socket().
        2 address_family: Option<u32>,
        /// Number of open KOPI sockets.
        3 flows: Option<u32>,
        /// Number of rules.
        4 rules: Option<u32>,
        /// A number that grows with each change of the rules.
        5 generation: Option<u64>,
        /// Number of channels that flows use.
        6 channels: Option<u32>,
        /// Number of devices of type kopimon that are up.
        7 monitors: Option<u32>,
    }
}
