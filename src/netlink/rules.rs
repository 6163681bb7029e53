// SPDX-License-Identifier: GPL-2.0

//! Rules: adding, taking away, replacing, showing.

use crate::flow::Flow;
use crate::netns::Net;
use crate::pure::{
    bucket::Rate,
    rule::{Match, Prefix}, //
};
use crate::rules::{Action, Limit, Parts, Rule, RuleSet};
use crate::sys::{
    context::cond_resched,
    family,
    genl::{Attribute, Dump, Message, Request, Requester, RuleInput},
    pernet::Namespace,
    pernet::NetRef,
    task, //
    uapi,
};
use kernel::{
    prelude::*,
    str::CStr,
    sync::{Arc, MutexGuard}, //
};

/// Both ends of a range; the first alone is a range of one.
fn range<T: Copy + PartialOrd>(
    request: &Request<'_>,
    table: &RuleInput<'_>,
    kinds: (u32, u32),
    value: impl Fn(&Attribute<'_>) -> Result<T>,
) -> Result<Option<(T, T)>> {
    let (first, last) = (table.get(kinds.0), table.get(kinds.1));
    let (Some(first), Some(last)) = (&first, &last) else {
        return match (&first, &last) {
            (Some(first), _) => {
                let only = value(first)?;
                Ok(Some((only, only)))
            }
            (None, Some(last)) => Err(request.refuse(
                EINVAL,
                c"the end of a range that has no beginning",
                Some(last),
            )),
            (None, None) => Ok(None),
        };
    };
    let range = (value(first)?, value(last)?);
    if range.0 > range.1 {
        return Err(request.refuse(EINVAL, c"a range ends before it begins", Some(last)));
    }
    Ok(Some(range))
}

fn copied(string: &CStr) -> Result<KVec<u8>> {
    let mut copy = KVec::new();
    copy.extend_from_slice(string.to_bytes(), GFP_KERNEL_ACCOUNT)?;
    Ok(copy)
}

/// Where a rule has paths, they are looked up as the requester sees them.
fn parts(request: &Request<'_>, table: &RuleInput<'_>) -> Result<Parts> {
    let requester = request.requester();
    let mut parts = Parts {
        matches: matches(request, &requester, table)?,
        action: action(request, table)?,
        ..Parts::default()
    };
    if let Some(attr) = table.get(uapi::KOPI_A_RULE_EXE) {
        let path = attr.string()?;
        if path.to_bytes().first() != Some(&b'/') {
            return Err(request.refuse(EINVAL, c"exe is not an absolute path", Some(&attr)));
        }
        // genl's lock is held.
        let may_wait = requester.net().is_of_initial_users();
        let file = task::file_at(path, may_wait)
            .map_err(|error| request.refuse(error, c"exe can't be looked up", Some(&attr)))?;
        parts.matches.exe = Some(file);
        parts.exe_path = Some(copied(path)?);
    }
    if let Some(attr) = table.get(uapi::KOPI_A_RULE_CGROUP_PATH) {
        let path = attr.string()?;
        let cgroup = task::cgroup_at(path).map_err(|error| {
            request.refuse(error, c"the cgroup can't be looked up", Some(&attr))
        })?;
        parts.matches.cgroup = Some(cgroup);
        parts.cgroup_path = Some(copied(path)?);
    }
    if let Some(attr) = table.get(uapi::KOPI_A_RULE_COMMENT) {
        parts.comment = Some(copied(attr.string()?)?);
    }
    Ok(parts)
}

fn matches(
    request: &Request<'_>,
    requester: &Requester<'_>,
    table: &RuleInput<'_>,
) -> Result<Match> {
    let uid = |attr: &Attribute<'_>| {
        requester.make_uid(attr.u32()).ok_or_else(|| {
            request.refuse(EINVAL, c"the user namespace has no such user", Some(attr))
        })
    };
    let port = |attr: &Attribute<'_>| Ok(attr.u16());
    let gid = match table.get(uapi::KOPI_A_RULE_GID) {
        Some(attr) => Some(requester.make_gid(attr.u32()).ok_or_else(|| {
            request.refuse(EINVAL, c"the user namespace has no such group", Some(&attr))
        })?),
        None => None,
    };
    let mut device = None;
    if let Some(attr) = table.get(uapi::KOPI_A_RULE_DEVICE) {
        let mut name = [0u8; 16];
        for (to, from) in name.iter_mut().zip(attr.string()?.to_bytes()) {
            *to = *from;
        }
        device = Some(name);
    }
    Ok(Match {
        uid: range(
            request,
            table,
            (uapi::KOPI_A_RULE_UID_MIN, uapi::KOPI_A_RULE_UID_MAX),
            uid,
        )?,
        gid,
        protocol: table
            .get(uapi::KOPI_A_RULE_PROTOCOL)
            .map(|attr| attr.u32() as u8),
        local_port: range(
            request,
            table,
            (
                uapi::KOPI_A_RULE_LOCAL_PORT_MIN,
                uapi::KOPI_A_RULE_LOCAL_PORT_MAX,
            ),
            port,
        )?,
        remote: remote(request, table)?,
        remote_port: range(
            request,
            table,
            (
                uapi::KOPI_A_RULE_REMOTE_PORT_MIN,
                uapi::KOPI_A_RULE_REMOTE_PORT_MAX,
            ),
            port,
        )?,
        device,
        directions: table
            .get(uapi::KOPI_A_RULE_DIRECTION)
            .map_or(0, |attr| attr.u32()),
        ..Match::default()
    })
}

