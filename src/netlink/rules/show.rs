// SPDX-License-Identifier: GPL-2.0

//! Showing rules.

use crate::pure::rule::{Match, Prefix};
use crate::rules::{Action, NetPolicy, Rule};
use crate::sys::{
    cgroup,
    genl::{Dump, Message, Request, Requester},
    pernet::NetRef,
    task,
    uapi, //
};
use kernel::{
    prelude::*,
    str::CStr, //
};

/// `ruleset-get`.
pub(crate) fn show_all(request: &Request<'_>) -> Result {
    let net = request.requester().net().state();
    let (set, generation) = net.policy.rules_and_generation();
    let verdict = if set.deny_others {
        uapi::KOPI_VERDICT_DENY
    } else {
        uapi::KOPI_VERDICT_ALLOW
    };
    request.reply(uapi::KOPI_CMD_RULESET_GET, |message| {
        message.u32(uapi::KOPI_A_RULESET_DEFAULT, verdict)?;
        message.uint(uapi::KOPI_A_RULESET_GENERATION, generation)?;
        message.u32(uapi::KOPI_A_RULESET_ENFORCE, set.enforce.into())?;
        if request.requester().is_admin() {
            message.u32(uapi::KOPI_A_RULESET_ENFORCING, NetPolicy::enforcing())?;
        }
        Ok(())
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
    if let Some(prefix) = &matches.remote {
        put_prefix(message, prefix)?;
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

fn put_prefix(message: &mut Message, prefix: &Prefix) -> Result {
    let (address, bits) = prefix.parts();
    // IPv4's are kept as IPv4-mapped addresses.
    let (skipped, bits) = if prefix.is_ipv4() {
        (12, bits.saturating_sub(96))
    } else {
        (0, bits)
    };
    let address = address.get(skipped..).unwrap_or(&[]);
    message.bytes(uapi::KOPI_A_RULE_REMOTE_ADDRESS, address)?;
    message.u8(uapi::KOPI_A_RULE_REMOTE_PREFIX, bits)
}

fn put_rule(message: &mut Message, requester: &Requester<'_>, rule: &Rule) -> Result {
    message.u32(uapi::KOPI_A_RULE_HANDLE, rule.handle)?;
    put_match(message, requester, &rule.matches)?;
    if let Some(path) = &rule.cgroup_path {
        message.string(uapi::KOPI_A_RULE_CGROUP_PATH, path)?;
        let stale = is_cgroup_stale(rule, path)?;
        message.flag(uapi::KOPI_A_RULE_CGROUP_STALE, stale)?;
    }
    if let Some(path) = &rule.exe_path {
        message.string(uapi::KOPI_A_RULE_EXE, path)?;
        let stale = is_exe_stale(requester.net(), rule, path)?;
        message.flag(uapi::KOPI_A_RULE_EXE_STALE, stale)?;
    }
    put_action(message, &rule.action)?;
    if let Some(comment) = &rule.comment {
        message.string(uapi::KOPI_A_RULE_COMMENT, comment)?;
    }
    message.uint(uapi::KOPI_A_RULE_PACKETS, rule.packets.get())?;
    message.uint(uapi::KOPI_A_RULE_BYTES, rule.bytes.get())?;
    message.uint(uapi::KOPI_A_RULE_DENIED, rule.denied.get())
}

fn put_action(message: &mut Message, action: &Action) -> Result {
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
    Ok(())
}

/// Calls `look` with a path as C has it.
fn with_path<T>(path: &[u8], look: impl FnOnce(&CStr) -> T) -> Result<T> {
    let mut string = KVec::new();
    string.extend_from_slice(path, GFP_KERNEL)?;
    string.push(0, GFP_KERNEL)?;
    let path = CStr::from_bytes_until_nul(&string).map_err(|_| EINVAL)?;
    Ok(look(path))
}

/// Whether the path of the rule's program leads to another file now, as the requester sees it, as far
/// as that can be known without waiting for a user's file system.
fn is_exe_stale(net: &NetRef, rule: &Rule, path: &[u8]) -> Result<bool> {
    let may_wait = net.is_of_initial_users();
    with_path(path, |path| match task::file_at(path, may_wait) {
        Err(EAGAIN) if !may_wait => false,
        found => found.ok() != rule.matches.exe,
    })
}

/// Whether the path of the rule's cgroup leads to another cgroup now, or to none, as the requester
/// sees it.
fn is_cgroup_stale(rule: &Rule, path: &[u8]) -> Result<bool> {
    with_path(path, |path| cgroup::at(path).ok() != rule.matches.cgroup)
}

/// `rule-get` of all.
pub(crate) fn dump(dump: &mut Dump<'_>) -> Result {
    let requester = dump.requester();
    let net = requester.net().state();
    let (set, generation) = net.policy.rules_and_generation();
    dump.set_generation(generation);
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
