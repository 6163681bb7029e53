// SPDX-License-Identifier: GPL-2.0

//! Rules that see the process: which of them decides about a flow's packets.

use super::{
    gso::datagrams,
    peer::{mapped, Peer}, //
};
use core::net::Ipv6Addr;

/// A file, by properties that renaming doesn't change. The generation tells it from one that got
/// its inode later.
///
/// A file of an overlay has the inode number that it has in its layer, which a file of another layer
/// may have, too, so the layer counts. It is another file once it has been copied to the upper layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileId {
    /// Number of the device.
    pub device: u32,
    /// Number of the inode.
    pub inode: u64,
    /// Device and inode in the overlay's layer; otherwise the same as above.
    pub layer: (u32, u64),
    /// Generation of that inode.
    pub generation: u32,
}

/// A cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Its number.
    pub id: u64,
    /// Its depth: all cgroups below it have it as their ancestor of that depth.
    pub level: u32,
}

/// The name of a device, with zeroes at its end.
pub type DeviceName = [u8; 16];

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: [u8; 16],
    /// Of IPv6; prefixes of IPv4 have 96 more bits than given.
    bits: u8,
}

impl Prefix {
    /// The first `bits` of an IPv4 address; `None` if it has fewer.
    pub fn ipv4(address: [u8; 4], bits: u8) -> Option<Self> {
        Self::ipv6(mapped(address), bits.checked_add(96)?)
    }

    /// The first `bits` of an IPv6 address; `None` if it has fewer.
    pub fn ipv6(address: [u8; 16], bits: u8) -> Option<Self> {
        (bits <= 128).then_some(Self { address, bits })
    }

    /// The prefix's address, as IPv6, and the number of its bits.
    pub fn parts(&self) -> ([u8; 16], u8) {
        (self.address, self.bits)
    }

    /// Whether it is of IPv4 addresses.
    pub fn is_ipv4(&self) -> bool {
        self.bits >= 96 && Ipv6Addr::from(self.address).to_ipv4_mapped().is_some()
    }

    fn contains(&self, address: &[u8; 16]) -> bool {
        let differ = u128::from_be_bytes(self.address) ^ u128::from_be_bytes(*address);
        differ.leading_zeros() >= u32::from(self.bits)
    }
}

/// Both ends included.
pub type Range<T> = (T, T);

fn within<T: PartialOrd>(range: Option<Range<T>>, value: T) -> bool {
    range.is_none_or(|(first, last)| first <= value && value <= last)
}

/// A direction, as a bit of [`Match::directions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Sent by the flow.
    Out = 1,
    /// Received by the flow.
    In = 2,
}

impl Direction {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Out => Self::In,
            Self::In => Self::Out,
        }
    }
}

/// The conditions of a rule. A field that is `None` matches all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Users.
    pub uid: Option<Range<u32>>,
    /// The group.
    pub gid: Option<u32>,
    /// A cgroup, and those below it.
    pub cgroup: Option<Cgroup>,
    /// The program.
    pub exe: Option<FileId>,
    /// An IP protocol.
    pub protocol: Option<u8>,
    /// Local ports.
    pub local_port: Option<Range<u16>>,
    /// The peer's address.
    pub remote: Option<Prefix>,
    /// The peer's port.
    pub remote_port: Option<Range<u16>>,
    /// The device that the flow is bound to.
    pub device: Option<DeviceName>,
    /// [`Direction`]s; 0 is both.
    pub directions: u32,
}

/// The facts about a flow that rules match.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// The process's user.
    pub uid: u32,
    /// The process's group.
    pub gid: u32,
    /// Whether the socket's cgroup is one, or in it.
    pub in_cgroup: &'a dyn Fn(Cgroup) -> bool,
    /// The process's program, if it has one.
    pub exe: Option<FileId>,
    /// The IP protocol.
    pub protocol: u8,
    /// The local port; 0 while it isn't known.
    pub local_port: u16,
    /// The device that it is bound to.
    pub device: Option<DeviceName>,
}

/// What comes at once: a datagram, or a GRO packet of several.
#[derive(Clone, Copy)]
pub struct Received {
    /// Number of datagrams.
    pub datagrams: u64,
    /// Bytes of payload, of all together.
    pub bytes: u64,
    /// It came by IPv6, from an IPv4-mapped address.
    pub is_mapped: bool,
}

impl Received {
    /// With so many bytes of payload, and of each datagram of a GRO packet, or 0.
    pub fn new(bytes: u32, gso_size: u32, is_mapped: bool) -> Self {
        Self {
            datagrams: datagrams(bytes, gso_size).into(),
            bytes: bytes.into(),
            is_mapped,
        }
    }
}

