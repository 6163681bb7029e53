// SPDX-License-Identifier: GPL-2.0

//! A fixed number of places, which users share: what one user wants takes no other's share.
//!
//! While all places are taken, no user has two more than another one who waits for a place.

/// Number of places that a user has.
fn held(places: &[Option<u32>], user: u32) -> usize {
    places.iter().filter(|&&place| place == Some(user)).count()
}

/// The place that a user gets, among places with their users: a free one, or one of the user who
/// has the most.
///
/// `None` if no user has at least two more than this one, which waits then.
pub fn place_for(places: &[Option<u32>], user: u32) -> Option<usize> {
    let free = places.iter().position(Option::is_none);
    free.or_else(|| {
        let counted = places.iter().map(|place| held(places, (*place)?).into());
        let (at, most) = counted
            .enumerate()
            .max_by_key(|&(_, held): &(usize, Option<usize>)| held)?;
        (most? > held(places, user).saturating_add(1)).then_some(at)
    })
}

/// Which of the users that wait gets a place that came free: the first of those who have the
/// fewest.
pub fn next(places: &[Option<u32>], waiting: impl Iterator<Item = u32>) -> Option<usize> {
    waiting
        .enumerate()
        .min_by_key(|&(_, user)| held(places, user))
        .map(|(at, _)| at)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACES: usize = 5;

    #[test]
    fn one_user_takes_what_is_free() {
        assert_eq!(place_for(&[None, None], 1), Some(0));
        assert_eq!(place_for(&[Some(1), None], 1), Some(1));
        assert_eq!(place_for(&[Some(1), Some(1)], 1), None);
        assert_eq!(place_for(&[], 1), None);
    }

    #[test]
    fn another_gets_a_share() {
        assert_eq!(place_for(&[Some(2), Some(1), Some(1)], 3), Some(2));
        assert_eq!(place_for(&[Some(1), Some(2)], 3), None);
        assert_eq!(place_for(&[Some(1), Some(1), Some(2)], 2), None);
        assert_eq!(next(&[Some(1), None], [1, 2, 3].into_iter()), Some(1));
        assert_eq!(next(&[None], [].into_iter()), None);
    }

    proptest! {
        /// Things come and go. No user waits while another one has two places more.
        #[test]
        fn shares_are_fair(steps in proptest::collection::vec((0u32..4, any::<Option<u8>>()), 0..200)) {
            let mut places = [None; PLACES];
            let mut waiting = Vec::new();
            for (user, gone) in steps {
                match (gone.map(usize::from), place_for(&places, user)) {
                    (Some(at), _) => {
                        if places[at % PLACES].take().is_some() {
                            if let Some(first) = next(&places, waiting.iter().copied()) {
                                places[at % PLACES] = Some(waiting.remove(first));
                            }
                        }
                    }
                    (None, Some(at)) => waiting.extend(places[at].replace(user)),
                    (None, None) => waiting.push(user),
                }
                let most = (0..4).map(|user| held(&places, user)).max().unwrap_or(0);
                for &user in &waiting {
                    prop_assert!(places.iter().all(Option::is_some));
                    prop_assert!(most <= held(&places, user) + 1);
                }
            }
        }
    }
}