fn remote(request: &Request<'_>, table: &RuleInput<'_>) -> Result<Option<Prefix>> {
    let bits = table.get(uapi::KOPI_A_RULE_REMOTE_PREFIX);
    let Some(attr) = table.get(uapi::KOPI_A_RULE_REMOTE_ADDRESS) else {
        return match bits {
            Some(bits) => Err(request.refuse(EINVAL, c"a prefix of no address", Some(&bits))),
            None => Ok(None),
        };
    };
    let given = bits.map(|bits| bits.u32() as u8);
    let prefix = match attr.bytes() {
        &[a, b, c, d] => Prefix::ipv4([a, b, c, d], given.unwrap_or(32)),
        bytes => match <[u8; 16]>::try_from(bytes) {
            Ok(address) => Prefix::ipv6(address, given.unwrap_or(128)),
            Err(_) => {
                return Err(request.refuse(EINVAL, c"an address has 4 or 16 bytes", Some(&attr)))
            }
        },
    };
    prefix.map(Some).ok_or_else(|| {
        request.refuse(
            EINVAL,
            c"the prefix is longer than the address",
            bits.as_ref(),
        )
    })
}

fn action(request: &Request<'_>, table: &RuleInput<'_>) -> Result<Action> {
    let number = |kind| table.get(kind).map(|attr| attr.u32());
    let bytes = table.get(uapi::KOPI_A_RULE_RATE_BYTES);
    let packets = table.get(uapi::KOPI_A_RULE_RATE_PACKETS);
    let burst = table.get(uapi::KOPI_A_RULE_BURST);
    let shared = table.get(uapi::KOPI_A_RULE_SHARED);
    let limit = match (&bytes, &packets) {
        (Some(_), Some(attr)) => {
            return Err(request.refuse(
                EINVAL,
                c"a rate is of bytes or of datagrams: use two rules",
                Some(attr),
            ))
        }
        (None, None) => {
            let stray = burst.or(shared);
            if stray.is_some() {
                return Err(request.refuse(EINVAL, c"there is no rate", stray.as_ref()));
            }
            None
        }
        (Some(rate), None) | (None, Some(rate)) => Some(Limit {
            rate: Rate::new(rate.uint(), burst.as_ref().map(|attr| attr.uint()))
                .ok_or_else(|| request.refuse(EINVAL, c"nothing would pass", Some(rate)))?,
            of_bytes: bytes.is_some(),
            shared: shared.is_some(),
        }),
    };
    if let Some(attr) = table.get(uapi::KOPI_A_RULE_WEIGHT) {
        if !request.requester().is_admin() {
            let why = c"a weight takes CAP_NET_ADMIN in the initial user namespace";
            return Err(request.refuse(EPERM, why, Some(&attr)));
        }
    }
    let action = Action {
        deny: number(uapi::KOPI_A_RULE_VERDICT) == Some(uapi::KOPI_VERDICT_DENY),
        mark: number(uapi::KOPI_A_RULE_MARK),
        priority: number(uapi::KOPI_A_RULE_PRIORITY),
        weight: number(uapi::KOPI_A_RULE_WEIGHT),
        limit,
    };
    let does_more =
        action.mark.or(action.priority).or(action.weight).is_some() || action.limit.is_some();
    if action.deny && does_more {
        return Err(request.refuse(
            EINVAL,
            c"a rule that denies can do nothing else",
            table.get(uapi::KOPI_A_RULE_VERDICT).as_ref(),
        ));
    }
    Ok(action)
}

