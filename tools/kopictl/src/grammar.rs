// SPDX-License-Identifier: GPL-2.0

//! Rules as words, `user bob exe /usr/bin/postgres local-port 5432 allow`, and files of them.

use crate::{
    message::{Directions, Rule, Verdict, COMMENT_MAX, DEVICE_MAX, PATH_MAX},
    names::{self, Names},
};
use std::{net::IpAddr, str::FromStr};

/// The grammar, for `--help` and the man page.
pub(crate) const HELP: &str = "\
A rule is a list of words, in any order. It applies to flows that match all of:
  user NAME|UID[-UID]      the process's user
  group NAME|GID           the process's group
  cgroup PATH              the socket's cgroup, or one below it
  exe PATH                 the process's program: the file with this
                           path now, even after it is moved; not a
                           file that replaces it
  protocol udp|tcp         the flow's protocol
  local-port N[-M]         the local port
  remote ADDR[/LEN]        the peer's address
  remote-port N[-M]        the peer's port
  device NAME              the device to which the flow is bound
  direction in|out         only incoming or outgoing packets
and decides about their packets:
  allow                    they pass
  deny                     they don't; bind(), connect() fail: EACCES;
                           a connection of TCP ends
  mark N                   outgoing packets get this mark (SO_MARK)
  priority N|MAJOR:MINOR   or this priority, or class, as in tc (hex)
  weight N                 N times the bytes of others where engines
                           send (kopictl engine); 1 to 1000
  rate N[k|M|G]bit         bits of payload that pass per second, or
       N[k|M|G]byte        bytes, or
       N[k|M|G]pps         datagrams, not of TCP; k is 1000
  burst N[k|M|G]           bytes, or datagrams, that may pass at once
  shared                   the rate applies to all flows together
and has properties of its own:
  comment TEXT             a comment
  before HANDLE            (rule add) the rule that follows it;
                           by default it becomes the last
The first matching rule decides; if none matches, the default does.";

type Result<T> = std::result::Result<T, String>;

/// Understands a rule.
pub(crate) fn parse<W: AsRef<str>>(words: &[W]) -> Result<Rule> {
    let mut rule = Rule::default();
    let mut words = words.iter().map(AsRef::as_ref);
    let mut seen = Vec::new();
    let mut acts = false;
    while let Some(word) = words.next() {
        if seen.contains(&word) {
            return Err(format!("{word} is there twice"));
        }
        seen.push(word);
        let mut value = || words.next().ok_or_else(|| format!("{word}: of what?"));
        match word {
            "user" => {
                let text = value()?;
                let (min, max) = match range(text) {
                    Ok((min, max)) => (min, (max != min).then_some(max)),
                    Err(_) => (
                        names::uid(text).ok_or_else(|| format!("there is no user {text}"))?,
                        None,
                    ),
                };
                (rule.uid_min, rule.uid_max) = (Some(min), max);
            }
            "group" => {
                let text = value()?;
                rule.gid =
                    Some(names::gid(text).ok_or_else(|| format!("there is no group {text}"))?);
            }
            "cgroup" => rule.cgroup_path = Some(path(word, value()?)?),
            "exe" => rule.exe = Some(path(word, value()?)?),
            "protocol" => {
                let text = value()?;
                let number = match text {
                    "udp" => Some(17),
                    "tcp" => Some(6),
                    _ => text.parse().ok(),
                };
                rule.protocol = Some(number.ok_or_else(|| format!("there is no protocol {text}"))?);
            }
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
            "direction" => {
                rule.direction = Some(match value()? {
                    "in" => Directions::IN,
                    "out" => Directions::OUT,
                    other => return Err(format!("direction is in or out, not {other}")),
                });
            }
            "comment" => rule.comment = Some(text(word, value()?, COMMENT_MAX)?),
            "before" => rule.before = Some(number(value()?)?),
            "burst" => rule.burst = Some(scaled(value()?)?),
            "shared" => rule.shared = true,
            "allow" | "deny" if rule.verdict.is_some() => {
                return Err("either allow or deny".to_owned())
            }
            "allow" => rule.verdict = Some(Verdict::Allow),
            "deny" => rule.verdict = Some(Verdict::Deny),
            "mark" => rule.mark = Some(number(value()?)?),
            "priority" => rule.priority = Some(priority(value()?)?),
            "weight" => rule.weight = Some(weight(value()?)?),
            "rate" => (rule.rate_bytes, rule.rate_packets) = rate(value()?)?,
            other => {
                return Err(format!(
                    "{other} is no word of a rule; see kopictl rule --help"
                ))
            }
        }
        acts |= matches!(
            word,
            "allow" | "deny" | "mark" | "priority" | "weight" | "rate"
        );
    }
    let rated = rule.rate_bytes.or(rule.rate_packets).is_some();
    match rule.verdict {
        _ if !acts => {
            Err("what becomes of them? allow, deny, mark, priority, weight or rate".to_owned())
        }
        Some(Verdict::Deny) if rated || rule.mark.or(rule.priority).or(rule.weight).is_some() => {
            Err("what is denied has no mark, priority, weight or rate".to_owned())
        }
        _ if (rule.shared || rule.burst.is_some()) && !rated => {
            Err("burst and shared are of a rate".to_owned())
        }
        _ => Ok(rule),
    }
}

