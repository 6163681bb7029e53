// SPDX-License-Identifier: GPL-2.0

//! Which datagrams go as one GSO packet.
#![cfg(not(loom))]

use kopi::pure::gso_batch::{GsoBatch, BYTES_MAX, SEGMENTS_MAX};
use proptest::prelude::*;

proptest! {
    /// Cut into pieces of its segment size, a GSO packet is what was put in.
    #[test]
    fn cut_as_put_together(lens in prop::collection::vec(
        prop_oneof![Just(100u32), Just(99), 0..70_000u32], 1..100))
    {
        let mut batch = GsoBatch::new(lens[0]);
        let mut taken = 1;
        while taken < lens.len() && batch.push(lens[taken]) {
            taken += 1;
        }
        let lens = &lens[..taken];
        let bytes: u32 = lens.iter().sum();
        prop_assert_eq!(batch.count(), taken as u32);
        prop_assert_eq!(batch.bytes(), bytes);
        prop_assert_eq!(batch.segment(), lens[0]);
        if taken > 1 {
            prop_assert!(taken <= SEGMENTS_MAX as usize && bytes <= BYTES_MAX);
            let mut left = bytes;
            for &len in lens {
                prop_assert_eq!(len, left.min(batch.segment()));
                left -= len;
            }
            prop_assert_eq!(left, 0);
        }
    }
}

#[test]
fn limits() {
    let mut batch = GsoBatch::new(1000);
    let mut count = 1;
    while batch.push(1000) {
        count += 1;
    }
    assert_eq!(count, SEGMENTS_MAX.min(BYTES_MAX / 1000));

    let mut batch = GsoBatch::new(0);
    assert!(!batch.push(0));

    let mut batch = GsoBatch::new(10);
    assert!(!batch.push(11));
    assert!(!batch.push(0));
    assert!(batch.push(9));
    // A shorter one is the last.
    assert!(!batch.push(9));
    assert!(!batch.push(1));

    let mut batch = GsoBatch::new(u32::MAX);
    assert!(!batch.push(1));
}