/// Has live flows follow the rules, and their processes learn of it.
fn sweep(net: &Net) {
    let mut next = 0u32;
    loop {
        let flows = net.flows.lock();
        let mut looked = 0;
        for (number, socket) in flows.open.from(next) {
            next = number.wrapping_add(1);
            looked += 1;
            if let Some(flow) = family::protocol::<Flow>(socket) {
                flow.follow_rules(socket);
            }
            if looked == 256 {
                break;
            }
        }
        drop(flows);
        if looked < 256 || next == 0 {
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
    net.set_rules(set);
    sweep(net);
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

/// The right to change the rules, or `EBUSY`: who waited for it would hold genl's lock.
fn changing<'a>(request: &Request<'_>, net: &'a Net) -> Result<MutexGuard<'a, ()>> {
    net.changing
        .try_lock()
        .ok_or_else(|| request.refuse(EBUSY, c"another is changing the rules", None))
}

fn rule_attr<'a>(request: &Request<'a>) -> Result<Attribute<'a>> {
    request
        .get(uapi::KOPI_A_RULESET_RULE)
        .ok_or_else(|| request.refuse(EINVAL, c"say which rule", None))
}

/// `rule-add`: `EBUSY`, `EINVAL`, `ENOENT` for what it is put before, and those of looking paths up.
pub(crate) fn add(request: &Request<'_>) -> Result {
    let attr = rule_attr(request)?;
    let table = request.rule_input(&attr)?;
    let parts = parts(request, &table)?;
    let net = request.requester().net().state();
    let _changing = changing(request, &net)?;
    let old = net.rules();
    if old.rules.len() >= uapi::KOPI_RULES_MAX as usize {
        return Err(request.refuse(ENOSPC, c"there are too many rules", None));
    }
    let place = match table.get(uapi::KOPI_A_RULE_BEFORE) {
        Some(before) => old
            .rules
            .iter()
            .position(|rule| rule.handle == before.u32())
            .ok_or_else(|| request.refuse(ENOENT, c"no rule has that handle", Some(&before)))?,
        None => old.rules.len(),
    };
    let handle = old.last_handle.checked_add(1).ok_or(ENOSPC)?;
    let rule = Rule::new(handle, parts)?;
    let mut rules = KVVec::new();
    put_rules(&mut rules, old.rules.iter().take(place).cloned())?;
    put_rules(&mut rules, core::iter::once(rule))?;
    put_rules(&mut rules, old.rules.iter().skip(place).cloned())?;
    let set = RuleSet {
        rules,
        deny_others: old.deny_others,
        last_handle: handle,
    };
    put_in_force(request, &net, set)?;
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
    let old = net.rules();
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
    let set = RuleSet {
        rules,
        deny_others: old.deny_others,
        last_handle: old.last_handle,
    };
    put_in_force(request, &net, set)?;
    Ok(())
}

/// `ruleset-set`: as `rule-add`, and `EAGAIN` where the rules are not those that the requester knows.
pub(crate) fn replace(request: &Request<'_>) -> Result {
    let net = request.requester().net().state();
    let _changing = changing(request, &net)?;
    if let Some(known) = request.get(uapi::KOPI_A_RULESET_GENERATION) {
        if known.uint() != net.generation() {
            return Err(request.refuse(EAGAIN, c"the rules have changed", Some(&known)));
        }
    }
    let old = net.rules();
    let mut set = RuleSet {
        rules: KVVec::new(),
        deny_others: request
            .get(uapi::KOPI_A_RULESET_DEFAULT)
            .is_some_and(|attr| attr.u32() == uapi::KOPI_VERDICT_DENY),
        last_handle: old.last_handle,
    };
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
        let place = set.rules.len();
        if place >= uapi::KOPI_RULES_MAX as usize {
            return Err(request.refuse(ENOSPC, c"there are too many rules", Some(&attr)));
        }
        // What stays goes on counting.
        let rule = match old.rules.get(place) {
            Some(rule) if rule.is_made_of(&parts) => rule.clone(),
            _ => {
                set.last_handle = set.last_handle.checked_add(1).ok_or(ENOSPC)?;
                Rule::new(set.last_handle, parts)?
            }
        };
        set.rules.push(rule, GFP_KERNEL_ACCOUNT)?;
        cond_resched();
    }
    let same = set.deny_others == old.deny_others
        && set.rules.len() == old.rules.len()
        && set
            .rules
            .iter()
            .zip(old.rules.iter())
            .all(|(new, old)| new.handle == old.handle);
    if !same && request.get(uapi::KOPI_A_RULESET_CHECK).is_none() {
        put_in_force(request, &net, set)?;
    }
    request.reply(uapi::KOPI_CMD_RULESET_SET, |message| {
        message.uint(uapi::KOPI_A_RULESET_GENERATION, net.generation())
    })
}