/// The words of a rule, for `parse`; those that the shell would split are quoted.
pub(crate) fn text_of(rule: &Rule, names: &Names) -> String {
    let mut words = Vec::new();
    let mut add = |word: &str, value: Option<String>| {
        if let Some(value) = value {
            let quoted = shlex::try_quote(&value)
                .map_or_else(|_| value.clone(), |quoted| quoted.into_owned());
            words.extend([word.to_owned(), quoted]);
        }
    };
    let user = |min| match rule.uid_max {
        Some(max) if max != min => format!("{min}-{max}"),
        _ => names.user(min),
    };
    let span = |min: Option<u16>, max: Option<u16>| {
        min.map(|min| {
            max.filter(|&max| max != min)
                .map_or(min.to_string(), |max| format!("{min}-{max}"))
        })
    };
    let protocol = |number: u8| match number {
        17 => "udp".to_owned(),
        6 => "tcp".to_owned(),
        _ => number.to_string(),
    };
    let network = |address: IpAddr| match rule.remote_prefix {
        Some(prefix) if prefix < bits(address) => format!("{address}/{prefix}"),
        _ => address.to_string(),
    };
    add("user", rule.uid_min.map(user));
    add("group", rule.gid.map(|gid| names.group(gid)));
    add("cgroup", rule.cgroup_path.clone());
    add("exe", rule.exe.clone());
    add("protocol", rule.protocol.map(protocol));
    add("local-port", span(rule.local_port_min, rule.local_port_max));
    add("remote", rule.remote_address.map(network));
    add(
        "remote-port",
        span(rule.remote_port_min, rule.remote_port_max),
    );
    add("device", rule.device.clone());
    add(
        "direction",
        rule.direction
            .filter(|&way| way != Directions::BOTH)
            .map(|way| way.to_string()),
    );
    add("mark", rule.mark.map(|mark| format!("{mark:#x}")));
    add(
        "priority",
        rule.priority.map(|class| match class >> 16 {
            0 => class.to_string(),
            major => format!("{major:x}:{:x}", class & 0xffff),
        }),
    );
    add("weight", rule.weight.map(|weight| weight.to_string()));
    add(
        "rate",
        rule.rate_bytes.map(|bytes| match bytes.checked_mul(8) {
            Some(bits) => prefixed(bits, "bit"),
            None => prefixed(bytes, "byte"),
        }),
    );
    add(
        "rate",
        rule.rate_packets.map(|packets| prefixed(packets, "pps")),
    );
    let rate = rule.rate_bytes.or(rule.rate_packets);
    let usual = rate.map(|rate| (rate / 10).max(1));
    add(
        "burst",
        rule.burst
            .filter(|_| rule.burst != usual)
            .map(|burst| burst.to_string()),
    );
    add("comment", rule.comment.clone());
    if rule.shared {
        words.push("shared".to_owned());
    }
    if rule.verdict == Some(Verdict::Deny) {
        words.push("deny".to_owned());
    } else if rule.rate_bytes.or(rule.rate_packets).is_none()
        && rule.mark.or(rule.priority).or(rule.weight).is_none()
    {
        words.push("allow".to_owned());
    }
    words.join(" ")
}

/// The rules of a file, each with the number of its line, and the default.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct File {
    /// What becomes of flows that no rule matches; as it was, if the file doesn't say.
    pub(crate) default: Option<Verdict>,
    /// Whether ordinary sockets are judged, too; as it was, if the file doesn't say.
    pub(crate) enforce: Option<bool>,
    /// The rules, in their order.
    pub(crate) rules: Vec<(usize, Rule)>,
}

