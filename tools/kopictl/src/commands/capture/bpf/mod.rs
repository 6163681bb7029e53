// SPDX-License-Identifier: GPL-2.0

//! Filters of classic BPF: what libpcap makes of an expression about packets, moved behind the header
//! that a monitor device shows in front of each, and put after checks of that header.

mod behind_header;
mod criteria;
#[cfg(test)]
mod machine;

pub(super) use criteria::Criteria;

use anyhow::{ensure, Context};
use behind_header::behind_header;
use kopi::pure::abi::MonHdr;
use libc::{BPF_ABS, BPF_LD};
use pcap::{Capture, Linktype};

/// DLT_RAW: packets begin with their IP header.
const RAW: Linktype = Linktype(12);
/// The kernel takes no more instructions.
const INSTRUCTIONS_MAX: usize = 4096;
/// The header in front of a packet, in bytes.
const HEADER: u32 = MonHdr::LEN as u32;

/// As `struct sock_filter` of the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Instruction {
    /// What is done.
    pub(super) code: u16,
    /// How far to jump if it is true.
    pub(super) jt: u8,
    /// How far to jump if it isn't.
    pub(super) jf: u8,
    /// A number.
    pub(super) k: u32,
}

/// An instruction of this code, which is a sum of BPF_*.
const fn new(code: u32, k: u32) -> Instruction {
    jump(code, k, 0, 0)
}

#[expect(clippy::cast_possible_truncation, reason = "codes have eight bits")]
const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> Instruction {
    let code = code as u16;
    Instruction { code, jt, jf, k }
}

/// Loads what is in the header.
#[expect(clippy::cast_possible_truncation, reason = "the header is short")]
fn load(size: u32, offset: usize) -> Instruction {
    new(BPF_LD | size | BPF_ABS, offset as u32)
}

/// The filter for packets that meet `criteria` and the expression; it keeps `snaplen` bytes of each.
pub(super) fn filter(
    criteria: &Criteria,
    expression: &str,
    snaplen: u32,
) -> anyhow::Result<Vec<Instruction>> {
    let accepted = snaplen.saturating_add(HEADER);
    let mut program = criteria.checks(accepted);
    program.extend(behind_header(&compile(expression)?, accepted)?);
    ensure!(
        program.len() <= INSTRUCTIONS_MAX,
        "the filter is too long: {} instructions, and {INSTRUCTIONS_MAX} are possible",
        program.len()
    );
    Ok(program)
}

/// What libpcap makes of an expression.
fn compile(expression: &str) -> anyhow::Result<Vec<Instruction>> {
    let compiled = Capture::dead(RAW)?.compile(expression, true)?;
    let instructions = compiled.get_instructions().iter();
    instructions
        .map(|instruction| parse(&instruction.to_string()))
        .collect::<Option<_>>()
        .context("the filter can't be read")
}

/// Reads an instruction as `tcpdump -ddd` prints it.
fn parse(text: &str) -> Option<Instruction> {
    let mut numbers = text.split(' ').map(str::parse::<u32>);
    let mut next = || numbers.next()?.ok();
    Some(Instruction {
        code: next()?.try_into().ok()?,
        jt: next()?.try_into().ok()?,
        jf: next()?.try_into().ok()?,
        k: next()?,
    })
}

#[cfg(test)]
mod tests {
    use super::{
        machine::{framed, header, run, udp, ACCEPTED, SNAPLEN},
        *,
    };
    use kopi::pure::abi::MON_IN;
    use proptest::prelude::*;

    #[test]
    fn expressions_are_about_the_packet() {
        let packet = udp(5000, 53, 20);
        for (expression, holds) in [
            ("", true),
            ("udp", true),
            ("tcp", false),
            ("ip6", false),
            ("udp port 53", true),
            ("src port 53", false),
            ("dst host 192.0.2.2 and src port 5000", true),
            ("net 198.51.100.0/24", false),
            ("len == 48", true),
            ("greater 49", false),
            ("udp[8] = 7", true),
            ("udp[28] = 7", false),
            ("ip[udp[8] - 8] = 0", false),
            ("udp[8:4] = 0x07070707 and portrange 50-60", true),
            ("outbound", true),
            ("inbound", false),
        ] {
            let program = filter(&Criteria::default(), expression, SNAPLEN).unwrap();
            let kept = run(&program, &framed(header(), &packet));
            assert_eq!(kept, if holds { ACCEPTED } else { 0 }, "{expression}");
        }
        let inbound = MonHdr {
            direction: MON_IN,
            ..header()
        };
        let program = filter(&Criteria::default(), "inbound", SNAPLEN).unwrap();
        assert_eq!(run(&program, &framed(inbound, &packet)), ACCEPTED);
    }

    #[test]
    fn errors_are_libpcaps() {
        let error = filter(&Criteria::default(), "udp prot 53", SNAPLEN).unwrap_err();
        assert!(error.to_string().contains("syntax error"), "{error}");
        assert!(filter(&Criteria::default(), "vlan 5", SNAPLEN).is_err());
        assert!(filter(&Criteria::default(), "ip[0 - 1] = 0", SNAPLEN).is_err());
    }

    proptest! {
        #[test]
        fn texts_are_instructions_or_not(text: String) {
            let _ = parse(&text);
        }
    }
}
