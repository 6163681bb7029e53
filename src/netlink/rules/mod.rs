// SPDX-License-Identifier: GPL-2.0

//! Rules: adding, deleting and replacing them, and putting them in force. `parse.rs` reads a rule
//! from a request, `show.rs` puts rules into answers.

mod parse;
mod show;

use crate::flow::Flow;
use crate::netns::{Net, FLOWS_AT_ONCE};
use crate::ordinary::forget_unnoted;
use crate::rules::{NetPolicy, Replaced, Rule, RuleSet};
use crate::sys::{
    context::cond_resched,
    errno::eopnotsupp,
    family,
    genl::{Attribute, Request, RuleInput},
    ordinary,
    pernet::Namespace,
    uapi, //
};
use kernel::{
    prelude::*,
    sync::{Arc, MutexGuard}, //
};
use parse::parts;

pub(crate) use show::{dump, show_all};

/// Applies new rules to live flows, and tells their processes.
fn apply_to_flows(net: &Net) {
    // The rules hold for flows that are opened later.
    let end = net.flows.lock().open.end();
    let mut next = 0u32;
    loop {
        let flows = net.flows.lock();
        let mut seen = 0usize;
        for (number, socket) in flows.open.within(next..=end) {
            next = number.wrapping_add(1);
            seen = seen.wrapping_add(1);
            if let Some(flow) = family::protocol::<Flow>(socket) {
                flow.apply_new_rules(socket);
            }
            if seen == FLOWS_AT_ONCE {
                break;
            }
        }
        drop(flows);
        if seen < FLOWS_AT_ONCE || next == 0 {
            break;
        }
        cond_resched();
    }
}

/// Puts rules in force; the caller holds `changing`.
fn put_in_force(request: &Request<'_>, net: &Net, set: RuleSet) -> Result {
    let set = set.share()?;
    let requester = request.requester();
    let is_open = set.is_open();
    if !is_open && !net.is_hooked() {
        requester.net().hook_local_out()?;
        net.set_hooked(true);
    }
    // If no namespace enforces its rules: a call that had begun may have added a socket to the table after
    // the last one's were taken out. It goes with the next change.
    if net.policy.set_rules(set) || NetPolicy::enforcing() == 0 {
        forget_unnoted();
    }
    apply_to_flows(net);
    if is_open && net.is_hooked() {
        requester.net().unhook_local_out();
        net.set_hooked(false);
    }
    Ok(())
}

fn put_rules(rules: &mut KVVec<Arc<Rule>>, from: impl Iterator<Item = Arc<Rule>>) -> Result {
    for rule in from {
        rules.push(rule, GFP_KERNEL_ACCOUNT)?;
    }
    Ok(())
}

/// The right to change the rules, or `EBUSY`. A request doesn't wait for it: all requests hold generic netlink's
/// `cb_lock` for reading. A task that registers a family waits for that lock, and all later requests wait behind that
/// task.
fn changing<'a>(request: &Request<'_>, net: &'a Net) -> Result<MutexGuard<'a, ()>> {
    net.changing
        .try_lock()
        .ok_or_else(|| request.refuse(EBUSY, c"another is changing the rules", None))
}

/// Number of rules that the requester's namespace can have. A change takes time for each rule and
/// flow, with generic netlink's `cb_lock` held for reading: root of a user namespace gets less of that.
fn rules_max(request: &Request<'_>) -> usize {
    let max = if request.requester().net().is_of_initial_users() {
        uapi::KOPI_RULES_MAX
    } else {
        uapi::KOPI_USERNS_RULES_MAX
    };
    max as usize
}

fn rule_attr<'a>(request: &Request<'a>) -> Result<Attribute<'a>> {
    request
        .get(uapi::KOPI_A_RULESET_RULE)
        .ok_or_else(|| request.refuse(EINVAL, c"say which rule", None))
}

/// The place where a new rule is put: before that of the given handle, or at the end.
fn position(request: &Request<'_>, table: &RuleInput<'_>, set: &RuleSet) -> Result<usize> {
    let Some(before) = table.get(uapi::KOPI_A_RULE_BEFORE) else {
        return Ok(set.rules.len());
    };
    let has_handle = |rule: &Arc<Rule>| rule.handle == before.u32();
    let place = set.rules.iter().position(has_handle);
    place.ok_or_else(|| request.refuse(ENOENT, c"no rule has that handle", Some(&before)))
}

/// The handle of a new rule. None is used twice in a namespace: `ENOSPC` after 2^32 rules.
fn next_handle(request: &Request<'_>, set: &RuleSet) -> Result<u32> {
    let next = set.last_handle.checked_add(1);
    next.ok_or_else(|| {
        request.refuse(
            ENOSPC,
            c"this namespace has used up all handles of rules",
            None,
        )
    })
}

/// `rule-add`: `EBUSY`, `EINVAL`, `ENOENT` for what it is put before, and those of looking paths
/// up.
pub(crate) fn add(request: &Request<'_>) -> Result {
    let attr = rule_attr(request)?;
    let table = request.rule_input(&attr)?;
    let parts = parts(request, &table)?;
    let net = request.requester().net().state();
    let _changing = changing(request, &net)?;
    let old = net.policy.rules();
    if old.rules.len() >= rules_max(request) {
        return Err(request.refuse(ENOSPC, c"there are too many rules", None));
    }
    let place = position(request, &table, &old)?;
    let handle = next_handle(request, &old)?;
    let rule = Rule::new(handle, parts)?;
    let mut rules = KVVec::new();
    put_rules(&mut rules, old.rules.iter().take(place).cloned())?;
    put_rules(&mut rules, core::iter::once(rule))?;
    put_rules(&mut rules, old.rules.iter().skip(place).cloned())?;
    put_in_force(request, &net, old.with_rules(rules, handle))?;
    request.reply(uapi::KOPI_CMD_RULE_ADD, |message| {
        message.u32(uapi::KOPI_A_RULESET_HANDLE, handle)
    })
}

