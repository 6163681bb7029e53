// SPDX-License-Identifier: GPL-2.0

//! KOPI: a family of sockets with mapped packet rings and the kernel on their path.
//!
//! See `docs/architecture.md` for the walk of a packet through these files.

#![deny(unsafe_code)]

mod channel;
mod counter;
mod describe;
mod direct;
mod engine;
mod events;
mod flow;
mod identity;
mod limits;
mod local_out;
mod monitor;
mod netlink;
mod netns;
mod ordinary;
mod probes;
// Compiled into programs too: public there, and each side leaves some of it unused.
#[allow(dead_code, unreachable_pub)]
mod pure;
mod routes;
mod rules;
mod rx;
mod subject;
// The floor of all unsafe code.
#[allow(unsafe_code)]
mod sys;
mod tx;

use direct::Attaching;
use engine::Engines;
use flow::Flow;
use kernel::prelude::*;
use limits::Limits;
use sys::{
    family::Registration,
    genl::Family,
    monitor::MonitorType,
    pernet::PerNet,
    reaper::Reaper, //
};

module! {
    type: Kopi,
    name: "kopi",
    authors: ["The KOPI developers"],
    description: "Bypass sockets with the kernel on the path",
    license: "GPL",
}

/// The loaded module. Fields are dropped in this order.
struct Kopi {
    /// No new sockets. Each socket has a reference to the module, so none is left.
    _family: Registration<Flow>,
    /// No requests, which attach devices, set engines, and use namespaces.
    _netlink: Family,
    /// Detaches all devices, which use what is kept of their namespaces.
    _attaching: Attaching,
    /// Stops the engines, which no request sets again.
    _engines: Engines,
    /// Ends the monitor devices, which are in their namespaces' lists, and the probes.
    _monitors: MonitorType,
    /// Ends the namespaces' hooks, which judge by the table of ordinary sockets, and frees what is kept of each.
    _namespaces: PerNet,
    /// Frees the table, whose entries hold sets of rules that the reaper frees.
    _ordinary: sys::ordinary::OrdinaryHooks<ordinary::Ordinary>,
    /// Hides the limits. Flows that RCU has yet to free give back their charge to the ledger, which is static.
    _limits: Limits,
    /// Waits for RCU, and for all memory that is still to be freed.
    _reaper: Reaper,
}

impl kernel::Module for Kopi {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let number = sys::family::family_parameter();
        let reaper = Reaper::new()?;
        let limits = Limits::register()?;
        // Hooks of namespaces use it.
        let ordinary = sys::ordinary::OrdinaryHooks::new()?;
        let namespaces = PerNet::register()?;
        let monitors = MonitorType::new()?;
        let engines = Engines::register();
        let attaching = Attaching::register()?;
        let netlink = Family::register()?;
        let family = Registration::new(number, module).inspect_err(|&error| {
            if error == EEXIST {
                pr_err!(
                    "address family {number} is taken: load with family=N, another unused one\n"
                );
            } else {
                pr_err!(
                    "can't register address family {number}: {}\n",
                    error.to_errno()
                );
            }
        })?;
        pr_info!(
            "address family {number}, ABI version {}\n",
            crate::pure::abi::ABI_VERSION
        );
        Ok(Self {
            _family: family,
            _netlink: netlink,
            _attaching: attaching,
            _engines: engines,
            _monitors: monitors,
            _namespaces: namespaces,
            _ordinary: ordinary,
            _limits: limits,
            _reaper: reaper,
        })
    }
}
