// SPDX-License-Identifier: GPL-2.0

//! What a datagram holds, so that its receiver can tell whether it is whole.
//!
//! Those that have room begin with a [`Header`]; the rest is pseudo-random, and a checksum is over
//! all. Shorter ones hold a pattern that depends on their length alone.

use std::str::FromStr;

/// The first four bytes.
const MAGIC: u32 = u32::from_le_bytes(*b"KOPI");
/// The first four bytes of an acknowledgement.
const ACK_MAGIC: u32 = u32::from_le_bytes(*b"KACK");
/// The most payload of a datagram over IPv4.
const LEN_MAX: u32 = 65507;

/// From how many bytes to how many, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) min: u16,
    pub(crate) max: u16,
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| match text.parse() {
            Ok(number) if u32::from(number) <= LEN_MAX => Ok(number),
            _ => Err(format!("{text} is not a number of 0 to {LEN_MAX}")),
        };
        let (min, max) = match text.split_once("..") {
            Some((min, max)) => (number(min)?, number(max)?),
            None => (number(text)?, number(text)?),
        };
        if min > max {
            return Err(format!("{min} is more than {max}"));
        }
        Ok(Self { min, max })
    }
}

impl Sizes {
    /// The size of datagram `sequence`.
    pub(crate) fn of(self, seed: u64, sequence: u32) -> usize {
        let span = u64::from(self.max - self.min) + 1;
        let random = mix(seed ^ (u64::from(sequence) << 32) ^ 0x5157);
        usize::from(self.min) + (random % span) as usize
    }
}

/// One step of splitmix64.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The head of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) seed: u64,
    pub(crate) sequence: u32,
    /// Datagrams in all.
    pub(crate) total: u32,
    pub(crate) sizes: Sizes,
    /// The number of the sender's flow.
    pub(crate) flow: u32,
    /// Where it was sent to.
    pub(crate) port: u16,
}

/// Bytes of a [`Header`]: magic, checksum, length, and its fields.
pub(crate) const HEADER_LEN: usize = 4 + 4 + 4 + 8 + 4 + 4 + 2 + 2 + 4 + 2;

/// What a whole datagram turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Too short for a header.
    Tiny,
    /// With a header.
    Full(Header),
}

/// The datagram isn't as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

fn tiny(len: usize, at: usize) -> u8 {
    (len * 31 + at * 7 + 1) as u8
}

/// Makes the datagram that `header` is of.
pub(crate) fn make(header: &Header, data: &mut Vec<u8>) {
    let len = header.sizes.of(header.seed, header.sequence);
    data.clear();
    if len < HEADER_LEN {
        data.extend((0..len).map(|at| tiny(len, at)));
        return;
    }
    data.extend(MAGIC.to_le_bytes());
    data.extend([0; 4]);
    data.extend((len as u32).to_le_bytes());
    data.extend(header.seed.to_le_bytes());
    data.extend(header.sequence.to_le_bytes());
    data.extend(header.total.to_le_bytes());
    data.extend(header.sizes.min.to_le_bytes());
    data.extend(header.sizes.max.to_le_bytes());
    data.extend(header.flow.to_le_bytes());
    data.extend(header.port.to_le_bytes());
    let mut random = mix(header.seed ^ u64::from(header.sequence));
    while data.len() < len {
        // Xorshift: one step for each word.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let word = random.to_le_bytes();
        data.extend(&word[..word.len().min(len - data.len())]);
    }
    let checksum = crc32fast::hash(data);
    data[4..8].copy_from_slice(&checksum.to_le_bytes());
}

/// Looks whether a datagram is as it was sent.
pub(crate) fn check(data: &[u8]) -> Result<Content, Corrupt> {
    if data.len() < HEADER_LEN {
        let whole = (0..data.len()).all(|at| data[at] == tiny(data.len(), at));
        return if whole {
            Ok(Content::Tiny)
        } else {
            Err(Corrupt)
        };
    }
    let mut fields = Fields(data);
    let magic = u32::from_le_bytes(fields.take());
    let checksum = u32::from_le_bytes(fields.take());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&data[..4]);
    hasher.update(&[0; 4]);
    hasher.update(&data[8..]);
    let len = u32::from_le_bytes(fields.take());
    if magic != MAGIC || len as usize != data.len() || hasher.finalize() != checksum {
        return Err(Corrupt);
    }
    let header = Header {
        seed: u64::from_le_bytes(fields.take()),
        sequence: u32::from_le_bytes(fields.take()),
        total: u32::from_le_bytes(fields.take()),
        sizes: Sizes {
            min: u16::from_le_bytes(fields.take()),
            max: u16::from_le_bytes(fields.take()),
        },
        flow: u32::from_le_bytes(fields.take()),
        port: u16::from_le_bytes(fields.take()),
    };
    if header.sizes.min > header.sizes.max {
        return Err(Corrupt);
    }
    Ok(Content::Full(header))
}

