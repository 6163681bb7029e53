// SPDX-License-Identifier: GPL-2.0

//! The packets that wait on a queue: a list for each user, which take turns. So what a user's
//! packets wait for holds up no other user, and no user takes all the room.

use crate::sys::direct::{list::List, taken::TakenSkb};
use kernel::prelude::*;

/// Maximum number of datagrams that wait on a queue: fq_codel's limit.
const WAITING_MAX: u32 = 10_240;
/// A user's datagrams may be this many times the room that is left. So a user gets four fifths of
/// the queue while nobody else needs any, and there is always room for another one.
const SHARE: u32 = 4;
/// Maximum number of users with packets that wait on a queue; the bits of [`Waiting::filled`].
const USERS_MAX: u32 = u32::BITS;

/// The packets that wait on a queue.
pub(super) struct Waiting {
    users: KVec<OfUser>,
    /// The lists with packets, as bits.
    filled: u32,
    /// The list whose turn it is.
    turn: u32,
    /// Datagrams in all lists.
    datagrams: u32,
}

/// The packets of one user, in order.
struct OfUser {
    user: u32,
    packets: List,
    datagrams: u32,
    patience: Patience,
}

/// Since when a user's first packets have waited for the stack, in nanoseconds; `None` if they
/// don't.
pub(super) type Patience = Option<u64>;

impl Waiting {
    /// No packets: `ENOMEM`. Process context.
    pub(super) fn new() -> Result<Self> {
        let mut users = KVec::with_capacity(USERS_MAX as usize, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..USERS_MAX {
            let nobodys = OfUser {
                user: 0,
                packets: List::new()?,
                datagrams: 0,
                patience: None,
            };
            users.push_within_capacity(nobodys).map_err(|_| ENOMEM)?;
        }
        Ok(Self {
            users,
            filled: 0,
            turn: 0,
            datagrams: 0,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Appends a user's packet; gives it back if there is no room for the user.
    pub(super) fn add(&mut self, user: u32, packet: TakenSkb) -> Option<TakenSkb> {
        let (at, new) = (self.list_of(user), packet.datagrams());
        let Some(list) = self.users.get_mut(at as usize) else {
            return Some(packet);
        };
        let all = self.datagrams.saturating_add(new);
        let own = list.datagrams.saturating_add(new);
        if own > SHARE.saturating_mul(WAITING_MAX.saturating_sub(all)) {
            return Some(packet);
        }
        list.user = user;
        list.datagrams = own;
        list.packets.push(packet);
        self.datagrams = all;
        self.filled |= bit(at);
        None
    }

    /// The place of the list with a user's packets, or of one without packets if there is none.
    fn list_of(&self, user: u32) -> u32 {
        let mut left = self.filled;
        while left != 0 {
            let at = left.trailing_zeros();
            if self
                .users
                .get(at as usize)
                .is_some_and(|list| list.user == user)
            {
                return at;
            }
            left &= !bit(at);
        }
        // Past the end if all have packets.
        (!self.filled).trailing_zeros()
    }

    /// The next list with packets, of those that aren't in `but`, as from the one whose turn it is.
    pub(super) fn next(&self, but: u32) -> Option<u32> {
        match self.filled & !but {
            0 => None,
            left => {
                let ahead = left.rotate_right(self.turn).trailing_zeros();
                Some(self.turn.wrapping_add(ahead) % USERS_MAX)
            }
        }
    }

    /// Makes it a list's turn.
    pub(super) fn set_turn(&mut self, at: u32) {
        self.turn = at % USERS_MAX;
    }

    /// Calls `act` with the first packet of a list, which stays there, and with the user's patience.
    pub(super) fn first<T>(
        &mut self,
        at: u32,
        act: impl FnOnce(&mut TakenSkb, &mut Patience) -> T,
    ) -> Option<T> {
        let list = self.users.get_mut(at as usize)?;
        let patience = &mut list.patience;
        list.packets.first(|packet| act(packet, patience))
    }

    /// Removes the first packet of a list. If it was `given` to the driver, or the last one, the
    /// user's patience begins anew.
    pub(super) fn pop(&mut self, at: u32, given: bool) -> Option<TakenSkb> {
        let list = self.users.get_mut(at as usize)?;
        let packet = list.packets.pop()?;
        let datagrams = packet.datagrams();
        list.datagrams = list.datagrams.saturating_sub(datagrams);
        self.datagrams = self.datagrams.saturating_sub(datagrams);
        let is_last = list.packets.first(|_| ()).is_none();
        if is_last {
            self.filled &= !bit(at);
        }
        if given || is_last {
            list.patience = None;
        }
        Some(packet)
    }
}

/// A list's bit.
pub(super) fn bit(at: u32) -> u32 {
    1u32.wrapping_shl(at)
}
