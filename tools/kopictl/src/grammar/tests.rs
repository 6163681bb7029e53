// SPDX-License-Identifier: GPL-2.0

//! Rules come back from their words.

use super::{
    parse::{network, WEIGHT_MAX},
    *,
};
use crate::{
    message::rule::{Directions, Rule, Verdict, DEVICE_MAX},
    names::Names,
};
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
}