/// `ruleset-get`.
pub(crate) fn show_all(request: &Request<'_>) -> Result {
    let net = request.requester().net().state();
    let generation = net.generation();
    let verdict = if net.rules().deny_others {
        uapi::KOPI_VERDICT_DENY
    } else {
        uapi::KOPI_VERDICT_ALLOW
    };
    request.reply(uapi::KOPI_CMD_RULESET_GET, |message| {
        message.u32(uapi::KOPI_A_RULESET_DEFAULT, verdict)?;
        message.uint(uapi::KOPI_A_RULESET_GENERATION, generation)
    })
}

fn put_range<T: Copy>(
    message: &mut Message,
    range: Option<(T, T)>,
    kinds: (u32, u32),
    put: impl Fn(&mut Message, u32, T) -> Result,
) -> Result {
    if let Some((first, last)) = range {
        put(message, kinds.0, first)?;
        put(message, kinds.1, last)?;
    }
    Ok(())
}

fn put_match(message: &mut Message, requester: &Requester<'_>, matches: &Match) -> Result {
    put_range(
        message,
        matches.uid,
        (uapi::KOPI_A_RULE_UID_MIN, uapi::KOPI_A_RULE_UID_MAX),
        |message, kind, uid| message.u32(kind, requester.show_uid(uid)),
    )?;
    if let Some(gid) = matches.gid {
        message.u32(uapi::KOPI_A_RULE_GID, requester.show_gid(gid))?;
    }
    if let Some(cgroup) = matches.cgroup {
        message.uint(uapi::KOPI_A_RULE_CGROUP, cgroup.id)?;
    }
    if let Some(exe) = matches.exe {
        message.u32(uapi::KOPI_A_RULE_EXE_DEVICE, exe.device)?;
        message.uint(uapi::KOPI_A_RULE_EXE_INODE, exe.inode)?;
    }
    if let Some(protocol) = matches.protocol {
        message.u8(uapi::KOPI_A_RULE_PROTOCOL, protocol)?;
    }
    put_range(
        message,
        matches.local_port,
        (
            uapi::KOPI_A_RULE_LOCAL_PORT_MIN,
            uapi::KOPI_A_RULE_LOCAL_PORT_MAX,
        ),
        Message::u16,
    )?;
    if let Some(prefix) = matches.remote {
        let (address, bits) = prefix.parts();
        let (skipped, bits) = if prefix.is_ipv4() {
            (12, bits.saturating_sub(96))
        } else {
            (0, bits)
        };
        let address = address.get(skipped..).unwrap_or(&[]);
        message.bytes(uapi::KOPI_A_RULE_REMOTE_ADDRESS, address)?;
        message.u8(uapi::KOPI_A_RULE_REMOTE_PREFIX, bits)?;
    }
    put_range(
        message,
        matches.remote_port,
        (
            uapi::KOPI_A_RULE_REMOTE_PORT_MIN,
            uapi::KOPI_A_RULE_REMOTE_PORT_MAX,
        ),
        Message::u16,
    )?;
    if let Some(device) = matches.device {
        message.string(uapi::KOPI_A_RULE_DEVICE, &device)?;
    }
    if matches.directions != 0 {
        message.u32(uapi::KOPI_A_RULE_DIRECTION, matches.directions)?;
    }
    Ok(())
}

