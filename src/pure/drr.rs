// SPDX-License-Identifier: GPL-2.0

//! The scheduler of queues: deficit round robin by bytes (Shreedhar and Varghese, 1996), with debt.
//!
//! Each visit of a queue adds to its deficit counter, and the queue sends while that is positive.
//! The last packet may cost more than is left, since its size isn't known before: the debt is paid
//! at the next visits (as in fq_codel). So queues that always have packets get bytes by their
//! weights, whatever the sizes of the packets, and no visit is longer than its share and a packet.

/// The bytes that a queue may still send; a debt, if it is negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deficit(i64);

impl Deficit {
    /// The queue is visited, and has packets: says whether it may send now.
    pub fn visit(&mut self, quantum: u64) -> bool {
        let quantum = i64::try_from(quantum).unwrap_or(i64::MAX);
        // A queue can't save up: the rest of a visit that was broken off is used now.
        self.0 = self.0.saturating_add(quantum).min(quantum);
        self.0 > 0
    }

    /// The queue sent that number of bytes: says whether it may send more.
    pub fn spend(&mut self, bytes: u64) -> bool {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.0 = self.0.saturating_sub(bytes);
        self.0 > 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_packet_may_overdraw_and_is_paid_for() {
        let mut deficit = Deficit::default();
        assert!(deficit.visit(1000));
        assert!(deficit.spend(999));
        assert!(!deficit.spend(2001));
        // Two visits pay, and the third has something over.
        assert!(!deficit.visit(1000));
        assert!(!deficit.visit(1000));
        assert!(deficit.visit(1000));
    }

    #[test]
    fn nothing_is_saved_up() {
        let mut deficit = Deficit::default();
        for _ in 0..5 {
            assert!(deficit.visit(1000));
        }
        assert!(!deficit.spend(1000));
    }

    #[test]
    fn no_number_overflows() {
        let mut deficit = Deficit::default();
        assert!(deficit.visit(u64::MAX));
        assert!(!deficit.spend(u64::MAX));
        assert!(!deficit.spend(u64::MAX));
        assert!(!deficit.spend(u64::MAX));
        assert!(!deficit.visit(1));
    }

    proptest! {
        /// Queues that always have packets get bytes by their weights, to within a share and a
        /// packet.
        #[test]
        fn fair_by_weight(
            quantum in 1024u64..100_000,
            weights in proptest::collection::vec(1u64..100, 2..6),
            sizes in proptest::collection::vec(64u64..65_600, 1..50),
            rounds in 50u64..200,
        ) {
            let mut queues = vec![(Deficit::default(), 0u64); weights.len()];
            // Each queue has packets of other sizes than its neighbours.
            let mut next = (0..weights.len()).collect::<Vec<_>>();
            for _ in 0..rounds {
                for (number, (deficit, sent)) in queues.iter_mut().enumerate() {
                    let share = quantum * weights[number];
                    let mut more = deficit.visit(share);
                    let mut visit = 0;
                    while more {
                        let size = sizes[next[number] % sizes.len()];
                        next[number] += 1;
                        visit += size;
                        more = deficit.spend(size);
                    }
                    prop_assert!(visit < share + 65_600, "{visit} in one visit");
                    *sent += visit;
                }
            }
            for ((_, sent), weight) in queues.iter().zip(&weights) {
                let due = rounds * quantum * weight;
                prop_assert!(*sent + 65_600 > due && *sent < due + 65_600, "{sent} of {due}");
            }
        }
    }
}
