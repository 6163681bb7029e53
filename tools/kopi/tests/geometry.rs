// SPDX-License-Identifier: GPL-2.0

//! Where things lie in a region, and which requests are refused.
#![cfg(not(loom))]

use kopi::pure::{
    abi::{
        ChannelReq, RingLayout, CHANNEL_FLAGS, CHANNEL_GRO, CHANNEL_GRO_MERGED, CHANNEL_GSO,
        CHANNEL_TX_ONLY, FRAMES_MAX, FRAME_HEADROOM, FRAME_SIZE_MAX, FRAME_SIZE_MIN,
        REGION_SIZE_MAX, RING_ENTRIES_MAX,
    },
    geometry::{Geometry, Invalid},
};
use proptest::prelude::*;

fn request() -> ChannelReq {
    ChannelReq {
        flags: CHANNEL_GSO,
        frame_size: 2048,
        frame_count: 64,
        tx_entries: 64,
        completion_entries: 128,
        fill_entries: 32,
        rx_entries: 16,
        reserved: [0; 9],
    }
}

prop_compose! {
    fn good()(
        flags in prop_oneof![Just(0), Just(CHANNEL_GSO), Just(CHANNEL_FLAGS & !CHANNEL_TX_ONLY),
            Just(CHANNEL_TX_ONLY)],
        frame in FRAME_SIZE_MIN.ilog2()..=FRAME_SIZE_MAX.ilog2(),
        frame_count in prop_oneof![1..100u32, 1..=FRAMES_MAX],
        rings in [0..=15u32, 0..=15u32, 0..=15u32, 0..=15u32],
    ) -> ChannelReq {
        ChannelReq {
            flags,
            frame_size: 1 << frame,
            frame_count,
            tx_entries: 1 << rings[0],
            completion_entries: 1 << rings[1],
            fill_entries: 1 << rings[2],
            rx_entries: 1 << rings[3],
            reserved: [0; 9],
        }
    }
}

/// What of a region is taken, as (from, to, alignment).
fn places(ring: &RingLayout) -> [(u64, u64, u64); 4] {
    let place = |at: u32, len: u64, align| (u64::from(at), u64::from(at) + len, align);
    let entries = u64::from(ring.size) * u64::from(ring.entry_size);
    [
        // Each index on a line of its own.
        place(ring.producer, 64, 64),
        place(ring.consumer, 64, 64),
        place(ring.flags, 64, 64),
        place(ring.entries, entries, 64),
    ]
}

proptest! {
    #[test]
    fn everything_lies_within_and_apart(request in good()) {
        let wanted = u64::from(request.frame_size) * u64::from(request.frame_count);
        let geometry = match Geometry::new(&request) {
            Ok(geometry) => geometry,
            Err(error) => {
                prop_assert_eq!(error, Invalid::Region);
                // Rings and alignment take at most this much.
                prop_assert!(wanted + (4 << 20) > u64::from(REGION_SIZE_MAX));
                return Ok(());
            }
        };
        let layout = geometry.layout();
        prop_assert!(layout.region_size <= u64::from(REGION_SIZE_MAX));
        prop_assert_eq!(layout.region_size % 4096, 0);
        prop_assert_eq!(geometry.pages() as u64 * 4096, layout.region_size);
        prop_assert_eq!(layout.flags, request.flags);
        prop_assert_eq!(layout.frame_size, request.frame_size);
        prop_assert_eq!(layout.frame_count, request.frame_count);
        for (ring, size, entry) in [
            (&layout.tx, request.tx_entries, 16),
            (&layout.completion, request.completion_entries, 16),
            (&layout.fill, request.fill_entries, 8),
            (&layout.rx, request.rx_entries, 16),
        ] {
            prop_assert_eq!((ring.size, ring.entry_size), (size, entry));
            prop_assert_eq!(ring.reserved, [0; 2]);
        }

        let frames = u64::from(layout.frames);
        let mut taken = vec![(frames, frames + wanted, u64::from(layout.frame_size))];
        for ring in [&layout.tx, &layout.completion, &layout.fill, &layout.rx] {
            taken.extend(places(ring));
        }
        taken.sort_unstable();
        let mut end = 0;
        for (from, to, align) in taken {
            prop_assert!(from >= end, "{from} is within what ends at {end}");
            prop_assert_eq!(from % align, 0);
            end = to;
        }
        prop_assert!(end <= layout.region_size);
    }

    /// A naive look for the frame, byte by byte in effect.
    #[test]
    fn frames_are_found(
        request in good(),
        number in any::<u32>(),
        inside in any::<u32>(),
        len in prop_oneof![0..5000u32, any::<u32>()],
        anywhere in any::<u64>(),
    ) {
        let Ok(geometry) = Geometry::new(&request) else { return Ok(()) };
        let layout = *geometry.layout();
        let size = layout.frame_size;
        let start = layout.frames + number % layout.frame_count * size;
        let inside = inside % size;

        let frame = geometry.frame_at(u64::from(start)).unwrap();
        prop_assert_eq!((frame.start(), frame.payload()), (start, start + FRAME_HEADROOM));
        prop_assert_eq!(geometry.frame_of(start + inside), Some(frame));
        if inside != 0 {
            prop_assert_eq!(geometry.frame_at(u64::from(start + inside)), None);
        }

        let offset = start + inside;
        let good = inside >= FRAME_HEADROOM && u64::from(inside) + u64::from(len) <= u64::from(size);
        prop_assert_eq!(geometry.payload(offset, len), good.then_some(frame));

        // Any number at all.
        let first = u64::from(layout.frames);
        let end = first + u64::from(size) * u64::from(layout.frame_count);
        let is_frame = (first..end).contains(&anywhere) && (anywhere - first) % u64::from(size) == 0;
        prop_assert_eq!(geometry.frame_at(anywhere).is_some(), is_frame);
        let low = anywhere as u32;
        let found = geometry.frame_of(low);
        prop_assert_eq!(found.is_some(), (first..end).contains(&u64::from(low)));
        if let Some(frame) = found {
            prop_assert!(frame.start() <= low && low - frame.start() < size);
        }
        if let Some(frame) = geometry.payload(low, len) {
            prop_assert!(frame.payload() <= low);
            prop_assert!(u64::from(low) + u64::from(len) <= u64::from(frame.start()) + u64::from(size));
        }
    }

    #[test]
    fn frames_needed(request in good(), len in 0..=70_000u32) {
        let Ok(geometry) = Geometry::new(&request) else { return Ok(()) };
        let capacity = geometry.capacity();
        prop_assert_eq!(capacity, request.frame_size - FRAME_HEADROOM);
        let mut count = 1;
        while count * capacity < len {
            count += 1;
        }
        prop_assert_eq!(geometry.frames_for(len), count);
    }

    /// No request makes it panic, and what is taken is in range.
    #[test]
    fn any_request(words in any::<[u32; 7]>(), reserved in prop_oneof![Just([0; 9]), any::<[u32; 9]>()]) {
        let [flags, frame_size, frame_count, tx, completion, fill, rx] = words;
        let request = ChannelReq {
            flags,
            frame_size,
            frame_count,
            tx_entries: tx,
            completion_entries: completion,
            fill_entries: fill,
            rx_entries: rx,
            reserved,
        };
        if Geometry::new(&request).is_ok() {
            prop_assert_eq!(reserved, [0; 9]);
            prop_assert_eq!(flags & !CHANNEL_FLAGS, 0);
            prop_assert!((FRAME_SIZE_MIN..=FRAME_SIZE_MAX).contains(&frame_size));
            prop_assert!((1..=FRAMES_MAX).contains(&frame_count));
        }
    }
}