/// Takes fields from the front.
struct Fields<'d>(&'d [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        if let Some((front, rest)) = self.0.split_at_checked(N) {
            field.copy_from_slice(front);
            self.0 = rest;
        }
        field
    }
}

/// An acknowledgement: how many datagrams have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) count: u32,
    /// The sender's flow whose datagram came last, if it had a header.
    pub(crate) flow: Option<u32>,
}

impl Ack {
    const NO_FLOW: u32 = u32::MAX;

    pub(crate) fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&ACK_MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
        let flow = self.flow.unwrap_or(Self::NO_FLOW);
        bytes[8..].copy_from_slice(&flow.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(data: &[u8]) -> Option<Self> {
        let mut fields = Fields(data);
        if data.len() != 12 || u32::from_le_bytes(fields.take()) != ACK_MAGIC {
            return None;
        }
        let count = u32::from_le_bytes(fields.take());
        let flow = u32::from_le_bytes(fields.take());
        Some(Self {
            count,
            flow: (flow != Self::NO_FLOW).then_some(flow),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(min: u16, max: u16, sequence: u32) -> Header {
        Header {
            seed: 0x1234_5678_9abc_def0,
            sequence,
            total: 100,
            sizes: Sizes { min, max },
            flow: 3,
            port: 9,
        }
    }

    #[test]
    fn what_is_made_is_whole() {
        let mut data = vec![];
        for len in [0, 1, 41, 42, 43, 64, 1400, 65507] {
            make(&header(len, len, 5), &mut data);
            assert_eq!(data.len(), usize::from(len));
            let expected = if usize::from(len) < HEADER_LEN {
                Content::Tiny
            } else {
                Content::Full(header(len, len, 5))
            };
            assert_eq!(check(&data), Ok(expected));
        }
    }

    #[test]
    fn every_change_is_seen() {
        let mut data = vec![];
        for len in [2, 20, HEADER_LEN as u16, 100] {
            make(&header(len, len, 1), &mut data);
            for at in 0..data.len() {
                data[at] ^= 0x10;
                assert_eq!(check(&data), Err(Corrupt), "byte {at} of {len}");
                data[at] ^= 0x10;
            }
            data.pop();
            assert_eq!(check(&data), Err(Corrupt), "{len} less one");
        }
    }

    /// It would be computed with, and the checksum is anybody's to make.
    #[test]
    fn sizes_that_are_none_are_seen() {
        let mut data = vec![];
        make(&header(50, 50, 1), &mut data);
        data[28..30].copy_from_slice(&51u16.to_le_bytes());
        data[4..8].fill(0);
        let checksum = crc32fast::hash(&data);
        data[4..8].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(check(&data), Err(Corrupt));
    }

    #[test]
    fn sizes_cover_the_range() {
        let sizes: Sizes = "3..5".parse().unwrap();
        let mut seen = [0; 6];
        for sequence in 0..300 {
            seen[sizes.of(1, sequence)] += 1;
        }
        assert_eq!(seen[..3], [0; 3]);
        assert!(seen[3..].iter().all(|&count| count > 50), "{seen:?}");
    }

    #[test]
    fn sizes_are_parsed() {
        assert_eq!("7".parse(), Ok(Sizes { min: 7, max: 7 }));
        assert_eq!("0..65507".parse(), Ok(Sizes { min: 0, max: 65507 }));
        assert!("0..65508".parse::<Sizes>().is_err());
        assert!("9..8".parse::<Sizes>().is_err());
        assert!("x".parse::<Sizes>().is_err());
    }

    #[test]
    fn acks_come_back() {
        for flow in [None, Some(7)] {
            let ack = Ack { count: 99, flow };
            assert_eq!(Ack::from_bytes(&ack.to_bytes()), Some(ack));
        }
        assert_eq!(Ack::from_bytes(b"KACK"), None);
    }
}