/// `rule-del`: `EBUSY`, `ENOENT`.
pub(crate) fn remove(request: &Request<'_>) -> Result {
    let attr = rule_attr(request)?;
    let table = request.rule_named(&attr)?;
    let handle = table
        .get(uapi::KOPI_A_RULE_HANDLE)
        .ok_or_else(|| request.refuse(EINVAL, c"say which rule: its handle", Some(&attr)))?;
    let net = request.requester().net().state();
    let _changing = changing(request, &net)?;
    let old = net.policy.rules();
    let others = || {
        old.rules
            .iter()
            .filter(|rule| rule.handle != handle.u32())
            .cloned()
    };
    if others().count() == old.rules.len() {
        return Err(request.refuse(ENOENT, c"no rule has that handle", Some(&handle)));
    }
    let mut rules = KVVec::new();
    put_rules(&mut rules, others())?;
    put_in_force(request, &net, old.with_rules(rules, old.last_handle))?;
    Ok(())
}

/// Whether the new set judges ordinary sockets, too, which stays if the request has no such attribute:
/// `EPERM`, `EOPNOTSUPP`.
///
/// Root of a user namespace can't have it: the hooks are in the way of all sockets of the machine.
fn enforce(request: &Request<'_>, old: &RuleSet) -> Result<bool> {
    let Some(attr) = request.get(uapi::KOPI_A_RULESET_ENFORCE) else {
        return Ok(old.enforce);
    };
    let enforce = attr.u32() != 0;
    if enforce == old.enforce {
        return Ok(enforce);
    }
    if !request.requester().is_admin() {
        let why = c"enforcing takes CAP_NET_ADMIN in the initial user namespace";
        return Err(request.refuse(EPERM, why, Some(&attr)));
    }
    if enforce && !ordinary::hooks_are_there(request.requester().net())? {
        let why = c"the hooks of BPF's LSM aren't there: `kopictl rule enforce on` brings them";
        return Err(request.refuse(eopnotsupp(), why, Some(&attr)));
    }
    Ok(enforce)
}

/// The rules of a request, in their order. Those that are in force already stay what they are.
fn read_rules(request: &Request<'_>, old: &RuleSet, set: &mut RuleSet) -> Result {
    let mut replaced = Replaced::new(old)?;
    for attr in request.each(uapi::KOPI_A_RULESET_RULE) {
        let table = request.rule_input(&attr)?;
        if let Some(before) = table.get(uapi::KOPI_A_RULE_BEFORE) {
            return Err(request.refuse(
                EINVAL,
                c"rules of a set are in their order",
                Some(&before),
            ));
        }
        let parts = parts(request, &table)?;
        if set.rules.len() >= rules_max(request) {
            return Err(request.refuse(ENOSPC, c"there are too many rules", Some(&attr)));
        }
        let rule = match replaced.take(&parts) {
            Some(rule) => rule,
            None => {
                set.last_handle = next_handle(request, set)?;
                Rule::new(set.last_handle, parts)?
            }
        };
        set.rules.push(rule, GFP_KERNEL_ACCOUNT)?;
        cond_resched();
    }
    Ok(())
}

/// The set that a request asks for in place of the old one.
fn new_set(request: &Request<'_>, old: &RuleSet) -> Result<RuleSet> {
    let keep = request.get(uapi::KOPI_A_RULESET_KEEP);
    let default = request.get(uapi::KOPI_A_RULESET_DEFAULT);
    let mut set = old.with_rules(KVVec::new(), old.last_handle);
    set.enforce = enforce(request, old)?;
    set.deny_others = match default {
        Some(default) => default.u32() == uapi::KOPI_VERDICT_DENY,
        None => keep.is_some() && old.deny_others,
    };
    if keep.is_none() {
        read_rules(request, old, &mut set)?;
        return Ok(set);
    }
    if let Some(rule) = request.get(uapi::KOPI_A_RULESET_RULE) {
        return Err(request.refuse(EINVAL, c"the rules in force are kept", Some(&rule)));
    }
    put_rules(&mut set.rules, old.rules.iter().cloned())?;
    Ok(set)
}

/// `ruleset-set`: as `rule-add`, and `EAGAIN` where the rules are not those that the requester
/// knows.
pub(crate) fn replace(request: &Request<'_>) -> Result {
    let net = request.requester().net().state();
    let _changing = changing(request, &net)?;
    if let Some(known) = request.get(uapi::KOPI_A_RULESET_GENERATION) {
        if known.uint() != net.policy.generation() {
            return Err(request.refuse(EAGAIN, c"the rules have changed", Some(&known)));
        }
    }
    let old = net.policy.rules();
    let set = new_set(request, &old)?;
    let same = set.deny_others == old.deny_others
        && set.enforce == old.enforce
        && set.rules.len() == old.rules.len()
        && set
            .rules
            .iter()
            .zip(old.rules.iter())
            .all(|(new, old)| new.handle == old.handle);
    let only_check = request.get(uapi::KOPI_A_RULESET_CHECK).is_some();
    if !same && !only_check {
        put_in_force(request, &net, set)?;
    }
    // A check answers what the change would.
    let would_be = u64::from(!same && only_check);
    let generation = net.policy.generation().wrapping_add(would_be);
    request.reply(uapi::KOPI_CMD_RULESET_SET, |message| {
        message.uint(uapi::KOPI_A_RULESET_GENERATION, generation)
    })
}
