// SPDX-License-Identifier: GPL-2.0

//! What a channel remembers of the routes of its packets: so that a datagram that is nothing
//! special (`sys/datagram.rs`) needs neither udp_sendmsg() nor a look-up.

use crate::flow::Flow;
use crate::pure::{
    abi::{Meta, AF_INET, AF_INET6, META_LOCAL},
    cache::Set,
    ip::IpVersion,
    peer::unmapped, //
};
use crate::sys::{
    datagram::{Datagram, Options},
    ipv4,
    ipv6,
    region::Bytes,
    sock::Sock, //
};
use kernel::prelude::*;

/// Sets of routes to peers of sockets that aren't connected to them, of all flows together: 4 each. A
/// power of two.
const SETS: usize = 256;

/// The places for routes of one IP version.
type Sets<O> = KVVec<Set<<O as Options>::Key, <O as Options>::Route>>;

/// See the module's documentation. Belongs to a channel's sender.
pub(crate) struct Routes {
    v4: Known<ipv4::OptionsV4>,
    v6: Known<ipv6::OptionsV6>,
}

/// What is known of the datagrams of one IP version.
struct Known<O: Options> {
    /// Of the flow of this number on the channel, since `begin`; `None` if they are special.
    options: Option<(u32, Option<O>)>,
    /// Made when they are needed.
    sets: Sets<O>,
    /// Of the routes that are remembered.
    generation: i32,
    /// The slot to replace next, when a set is full.
    victim: usize,
}

impl Routes {
    /// Remembers nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            v4: Known::new(),
            v6: Known::new(),
        }
    }

    /// Whether there are places for routes of an IP version.
    pub(crate) fn has_places(&self, version: IpVersion) -> bool {
        match version {
            IpVersion::V4 => !self.v4.sets.is_empty(),
            IpVersion::V6 => !self.v6.sets.is_empty(),
        }
    }

    /// Takes places for routes, if there are none of that IP version.
    pub(crate) fn put_places(&mut self, places: RoutePlaces) {
        match places {
            RoutePlaces::V4(sets) if self.v4.sets.is_empty() => self.v4.sets = sets,
            RoutePlaces::V6(sets) if self.v6.sets.is_empty() => self.v6.sets = sets,
            _ => {}
        }
    }

    /// Reads the options by which a flow sends where `meta` says. Returns whether its datagrams may go by a
    /// remembered route, by what was read since [`Routes::begin`]. Process context.
    pub(crate) fn prepare_for(&mut self, number: u32, flow: &Flow, sk: &Sock, meta: &Meta) -> bool {
        match sk.is_ipv6() && peer_of_ipv4(sk, meta).is_none() {
            false => self.v4.refresh_options(number, flow, sk).is_some(),
            true => self.v6.refresh_options(number, flow, sk).is_some(),
        }
    }

    /// Sending begins anew: options may have changed.
    pub(crate) fn begin(&mut self) {
        self.v4.options = None;
        self.v6.options = None;
    }

    /// No flow is left: routes don't outlive the namespace.
    pub(crate) fn forget(&mut self) {
        self.begin();
        self.v4.sets = KVVec::new();
        self.v6.sets = KVVec::new();
    }

    /// The datagram that goes where `meta` says, of the flow of that number on the channel: `None`
    /// if it is for udp_sendmsg() or udpv6_sendmsg(). Process context.
    #[inline(always)]
    pub(crate) fn datagram<'a>(
        &'a mut self,
        number: u32,
        flow: &Flow,
        sk: &Sock,
        meta: &Meta,
        data: Bytes<'a>,
    ) -> Option<Datagram<'a>> {
        if !sk.is_ipv6() {
            return self.v4.datagram(number, flow, sk, meta, data);
        }
        match peer_of_ipv4(sk, meta) {
            None => self.v6.datagram(number, flow, sk, meta, data),
            // As udpv6_sendmsg() has udp_sendmsg() send it.
            Some(peer) => self
                .v4
                .datagram(number, flow, sk, &of_ipv4(meta, peer)?, data),
        }
    }
}

/// The address and port of the peer, if it is one of IPv4, at an IPv6 sock. It is the one that the sock is
/// connected to, if the metadata name none.
#[inline]
fn peer_of_ipv4(sk: &Sock, meta: &Meta) -> Option<([u8; 4], u16)> {
    match meta.peer_port {
        0 => {
            let (peer, port) = sk.remote_ipv6();
            (port != 0).then_some((unmapped(&peer)?, port))
        }
        port if meta.family == AF_INET6 => Some((unmapped(&meta.peer)?, port)),
        _ => None,
    }
}

