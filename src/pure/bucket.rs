// SPDX-License-Identifier: GPL-2.0

//! Token buckets: a rate, and a burst.

const NS_PER_SECOND: u64 = 1_000_000_000;

/// A rate and its burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Units a second; never 0.
    per_second: u64,
    /// Units at once; never 0.
    burst: u64,
}

impl Rate {
    /// A rate in any unit. Without a burst it is a tenth of a second's. `None` where nothing would
    /// ever pass.
    pub fn new(per_second: u64, burst: Option<u64>) -> Option<Self> {
        let burst = burst.unwrap_or((per_second / 10).max(1));
        (per_second > 0 && burst > 0).then_some(Self { per_second, burst })
    }

    /// Units a second.
    pub fn per_second(&self) -> u64 {
        self.per_second
    }

    /// Units at once.
    pub fn burst(&self) -> u64 {
        self.burst
    }

    /// Nanoseconds that `units` take; at most 2^64 - 1. (The kernel divides no 128 bits.)
    fn cost(&self, units: u64) -> u64 {
        let rate = self.per_second.max(1);
        let seconds = (units / rate).saturating_mul(NS_PER_SECOND);
        let rest = (units % rate).saturating_mul(NS_PER_SECOND) / rate;
        seconds.saturating_add(rest)
    }
}

/// The state of a bucket: the time, in ns, at which all that passed would have at the rate (RFC
/// 2697 with time for tokens; ATM's GCRA).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    due: u64,
}

impl Bucket {
    /// Lets `units` pass at a time of a clock that never goes back, or none of them.
    ///
    /// More than a burst passes when the bucket is full, and is made up for afterwards: else a GSO
    /// packet larger than the burst would never pass.
    pub fn take(&mut self, rate: &Rate, now: u64, units: u64) -> bool {
        let due = self.due.max(now);
        let ahead = due.saturating_sub(now);
        let cost = rate.cost(units);
        if ahead > 0 && ahead.saturating_add(cost) > rate.cost(rate.burst) {
            return false;
        }
        self.due = due.saturating_add(cost);
        true
    }
}

/// Number of rates that one side of a flow can be behind with at the same time, each by itself.
const BUCKETS: usize = 8;

/// The buckets of several rates, each of which has a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buckets([(u32, Bucket); BUCKETS]);

impl Buckets {
    /// As [`Bucket::take`], for the rate of a key. 0 is no key.
    ///
    /// A bucket that is due is as good as a new one, and gives its place up. If none is, the key
    /// gets the place and the debt of the bucket that is due first: it may have to wait then, but
    /// no order of keys lets more pass than the rates.
    pub fn take(&mut self, key: u32, rate: &Rate, now: u64, units: u64) -> bool {
        if let Some((_, bucket)) = self.0.iter_mut().find(|(of, _)| *of == key) {
            return bucket.take(rate, now, units);
        }
        let first = self.0.iter_mut().min_by_key(|(_, bucket)| bucket.due);
        first.is_some_and(|place| {
            place.0 = key;
            place.1.take(rate, now, units)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let rate = Rate::new(1000, Some(10)).unwrap();
        let mut bucket = Bucket::default();
        let passed = (0..100).filter(|_| bucket.take(&rate, 0, 1)).count();
        assert_eq!(passed, 10);
        assert!(!bucket.take(&rate, 999_999, 1));
        assert!(bucket.take(&rate, 1_000_000, 1));
        assert!(!bucket.take(&rate, 1_000_001, 1));
    }

    #[test]
    fn what_is_larger_than_the_burst_waits_for_all_of_it() {
        let rate = Rate::new(1000, Some(10)).unwrap();
        let mut bucket = Bucket::default();
        assert!(bucket.take(&rate, 0, 50));
        assert!(!bucket.take(&rate, 39_999_999, 1));
        assert!(bucket.take(&rate, 50_000_000, 50));
    }

    #[test]
    fn rates_that_let_nothing_pass() {
        assert_eq!(Rate::new(0, None), None);
        assert_eq!(Rate::new(5, Some(0)), None);
        assert_eq!(Rate::new(5, None).unwrap().burst(), 1);
    }

    #[test]
    fn no_number_overflows() {
        let rate = Rate::new(1, Some(u64::MAX)).unwrap();
        let mut bucket = Bucket::default();
        assert!(bucket.take(&rate, u64::MAX, u64::MAX));
        let slow = Rate::new(1, Some(1)).unwrap();
        assert!(!bucket.take(&slow, 1, u64::MAX));
    }

    proptest! {
        #[test]
        fn never_more_than_burst_and_rate(
            per_second in 1u64..1_000_000,
            burst in 1u64..1000,
            steps in proptest::collection::vec((0u64..10_000_000, 1u64..100), 1..200),
        ) {
            let rate = Rate::new(per_second, Some(burst)).unwrap();
            let mut bucket = Bucket::default();
            let (mut now, mut passed) = (0u64, 0u64);
            for (wait, units) in steps {
                now += wait;
                if bucket.take(&rate, now, units) {
                    passed += units;
                }
                let allowed = u128::from(burst.max(100)) + 1
                    + u128::from(now) * u128::from(per_second) / u128::from(NS_PER_SECOND);
                // Rounding of each cost: below a nanosecond's worth each.
                prop_assert!(u128::from(passed) <= allowed + 200);
            }
        }
    }

    #[test]
    fn rates_of_several_keys_are_kept_apart() {
        let rate = Rate::new(1000, Some(10)).unwrap();
        let mut buckets = Buckets::default();
        let mut passed = [0; 3];
        for turn in 0..300 {
            let key = turn % 3;
            passed[key] += u32::from(buckets.take(key as u32 + 1, &rate, 5, 1));
        }
        assert_eq!(passed, [10; 3]);
    }

    proptest! {
        /// Whatever the order of keys, no key gets more than its rate and a burst.
        #[test]
        fn no_order_of_keys_gets_more(
            packets in proptest::collection::vec((1u32..20, 0u64..300_000), 1..2000),
            burst in 1u64..20,
        ) {
            let rate = Rate::new(1000, Some(burst)).unwrap();
            let mut buckets = Buckets::default();
            let mut passed = std::collections::HashMap::new();
            let mut now = 0;
            for (key, pause) in packets {
                now += pause;
                if buckets.take(key, &rate, now, 1) {
                    *passed.entry(key).or_insert(0u64) += 1;
                }
            }
            let most = burst + now / 1_000_000 + 1;
            prop_assert!(passed.values().all(|count| *count <= most));
        }
    }
}