impl Match {
    fn names_peer(&self) -> bool {
        self.remote.is_some() || self.remote_port.is_some()
    }

    fn is_about(&self, direction: Direction) -> bool {
        self.directions == 0 || self.directions & direction as u32 != 0
    }

    fn is_met_by(&self, facts: &Facts<'_>) -> bool {
        within(self.uid, facts.uid)
            && self.gid.is_none_or(|gid| gid == facts.gid)
            && self.exe.is_none_or(|exe| facts.exe == Some(exe))
            && self.protocol.is_none_or(|number| number == facts.protocol)
            && within(self.local_port, facts.local_port)
            && self.device.is_none_or(|name| facts.device == Some(name))
            && self.cgroup.is_none_or(facts.in_cgroup)
    }

    fn is_met_by_peer(&self, peer: &Peer) -> bool {
        self.remote
            .is_none_or(|prefix| prefix.contains(&peer.address))
            && within(self.remote_port, peer.port)
    }
}

/// The rule that decides about a flow's packets of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Judgement {
    /// None: the default holds.
    #[default]
    Default,
    /// The rule of that place.
    Rule(usize),
    /// It depends on the peer of each packet.
    ByPeer,
}

/// Finds the first rule that matches, for each direction: out, in.
///
/// Without a peer it gives [`Judgement::ByPeer`] as soon as a rule names one that may match.
pub fn judge<'a>(
    rules: impl Iterator<Item = &'a Match>,
    facts: &Facts<'_>,
    peer: Option<&Peer>,
) -> [Judgement; 2] {
    let mut judgements = [None; 2];
    for (place, rule) in rules.enumerate() {
        if !rule.is_met_by(facts) {
            continue;
        }
        let judgement = match peer {
            None if rule.names_peer() => Judgement::ByPeer,
            Some(peer) if !rule.is_met_by_peer(peer) => continue,
            _ => Judgement::Rule(place),
        };
        for (found, direction) in judgements.iter_mut().zip([Direction::Out, Direction::In]) {
            if found.is_none() && rule.is_about(direction) {
                *found = Some(judgement);
            }
        }
        if judgements.iter().all(Option::is_some) {
            break;
        }
    }
    judgements.map(Option::unwrap_or_default)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POSTGRES: FileId = FileId {
        device: 8,
        inode: 77,
        layer: (8, 77),
        generation: 5,
    };
    const BOB: u32 = 1002;

    fn facts() -> Facts<'static> {
        Facts {
            uid: BOB,
            gid: 100,
            in_cgroup: &|cgroup| [1, 20, 30].get(cgroup.level as usize) == Some(&cgroup.id),
            exe: Some(POSTGRES),
            protocol: 17,
            local_port: 5432,
            device: None,
        }
    }

    fn peer(address: [u8; 4], port: u16) -> Peer {
        Peer {
            address: mapped(address),
            port,
        }
    }

    fn decide(rules: &[Match], facts: &Facts<'_>, peer: Option<&Peer>) -> Judgement {
        let [out, _] = judge(rules.iter(), facts, peer);
        out
    }

    /// Only postgres, run by bob, on its port; no other flow there.
    fn scenario() -> [Match; 2] {
        let port = Some((5432, 5432));
        [
            Match {
                uid: Some((BOB, BOB)),
                exe: Some(POSTGRES),
                local_port: port,
                ..Match::default()
            },
            Match {
                local_port: port,
                ..Match::default()
            },
        ]
    }

    #[test]
    fn only_bobs_postgres_has_its_port() {
        let rules = scenario();
        let theirs = |change: &dyn Fn(&mut Facts<'static>)| {
            let mut facts = facts();
            change(&mut facts);
            decide(&rules, &facts, None)
        };
        assert_eq!(theirs(&|_| {}), Judgement::Rule(0));
        assert_eq!(theirs(&|it| it.uid = 1003), Judgement::Rule(1));
        assert_eq!(theirs(&|it| it.exe = None), Judgement::Rule(1));
        let copy = FileId {
            inode: 78,
            ..POSTGRES
        };
        assert_eq!(theirs(&|it| it.exe = Some(copy)), Judgement::Rule(1));
        let other_layer = FileId {
            layer: (9, 77),
            ..POSTGRES
        };
        assert_eq!(theirs(&|it| it.exe = Some(other_layer)), Judgement::Rule(1));
        let replaced = FileId {
            generation: 6,
            ..POSTGRES
        };
        assert_eq!(theirs(&|it| it.exe = Some(replaced)), Judgement::Rule(1));
        assert_eq!(theirs(&|it| it.local_port = 5433), Judgement::Default);
    }

    #[test]
    fn a_cgroup_has_those_below_it() {
        let rule = |id, level| {
            [Match {
                cgroup: Some(Cgroup { id, level }),
                ..Match::default()
            }]
        };
        assert_eq!(decide(&rule(30, 2), &facts(), None), Judgement::Rule(0));
        assert_eq!(decide(&rule(20, 1), &facts(), None), Judgement::Rule(0));
        assert_eq!(decide(&rule(31, 2), &facts(), None), Judgement::Default);
    }

    #[test]
    fn directions_and_devices() {
        let rule = [Match {
            directions: Direction::In as u32,
            device: Some(*b"eth0\0\0\0\0\0\0\0\0\0\0\0\0"),
            ..Match::default()
        }];
        let bound = Facts {
            device: Some(*b"eth0\0\0\0\0\0\0\0\0\0\0\0\0"),
            ..facts()
        };
        let both = |facts| judge(rule.iter(), facts, None);
        assert_eq!(both(&bound), [Judgement::Default, Judgement::Rule(0)]);
        assert_eq!(both(&facts()), [Judgement::Default; 2]);
        let all = [rule[0], Match::default()];
        assert_eq!(
            judge(all.iter(), &bound, None),
            [Judgement::Rule(1), Judgement::Rule(0)]
        );
    }

    #[test]
    fn a_peer_is_asked_for_only_where_it_matters() {
        let to_net = Match {
            remote: Prefix::ipv4([192, 0, 2, 0], 24),
            remote_port: Some((53, 53)),
            ..Match::default()
        };
        let others = Match {
            uid: Some((0, 0)),
            ..to_net
        };
        assert_eq!(decide(&[to_net], &facts(), None), Judgement::ByPeer);
        assert_eq!(decide(&[others], &facts(), None), Judgement::Default);
        let rules = [to_net, Match::default()];
        assert_eq!(
            decide(&rules, &facts(), Some(&peer([192, 0, 2, 9], 53))),
            Judgement::Rule(0)
        );
        assert_eq!(
            decide(&rules, &facts(), Some(&peer([192, 0, 2, 9], 54))),
            Judgement::Rule(1)
        );
        assert_eq!(
            decide(&rules, &facts(), Some(&peer([192, 0, 3, 9], 53))),
            Judgement::Rule(1)
        );
        // An earlier rule decides, so that no peer need be known.
        assert_eq!(
            decide(&[Match::default(), to_net], &facts(), None),
            Judgement::Rule(0)
        );
    }

    #[test]
    fn prefixes_of_all_lengths() {
        assert_eq!(Prefix::ipv4([1, 2, 3, 4], 33), None);
        assert_eq!(Prefix::ipv4([1, 2, 3, 4], 255), None);
        assert_eq!(Prefix::ipv6([0; 16], 129), None);
        let all = Prefix::ipv6([0; 16], 0).unwrap();
        assert!(all.contains(&[0xff; 16]));
        let ipv4 = Prefix::ipv4([0; 4], 0).unwrap();
        assert!(ipv4.is_ipv4() && !all.is_ipv4());
        assert!(ipv4.contains(&mapped([255; 4])) && !ipv4.contains(&[0xff; 16]));
    }

    proptest! {
        #[test]
        fn a_prefix_is_its_first_bits(address: [u8; 16], other: [u8; 16], bits in 0u8..=128) {
            let prefix = Prefix::ipv6(address, bits).unwrap();
            let bit = |of: &[u8; 16], n: usize| (of[n / 8] >> (7 - n % 8)) & 1;
            let same = (0..usize::from(bits)).all(|n| bit(&address, n) == bit(&other, n));
            prop_assert_eq!(prefix.contains(&other), same);
            prop_assert!(prefix.contains(&address));
        }

        #[test]
        fn what_is_certain_without_a_peer_holds_for_each(
            ports in proptest::collection::vec((any::<bool>(), 0u16..4, 0u32..3), 0..8),
            port in 0u16..4,
            uid in 0u32..3,
        ) {
            let rules: Vec<_> = ports
                .iter()
                .map(|&(named, port, uid)| Match {
                    remote_port: named.then_some((port, port)),
                    uid: Some((uid, uid)),
                    ..Match::default()
                })
                .collect();
            let facts = Facts { uid, ..facts() };
            let certain = decide(&rules, &facts, None);
            if certain != Judgement::ByPeer {
                prop_assert_eq!(decide(&rules, &facts, Some(&peer([10, 0, 0, 1], port))), certain);
            }
        }
    }
}
