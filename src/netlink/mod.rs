// SPDX-License-Identifier: GPL-2.0

//! The operations of `uapi/kopi.yaml`: they show flows, channels and rules, and change rules, engines and attached
//! devices.
//!
//! `family.c` and `family.h` are made from that file (`qemu/netlink`); they check requests, and
//! name the functions that are defined here.

use crate::sys::{genl, uapi};
use kernel::prelude::*;

pub(crate) mod devices;
pub(crate) mod engines;
pub(crate) mod rules;
pub(crate) mod show;

// With the last type of each one's policy in `family.c`: `qemu/netlink` compares them.
genl::operations! {
    kopi_nl_info_get_doit(0) => show::info,
    kopi_nl_flow_get_doit(uapi::KOPI_A_FLOW_ID) => show::flow,
    kopi_nl_channel_get_doit(uapi::KOPI_A_CHANNEL_ID) => show::channel,
    kopi_nl_totals_get_doit(0) => show::totals,
    kopi_nl_rule_add_doit(uapi::KOPI_A_RULESET_RULE) => rules::add,
    kopi_nl_rule_del_doit(uapi::KOPI_A_RULESET_RULE) => rules::remove,
    kopi_nl_ruleset_get_doit(0) => rules::show_all,
    kopi_nl_ruleset_set_doit(uapi::KOPI_A_RULESET_KEEP) => rules::replace,
    kopi_nl_engine_set_doit(uapi::KOPI_A_ENGINES_BUDGET) => engines::replace,
    kopi_nl_device_attach_doit(uapi::KOPI_A_DEVICE_PORT_MAP) => devices::attach,
    kopi_nl_device_detach_doit(uapi::KOPI_A_DEVICE_IFINDEX) => devices::detach,
}

genl::dumps! {
    kopi_nl_flow_get_dumpit => show::flows,
    kopi_nl_channel_get_dumpit => show::channels,
    kopi_nl_rule_get_dumpit => rules::dump,
    kopi_nl_engine_get_dumpit => engines::dump,
    kopi_nl_device_get_dumpit => devices::dump,
}