/// Metadata of an IPv6 sock that sends to a peer of IPv4, as those of one of IPv4: `None` if the source is
/// none of IPv4, which udp_sendmsg() refuses.
fn of_ipv4(meta: &Meta, (peer, port): ([u8; 4], u16)) -> Option<Meta> {
    let bytes = |[a, b, c, d]: [u8; 4]| [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut of_ipv4 = *meta;
    of_ipv4.family = AF_INET;
    of_ipv4.peer = bytes(peer);
    of_ipv4.peer_port = port;
    if meta.flags & META_LOCAL != 0 {
        of_ipv4.local = bytes(unmapped(&meta.local).filter(|source| *source != [0; 4])?);
    }
    Some(of_ipv4)
}

impl<O: Options> Known<O> {
    fn new() -> Self {
        Self {
            options: None,
            sets: KVVec::new(),
            generation: 0,
            victim: 0,
        }
    }

    /// See [`Routes::datagram`].
    #[inline(always)]
    fn datagram<'a>(
        &'a mut self,
        number: u32,
        flow: &Flow,
        sk: &Sock,
        meta: &Meta,
        data: Bytes<'a>,
    ) -> Option<Datagram<'a>> {
        self.refresh_options(number, flow, sk);
        if meta.flags & !META_LOCAL != 0 || ![0, O::FAMILY].contains(&meta.family) {
            return None;
        }
        if meta.flags == 0 && meta.peer_port == 0 {
            return self.current()?.to_peer(sk, data);
        }
        let key = self.current()?.key(meta)?;
        let Some((set, place)) = self.find_route(sk, &key) else {
            // Not to be looked for twice for each of many datagrams, where IPsec has all packets, say.
            self.options = Some((number, None));
            return None;
        };
        let route = self.sets.get(set)?.get(place)?;
        Some(self.current()?.by(&key, route, data))
    }

    /// Reads the options of a flow, unless those that are known are its own and current; gives them.
    #[inline(always)]
    fn refresh_options(&mut self, number: u32, flow: &Flow, sk: &Sock) -> Option<&O> {
        let known = match &self.options {
            Some((of, options)) if *of == number => options
                .as_ref()
                .is_none_or(|options| options.are_current(sk)),
            _ => false,
        };
        if !known {
            self.options = Some((number, O::of(sk, flow.id())));
        }
        self.current()
    }

    fn current(&self) -> Option<&O> {
        self.options.as_ref()?.1.as_ref()
    }

    /// Finds a good route of a key, by a look-up if it isn't remembered; gives its set and the
    /// place there.
    #[inline(always)]
    fn find_route(&mut self, sk: &Sock, key: &O::Key) -> Option<(usize, usize)> {
        let at = O::hash(key) as usize & (SETS - 1);
        if let Some(set) = self.sets.get_mut(at) {
            if let Some(place) = set.find(key) {
                if O::is_valid(sk, set.get(place)?) {
                    return Some((at, place));
                }
                set.put(place, None);
            }
        }
        self.forget_old(sk);
        let route = O::look_up(sk, key)?;
        if self.sets.is_empty() {
            self.sets = empty_sets().ok()?;
        }
        self.victim = self.victim.wrapping_add(1);
        self.drop_invalid(sk);
        let set = self.sets.get_mut(at)?;
        let place = set.room(self.victim);
        set.put(place, Some((*key, route)));
        Some((at, place))
    }

    /// Forgets those routes of one set after another that have become invalid each for itself, by an ICMP error for
    /// one peer, say, which nobody asks for again: each keeps memory that nobody is charged for.
    fn drop_invalid(&mut self, sk: &Sock) {
        if let Some(set) = self.sets.get_mut(self.victim & (SETS - 1)) {
            set.retain(|route| O::is_valid(sk, route));
        }
    }

    /// Forgets all routes if none is valid any more: each keeps memory that nobody is charged for.
    fn forget_old(&mut self, sk: &Sock) {
        let generation = O::generation(sk);
        if core::mem::replace(&mut self.generation, generation) != generation {
            self.sets.iter_mut().for_each(|set| *set = Set::new());
        }
    }
}

/// Empty places for routes of one IP version.
pub(crate) enum RoutePlaces {
    /// Of IPv4.
    V4(Sets<ipv4::OptionsV4>),
    /// Of IPv6.
    V6(Sets<ipv6::OptionsV6>),
}

impl RoutePlaces {
    /// Makes them, and has them charged to the current process: `ENOMEM`. Process context.
    pub(crate) fn new(version: IpVersion) -> Result<Self> {
        Ok(match version {
            IpVersion::V4 => Self::V4(empty_sets()?),
            IpVersion::V6 => Self::V6(empty_sets()?),
        })
    }
}

/// Places for routes: `ENOMEM`. Process context.
fn empty_sets<K: PartialEq, V>() -> Result<KVVec<Set<K, V>>> {
    let mut sets = KVVec::with_capacity(SETS, GFP_KERNEL_ACCOUNT)?;
    for _ in 0..SETS {
        sets.push_within_capacity(Set::new()).map_err(|_| ENOMEM)?;
    }
    Ok(sets)
}
