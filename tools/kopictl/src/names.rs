// SPDX-License-Identifier: GPL-2.0

//! Names of users, groups and devices; each is looked up once.

use nix::{
    net::if_::if_indextoname,
    unistd::{Gid, Group, Uid, User},
};
use std::{cell::RefCell, collections::HashMap};

/// So many of each; then they are looked up anew.
const CACHED_MAX: usize = 1 << 16;

/// Looks up names, or gives numbers if it shall.
#[derive(Default)]
pub(crate) struct Names {
    numeric: bool,
    users: RefCell<HashMap<u32, String>>,
    groups: RefCell<HashMap<u32, String>>,
    devices: RefCell<HashMap<u32, String>>,
}

impl Names {
    /// Gives numbers only, if `numeric`.
    pub(crate) fn new(numeric: bool) -> Self {
        Self {
            numeric,
            ..Self::default()
        }
    }

    /// A user's name, or the number.
    pub(crate) fn user(&self, uid: u32) -> String {
        self.cached(&self.users, uid, || {
            Some(User::from_uid(Uid::from_raw(uid)).ok()??.name)
        })
    }

    /// A group's name, or the number.
    pub(crate) fn group(&self, gid: u32) -> String {
        self.cached(&self.groups, gid, || {
            Some(Group::from_gid(Gid::from_raw(gid)).ok()??.name)
        })
    }

    /// A device's name, or the number.
    pub(crate) fn device(&self, index: u32) -> String {
        self.cached(&self.devices, index, || {
            Some(if_indextoname(index).ok()?.to_string_lossy().into_owned())
        })
    }

    fn cached(
        &self,
        cache: &RefCell<HashMap<u32, String>>,
        number: u32,
        name: impl FnOnce() -> Option<String>,
    ) -> String {
        if self.numeric {
            return number.to_string();
        }
        let mut cache = cache.borrow_mut();
        if cache.len() >= CACHED_MAX {
            cache.clear();
        }
        cache
            .entry(number)
            .or_insert_with(|| {
                name()
                    .filter(|name| !is_like_a_number(name))
                    .unwrap_or_else(|| number.to_string())
            })
            .clone()
    }
}

/// Whether a name would be taken for a number, or a range of them, which is another's perhaps.
fn is_like_a_number(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_digit() || letter == '+')
}

/// A user's number.
pub(crate) fn uid(name: &str) -> Option<u32> {
    name.parse()
        .ok()
        .or_else(|| Some(User::from_name(name).ok()??.uid.as_raw()))
}

/// A group's number.
pub(crate) fn gid(name: &str) -> Option<u32> {
    name.parse()
        .ok()
        .or_else(|| Some(Group::from_name(name).ok()??.gid.as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user may be called 1002, and have the number 1003.
    #[test]
    fn names_that_look_like_numbers_are_not_written() {
        let names = Names::default();
        let shown =
            |number: u32, name: &str| names.cached(&names.users, number, || Some(name.to_owned()));
        for (number, name) in [(1003, "1002"), (1004, "+7"), (1005, "1-5"), (1006, "007")] {
            assert_eq!(shown(number, name), number.to_string());
        }
        assert_eq!(shown(1007, "bob7"), "bob7");
        assert_eq!(shown(1008, "-bob"), "-bob");
    }

    #[test]
    fn the_cache_has_a_bound() {
        let names = Names::default();
        for number in 0..=u32::try_from(CACHED_MAX).unwrap() {
            names.cached(&names.groups, number, || None);
        }
        assert_eq!(names.groups.borrow().len(), 1);
    }
}
