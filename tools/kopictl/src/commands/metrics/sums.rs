// SPDX-License-Identifier: GPL-2.0

//! Sums of processes, as many as there may be.

use super::text::visible;
use crate::rates::{Counts, Process};
use std::collections::HashMap;

/// So many processes of a user have sums of their own, and so many of all users; they choose how many there are.
/// Those of a user that are more have a sum together, and so have all users' beyond the second bound.
const USERS_MAX: usize = 1024;
const PROCESSES_MAX: usize = 16384;
/// Letters of a program's name, which its user chooses, too.
const NAME_MAX: usize = 64;

/// The sums. They outlive flows, since a counter must not go back.
#[derive(Default)]
pub(super) struct Sums(pub(super) HashMap<Process, Counts>);

impl Sums {
    /// Adds what the processes that have flows did. Those that have none are gone.
    pub(super) fn add(&mut self, changes: impl Iterator<Item = (Process, Counts)>) {
        let short = |(process, change): (Process, Counts)| {
            let program: String = process.program.chars().take(NAME_MAX).collect();
            // Names that look alike are one label's value, which OpenMetrics has once.
            let program = visible(&program);
            (Process { program, ..process }, change)
        };
        let mut changes: Vec<_> = changes.map(short).collect();
        // Those that have a sum keep it.
        changes.sort_by_cached_key(|(process, _)| !self.0.contains_key(process));
        let before = std::mem::take(&mut self.0);
        let mut of_users = HashMap::<u32, usize>::new();
        for (process, change) in changes {
            let key = match self.0.contains_key(&process) {
                true => process,
                false => self.place(process, &mut of_users),
            };
            let so_far = before.get(&key).copied().unwrap_or_default();
            *self.0.entry(key).or_insert(so_far) += change;
        }
    }

    /// Whose sum a process's is that has none yet.
    fn place(&self, process: Process, of_users: &mut HashMap<u32, usize>) -> Process {
        let others = |uid| Process {
            pid: 0,
            program: "(others)".to_owned(),
            uid,
        };
        let of_user = of_users.entry(process.uid).or_default();
        if *of_user >= USERS_MAX {
            return others(process.uid);
        }
        if self.0.len() >= PROCESSES_MAX {
            return others(u32::MAX);
        }
        *of_user += 1;
        process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(pid: u32, program: &str, uid: u32) -> (Process, Counts) {
        let process = Process {
            pid,
            program: program.to_owned(),
            uid,
        };
        let counts = Counts {
            out_packets: 1.0,
            ..Counts::default()
        };
        (process, counts)
    }

    fn packets(sums: &Sums, pid: u32, program: &str, uid: u32) -> Option<f64> {
        let (process, _) = change(pid, program, uid);
        sums.0.get(&process).map(Counts::packets)
    }

    #[test]
    fn a_user_takes_no_place_of_others() {
        let mut sums = Sums::default();
        let many = || (0..2 * 1024).map(|number| change(9, &format!("x{number}"), 7));
        sums.add(many().chain([change(5, "first", 0)]));
        assert_eq!(sums.0.len(), USERS_MAX + 2);
        sums.add(many().chain([change(5, "first", 0), change(6, "second", 0)]));
        assert_eq!(sums.0.len(), USERS_MAX + 3);
        assert_eq!(packets(&sums, 0, "(others)", 7), Some(2.0 * 1024.0));
        assert_eq!(packets(&sums, 5, "first", 0), Some(2.0));
        assert_eq!(packets(&sums, 6, "second", 0), Some(1.0));
        // Those that have a sum keep it.
        let kept = |sums: &Sums| {
            let own = sums.0.iter().filter(|(process, _)| process.uid == 7);
            own.filter(|(_, sum)| sum.packets() == 2.0).count()
        };
        assert_eq!(kept(&sums), USERS_MAX);
        sums.add([change(6, "second", 0)].into_iter());
        assert_eq!(
            (sums.0.len(), packets(&sums, 6, "second", 0)),
            (1, Some(2.0))
        );
    }

    #[test]
    fn there_is_a_bound() {
        let mut sums = Sums::default();
        sums.add((0..40_000).map(|uid| change(1, "x", uid)));
        assert_eq!(sums.0.len(), PROCESSES_MAX + 1);
        let rest = packets(&sums, 0, "(others)", u32::MAX);
        assert_eq!(rest, Some(f64::from(40_000 - 16_384)));
    }

    #[test]
    fn long_names_are_cut() {
        let mut sums = Sums::default();
        let name = "\u{10}".repeat(255);
        sums.add([change(1, &name, 0)].into_iter());
        let shown = "\\u{10}".repeat(NAME_MAX);
        assert_eq!(packets(&sums, 1, &shown, 0), Some(1.0));
    }

    #[test]
    fn names_that_look_alike_have_one_sum() {
        let mut sums = Sums::default();
        sums.add([change(0, "a\u{1}", 7), change(0, "a\\u{1}", 7)].into_iter());
        assert_eq!(packets(&sums, 0, "a\\u{1}", 7), Some(2.0));
        assert_eq!(sums.0.len(), 1);
    }
}