fn put_rule(message: &mut Message, requester: &Requester<'_>, rule: &Rule) -> Result {
    message.u32(uapi::KOPI_A_RULE_HANDLE, rule.handle)?;
    put_match(message, requester, &rule.matches)?;
    if let Some(path) = &rule.cgroup_path {
        message.string(uapi::KOPI_A_RULE_CGROUP_PATH, path)?;
    }
    if let Some(path) = &rule.exe_path {
        message.string(uapi::KOPI_A_RULE_EXE, path)?;
        let stale = is_stale(requester.net(), rule, path)?;
        message.flag(uapi::KOPI_A_RULE_EXE_STALE, stale)?;
    }
    let action = &rule.action;
    let verdict = if action.deny {
        uapi::KOPI_VERDICT_DENY
    } else {
        uapi::KOPI_VERDICT_ALLOW
    };
    message.u32(uapi::KOPI_A_RULE_VERDICT, verdict)?;
    if let Some(mark) = action.mark {
        message.u32(uapi::KOPI_A_RULE_MARK, mark)?;
    }
    if let Some(priority) = action.priority {
        message.u32(uapi::KOPI_A_RULE_PRIORITY, priority)?;
    }
    if let Some(weight) = action.weight {
        message.u32(uapi::KOPI_A_RULE_WEIGHT, weight)?;
    }
    if let Some(limit) = &action.limit {
        let kind = if limit.of_bytes {
            uapi::KOPI_A_RULE_RATE_BYTES
        } else {
            uapi::KOPI_A_RULE_RATE_PACKETS
        };
        message.uint(kind, limit.rate.per_second())?;
        message.uint(uapi::KOPI_A_RULE_BURST, limit.rate.burst())?;
        message.flag(uapi::KOPI_A_RULE_SHARED, limit.shared)?;
    }
    if let Some(comment) = &rule.comment {
        message.string(uapi::KOPI_A_RULE_COMMENT, comment)?;
    }
    message.uint(uapi::KOPI_A_RULE_PACKETS, rule.packets.get())?;
    message.uint(uapi::KOPI_A_RULE_BYTES, rule.bytes.get())?;
    message.uint(uapi::KOPI_A_RULE_DENIED, rule.denied.get())
}

/// Whether the rule's path leads to another file now, as the requester sees it, as far as that can be known
/// without waiting for a user's file system.
fn is_stale(net: &NetRef, rule: &Rule, path: &[u8]) -> Result<bool> {
    let mut string = KVec::new();
    string.extend_from_slice(path, GFP_KERNEL)?;
    string.push(0, GFP_KERNEL)?;
    let path = CStr::from_bytes_until_nul(&string).map_err(|_| EINVAL)?;
    let may_wait = net.is_of_initial_users();
    match task::file_at(path, may_wait) {
        Err(EAGAIN) if !may_wait => Ok(false),
        found => Ok(found.ok() != rule.matches.exe),
    }
}

/// `rule-get` of all.
pub(crate) fn dump(dump: &mut Dump<'_>) -> Result {
    let requester = dump.requester();
    let net = requester.net().state();
    dump.shows(net.generation());
    let set = net.rules();
    let start = usize::try_from(dump.position()).unwrap_or(usize::MAX);
    for (place, rule) in set.rules.iter().enumerate().skip(start) {
        let added = dump.add(uapi::KOPI_CMD_RULE_GET, |message| {
            message.nest(uapi::KOPI_A_RULESET_RULE, |message| {
                put_rule(message, &requester, rule)
            })
        })?;
        if !added {
            break;
        }
        dump.go_on_at((place as u64).wrapping_add(1));
    }
    Ok(())
}
