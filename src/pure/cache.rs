// SPDX-License-Identifier: GPL-2.0

//! A set-associative cache of a fixed number of entries: an entry may be evicted at any time.

/// Places that an entry can have.
pub const WAYS: usize = 4;

/// The places of entries whose hashes are alike.
pub struct Set<K, V>([Option<(K, V)>; WAYS]);

impl<K: PartialEq, V> Set<K, V> {
    /// A set without entries.
    pub const fn new() -> Self {
        Self([const { None }; WAYS])
    }

    /// Where the entry with that key is, if it is there.
    pub fn find(&self, key: &K) -> Option<usize> {
        self.0
            .iter()
            .position(|slot| matches!(slot, Some((other, _)) if other == key))
    }

    /// The place for a new entry: a free one, or the one that `victim`, any number, chooses.
    pub fn room(&self, victim: usize) -> usize {
        let free = self.0.iter().position(Option::is_none);
        free.unwrap_or(victim % WAYS)
    }

    /// The entry at that place.
    pub fn get(&self, place: usize) -> Option<&V> {
        let (_, value) = self.0.get(place)?.as_ref()?;
        Some(value)
    }

    /// Forgets those entries that are not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&V) -> bool) {
        for slot in &mut self.0 {
            if slot.as_ref().is_some_and(|(_, value)| !keep(value)) {
                *slot = None;
            }
        }
    }

    /// Puts an entry at that place, or none.
    pub fn put(&mut self, place: usize, entry: Option<(K, V)>) {
        if let Some(slot) = self.0.get_mut(place) {
            *slot = entry;
        }
    }
}

impl<K: PartialEq, V> Default for Set<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn retains_what_is_to_be_kept() {
        let mut set = Set::new();
        for key in 0..WAYS {
            set.put(key, Some((key, key * 10)));
        }
        set.retain(|value| value % 20 == 0);
        let found = [0, 1, 2, 3].map(|key| set.find(&key).is_some());
        assert_eq!(found, [true, false, true, false]);
    }

    proptest! {
        /// What is found is what was put there last under its key.
        #[test]
        fn finds_what_was_put(keys in proptest::collection::vec(0u32..8, 1..200)) {
            let mut set = Set::new();
            let mut last = std::collections::HashMap::new();
            for (time, &key) in keys.iter().enumerate() {
                let place = match set.find(&key) {
                    Some(place) => {
                        prop_assert_eq!(set.get(place), last.get(&key));
                        place
                    }
                    None => set.room(time),
                };
                set.put(place, Some((key, time)));
                last.insert(key, time);
            }
            prop_assert!(set.find(keys.last().unwrap()).is_some());
        }
    }

    #[test]
    fn as_many_as_there_are_places() {
        let mut set = Set::new();
        for key in 0..WAYS as u32 {
            set.put(set.room(0), Some((key, ())));
        }
        for key in 0..WAYS as u32 {
            assert!(set.find(&key).is_some());
        }
        set.put(set.room(2), Some((99, ())));
        assert!(set.find(&2).is_none());
        let place = set.find(&99).unwrap();
        set.put(place, None);
        assert!(set.find(&99).is_none());
        assert_eq!(set.room(0), place);
        assert_eq!(set.get(WAYS), None);
    }
}
