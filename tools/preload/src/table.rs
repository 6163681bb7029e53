// SPDX-License-Identifier: GPL-2.0

//! What is known of each descriptor. It may be out of date: descriptors are closed and copied in
//! ways that the library doesn't see. Whoever uses it has the kernel check it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Descriptors from this one on are the kernel's alone.
const DESCRIPTORS: usize = 1 << 16;

static SLOTS: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];
/// One more than the highest descriptor that was a flow.
static USED: AtomicUsize = AtomicUsize::new(0);

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Nothing of the library's.
    Other,
    /// A flow that has sent so many datagrams.
    Flow { ipv6: bool, sent: u32 },
    /// A flow that sends by a ring.
    OnRing { ipv6: bool, place: RingSlot },
}

/// Where a flow is on a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingSlot {
    /// The process, as `rings` counts them.
    pub(crate) generation: u8,
    /// The ring of that process.
    pub(crate) ring: u8,
    /// The flow's number on the ring's channel.
    pub(crate) flow: u32,
}

const FLOW: u64 = 1 << 62;
const ON_RING: u64 = 1 << 63;
const IPV6: u64 = 1 << 32;

impl Slot {
    fn word(self) -> u64 {
        let six = |ipv6| if ipv6 { IPV6 } else { 0 };
        match self {
            Slot::Other => 0,
            Slot::Flow { ipv6, sent } => FLOW | six(ipv6) | u64::from(sent),
            Slot::OnRing { ipv6, place } => {
                let (generation, ring) = (u64::from(place.generation), u64::from(place.ring));
                ON_RING | (generation << 48) | (ring << 40) | six(ipv6) | u64::from(place.flow)
            }
        }
    }

    fn of(word: u64) -> Self {
        let ipv6 = word & IPV6 != 0;
        if word & ON_RING != 0 {
            let place = RingSlot {
                generation: (word >> 48) as u8,
                ring: (word >> 40) as u8,
                flow: word as u32,
            };
            Slot::OnRing { ipv6, place }
        } else if word & FLOW != 0 {
            let sent = word as u32;
            Slot::Flow { ipv6, sent }
        } else {
            Slot::Other
        }
    }
}

fn slot(fd: i32) -> Option<&'static AtomicU64> {
    SLOTS.get(usize::try_from(fd).ok()?)
}

/// What the descriptor is.
pub(crate) fn get(fd: i32) -> Slot {
    slot(fd).map_or(Slot::Other, |slot| Slot::of(slot.load(Relaxed)))
}

/// Notes what the descriptor is.
pub(crate) fn set(fd: i32, what: Slot) {
    let Some(slot) = slot(fd) else {
        return;
    };
    if what != Slot::Other {
        USED.fetch_max(fd as usize + 1, Relaxed);
    }
    // Most are nothing, and their memory need not be there.
    if what != Slot::Other || slot.load(Relaxed) != 0 {
        slot.store(what.word(), Relaxed);
    }
}

/// Notes that the descriptor is something else, unless that has changed meanwhile.
pub(crate) fn change(fd: i32, from: Slot, to: Slot) {
    if let Some(slot) = slot(fd) {
        let _ = slot.compare_exchange(from.word(), to.word(), Relaxed, Relaxed);
    }
}

/// Forgets descriptors.
pub(crate) fn forget(first: u32, last: u32) {
    let end = USED.load(Relaxed).min(last as usize + 1);
    for slot in SLOTS.iter().take(end).skip(first as usize) {
        slot.store(0, Relaxed);
    }
}

/// Descriptors of flows on rings of a process, with their places.
pub(crate) fn on_rings(generation: u8) -> impl Iterator<Item = (i32, RingSlot)> {
    (0..USED.load(Relaxed) as i32).filter_map(move |fd| match get(fd) {
        Slot::OnRing { place, .. } if place.generation == generation => Some((fd, place)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_back() {
        let place = RingSlot {
            generation: 7,
            ring: 15,
            flow: u32::MAX,
        };
        for what in [
            Slot::Other,
            Slot::Flow {
                ipv6: true,
                sent: u32::MAX,
            },
            Slot::Flow {
                ipv6: false,
                sent: 0,
            },
            Slot::OnRing { ipv6: true, place },
            Slot::OnRing { ipv6: false, place },
        ] {
            assert_eq!(Slot::of(what.word()), what);
        }
    }

    #[test]
    fn descriptors_out_of_range_are_nothing() {
        let flow = Slot::Flow {
            ipv6: false,
            sent: 1,
        };
        for fd in [-1, i32::MIN, i32::MAX, DESCRIPTORS as i32] {
            set(fd, flow);
            change(fd, flow, Slot::Other);
            assert_eq!(get(fd), Slot::Other);
        }
        forget(0, u32::MAX);
        forget(u32::MAX, u32::MAX);
    }
}