fn refused(spoil: impl Fn(&mut ChannelReq)) -> Option<Invalid> {
    let mut request = request();
    spoil(&mut request);
    Geometry::new(&request).err()
}

#[test]
fn flags_and_reserved_fields() {
    assert_eq!(refused(|_| ()), None);
    assert_eq!(refused(|r| r.flags = 1 << 5), Some(Invalid::Flags));
    assert_eq!(refused(|r| r.flags = 1 << 31), Some(Invalid::Flags));
    assert_eq!(refused(|r| r.flags = CHANNEL_TX_ONLY), None);
    assert_eq!(
        refused(|r| r.flags = CHANNEL_TX_ONLY | CHANNEL_GRO),
        Some(Invalid::Flags)
    );
    assert_eq!(
        refused(|r| r.flags = CHANNEL_GRO_MERGED),
        Some(Invalid::Flags)
    );
    assert_eq!(
        refused(|r| r.flags = CHANNEL_GSO | CHANNEL_GRO_MERGED),
        Some(Invalid::Flags)
    );
    for index in 0..9 {
        assert_eq!(refused(|r| r.reserved[index] = 1), Some(Invalid::Flags));
    }
}

#[test]
fn ring_sizes() {
    let fields: [fn(&mut ChannelReq) -> &mut u32; 4] = [
        |r| &mut r.tx_entries,
        |r| &mut r.completion_entries,
        |r| &mut r.fill_entries,
        |r| &mut r.rx_entries,
    ];
    for field in fields {
        for bad in [
            0,
            3,
            63,
            RING_ENTRIES_MAX + 1,
            RING_ENTRIES_MAX * 2,
            u32::MAX,
        ] {
            assert_eq!(refused(|r| *field(r) = bad), Some(Invalid::Ring), "{bad}");
        }
        for good in [1, 2, RING_ENTRIES_MAX] {
            assert_eq!(refused(|r| *field(r) = good), None, "{good}");
        }
    }
}

#[test]
fn frame_sizes_and_counts() {
    for bad in [
        0,
        1,
        64,
        256,
        511,
        513,
        2000,
        FRAME_SIZE_MAX * 2,
        1 << 31,
        u32::MAX,
    ] {
        assert_eq!(refused(|r| r.frame_size = bad), Some(Invalid::FrameSize));
    }
    for bad in [0, FRAMES_MAX + 1, u32::MAX] {
        assert_eq!(refused(|r| r.frame_count = bad), Some(Invalid::FrameCount));
    }
    assert_eq!(refused(|r| r.frame_count = 1), None);
    let too_large = |r: &mut ChannelReq| (r.frame_size, r.frame_count) = (65536, FRAMES_MAX);
    assert_eq!(refused(too_large), Some(Invalid::Region));
    let just_too_large = |r: &mut ChannelReq| (r.frame_size, r.frame_count) = (65536, 1 << 14);
    assert_eq!(refused(just_too_large), Some(Invalid::Region));
    let fits = |r: &mut ChannelReq| (r.frame_size, r.frame_count) = (65536, (1 << 14) - 1);
    assert_eq!(refused(fits), None);
}
