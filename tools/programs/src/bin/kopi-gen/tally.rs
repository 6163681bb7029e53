// SPDX-License-Identifier: GPL-2.0

//! The datagrams that were received, and those that should have been.

use crate::datagram::{self, Content, Header, HEADER_LEN};

/// Counts datagrams, and remembers which ones were received.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) received: u32,
    pub(crate) bytes: u64,
    pub(crate) corrupt: u32,
    pub(crate) duplicate: u32,
    pub(crate) reordered: u32,
    /// At another port than they were sent to.
    pub(crate) wrong_flow: u32,
    /// Datagrams of the run, at most.
    expected: u32,
    /// A header, all of which agree but for number and flow.
    header: Option<Header>,
    seen: Vec<bool>,
    highest: Option<u32>,
    /// Those without header, by length.
    tiny: Vec<u32>,
}

impl Tally {
    /// Of a run of so many datagrams at most.
    pub(crate) fn new(expected: u32) -> Self {
        Self {
            expected,
            ..Self::default()
        }
    }

    /// Takes a datagram that was received at `port`; returns the sender's flow if it is known.
    pub(crate) fn take(&mut self, data: &[u8], port: u16) -> Option<u32> {
        self.received = self.received.saturating_add(1);
        self.bytes += data.len() as u64;
        match datagram::check(data) {
            Ok(Content::Tiny) => {
                self.tiny.resize(HEADER_LEN, 0);
                self.tiny[data.len()] += 1;
                None
            }
            Ok(Content::Full(header)) => {
                self.take_full(header, port);
                Some(header.flow)
            }
            Err(_) => {
                self.corrupt += 1;
                None
            }
        }
    }

    fn take_full(&mut self, header: Header, port: u16) {
        let of_run = |header: Header| (header.seed, header.total, header.sizes);
        let same = self
            .header
            .is_none_or(|first| of_run(first) == of_run(header));
        if !same || header.total > self.expected || header.sequence >= header.total {
            // Of another run.
            self.corrupt += 1;
            return;
        }
        self.header = Some(header);
        if header.port != port {
            self.wrong_flow += 1;
        }
        self.seen.resize(header.total as usize, false);
        if std::mem::replace(&mut self.seen[header.sequence as usize], true) {
            self.duplicate += 1;
        }
        if self
            .highest
            .is_some_and(|highest| header.sequence < highest)
        {
            self.reordered += 1;
        }
        self.highest = self.highest.max(Some(header.sequence));
    }

    /// Number of datagrams of `count` that didn't come.
    pub(crate) fn missing(&mut self, count: u32) -> u32 {
        let Some(header) = self.header else {
            return count.saturating_sub(self.received);
        };
        self.seen.resize(header.total as usize, false);
        let mut missing = 0;
        let mut tiny = [0u32; HEADER_LEN];
        for sequence in 0..header.total {
            let len = header.sizes.of(header.seed, sequence);
            match tiny.get_mut(len) {
                Some(expected) => *expected += 1,
                None => missing += u32::from(!self.seen[sequence as usize]),
            }
        }
        self.tiny.resize(HEADER_LEN, 0);
        for (expected, received) in tiny.iter().zip(&self.tiny) {
            missing += expected.saturating_sub(*received);
            self.duplicate += received.saturating_sub(*expected);
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::Sizes;

    fn datagrams(total: u32) -> Vec<Vec<u8>> {
        (0..total)
            .map(|sequence| {
                let header = Header {
                    seed: 7,
                    sequence,
                    total,
                    sizes: Sizes { min: 0, max: 100 },
                    flow: 0,
                    port: 9,
                };
                let mut data = vec![];
                datagram::make(&header, &mut data);
                data
            })
            .collect()
    }

    #[test]
    fn all_is_well() {
        let mut tally = Tally::new(200);
        for data in datagrams(200) {
            tally.take(&data, 9);
        }
        assert_eq!(tally.missing(200), 0);
        assert_eq!((tally.corrupt, tally.duplicate, tally.reordered), (0, 0, 0));
    }

    /// Else anybody could have the receiver take memory for as many as a header can say.
    #[test]
    fn more_than_are_expected_are_of_another_run() {
        let mut tally = Tally::new(199);
        for data in datagrams(200)
            .iter()
            .filter(|data| data.len() >= HEADER_LEN)
        {
            tally.take(data, 9);
        }
        assert_eq!(tally.corrupt, tally.received);
        assert_eq!(tally.seen.len(), 0);
        // What it expects may still come.
        for data in datagrams(100) {
            tally.take(&data, 9);
        }
        assert_eq!(tally.missing(100), 0);
    }

    #[test]
    fn faults_are_found() {
        let mut tally = Tally::new(200);
        let mut datagrams = datagrams(200);
        let long: Vec<usize> = (0..200)
            .filter(|&at| datagrams[at].len() > HEADER_LEN)
            .collect();
        let short = (0..200).find(|&at| datagrams[at].len() < 10).unwrap();
        // One is changed, one comes late and one twice; one short and one long don't come.
        datagrams[long[0]][HEADER_LEN] ^= 1;
        datagrams.swap(long[1], long[2]);
        let twice = datagrams[long[3]].clone();
        for at in (0..200).filter(|&at| at != short && at != long[4]) {
            tally.take(&datagrams[at], 9);
        }
        tally.take(&twice, 8);
        assert_eq!(tally.corrupt, 1);
        assert_eq!(tally.missing(200), 3);
        assert_eq!(tally.duplicate, 1);
        assert!(tally.reordered >= 1);
        assert_eq!(tally.wrong_flow, 1);
    }
}