impl File {
    /// Understands the words of one line.
    pub(crate) fn add(&mut self, line: usize, words: &[String]) -> Result<()> {
        match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => (),
            ["default", _] if self.default.is_some() => {
                return Err("the default is there twice".to_owned())
            }
            ["default", "allow"] => self.default = Some(Verdict::Allow),
            ["default", "deny"] => self.default = Some(Verdict::Deny),
            ["default", ..] => return Err("default is allow or deny".to_owned()),
            ["enforce", _] if self.enforce.is_some() => {
                return Err("enforce is there twice".to_owned())
            }
            ["enforce", "on"] => self.enforce = Some(true),
            ["enforce", "off"] => self.enforce = Some(false),
            ["enforce", ..] => return Err("enforce is on or off".to_owned()),
            _ => {
                let rule = parse(words)?;
                if rule.before.is_some() {
                    return Err("before is for rule add; here the order counts".to_owned());
                }
                self.rules.push((line, rule));
            }
        }
        Ok(())
    }

    /// Whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.default.is_none() && self.enforce.is_none() && self.rules.is_empty()
    }
}

impl FromStr for File {
    /// The line, and what is wrong with it.
    type Err = (usize, String);

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let mut file = Self::default();
        each_line(text, |line, words| file.add(line, words))?;
        Ok(file)
    }
}

/// Has each line of a file understood, as the words into which a shell would split it; none of a
/// comment. Gives the line that is wrong, and what is.
pub(crate) fn each_line(
    text: &str,
    mut add: impl FnMut(usize, &[String]) -> Result<()>,
) -> std::result::Result<(), (usize, String)> {
    for (line, text) in (1..).zip(text.lines()) {
        shlex::split(text)
            .ok_or_else(|| "a quote has no end".to_owned())
            .and_then(|words| add(line, &words))
            .map_err(|what| (line, what))?;
    }
    Ok(())
}

