// SPDX-License-Identifier: GPL-2.0

//! From words to a rule.

use super::{bits, Result};
use crate::{
    message::rule::{Directions, Rule, Verdict, COMMENT_MAX, DEVICE_MAX, PATH_MAX},
    names,
};
use std::{net::IpAddr, str::FromStr};

/// Understands a rule.
pub(crate) fn parse<W: AsRef<str>>(words: &[W]) -> Result<Rule> {
    let mut rule = Rule::default();
    let mut words = words.iter().map(AsRef::as_ref);
    let mut seen = Vec::new();
    while let Some(word) = words.next() {
        if seen.contains(&word) {
            return Err(format!("{word} is given twice"));
        }
        seen.push(word);
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let known = condition(&mut rule, word, &mut value)?
            || decision(&mut rule, word, &mut value)?
            || property(&mut rule, word, &mut value)?;
        if !known {
            return Err(format!(
                "{word} is not a keyword of rules; see kopictl rule --help"
            ));
        }
    }
    check(&rule)?;
    Ok(rule)
}

/// Understands what a flow must match; says whether the word is about that.
fn condition<'a>(
    rule: &mut Rule,
    word: &str,
    value: impl FnOnce() -> Result<&'a str>,
) -> Result<bool> {
    match word {
        "user" => (rule.uid_min, rule.uid_max) = users(value()?)?,
        "group" => rule.gid = Some(group(value()?)?),
        "cgroup" => rule.cgroup_path = Some(path(word, value()?)?),
        "exe" => rule.exe = Some(path(word, value()?)?),
        "protocol" => rule.protocol = Some(protocol(value()?)?),
        "local-port" => {
            let (min, max) = range(value()?)?;
            (rule.local_port_min, rule.local_port_max) = (Some(min), Some(max));
        }
        "remote-port" => {
            let (min, max) = range(value()?)?;
            (rule.remote_port_min, rule.remote_port_max) = (Some(min), Some(max));
        }
        "remote" => {
            let (address, prefix) = network(value()?)?;
            (rule.remote_address, rule.remote_prefix) = (Some(address), Some(prefix));
        }
        "device" => rule.device = Some(text(word, value()?, DEVICE_MAX)?),
        "direction" => rule.direction = Some(direction(value()?)?),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Understands what becomes of the packets; says whether the word is about that.
fn decision<'a>(
    rule: &mut Rule,
    word: &str,
    value: impl FnOnce() -> Result<&'a str>,
) -> Result<bool> {
    match word {
        "allow" | "deny" if rule.verdict.is_some() => {
            return Err("either allow or deny".to_owned());
        }
        "allow" => rule.verdict = Some(Verdict::Allow),
        "deny" => rule.verdict = Some(Verdict::Deny),
        "mark" => rule.mark = Some(number(value()?)?),
        "priority" => rule.priority = Some(priority(value()?)?),
        "weight" => rule.weight = Some(weight(value()?)?),
        "rate" => (rule.rate_bytes, rule.rate_packets) = rate(value()?)?,
        "burst" => rule.burst = Some(scaled(value()?)?),
        "shared" => rule.shared = true,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Understands what a rule has of its own; says whether the word is about that.
fn property<'a>(
    rule: &mut Rule,
    word: &str,
    value: impl FnOnce() -> Result<&'a str>,
) -> Result<bool> {
    match word {
        "comment" => rule.comment = Some(text(word, value()?, COMMENT_MAX)?),
        "before" => rule.before = Some(number(value()?)?),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Whether the words make sense together.
fn check(rule: &Rule) -> Result<()> {
    let rated = rule.rate_bytes.or(rule.rate_packets).is_some();
    let marked = rule.mark.or(rule.priority).or(rule.weight).is_some();
    match rule.verdict {
        None if !rated && !marked => Err(
            "the rule has no decision: add allow, deny, mark, priority, weight or rate".to_owned(),
        ),
        Some(Verdict::Deny) if rated || marked => {
            Err("a rule that denies can't have mark, priority, weight or rate".to_owned())
        }
        _ if (rule.shared || rule.burst.is_some()) && !rated => {
            Err("burst and shared need a rate".to_owned())
        }
        _ => Ok(()),
    }
}

/// A range of users, or the only one.
fn users(text: &str) -> Result<(Option<u32>, Option<u32>)> {
    if let Ok((min, max)) = range(text) {
        return Ok((Some(min), (max != min).then_some(max)));
    }
    let user = names::uid(text).ok_or_else(|| format!("there is no user {text}"))?;
    Ok((Some(user), None))
}

fn group(text: &str) -> Result<u32> {
    names::gid(text).ok_or_else(|| format!("there is no group {text}"))
}

fn protocol(text: &str) -> Result<u8> {
    let number = match text {
        "udp" => Some(17),
        "tcp" => Some(6),
        _ => text.parse().ok(),
    };
    number.ok_or_else(|| format!("there is no protocol {text}"))
}

fn direction(text: &str) -> Result<Directions> {
    match text {
        "in" => Ok(Directions::IN),
        "out" => Ok(Directions::OUT),
        other => Err(format!("direction is in or out, not {other}")),
    }
}

fn text(word: &str, text: &str, max: usize) -> Result<String> {
    match text.chars().find(|letter| letter.is_control()) {
        _ if text.is_empty() => Err(format!("{word} needs a value")),
        _ if text.len() > max => Err(format!("{word}: longer than {max} bytes")),
        Some(letter) => Err(format!("{word}: {letter:?} can't be in it")),
        None => Ok(text.to_owned()),
    }
}

fn path(word: &str, value: &str) -> Result<String> {
    match text(word, value, PATH_MAX)? {
        path if path.starts_with('/') => Ok(path),
        _ => Err(format!("{word}: {value} is no absolute path")),
    }
}

fn number(text: &str) -> Result<u32> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text} is no number of 32 bits"))
}

fn range<N: FromStr + PartialOrd + Copy>(text: &str) -> Result<(N, N)> {
    let (min, max) = text.split_once('-').unwrap_or((text, text));
    let parse = |part: &str| {
        part.parse()
            .map_err(|_| format!("{text}: a number or a range of two was expected"))
    };
    let (min, max) = (parse(min)?, parse(max)?);
    if min <= max {
        Ok((min, max))
    } else {
        Err(format!("{text} is an empty range"))
    }
}

/// An address and its prefix; what is behind the prefix is cleared.
pub(super) fn network(text: &str) -> Result<(IpAddr, u8)> {
    let wrong = || format!("{text} is no address, nor one with a prefix length");
    let (address, prefix) = text
        .split_once('/')
        .map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let prefix = prefix
        .map_or(Ok(bits(address)), str::parse)
        .map_err(|_| wrong())?;
    if prefix > bits(address) {
        return Err(wrong());
    }
    Ok(match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            (IpAddr::V4((u32::from(v4) & mask).into()), prefix)
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            (IpAddr::V6((u128::from(v6) & mask).into()), prefix)
        }
    })
}

