// SPDX-License-Identifier: GPL-2.0

//! Reading a rule from a request.

use crate::pure::{
    bucket::Rate,
    ip::TCP,
    rule::{Direction, Match, Prefix}, //
};
use crate::rules::{Action, Limit, Parts};
use crate::sys::{
    cgroup,
    errno::eopnotsupp,
    genl::{Attribute, Request, Requester, RuleInput},
    task,
    uapi, //
};
use kernel::{
    prelude::*,
    str::CStr, //
};

/// A range of two attributes; the first alone is a range of one.
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

/// The parts of a rule. Paths are resolved as the requester sees them.
pub(super) fn parts(request: &Request<'_>, table: &RuleInput<'_>) -> Result<Parts> {
    let requester = request.requester();
    let mut parts = Parts {
        matches: matches(request, &requester, table)?,
        action: action(request, table)?,
        ..Parts::default()
    };
    refuse_rate_of_streams(request, table, &parts)?;
    if let Some(attr) = table.get(uapi::KOPI_A_RULE_EXE) {
        let path = attr.string()?;
        if path.to_bytes().first() != Some(&b'/') {
            return Err(request.refuse(EINVAL, c"exe is not an absolute path", Some(&attr)));
        }
        // Generic netlink's `cb_lock` is held, for reading.
        let may_wait = requester.net().is_of_initial_users();
        let file = task::file_at(path, may_wait).map_err(|error| {
            let why = match error {
                ENOEXEC => c"exe is no regular file, and so no program",
                _ => c"exe can't be looked up",
            };
            request.refuse(error, why, Some(&attr))
        })?;
        parts.matches.exe = Some(file);
        parts.exe_path = Some(copied(path)?);
    }
    if let Some(attr) = table.get(uapi::KOPI_A_RULE_CGROUP_PATH) {
        let path = attr.string()?;
        let cgroup = cgroup::at(path).map_err(|error| {
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

/// A rule for streams can have no rate that these can't keep: `EOPNOTSUPP`.
///
/// A stream has nothing that could be dropped: it is paced, by itself, as it sends.
fn refuse_rate_of_streams(request: &Request<'_>, table: &RuleInput<'_>, parts: &Parts) -> Result {
    let Some(limit) = &parts.action.limit else {
        return Ok(());
    };
    if parts.matches.protocol != Some(TCP) {
        return Ok(());
    }
    let refuse = |why, kind| Err(request.refuse(eopnotsupp(), why, table.get(kind).as_ref()));
    if !limit.of_bytes {
        let why = c"a rate of TCP is of bytes, not of datagrams";
        return refuse(why, uapi::KOPI_A_RULE_RATE_PACKETS);
    }
    if limit.shared {
        let why = c"each TCP flow has a rate of its own: it can't be shared";
        return refuse(why, uapi::KOPI_A_RULE_SHARED);
    }
    if parts.matches.directions == Direction::In as u32 {
        let why = c"what TCP receives can have no rate";
        return refuse(why, uapi::KOPI_A_RULE_DIRECTION);
    }
    Ok(())
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
    let ports = |kinds| range(request, table, kinds, |attr| Ok(attr.u16()));
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
        local_port: ports((
            uapi::KOPI_A_RULE_LOCAL_PORT_MIN,
            uapi::KOPI_A_RULE_LOCAL_PORT_MAX,
        ))?,
        remote: remote(request, table)?,
        remote_port: ports((
            uapi::KOPI_A_RULE_REMOTE_PORT_MIN,
            uapi::KOPI_A_RULE_REMOTE_PORT_MAX,
        ))?,
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
    let len = bits.map(|bits| bits.u32() as u8);
    let prefix = match attr.bytes() {
        &[a, b, c, d] => Prefix::ipv4([a, b, c, d], len.unwrap_or(32)),
        bytes => match <[u8; 16]>::try_from(bytes) {
            Ok(address) => Prefix::ipv6(address, len.unwrap_or(128)),
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

/// The rate at which packets pass, if there is one.
fn limit(request: &Request<'_>, table: &RuleInput<'_>) -> Result<Option<Limit>> {
    let bytes = table.get(uapi::KOPI_A_RULE_RATE_BYTES);
    let packets = table.get(uapi::KOPI_A_RULE_RATE_PACKETS);
    let burst = table.get(uapi::KOPI_A_RULE_BURST);
    let shared = table.get(uapi::KOPI_A_RULE_SHARED);
    match (&bytes, &packets) {
        (Some(_), Some(attr)) => Err(request.refuse(
            EINVAL,
            c"a rate is of bytes or of datagrams: use two rules",
            Some(attr),
        )),
        (None, None) => match burst.or(shared) {
            Some(stray) => Err(request.refuse(EINVAL, c"there is no rate", Some(&stray))),
            None => Ok(None),
        },
        (Some(rate), None) | (None, Some(rate)) => Ok(Some(Limit {
            rate: Rate::new(rate.uint(), burst.as_ref().map(|attr| attr.uint()))
                .ok_or_else(|| request.refuse(EINVAL, c"nothing would pass", Some(rate)))?,
            of_bytes: bytes.is_some(),
            shared: shared.is_some(),
        })),
    }
}

fn action(request: &Request<'_>, table: &RuleInput<'_>) -> Result<Action> {
    let number = |kind| table.get(kind).map(|attr| attr.u32());
    let limit = limit(request, table)?;
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