fn text(word: &str, text: &str, max: usize) -> Result<String> {
    match text.chars().find(|letter| letter.is_control()) {
        _ if text.is_empty() => Err(format!("{word}: of what?")),
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

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() {
        32
    } else {
        128
    }
}

/// An address and its prefix; what is behind the prefix is cleared.
fn network(text: &str) -> Result<(IpAddr, u8)> {
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
const WEIGHT_MAX: u32 = 1000;

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
        .ok_or_else(|| format!("{text} is no number from 1 on"))
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

fn prefixed(number: u64, unit: &str) -> String {
    let prefixes = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    match prefixes
        .iter()
        .find(|(factor, _)| number != 0 && number % factor == 0)
    {
        Some((factor, prefix)) => format!("{}{prefix}{unit}", number / factor),
        None => format!("{number}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{option::of, prelude::*};

    fn numeric(text: &str) -> String {
        let words = shlex::split(text).unwrap();
        text_of(&parse(&words).unwrap(), &Names::new(true))
    }

    #[test]
    fn what_is_written_is_what_was_read() {
        for text in [
            "allow",
            "user 1002 exe /usr/bin/postgres local-port 5432 allow",
            "user 1000-1999 group 5 cgroup /system.slice/a protocol udp remote 10.0.0.0/8 deny",
            "remote 2001:db8::1 remote-port 1-1023 device eth0 direction out mark 0x10",
            "exe '/opt/my game/it' priority 1:10",
            "priority 6",
            "user 0 weight 5",
            "rate 1Mbit burst 3000 shared",
            "direction in rate 12345pps comment 'not so fast'",
            "rate 8bit",
        ] {
            assert_eq!(numeric(text), text);
        }
    }

    #[test]
    fn there_are_many_ways_to_say_it() {
        for (text, same) in [
            ("allow user 0-0", "user 0 allow"),
            ("allow user root", "user 0 allow"),
            ("group root deny", "group 0 deny"),
            ("remote 10.1.2.3/8 allow", "remote 10.0.0.0/8 allow"),
            ("remote 10.1.2.3/0 allow", "remote 0.0.0.0/0 allow"),
            ("remote ::1/0 allow", "remote ::/0 allow"),
            ("mark 16 allow", "mark 0x10"),
            ("rate 1000byte burst 1k", "rate 8kbit burst 1000"),
            ("priority 1: allow", "priority 1:0"),
        ] {
            assert_eq!(numeric(text), same);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, part) in [
            ("", "what becomes"),
            ("user 0", "what becomes"),
            ("user", "of what"),
            ("user nobody-there allow", "no user"),
            ("user 9-1 allow", "no user"),
            ("user 1 user 2 allow", "twice"),
            ("allow deny", "either"),
            ("deny mark 1", "no mark"),
            ("deny weight 2", "no mark"),
            ("weight 0", "1 to 1000"),
            ("weight 1001", "1 to 1000"),
            ("allow burst 5", "of a rate"),
            ("local-port 65536 allow", "range"),
            ("local-port 9-1 allow", "empty"),
            ("remote 1.2.3.4/33 allow", "no address"),
            ("remote example.org allow", "no address"),
            ("exe postgres allow", "absolute"),
            ("exe '' allow", "of what"),
            ("device a-name-that-is-too-long allow", "longer"),
            ("comment \"a\nb\" allow", "can't be"),
            ("direction up allow", "in or out"),
            ("rate 5", "bit, byte or pps"),
            ("rate 0pps", "from 1 on"),
            ("rate 3bit", "whole number"),
            ("rate 99999999999999999999pps", "from 1 on"),
            ("rate 99999999999Gbyte", "from 1 on"),
            ("mark 0x1ffffffff", "32 bits"),
            ("priority 10000:1", "no class"),
            ("protocol sctp allow", "no protocol"),
            ("please allow", "no word"),
        ] {
            let error = parse(&shlex::split(text).unwrap()).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn files_have_lines() {
        let file: File = "# rules\n\ndefault deny\nuser 5 allow # a note\n  remote ::1 deny\n"
            .parse()
            .unwrap();
        assert_eq!(file.default, Some(Verdict::Deny));
        assert_eq!(file.enforce, None);
        let on: File = "enforce on".parse().unwrap();
        assert_eq!((on.enforce, on.is_empty()), (Some(true), false));
        let silent: File = "user 5 allow\n".parse().unwrap();
        assert_eq!(silent.default, None);
        assert_eq!(
            file.rules.iter().map(|(line, _)| *line).collect::<Vec<_>>(),
            [4, 5]
        );
        for (text, line) in [
            ("default maybe", 1),
            ("enforce maybe", 1),
            ("enforce on\nenforce on", 2),
            ("\ndefault\n", 2),
            ("default deny\ndefault deny", 2),
            ("allow\nallow 'x", 2),
            ("allow before 7", 1),
        ] {
            assert_eq!(text.parse::<File>().unwrap_err().0, line, "{text}");
        }
    }

    /// With what it means by saying nothing.
    fn full(rule: &Rule) -> Rule {
        let rate = rule.rate_bytes.or(rule.rate_packets);
        Rule {
            uid_max: rule.uid_max.or(rule.uid_min),
            direction: rule.direction.or(Some(Directions::BOTH)),
            verdict: rule.verdict.or(Some(Verdict::Allow)),
            burst: rule.burst.or(rate.map(|rate| (rate / 10).max(1))),
            ..rule.clone()
        }
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let text = "[ -~äß]{1,15}";
        let who = (
            of(any::<u32>()),
            of(any::<u32>()),
            of(text),
            of(text),
            of(text),
            of(text),
        );
        let ports = || of((any::<u16>(), any::<u16>()));
        let net = of((any::<IpAddr>(), 0..=128_u8));
        let acts = (
            of(any::<u32>()),
            of(any::<u32>()),
            0..3,
            1..=u64::MAX,
            of(1..=u64::MAX),
            any::<bool>(),
            of(1..=WEIGHT_MAX),
        );
        (who, ports(), ports(), net, of(1..=3_u32), acts).prop_map(
            |(who, local, remote, net, ways, acts)| {
                let (uid, gid, cgroup, exe, device, comment) = who;
                let (mark, priority, kind, rate, burst, shared, weight) = acts;
                let net =
                    net.and_then(|(address, prefix)| network(&format!("{address}/{prefix}")).ok());
                Rule {
                    uid_min: uid,
                    gid,
                    cgroup_path: cgroup.map(|path| format!("/{path}")),
                    exe: exe.map(|path| format!("/{path}")),
                    local_port_min: local.map(|(a, b)| a.min(b)),
                    local_port_max: local.map(|(a, b)| a.max(b)),
                    remote_port_min: remote.map(|(a, b)| a.min(b)),
                    remote_port_max: remote.map(|(a, b)| a.max(b)),
                    remote_address: net.map(|net| net.0),
                    remote_prefix: net.map(|net| net.1),
                    device: device.filter(|device| device.len() <= DEVICE_MAX),
                    direction: ways.map(Directions),
                    comment,
                    mark,
                    priority,
                    weight,
                    rate_bytes: (kind == 1).then_some(rate),
                    rate_packets: (kind == 2).then_some(rate),
                    burst: burst.filter(|_| kind > 0),
                    shared: shared && kind > 0,
                    ..Rule::default()
                }
            },
        )
    }

    proptest! {
        #[test]
        fn any_rule_comes_back(rule in any_rule()) {
            let file: File = text_of(&rule, &Names::new(true)).parse().unwrap();
            prop_assert_eq!(full(&file.rules[0].1), full(&rule));
        }

        #[test]
        fn any_text_is_understood_or_not(text in "\\PC*") {
            let _ = text.parse::<File>();
        }

        #[test]
        fn any_words_are_understood_or_not(
            words in prop::collection::vec("(user|exe|rate|remote|local-port|mark|[0-9a-fk:./-]{0,9}|bit|allow)", 0..6)
        ) {
            let _ = parse(&words);
        }
    }
}