/// More than that would be no share.
pub(super) const WEIGHT_MAX: u32 = 1000;

fn weight(text: &str) -> Result<u32> {
    match number(text)? {
        weight @ 1..=WEIGHT_MAX => Ok(weight),
        _ => Err(format!("{text}: a weight is 1 to {WEIGHT_MAX}")),
    }
}

fn priority(text: &str) -> Result<u32> {
    let Some((major, minor)) = text.split_once(':') else {
        return number(text);
    };
    let part = |part: &str| match part {
        "" => Ok(0),
        _ => u16::from_str_radix(part, 16)
            .map(u32::from)
            .map_err(|_| format!("{text} is no class")),
    };
    Ok((part(major)? << 16) | part(minor)?)
}

/// A number with k, M or G behind it.
fn scaled(text: &str) -> Result<u64> {
    let end = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, prefix) = text.split_at(end);
    let factor: u64 = match prefix {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => {
            return Err(format!(
                "{text}: a number was expected, maybe with k, M or G"
            ))
        }
    };
    let number = digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(factor));
    number
        .filter(|&number| number > 0)
        .ok_or_else(|| format!("{text} is not a number of at least 1"))
}

/// Bytes or packets a second.
fn rate(text: &str) -> Result<(Option<u64>, Option<u64>)> {
    if let Some(bits) = text.strip_suffix("bit") {
        return match scaled(bits)? {
            bits if bits % 8 == 0 => Ok((Some(bits / 8), None)),
            _ => Err(format!("{text} is no whole number of bytes")),
        };
    }
    if let Some(bytes) = text.strip_suffix("byte") {
        return Ok((Some(scaled(bytes)?), None));
    }
    match text.strip_suffix("pps") {
        Some(packets) => Ok((None, Some(scaled(packets)?))),
        None => Err(format!("{text}: in bit, byte or pps (a second)?")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, part) in [
            ("", "no decision"),
            ("user 0", "no decision"),
            ("user", "needs a value"),
            ("user nobody-there allow", "no user"),
            ("user 9-1 allow", "no user"),
            ("user 1 user 2 allow", "twice"),
            ("allow deny", "either"),
            ("deny mark 1", "can't have mark"),
            ("deny weight 2", "can't have mark"),
            ("weight 0", "1 to 1000"),
            ("weight 1001", "1 to 1000"),
            ("allow burst 5", "need a rate"),
            ("local-port 65536 allow", "range"),
            ("local-port 9-1 allow", "empty"),
            ("remote 1.2.3.4/33 allow", "no address"),
            ("remote example.org allow", "no address"),
            ("exe postgres allow", "absolute"),
            ("exe '' allow", "needs a value"),
            ("device a-name-that-is-too-long allow", "longer"),
            ("comment \"a\nb\" allow", "can't be"),
            ("direction up allow", "in or out"),
            ("rate 5", "bit, byte or pps"),
            ("rate 0pps", "at least 1"),
            ("rate 3bit", "whole number"),
            ("rate 99999999999999999999pps", "at least 1"),
            ("rate 99999999999Gbyte", "at least 1"),
            ("mark 0x1ffffffff", "32 bits"),
            ("priority 10000:1", "no class"),
            ("protocol sctp allow", "no protocol"),
            ("please allow", "not a keyword"),
        ] {
            let error = parse(&shlex::split(text).unwrap()).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_words_are_understood_or_not(
            words in prop::collection::vec("(user|exe|rate|remote|local-port|mark|[0-9a-fk:./-]{0,9}|bit|allow)", 0..6)
        ) {
            let _ = parse(&words);
        }
    }
}
