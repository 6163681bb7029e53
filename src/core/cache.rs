// SPDX-License-Identifier: GPL-2.0

//! A cache of a fixed number of entries: what was used can be found again, or not.

use core::ops::Range;

/// Places that an entry can have.
pub const WAYS: usize = 4;

/// The places in which an entry with this hash can be, of `len` in all: [`WAYS`] of them, if `len` is
/// a power of two and no less.
fn places(len: usize, hash: u32) -> Range<usize> {
    let sets = len / WAYS;
    let set = hash as usize & sets.wrapping_sub(1);
    let start = set.wrapping_mul(WAYS).min(len);
    start..start.saturating_add(WAYS).min(len)
}

/// Where the entry with that key is, if it is there.
pub fn find<K: PartialEq, V>(slots: &[Option<(K, V)>], hash: u32, key: &K) -> Option<usize> {
    let places = places(slots.len(), hash);
    let at = slots
        .get(places.clone())?
        .iter()
        .position(|slot| matches!(slot, Some((other, _)) if other == key))?;
    Some(places.start.wrapping_add(at))
}

/// The place for a new entry: a free one, or that of which `victim`, any number, says that it goes.
pub fn room<K, V>(slots: &[Option<(K, V)>], hash: u32, victim: usize) -> usize {
    let places = places(slots.len(), hash);
    let free = slots
        .get(places.clone())
        .and_then(|slots| slots.iter().position(Option::is_none));
    places.start.wrapping_add(free.unwrap_or(victim % WAYS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What is found is what was put there last under its key.
        #[test]
        fn finds_what_was_put(keys in proptest::collection::vec(0u32..40, 1..200)) {
            let mut slots: Vec<Option<(u32, usize)>> = (0..16).map(|_| None).collect();
            let mut last = std::collections::HashMap::new();
            for (time, &key) in keys.iter().enumerate() {
                let hash = key.wrapping_mul(7);
                let at = match find(&slots, hash, &key) {
                    Some(at) => {
                        let (found, value) = slots[at].unwrap();
                        prop_assert_eq!(found, key);
                        prop_assert_eq!(Some(&value), last.get(&key));
                        at
                    }
                    None => room(&slots, hash, time),
                };
                slots[at] = Some((key, time));
                last.insert(key, time);
            }
            let last_key = *keys.last().unwrap();
            prop_assert!(find(&slots, last_key.wrapping_mul(7), &last_key).is_some());
        }
    }

    #[test]
    fn as_many_as_there_are_places() {
        let mut slots = [None; WAYS];
        for key in 0..WAYS as u32 {
            slots[room(&slots, key, 0)] = Some((key, ()));
        }
        for key in 0..WAYS as u32 {
            assert!(find(&slots, key, &key).is_some());
        }
        slots[room(&slots, 99, 2)] = Some((99, ()));
        assert!(find(&slots, 2, &2).is_none());
        assert!(find(&slots, 99, &99).is_some());
    }

    #[test]
    fn empty_has_nothing() {
        let slots: [Option<(u32, ())>; 0] = [];
        assert!(find(&slots, 5, &5).is_none());
        assert!(slots.get(room(&slots, 5, 3)).is_none());
    }
}
