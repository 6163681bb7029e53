// SPDX-License-Identifier: GPL-2.0

//! Messages of any content.

use super::{
    channel::Channel,
    flow::Flow,
    rule::{Directions, Rule, Ruleset},
    stats::Stats,
};
use crate::attributes::{Port, Set};
use netlink_packet_core::{DefaultNla, Emitable, Parseable};
use proptest::prelude::*;
use std::net::IpAddr;

/// What the wire has of attributes.
pub(super) fn bytes(attributes: &[DefaultNla]) -> Vec<u8> {
    let mut bytes = vec![0; attributes.buffer_len()];
    attributes.emit(&mut bytes);
    bytes
}

fn flow() -> Flow {
    Flow {
        id: Some(7),
        local_address: Some(IpAddr::from([0; 16])),
        local_port: Some(Port(5432)),
        exe: Some("/usr/bin/postgres".to_owned()),
        cgroup: Some(1 << 40),
        stats: Some(Stats {
            tx_packets: Some(1 << 33),
            rx_drop_no_frame: Some(4),
            ..Stats::default()
        }),
        denied: Some(Directions::IN),
        ..Flow::default()
    }
}

#[test]
fn nests_and_long_numbers_come_back() {
    assert_eq!(Flow::parse(&flow().to_bytes()).unwrap(), flow());
    let rules = Ruleset {
        rule: vec![
            Rule::default(),
            Rule {
                shared: true,
                ..Rule::default()
            },
        ],
        ..Ruleset::default()
    };
    assert_eq!(Ruleset::parse(&rules.to_bytes()).unwrap(), rules);
}

#[test]
fn what_is_not_known_is_passed_over() {
    let with_more = [
        bytes(&[DefaultNla::new(999, vec![1, 2, 3])]),
        flow().to_bytes(),
    ]
    .concat();
    assert_eq!(Flow::parse(&with_more).unwrap(), flow());
}

#[test]
fn a_part_of_a_message_is_an_error_or_less() {
    let all = flow().to_bytes();
    for end in 0..all.len() {
        if let Ok(part) = Flow::parse(&all[..end]) {
            assert_ne!(part, flow());
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_understood_or_not(bytes: Vec<u8>) {
        let _ = Flow::parse(&bytes);
        let _ = Ruleset::parse(&bytes);
        let _ = Channel::parse(&bytes);
    }

    #[test]
    fn any_change_of_a_message_is_understood_or_not(place in 0..200_usize, byte: u8) {
        let mut bytes = flow().to_bytes();
        let length = bytes.len();
        bytes[place % length] = byte;
        let _ = Flow::parse(&bytes).map(|flow| flow.rows().len());
    }
}
