// SPDX-License-Identifier: GPL-2.0

//! Options and control messages that a UDP socket knows, with values that it takes, or nearly.

use crate::pick;
use libc::{SOL_IP, SOL_IPV6, SOL_SOCKET, SOL_TCP, SOL_UDP};
use rand::{rngs::SmallRng, Rng};

/// Those that take an integer. What has no name in libc is a number, with its name beside it.
const INTEGERS: &[(i32, i32)] = &[
    (SOL_SOCKET, libc::SO_REUSEADDR),
    (SOL_SOCKET, libc::SO_DONTROUTE),
    (SOL_SOCKET, libc::SO_BROADCAST),
    (SOL_SOCKET, libc::SO_SNDBUF),
    (SOL_SOCKET, libc::SO_RCVBUF),
    (SOL_SOCKET, libc::SO_SNDBUFFORCE),
    (SOL_SOCKET, libc::SO_RCVBUFFORCE),
    (SOL_SOCKET, libc::SO_NO_CHECK),
    (SOL_SOCKET, libc::SO_PRIORITY),
    (SOL_SOCKET, libc::SO_REUSEPORT),
    (SOL_SOCKET, libc::SO_RCVLOWAT),
    (SOL_SOCKET, libc::SO_TIMESTAMP),
    (SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (SOL_SOCKET, libc::SO_TIMESTAMPING),
    (SOL_SOCKET, libc::SO_MARK),
    (SOL_SOCKET, libc::SO_RXQ_OVFL),
    (SOL_SOCKET, libc::SO_PEEK_OFF),
    (SOL_SOCKET, libc::SO_SELECT_ERR_QUEUE),
    (SOL_SOCKET, libc::SO_BUSY_POLL),
    (SOL_SOCKET, libc::SO_BUSY_POLL),
    (SOL_SOCKET, 69), // SO_PREFER_BUSY_POLL
    (SOL_SOCKET, 70), // SO_BUSY_POLL_BUDGET
    (SOL_SOCKET, libc::SO_MAX_PACING_RATE),
    (SOL_SOCKET, libc::SO_INCOMING_CPU),
    (SOL_SOCKET, libc::SO_ZEROCOPY),
    (SOL_SOCKET, 62), // SO_BINDTOIFINDEX
    (SOL_SOCKET, 73), // SO_RESERVE_MEM
    (SOL_SOCKET, 74), // SO_TXREHASH
    (SOL_SOCKET, 75), // SO_RCVMARK
    (SOL_SOCKET, libc::SO_DETACH_FILTER),
    (SOL_TCP, libc::TCP_NODELAY),
    (SOL_TCP, libc::TCP_MAXSEG),
    (SOL_TCP, libc::TCP_CORK),
    (SOL_TCP, libc::TCP_KEEPIDLE),
    (SOL_TCP, libc::TCP_KEEPINTVL),
    (SOL_TCP, libc::TCP_KEEPCNT),
    (SOL_TCP, libc::TCP_SYNCNT),
    (SOL_TCP, libc::TCP_LINGER2),
    (SOL_TCP, libc::TCP_DEFER_ACCEPT),
    (SOL_TCP, libc::TCP_WINDOW_CLAMP),
    (SOL_TCP, libc::TCP_QUICKACK),
    (SOL_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS),
    (SOL_TCP, libc::TCP_USER_TIMEOUT),
    (SOL_TCP, libc::TCP_REPAIR),
    (SOL_TCP, libc::TCP_REPAIR_QUEUE),
    (SOL_TCP, libc::TCP_QUEUE_SEQ),
    (SOL_TCP, libc::TCP_FASTOPEN),
    (SOL_TCP, libc::TCP_TIMESTAMP),
    (SOL_TCP, libc::TCP_FASTOPEN_CONNECT),
    (SOL_TCP, 25), // TCP_NOTSENT_LOWAT
    (SOL_TCP, 27), // TCP_SAVE_SYN
    (SOL_TCP, 34), // TCP_FASTOPEN_NO_COOKIE
    (SOL_TCP, 36), // TCP_INQ
    (SOL_TCP, 37), // TCP_TX_DELAY
    (SOL_UDP, libc::UDP_CORK),
    (SOL_UDP, 100), // UDP_ENCAP
    (SOL_UDP, 101), // UDP_NO_CHECK6_TX
    (SOL_UDP, 102), // UDP_NO_CHECK6_RX
    (SOL_UDP, libc::UDP_SEGMENT),
    (SOL_UDP, libc::UDP_GRO),
    (SOL_IP, libc::IP_TOS),
    (SOL_IP, libc::IP_TTL),
    (SOL_IP, libc::IP_PKTINFO),
    (SOL_IP, libc::IP_RECVTTL),
    (SOL_IP, libc::IP_RECVTOS),
    (SOL_IP, libc::IP_RECVOPTS),
    (SOL_IP, libc::IP_RETOPTS),
    (SOL_IP, libc::IP_RECVERR),
    (SOL_IP, libc::IP_MTU_DISCOVER),
    (SOL_IP, libc::IP_FREEBIND),
    (SOL_IP, libc::IP_TRANSPARENT),
    (SOL_IP, libc::IP_RECVORIGDSTADDR),
    (SOL_IP, 18), // IP_PASSSEC
    (SOL_IP, 23), // IP_CHECKSUM
    (SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT),
    (SOL_IP, 25), // IP_RECVFRAGSIZE
    (SOL_IP, 26), // IP_RECVERR_RFC4884
    (SOL_IP, libc::IP_MULTICAST_LOOP),
    (SOL_IP, libc::IP_MULTICAST_TTL),
    (SOL_IP, 50), // IP_UNICAST_IF
    (SOL_IP, 51), // IP_LOCAL_PORT_RANGE
    (SOL_IPV6, libc::IPV6_V6ONLY),
    (SOL_IPV6, libc::IPV6_ADDRFORM),
    (SOL_IPV6, libc::IPV6_RECVPKTINFO),
    (SOL_IPV6, libc::IPV6_RECVHOPLIMIT),
    (SOL_IPV6, libc::IPV6_RECVTCLASS),
    (SOL_IPV6, libc::IPV6_RECVRTHDR),
    (SOL_IPV6, libc::IPV6_RECVERR),
    (SOL_IPV6, libc::IPV6_MTU_DISCOVER),
    (SOL_IPV6, libc::IPV6_UNICAST_HOPS),
    (SOL_IPV6, libc::IPV6_TCLASS),
    (SOL_IPV6, libc::IPV6_DONTFRAG),
    (SOL_IPV6, libc::IPV6_MTU),
    (SOL_IPV6, 33), // IPV6_FLOWINFO_SEND
    (SOL_IPV6, 70), // IPV6_AUTOFLOWLABEL
];

/// Those whose value is copied while the socket is locked, or is a struct.
const STRUCTS: &[(i32, i32, usize)] = &[
    (SOL_TCP, libc::TCP_ULP, 3),
    (SOL_TCP, 22, 24), // TCP_REPAIR_OPTIONS
    (SOL_TCP, libc::TCP_CONGESTION, 4),
    (SOL_SOCKET, libc::SO_LINGER, 8),
    (SOL_SOCKET, libc::SO_RCVTIMEO, 16),
    (SOL_SOCKET, libc::SO_SNDTIMEO, 16),
    (SOL_SOCKET, libc::SO_BINDTODEVICE, 16),
    (SOL_SOCKET, libc::SO_ATTACH_FILTER, 16),
    (SOL_SOCKET, 61, 8), // SO_TXTIME
    (SOL_IP, libc::IP_OPTIONS, 40),
    (SOL_IP, libc::IP_ADD_MEMBERSHIP, 12),
    (SOL_IP, libc::IP_DROP_MEMBERSHIP, 12),
    (SOL_IP, libc::IP_MULTICAST_IF, 12),
    (SOL_IP, 41, 16), // IP_MSFILTER
    (SOL_IPV6, libc::IPV6_PKTINFO, 20),
    (SOL_IPV6, 6, 48), // IPV6_2292PKTOPTIONS
    (SOL_IPV6, libc::IPV6_HOPOPTS, 16),
    (SOL_IPV6, libc::IPV6_RTHDR, 24),
    (SOL_IPV6, libc::IPV6_DSTOPTS, 16),
    (SOL_IPV6, 32, 32), // IPV6_FLOWLABEL_MGR
];

/// Level, type and bytes of all control messages.
const MESSAGES: &[(i32, i32, usize)] = &[
    (SOL_IP, libc::IP_TOS, 4),
    (SOL_IP, libc::IP_TOS, 1),
    (SOL_IP, libc::IP_TTL, 4),
    (SOL_IP, libc::IP_PKTINFO, 12),
    (SOL_IP, libc::IP_PKTINFO, 12),
    (SOL_IP, libc::IP_RETOPTS, 8),
    (SOL_IP, 52, 4), // IP_PROTOCOL
    (SOL_IPV6, libc::IPV6_PKTINFO, 20),
    (SOL_IPV6, libc::IPV6_PKTINFO, 20),
    (SOL_IPV6, 2, 20), // IPV6_2292PKTINFO
    (SOL_IPV6, libc::IPV6_HOPLIMIT, 4),
    (SOL_IPV6, libc::IPV6_TCLASS, 4),
    (SOL_IPV6, 11, 4), // IPV6_FLOWINFO
    (SOL_IPV6, libc::IPV6_DONTFRAG, 4),
    (SOL_IPV6, libc::IPV6_HOPOPTS, 8),
    (SOL_IPV6, libc::IPV6_DSTOPTS, 8),
    (SOL_IPV6, libc::IPV6_RTHDRDSTOPTS, 8),
    (SOL_IPV6, libc::IPV6_RTHDR, 24),
    (SOL_SOCKET, libc::SO_MARK, 4),
    (SOL_SOCKET, libc::SO_PRIORITY, 4),
    (SOL_SOCKET, libc::SO_TIMESTAMPING, 4),
    (SOL_SOCKET, 61, 8), // SCM_TXTIME
    (SOL_SOCKET, 81, 4), // SCM_TS_OPT_ID
    (SOL_SOCKET, 80, 4), // SO_DEVMEM_DONTNEED
    (SOL_UDP, libc::UDP_SEGMENT, 2),
    (SOL_UDP, libc::UDP_GRO, 4),
];

/// Bytes of a value: often of small numbers, which mean something.
fn fill(value: &mut [u8], random: &mut SmallRng) {
    if random.random() {
        random.fill(value);
    } else {
        for word in value.chunks_mut(4) {
            let number: u32 = pick(random, &[0, 0, 1, 2, 3, 5, 64, 100, 1200, 8 << 24, 1 << 16]);
            let len = word.len();
            word.copy_from_slice(&number.to_ne_bytes()[..len]);
        }
    }
}

/// Whether it is an option of multicast, with which the kernel holds RTNL while it reads the value and waits for
/// the sock's lock; of any socket, so that it is no fault of KOPI's that others wait.
pub(crate) fn holds_rtnl(level: i32, name: i32) -> bool {
    const MCAST_MSFILTER: i32 = 48;
    level == SOL_IP && (libc::IP_ADD_MEMBERSHIP..=MCAST_MSFILTER).contains(&name)
}

/// An option's level, name, and value.
pub(crate) fn option(random: &mut SmallRng) -> (i32, i32, Vec<u8>) {
    if random.random_ratio(3, 4) {
        let (level, name) = pick(random, INTEGERS);
        let number: i32 = pick(
            random,
            &[
                0,
                1,
                1,
                2,
                3,
                5,
                50,
                200,
                1000,
                1200,
                4608,
                65535,
                -1,
                0x0801_0000,
            ],
        );
        return (level, name, number.to_ne_bytes().to_vec());
    }
    let (level, name, size) = pick(random, STRUCTS);
    let mut value = vec![0; size];
    match (level, name) {
        (SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
            let micros: u64 = pick(random, &[1, 100, 10_000, 200_000]);
            value[8..].copy_from_slice(&micros.to_ne_bytes());
        }
        (SOL_SOCKET, libc::SO_BINDTODEVICE) => {
            let name: &[u8] = pick(
                random,
                &[&b"lo"[..], b"va", b"vx", b"slow", b"mon", b"kopirx0", b""],
            );
            value[..name.len()].copy_from_slice(name);
        }
        // Points anywhere.
        (SOL_SOCKET, libc::SO_ATTACH_FILTER) => value[0] = 1,
        _ => fill(&mut value, random),
    }
    (level, name, value)
}

/// Control messages for sendmsg(2), one after another; now and then the last one's length is wrong.
pub(crate) fn messages(random: &mut SmallRng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.random_range(1..4) {
        let (level, kind, size) = pick(random, MESSAGES);
        let mut value = vec![0; size];
        fill(&mut value, random);
        let mut len = 16 + size;
        if random.random_ratio(1, 16) {
            len = pick(random, &[0, 15, 16, len - 1, len + 1, len + 8, usize::MAX]);
        }
        bytes.extend(len.to_ne_bytes());
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    bytes
}
