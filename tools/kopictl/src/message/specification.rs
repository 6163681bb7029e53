// SPDX-License-Identifier: GPL-2.0

//! Compares the messages with uapi/kopi.yaml.

use super::{
    channel::{Channel, Ring},
    device::Device,
    engine::{Engine, Engines},
    flow::{ChannelUse, Flow, Operation},
    info::Info,
    paths::{RxPath, TxPath},
    rule::{Directions, Rule, Ruleset, Verdict, COMMENT_MAX, DEVICE_MAX, PATH_MAX},
    stats::{Stats, Totals},
    tests::bytes,
    *,
};
use crate::attributes::{Attribute, Set};
use netlink_packet_core::DefaultNla;
use serde_norway::Value as Yaml;

fn specification() -> Yaml {
    let text = include_str!("../../../../uapi/kopi.yaml");
    serde_norway::from_str(text).unwrap()
}

fn entries(yaml: &Yaml) -> impl Iterator<Item = &Yaml> {
    yaml.as_sequence().unwrap().iter()
}

fn text<'a>(yaml: &'a Yaml, key: &str) -> &'a str {
    yaml.get(key).and_then(Yaml::as_str).unwrap_or_default()
}

fn names(yaml: &Yaml) -> Vec<String> {
    let name = |entry: &Yaml| {
        entry
            .as_str()
            .map_or_else(|| text(entry, "name").to_owned(), str::to_owned)
    };
    entries(yaml).map(name).collect()
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Compares a set with the specification's: numbers, names, words, and how values are written.
fn compare<S: Set>(name: &str) {
    let specification = specification();
    let set_of = |wanted: &str| {
        entries(&specification["attribute-sets"]).find(|set| text(set, "name") == wanted)
    };
    let specified = &set_of(name).unwrap()["attributes"];
    assert_eq!(names(specified).len(), S::ATTRIBUTES.len(), "{name}");
    for ((number, spec), attribute) in (1..).zip(entries(specified)).zip(S::ATTRIBUTES) {
        let what = format!("{name} {}", text(spec, "name"));
        assert_eq!(
            (attribute.number, &*attribute.spec_name()),
            (number, text(spec, "name")),
            "{what}"
        );
        assert_eq!(words(attribute.doc), words(text(spec, "doc")), "{what}");
        let nested = set_of(text(spec, "nested-attributes"));
        let nested = nested.map_or_else(Vec::new, |set| names(&set["attributes"]));
        let inner = attribute.set.iter().map(Attribute::spec_name);
        assert_eq!(inner.collect::<Vec<_>>(), nested, "{what}");
        if let Some((values, shown)) = example(spec, &what) {
            compare_values::<S>(&what, number, spec, &values, shown);
        }
    }
}

/// A value of an attribute, in each way to write it, the usual one first, and as it is shown. Those of
/// a nest are attributes themselves.
fn example(spec: &Yaml, what: &str) -> Option<(Vec<Vec<u8>>, &'static str)> {
    Some(match text(spec, "type") {
        "nest" => return None,
        "flag" => (vec![vec![]], "yes"),
        "string" => (vec![b"x y\0".to_vec()], "x y"),
        "binary" => (vec![vec![192, 0, 2, 1]], "192.0.2.1"),
        "u8" if text(spec, "enum") == "tcp-state" => (vec![vec![1]], "established"),
        "u8" => (vec![vec![1]], "1"),
        "u16" if text(spec, "byte-order") == "big-endian" => (vec![vec![0, 1]], "1"),
        "u16" => (vec![1_u16.to_ne_bytes().to_vec()], "1"),
        "u32" => {
            let shown = match text(spec, "enum") {
                "direction" => "out",
                "verdict" => "deny",
                "tx-path" => "through the stack: no XDP program",
                "rx-path" => "through the stack: no XDP program that redirects",
                "operation" => "connect",
                "channel-use" => "sends by a channel, receives by system calls",
                _ => "1",
            };
            (vec![1_u32.to_ne_bytes().to_vec()], shown)
        }
        "uint" => (
            vec![1_u32.to_ne_bytes().to_vec(), 1_u64.to_ne_bytes().to_vec()],
            "1",
        ),
        other => panic!("{what} is of type {other}"),
    })
}

/// Reads values of an attribute, each as part of its set, and writes them.
fn compare_values<S: Set>(what: &str, number: u16, spec: &Yaml, values: &[Vec<u8>], shown: &str) {
    for value in values {
        let parsed = S::parse(&bytes(&[DefaultNla::new(number, value.clone())])).unwrap();
        let rows = parsed.rows();
        // What can be there many times has no line of its own.
        let lines = usize::from(spec.get("multi-attr").is_none());
        assert_eq!(
            rows.iter().map(|row| &*row.text).collect::<Vec<_>>(),
            [shown][..lines],
            "{what}"
        );
        assert_eq!(
            parsed.to_bytes(),
            bytes(&[DefaultNla::new(number, values[0].clone())]),
            "{what}"
        );
    }
    if !matches!(text(spec, "type"), "flag" | "string") {
        assert!(
            S::parse(&bytes(&[DefaultNla::new(number, vec![0; 3])])).is_err(),
            "{what}"
        );
    }
}

#[test]
fn attributes_are_those_of_the_specification() {
    compare::<Info>("info");
    compare::<Stats>("stats");
    compare::<Ring>("ring");
    compare::<Channel>("channel");
    compare::<Flow>("flow");
    compare::<Totals>("totals");
    compare::<Rule>("rule");
    compare::<Ruleset>("ruleset");
    compare::<Engine>("engine");
    compare::<Engines>("engines");
    compare::<Device>("device");
    let specification = specification();
    let sets =
        entries(&specification["attribute-sets"]).filter(|set| set.get("subset-of").is_none());
    assert_eq!(sets.count(), 11);
}

fn named<E: ValueEnum>(entry: &E) -> String {
    entry.to_possible_value().unwrap().get_name().to_owned()
}

#[test]
fn commands_and_events_are_those_of_the_specification() {
    let specification = specification();
    let commands = Command::value_variants()
        .iter()
        .map(|command| (*command as u8, named(command)));
    let events = Event::value_variants()
        .iter()
        .map(|event| (*event as u8, named(event) + "-ntf"));
    let mut all = commands.chain(events).collect::<Vec<_>>();
    all.sort();
    let specified = names(&specification["operations"]["list"]);
    assert_eq!(all, (1..).zip(specified).collect::<Vec<_>>());
    assert_eq!(names(&specification["mcast-groups"]["list"]), [EVENTS]);
    assert_eq!(text(&specification, "name"), FAMILY);
    assert!(specification.get("version").is_none() && VERSION == 1);
}

#[test]
fn definitions_are_those_of_the_specification() {
    let specification = specification();
    let of = |name: &str| {
        entries(&specification["definitions"]).find(|entry| text(entry, "name") == name)
    };
    assert_eq!(of("file-path-max").unwrap()["value"], Yaml::from(PATH_MAX));
    assert_eq!(of("device-max").unwrap()["value"], Yaml::from(DEVICE_MAX));
    assert_eq!(
        names(&of("direction").unwrap()["entries"]),
        Directions::BOTH.words().collect::<Vec<_>>()
    );
    assert_eq!(
        names(&of("verdict").unwrap()["entries"]),
        [Verdict::Allow, Verdict::Deny].map(|verdict| verdict.to_string())
    );
    assert_eq!(
        names(&of("tx-path").unwrap()["entries"]),
        TxPath::value_variants()
            .iter()
            .map(named)
            .collect::<Vec<_>>()
    );
    assert_eq!(
        names(&of("rx-path").unwrap()["entries"]),
        RxPath::value_variants()
            .iter()
            .map(named)
            .collect::<Vec<_>>()
    );
    assert_eq!(
        names(&of("operation").unwrap()["entries"]),
        Operation::value_variants()
            .iter()
            .map(named)
            .collect::<Vec<_>>()
    );
    assert_eq!(
        names(&of("channel-use").unwrap()["entries"]),
        ChannelUse::value_variants()
            .iter()
            .map(named)
            .collect::<Vec<_>>()
    );
    let rule = entries(&specification["attribute-sets"])
        .find(|set| text(set, "name") == "rule")
        .unwrap();
    let comment = entries(&rule["attributes"])
        .find(|entry| text(entry, "name") == "comment")
        .unwrap();
    assert_eq!(comment["checks"]["max-len"], Yaml::from(COMMENT_MAX));
}
