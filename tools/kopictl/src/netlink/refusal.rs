// SPDX-License-Identifier: GPL-2.0

//! What the kernel says when it refuses: an error, and its extended ack, which has a message and names
//! the attribute.

use crate::{
    attributes::{attributes, Attribute, Set},
    message::rule::Rule,
};
use netlink_packet_core::{NlasIterator, Parseable, NLM_F_CAPPED};
use nix::errno::Errno;
use std::fmt;

/// Where the attributes begin in a message.
const ATTRIBUTES: usize = 16 + 4;

/// An error with its extended ack.
#[derive(Debug, Default)]
pub(crate) struct Refusal {
    /// The error, positive.
    pub(crate) errno: i32,
    /// What the kernel says about it.
    pub(crate) message: Option<String>,
    /// The attribute that it is about, from the outermost: each with how many of its kind are before it.
    pub(crate) attribute: Vec<(String, usize)>,
    /// An attribute that is missing.
    pub(crate) missing: Option<String>,
}

impl Refusal {
    /// Which rule of a set it is about.
    pub(crate) fn rule(&self) -> Option<usize> {
        let (name, index) = self.attribute.first()?;
        (name == "rule").then_some(*index)
    }

    /// Whether it is about an attribute of that name, and no part of another.
    pub(crate) fn is_about(&self, attribute: &str) -> bool {
        matches!(&*self.attribute, [(name, _)] if name == attribute)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |name: &str| matches!(&self.message, Some(message) if message.contains(name));
        match self.attribute.last() {
            Some((name, _)) if name != "rule" && !said(name) => write!(out, "{name}: ")?,
            _ => (),
        }
        if let Some(message) = &self.message {
            write!(out, "{message} ")?;
        }
        if let Some(missing) = &self.missing {
            write!(out, "(without {missing}) ")?;
        }
        let errno = Errno::from_raw(self.errno);
        match (&self.message, errno) {
            (None, Errno::ENOENT | Errno::ENODEV) => write!(out, "there is none ({errno:?})"),
            (None, _) => write!(out, "{} ({errno:?})", errno.desc()),
            (Some(_), _) => write!(out, "({errno:?})"),
        }
    }
}

attributes! {
    /// What follows an error.
    Ack {
        /// A message.
        1 message: Option<String>,
        /// Where the attribute is in the request.
        2 offset: Option<u32>,
        /// Type of an attribute that is missing.
        5 missing_type: Option<u32>,
        /// Where the attribute is that it is missing in.
        6 missing_nest: Option<u32>,
    }
}

/// Finds the attribute at `offset` of `bytes`, whose attributes are of `set`.
fn locate(bytes: &[u8], set: &'static [Attribute], offset: usize) -> Vec<(String, usize)> {
    let mut position = 0;
    let mut seen = vec![0; set.len()];
    for attribute in NlasIterator::new(bytes).map_while(std::result::Result::ok) {
        let place = set
            .iter()
            .position(|known| known.number == attribute.kind());
        let length = usize::from(attribute.length());
        if (position..position + length).contains(&offset) {
            let Some(place) = place else {
                return vec![(format!("attribute {}", attribute.kind()), 0)];
            };
            let mut path = vec![(set[place].spec_name(), seen[place])];
            if offset >= position + 4 {
                path.extend(locate(
                    attribute.value(),
                    set[place].set,
                    offset - position - 4,
                ));
            }
            return path;
        }
        if let Some(place) = place {
            seen[place] += 1;
        }
        position += length.next_multiple_of(4);
    }
    Vec::new()
}

/// Understands an error: its number, and the attributes behind it; `request` is what was sent.
pub(super) fn refusal(
    errno: i32,
    ack: &[u8],
    request: &[u8],
    set: &'static [Attribute],
) -> Refusal {
    let ack = Ack::parse(ack).unwrap_or_default();
    let locate = |offset: u32| {
        let offset = usize::try_from(offset).ok()?.checked_sub(ATTRIBUTES)?;
        if set.is_empty() {
            return None;
        }
        Some(locate(request.get(ATTRIBUTES..)?, set, offset))
    };
    let inner = if ack.missing_nest.is_some() {
        <Rule as Set>::ATTRIBUTES
    } else {
        set
    };
    Refusal {
        errno,
        message: ack.message,
        attribute: ack
            .offset
            .or(ack.missing_nest)
            .and_then(locate)
            .unwrap_or_default(),
        missing: ack.missing_type.map(|number| {
            let known = inner.iter().find(|known| u32::from(known.number) == number);
            known.map_or_else(|| format!("attribute {number}"), Attribute::spec_name)
        }),
    }
}

/// The attributes that follow the request's copy in an error.
pub(super) fn ack_of(flags: u16, copy: &[u8]) -> &[u8] {
    let length = copy
        .first_chunk()
        .map_or(0, |length| u32::from_ne_bytes(*length));
    let request = match flags & NLM_F_CAPPED {
        0 => usize::try_from(length)
            .unwrap_or(usize::MAX)
            .checked_next_multiple_of(4)
            .unwrap_or(usize::MAX),
        _ => 16,
    };
    copy.get(request..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{message, KOPI},
        *,
    };
    use crate::message::{flow::Flow, rule::Ruleset};
    use proptest::prelude::*;

    #[test]
    fn missing_attributes_are_named() {
        let ack = Ack {
            missing_type: Some(1),
            ..Ack::default()
        };
        let refusal = refusal(libc::EINVAL, &ack.to_bytes(), &[], Flow::ATTRIBUTES);
        assert_eq!(
            refusal.to_string(),
            "(without id) Invalid argument (EINVAL)"
        );
    }

    #[test]
    fn what_was_not_capped_is_skipped() {
        let request = message(KOPI, 0, 5, &[1, 1, 0, 0, 9]);
        assert_eq!(ack_of(0, &[&request, &[7; 4][..]].concat()), [7; 4]);
        assert_eq!(
            ack_of(NLM_F_CAPPED, &[&request[..16], &[7; 4]].concat()),
            [7; 4]
        );
        assert!(ack_of(0, &[255; 5]).is_empty());
    }

    proptest! {
        #[test]
        fn any_offset_is_found_or_not(bytes: Vec<u8>, offset: usize) {
            let _ = locate(&bytes, Ruleset::ATTRIBUTES, offset);
        }
    }
}
