// SPDX-License-Identifier: GPL-2.0

//! What a channel remembers of the routes of its packets: so that a datagram that is nothing
//! special (`sys/ipv4.rs`) needs neither udp_sendmsg() nor a look-up.

use crate::flow::Flow;
use crate::pure::{
    abi::{Meta, AF_INET, META_LOCAL},
    cache::Set, //
};
use crate::sys::{
    ipv4::{Datagram, Options, Route, RouteKey, To},
    region::Bytes,
    sock::Sock, //
};
use kernel::prelude::*;

/// Sets of routes to peers of sockets that aren't connected to them, of all flows together: 4 of 64
/// bytes each. A power of two.
const SETS: usize = 256;

/// See the module's documentation. Belongs to a channel's sender.
pub(crate) struct Routes {
    /// Of the flow of this number on the channel, as of this batch; `None` if they are special.
    options: Option<(u32, Option<Options>)>,
    /// Made when they are needed.
    sets: KVVec<Set<RouteKey, Route>>,
    /// Counts up, to say which goes for another.
    victim: usize,
}

impl Routes {
    /// Remembers nothing yet. `at_once` makes the places for routes, which are then charged to the
    /// current process: `ENOMEM`. Process context.
    pub(crate) fn new(at_once: bool) -> Result<Self> {
        Ok(Self {
            options: None,
            sets: if at_once { empty_sets()? } else { KVVec::new() },
            victim: 0,
        })
    }

    /// Another batch: options may have changed.
    pub(crate) fn begin(&mut self) {
        self.options = None;
    }

    /// No flow is left: routes don't outlive the namespace.
    pub(crate) fn forget(&mut self) {
        self.options = None;
        self.sets = KVVec::new();
    }

    /// The datagram that goes where `meta` says, of the flow of that number on the channel: `None`
    /// if it is for udp_sendmsg(). Process context.
    pub(crate) fn datagram<'a>(
        &'a mut self,
        number: u32,
        flow: &Flow,
        sk: &Sock,
        meta: &Meta,
        data: Bytes<'a>,
    ) -> Option<Datagram<'a>> {
        let known = match &self.options {
            Some((of, options)) if *of == number => options
                .as_ref()
                // A rule has set another one for this peer.
                .is_none_or(|options| options.mark() == sk.mark()),
            _ => false,
        };
        if !known {
            self.options = Some((number, Options::of(sk, flow.id())));
        }
        if meta.flags & !META_LOCAL != 0 || ![0, AF_INET].contains(&meta.family) {
            return None;
        }
        if meta.flags == 0 && meta.peer_port == 0 {
            let options = self.current()?;
            let (to, port, route) = options.connected()?;
            return Some(Datagram {
                options,
                route,
                to,
                port,
                data,
            });
        }
        let key = self.current()?.key(&to(meta))?;
        let Some((set, place)) = self.find_route(sk, &key) else {
            // Not to be looked for twice for each of a batch, where IPsec has all packets, say.
            self.options = Some((number, None));
            return None;
        };
        Some(Datagram {
            options: self.current()?,
            route: self.sets.get(set)?.get(place)?,
            to: key.to(),
            port: key.port(),
            data,
        })
    }

    fn current(&self) -> Option<&Options> {
        self.options.as_ref()?.1.as_ref()
    }

    /// Finds a good route of a key, by a look-up if it isn't remembered; gives its set and the
    /// place there.
    fn find_route(&mut self, sk: &Sock, key: &RouteKey) -> Option<(usize, usize)> {
        let at = key.hash() as usize & (SETS - 1);
        if let Some(set) = self.sets.get_mut(at) {
            if let Some(place) = set.find(key) {
                if set.get(place)?.is_valid() {
                    return Some((at, place));
                }
                set.put(place, None);
            }
        }
        let route = Route::look_up(sk, key)?;
        if self.sets.is_empty() {
            self.sets = empty_sets().ok()?;
        }
        self.victim = self.victim.wrapping_add(1);
        let set = self.sets.get_mut(at)?;
        let place = set.room(self.victim);
        set.put(place, Some((*key, route)));
        Some((at, place))
    }
}

/// Places for routes: `ENOMEM`. Process context.
fn empty_sets() -> Result<KVVec<Set<RouteKey, Route>>> {
    let mut sets = KVVec::with_capacity(SETS, GFP_KERNEL_ACCOUNT)?;
    for _ in 0..SETS {
        sets.push_within_capacity(Set::new()).map_err(|_| ENOMEM)?;
    }
    Ok(sets)
}

/// An IPv4 address out of metadata.
fn address(bytes: &[u8; 16]) -> u32 {
    let [a, b, c, d, ..] = *bytes;
    u32::from_ne_bytes([a, b, c, d])
}

/// Where metadata send a datagram.
fn to(meta: &Meta) -> To {
    To {
        address: address(&meta.peer),
        port: meta.peer_port,
        from: (meta.flags & META_LOCAL != 0).then(|| (address(&meta.local), meta.ifindex as i32)),
    }
}
