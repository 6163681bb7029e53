// SPDX-License-Identifier: GPL-2.0

//! Names of users, groups and devices; each is looked up once.

use nix::{
    net::if_::if_indextoname,
    unistd::{Gid, Group, Uid, User},
};
use std::{cell::RefCell, collections::HashMap};

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
        cache
            .borrow_mut()
            .entry(number)
            .or_insert_with(|| name().unwrap_or_else(|| number.to_string()))
            .clone()
    }
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
