// SPDX-License-Identifier: GPL-2.0

//! What a program may write into descriptors and metadata, against a slow second opinion.
#![cfg(not(loom))]

use kopi::pure::{
    abi::{ChannelReq, Desc, Meta},
    descriptor::{check, check_meta, Bad},
    geometry::Geometry,
};
use proptest::prelude::*;

fn geometry(frame_bits: u32, frame_count: u32) -> Geometry {
    Geometry::new(&ChannelReq {
        frame_size: 1 << frame_bits,
        frame_count,
        tx_entries: 8,
        completion_entries: 8,
        fill_entries: 8,
        rx_entries: 8,
        ..ChannelReq::default()
    })
    .unwrap()
}

/// Looks at every frame whether the bytes are payload of it.
fn is_payload(geometry: &Geometry, offset: u32, len: u32) -> bool {
    let layout = geometry.layout();
    (0..layout.frame_count).any(|number| {
        let start = u64::from(layout.frames) + u64::from(number) * u64::from(layout.frame_size);
        let end = start + u64::from(layout.frame_size);
        u64::from(offset) >= start + 64
            && u64::from(offset) < end
            && u64::from(offset) + u64::from(len) <= end
    })
}

proptest! {
    #[test]
    fn descriptors(
        bits in 9..=16u32,
        count in 1..20u32,
        at in prop_oneof![any::<u32>(), 0..400_000u32],
        len in prop_oneof![any::<u32>(), 0..70_000u32, Just(0)],
        flags in prop_oneof![0..4u16, any::<u16>()],
        error in prop_oneof![Just(0), any::<u16>()],
        flow in any::<u32>(),
    ) {
        let geometry = geometry(bits, count);
        let desc = Desc { offset: at, len, flow, flags, error };
        let expected = if flags > 3 || error != 0 {
            Err(Bad::Field)
        } else if !is_payload(&geometry, at, len) {
            Err(Bad::Range)
        } else {
            Ok(())
        };
        let result = check(&desc, &geometry);
        prop_assert_eq!(result.map(drop), expected);
        if let Ok(frame) = result {
            prop_assert!(frame.payload() <= at);
            prop_assert_eq!(geometry.frame_at(u64::from(frame.start())), Some(frame));
        }
    }

    #[test]
    fn metadata(
        words in any::<[u64; 8]>(),
        family in prop_oneof![Just(0u16), Just(2), Just(10), any::<u16>()],
        flags in prop_oneof![0..64u16, any::<u16>()],
        len in prop_oneof![Just(0u32), any::<u32>()],
        timestamp in prop_oneof![Just(0u64), any::<u64>()],
        peer_port in prop_oneof![Just(0u16), any::<u16>()],
        peer in prop_oneof![Just([0u8; 16]), any::<[u8; 16]>()],
    ) {
        let words = Meta::from_words(words);
        let meta = Meta { family, flags, len, timestamp, peer_port, peer, ..words };
        let known = flags & !0b10_1111 == 0;
        let timed = flags & 0b10_0000 != 0;
        let addressed = peer_port != 0 || flags & 1 != 0;
        let family_fits = match family {
            2 | 10 => true,
            0 => !addressed,
            _ => false,
        };
        // An address needs its port.
        let complete = family == 0 || peer_port != 0 || peer == [0; 16];
        let good = known && len == 0 && (timestamp == 0 || timed) && family_fits && complete;
        prop_assert_eq!(check_meta(&meta), if good { Ok(()) } else { Err(Bad::Field) });
    }

    #[test]
    fn metadata_words(words in any::<[u64; 8]>()) {
        prop_assert_eq!(Meta::from_words(words).to_words(), words);
    }
}
