// SPDX-License-Identifier: GPL-2.0

//! Why packets were dropped, in words: the running kernel's own, and KOPI's.

use kopi::pure::abi::{
    MonHdr, MON_DROPPED, MON_PASSED, MON_REASON_NO_FRAME, MON_REASON_RATE, MON_REASON_RING_FULL,
    MON_REASON_RULE, MON_REASON_TOO_LONG, MON_REFUSED,
};
use std::{collections::HashMap, fs};

/// Where the kernel says what it calls them.
const FORMATS: [&str; 2] = [
    "/sys/kernel/tracing/events/skb/kfree_skb/format",
    "/sys/kernel/debug/tracing/events/skb/kfree_skb/format",
];

/// The kernel's names of `enum skb_drop_reason`.
#[derive(Default)]
pub(super) struct Reasons(HashMap<u32, String>);

impl Reasons {
    /// Those of the running kernel; without tracefs there are none.
    pub(super) fn of_kernel() -> Self {
        let format = FORMATS
            .iter()
            .find_map(|file| fs::read_to_string(file).ok());
        Self::parse(&format.unwrap_or_default())
    }

    /// Reads the format of the event: `… __print_symbolic(REC->reason, { 2, "NOT_SPECIFIED" }, …`.
    fn parse(format: &str) -> Self {
        let symbols = format.split_once("__print_symbolic(REC->reason,");
        let symbols = symbols.map_or("", |(_, symbols)| symbols);
        let pairs = symbols.split('{').skip(1).map_while(|pair| {
            let (number, rest) = pair.split_once(',')?;
            let (_, rest) = rest.split_once('"')?;
            let (name, _) = rest.split_once('"')?;
            Some((number.trim().parse().ok()?, name.to_owned()))
        });
        Self(pairs.collect())
    }

    /// Why a packet didn't pass, in a word.
    pub(super) fn word(&self, header: &MonHdr) -> Option<String> {
        let word = match (header.verdict, header.reason) {
            (MON_PASSED, _) => return None,
            (MON_DROPPED, reason) => match self.0.get(&reason) {
                Some(name) => name,
                None => return Some(reason.to_string()),
            },
            (MON_REFUSED, MON_REASON_RING_FULL) => "ring-full",
            (MON_REFUSED, MON_REASON_NO_FRAME) => "no-frame",
            (MON_REFUSED, MON_REASON_TOO_LONG) => "too-long",
            (MON_REFUSED, MON_REASON_RULE) => "rule",
            (MON_REFUSED, MON_REASON_RATE) => "rate",
            (_, reason) => return Some(reason.to_string()),
        };
        Some(word.to_owned())
    }

    /// What became of a packet that didn't pass, for people.
    pub(super) fn phrase(&self, header: &MonHdr) -> Option<String> {
        let word = self.word(header)?;
        if header.verdict == MON_DROPPED {
            return Some(format!("dropped: {word}"));
        }
        let rule = match header.rule {
            0 => "the default".to_owned(),
            rule => format!("rule {rule}"),
        };
        Some(match header.reason {
            MON_REASON_RULE => format!("refused: {rule}"),
            MON_REASON_RATE => format!("refused: rate of {rule}"),
            _ => format!("refused: {}", word.replace('-', " ")),
        })
    }
}

/// The word for a verdict.
pub(super) fn verdict(verdict: u8) -> &'static str {
    match verdict {
        MON_PASSED => "passed",
        MON_DROPPED => "dropped",
        _ => "refused",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = r#"name: kfree_skb
	field:enum skb_drop_reason reason;	offset:32;	size:4;	signed:0;

print fmt: "skbaddr=%p reason: %s", REC->skbaddr, __print_symbolic(REC->reason, { 2, "NOT_SPECIFIED" }, { 8, "NETFILTER_DROP" }, { 65536, "UNUSABLE" }, { 0xb, "X" })
"#;

    #[test]
    fn reasons_have_the_kernels_names() {
        let reasons = Reasons::parse(FORMAT);
        let phrase = |verdict, reason, rule| {
            reasons.phrase(&MonHdr {
                verdict,
                reason,
                rule,
                ..MonHdr::default()
            })
        };
        assert_eq!(phrase(MON_PASSED, 8, 0), None);
        for (verdict, reason, rule, text) in [
            (MON_DROPPED, 8, 0, "dropped: NETFILTER_DROP"),
            (MON_DROPPED, 65536, 0, "dropped: UNUSABLE"),
            (MON_DROPPED, 9, 0, "dropped: 9"),
            (MON_REFUSED, MON_REASON_RING_FULL, 0, "refused: ring full"),
            (MON_REFUSED, MON_REASON_RULE, 0, "refused: the default"),
            (MON_REFUSED, MON_REASON_RULE, 7, "refused: rule 7"),
            (MON_REFUSED, MON_REASON_RATE, 7, "refused: rate of rule 7"),
            (MON_REFUSED, 99, 0, "refused: 99"),
        ] {
            assert_eq!(phrase(verdict, reason, rule).as_deref(), Some(text));
        }
    }

    #[test]
    fn without_names_there_are_numbers() {
        let header = MonHdr {
            verdict: MON_DROPPED,
            reason: 8,
            ..MonHdr::default()
        };
        for format in ["", "__print_symbolic(REC->reason, { x"] {
            assert_eq!(Reasons::parse(format).word(&header).as_deref(), Some("8"));
        }
    }
}
