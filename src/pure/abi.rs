// SPDX-License-Identifier: GPL-2.0

//! The types and numbers of `uapi/kopi.h`, in Rust.
//!
//! The header is the truth: the module compares every size and offset here with it at compile
//! time (`src/sys/bindings/mod.rs`), and so does a host test.

use super::counters::{with_counters, COUNTERS};
use super::peer::{mapped, Peer};

/// The version of the interface, as `KOPI_OPT_INFO` reports it.
pub const ABI_VERSION: u32 = 2;
/// The default number of the socket family.
pub const AF_KOPI: u32 = 19;
/// The protocol of an IPv4 flow; 0 means the same.
pub const PROTO_UDP: i32 = 17;
/// The protocol of an IPv6 flow.
pub const PROTO_UDP6: i32 = 273;
/// The protocol of an IPv4 stream; 0 means the same.
pub const PROTO_TCP: i32 = 6;
/// The protocol of an IPv6 stream.
pub const PROTO_TCP6: i32 = 262;
/// The level of KOPI's socket options.
pub const SOL_KOPI: i32 = 0x4b4f;

/// Gets an [`Info`].
pub const OPT_INFO: i32 = 1;
/// Sets a [`ChannelReq`], gets a [`Layout`].
pub const OPT_CHANNEL: i32 = 2;
/// Sets a [`Join`].
pub const OPT_JOIN: i32 = 3;
/// Gets a [`Stats`].
pub const OPT_STATS: i32 = 4;

/// Bytes in front of the payload in each frame.
pub const FRAME_HEADROOM: u32 = 64;
/// The smallest frame, in bytes.
pub const FRAME_SIZE_MIN: u32 = 512;
/// The largest frame, in bytes.
pub const FRAME_SIZE_MAX: u32 = 65536;
/// The most frames in one channel.
pub const FRAMES_MAX: u32 = 1 << 20;
/// The most entries in one ring.
pub const RING_ENTRIES_MAX: u32 = 1 << 15;
/// The largest region, in bytes.
pub const REGION_SIZE_MAX: u32 = 1 << 30;
/// The most descriptors that make one packet.
pub const CHAIN_MAX: u32 = 160;

/// Sending: datagrams of one size to one peer travel as one packet.
pub const CHANNEL_GSO: u32 = 1 << 0;
/// Receiving: the same for what comes from one peer.
pub const CHANNEL_GRO: u32 = 1 << 1;
/// A GRO packet is delivered as one packet.
pub const CHANNEL_GRO_MERGED: u32 = 1 << 2;
/// Engines poll the TX ring, if there are some.
pub const CHANNEL_ENGINE: u32 = 1 << 3;
/// The rings only send; what is received stays in the sockets' queues.
pub const CHANNEL_TX_ONLY: u32 = 1 << 4;
/// All flags of [`ChannelReq`].
pub const CHANNEL_FLAGS: u32 =
    CHANNEL_GSO | CHANNEL_GRO | CHANNEL_GRO_MERGED | CHANNEL_ENGINE | CHANNEL_TX_ONLY;

/// In a ring's flags: the other side must be woken, or rung, for a new entry.
pub const RING_NEED_WAKEUP: u32 = 1 << 0;

/// The packet goes on in the next entry.
pub const DESC_MORE: u16 = 1 << 0;
/// The frame's headroom has a [`Meta`].
pub const DESC_META: u16 = 1 << 1;

/// [`Meta::local`] is the source address to use.
pub const META_LOCAL: u16 = 1 << 0;
/// [`Meta::tos`] is to be used.
pub const META_TOS: u16 = 1 << 1;
/// [`Meta::ttl`] is to be used.
pub const META_TTL: u16 = 1 << 2;
/// [`Meta::mark`] is to be used.
pub const META_MARK: u16 = 1 << 3;
/// [`Meta::timestamp`] has a time.
pub const META_TIMESTAMP: u16 = 1 << 4;
/// [`Meta::timestamp`] is when to send.
pub const META_TXTIME: u16 = 1 << 5;

/// The request of `KOPI_IOC_DOORBELL`.
pub const IOC_DOORBELL: u32 = 0xcb01;
/// Take what is in the TX ring.
pub const BELL_TX: u32 = 1 << 0;
/// Sleep until the RX ring has an entry.
pub const BELL_WAIT_RX: u32 = 1 << 1;
/// Sleep until the COMPLETION ring has an entry.
pub const BELL_WAIT_COMPLETION: u32 = 1 << 2;
/// With [`BELL_TX`]: take it as sendmmsg(2) would.
pub const BELL_SEND: u32 = 1 << 3;
/// The most entries that one doorbell with [`BELL_SEND`] takes, as sendmmsg(2).
pub const BELL_SEND_MAX: u32 = 1024;
/// All flags of the doorbell.
pub const BELL_FLAGS: u32 = BELL_TX | BELL_WAIT_RX | BELL_WAIT_COMPLETION | BELL_SEND;

/// `AF_INET`, as in [`Meta::family`].
pub const AF_INET: u16 = 2;
/// `AF_INET6`, as in [`Meta::family`].
pub const AF_INET6: u16 = 10;

/// `struct kopi_info`: the kernel's version and limits.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// [`ABI_VERSION`] of the kernel.
    pub abi_version: u32,
    /// The number of the family.
    pub family: u32,
    /// The flow's number on its channel.
    pub flow: u32,
    /// 1 once on a channel.
    pub has_channel: u32,
    /// See [`FRAME_HEADROOM`].
    pub frame_headroom: u32,
    /// See [`FRAME_SIZE_MIN`].
    pub frame_size_min: u32,
    /// See [`FRAME_SIZE_MAX`].
    pub frame_size_max: u32,
    /// See [`FRAMES_MAX`].
    pub frames_max: u32,
    /// See [`RING_ENTRIES_MAX`].
    pub ring_entries_max: u32,
    /// See [`REGION_SIZE_MAX`].
    pub region_size_max: u32,
    /// See [`CHAIN_MAX`].
    pub chain_max: u32,
    /// Longer payloads, in bytes, go by reference.
    pub copybreak: u32,
    /// Zero.
    pub reserved: [u32; 4],
}

/// `struct kopi_channel_req`: the channel to make.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelReq {
    /// `CHANNEL_*`.
    pub flags: u32,
    /// Bytes, a power of two, headroom included.
    pub frame_size: u32,
    /// Number of frames.
    pub frame_count: u32,
    /// Entries of the TX ring, a power of two.
    pub tx_entries: u32,
    /// Entries of the COMPLETION ring, a power of two.
    pub completion_entries: u32,
    /// Entries of the FILL ring, a power of two.
    pub fill_entries: u32,
    /// Entries of the RX ring, a power of two.
    pub rx_entries: u32,
    /// Must be zero.
    pub reserved: [u32; 9],
}

/// `struct kopi_join`: whose channel to join.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Join {
    /// A file descriptor of an AF_KOPI socket.
    pub fd: i32,
    /// Must be zero.
    pub reserved: [u32; 3],
}

/// `struct kopi_ring_layout`: where one ring lies, in bytes from the region's start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingLayout {
    /// The producer's index.
    pub producer: u32,
    /// The consumer's index.
    pub consumer: u32,
    /// The flags.
    pub flags: u32,
    /// The entries.
    pub entries: u32,
    /// Number of entries, a power of two.
    pub size: u32,
    /// Bytes of each entry.
    pub entry_size: u32,
    /// Zero.
    pub reserved: [u32; 2],
}

/// `struct kopi_layout`: the whole region.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Bytes, whole pages.
    pub region_size: u64,
    /// `CHANNEL_*`.
    pub flags: u32,
    /// Offset of the first frame.
    pub frames: u32,
    /// Bytes of each frame.
    pub frame_size: u32,
    /// Number of frames.
    pub frame_count: u32,
    /// Zero.
    pub reserved: [u32; 2],
    /// [`Desc`]s, program to kernel.
    pub tx: RingLayout,
    /// [`Desc`]s, kernel to program.
    pub completion: RingLayout,
    /// Offsets of frames (`u64`), program to kernel.
    pub fill: RingLayout,
    /// [`Desc`]s, kernel to program.
    pub rx: RingLayout,
}

/// `struct kopi_desc`: an entry of the TX, COMPLETION and RX rings.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Desc {
    /// Of the payload, in bytes from the region's start.
    pub offset: u32,
    /// Bytes of payload in this frame.
    pub len: u32,
    /// Number of the flow.
    pub flow: u32,
    /// `DESC_*`.
    pub flags: u16,
    /// In a completion 0 or an errno, else 0.
    pub error: u16,
}

/// `struct kopi_meta`: what a frame's headroom says of the packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The other side's address, IPv4 in the first four bytes.
    pub peer: [u8; 16],
    /// This side's address.
    pub local: [u8; 16],
    /// The other side's port, big-endian.
    pub peer_port: u16,
    /// This side's port, big-endian; RX only.
    pub local_port: u16,
    /// [`AF_INET`], [`AF_INET6`], or 0: the connected peer.
    pub family: u16,
    /// Bytes of each datagram of a GSO packet, or 0.
    pub gso_size: u16,
    /// The device, or the scope of a link-local peer.
    pub ifindex: u32,
    /// `META_*`.
    pub flags: u16,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// RX: bytes of the whole packet.
    pub len: u32,
    /// The packet's mark.
    pub mark: u32,
    /// RX: nanoseconds of CLOCK_REALTIME.
    pub timestamp: u64,
}

impl Meta {
    /// The source address that the program has chosen, as one of IPv6.
    pub fn source(&self) -> Option<[u8; 16]> {
        let [a, b, c, d, ..] = self.local;
        match self.family {
            _ if self.flags & META_LOCAL == 0 => None,
            AF_INET6 => Some(self.local),
            _ => Some(mapped([a, b, c, d])),
        }
    }

    /// The peer, as rules see it.
    pub fn peer(&self) -> Peer {
        let [a, b, c, d, ..] = self.peer;
        Peer {
            address: if self.family == AF_INET6 {
                self.peer
            } else {
                mapped([a, b, c, d])
            },
            port: u16::from_be(self.peer_port),
        }
    }
}

/// The words of a [`Meta`] in shared memory.
pub const META_WORDS: usize = 8;

impl Meta {
    /// All flags that a TX `Meta` may have.
    pub const TX_FLAGS: u16 = META_LOCAL | META_TOS | META_TTL | META_MARK | META_TXTIME;

    /// Reads a `Meta` from its words.
    pub fn from_words(words: [u64; META_WORDS]) -> Self {
        // SAFETY: `Meta` is `repr(C)` of 64 bytes without padding, and any bytes make one.
        unsafe { core::mem::transmute(words) }
    }

    /// The words of this `Meta`.
    pub fn to_words(self) -> [u64; META_WORDS] {
        // SAFETY: `Meta` is `repr(C)` of 64 bytes without padding, so all its bytes are
        // initialised.
        unsafe { core::mem::transmute(self) }
    }
}

macro_rules! stats {
    ($($(#[$doc:meta])* $of:ident $name:ident $(= $attribute:ident)?;)*) => {
        /// `struct kopi_stats`: counters of a flow and of its channel (`counters.rs`).
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// Zero.
            pub reserved: [u64; STATS_RESERVED],
        }

        impl Stats {
            /// Adds another flow's counters to these; not those of its channel.
            pub fn add(&mut self, other: &Self) {
                $(stats!(@add $of self.$name, other.$name);)*
            }
        }
    };
    (@add channel $sum:expr, $more:expr) => {};
    (@add $of:ident $sum:expr, $more:expr) => { $sum = $sum.wrapping_add($more) };
}

/// Words of `struct kopi_stats` that are no counter yet.
const STATS_RESERVED: usize = 32 - COUNTERS.len();

with_counters!(stats);

/// `struct kopi_mon_hdr`: what a device of type kopimon shows in front of each packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MonHdr {
    /// [`MON_VERSION`].
    pub version: u8,
    /// Bytes of this header.
    pub len: u8,
    /// [`MON_OUT`] or [`MON_IN`].
    pub direction: u8,
    /// [`MON_PASSED`], [`MON_DROPPED`] or [`MON_REFUSED`].
    pub verdict: u8,
    /// By `verdict`: `enum skb_drop_reason`, or `MON_REASON_*`.
    pub reason: u32,
    /// The handle of the rule that refused it; 0 for the default.
    pub rule: u32,
    /// The device; 0 where none is known yet.
    pub ifindex: u32,
    /// The flow's number in the network namespace.
    pub flow: u32,
    /// 0 where there is none to show.
    pub pid: u32,
    /// The effective user, as the namespace's owner names it.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
    /// The socket's cgroup.
    pub cgroup: u64,
    /// Of the program's file; 0 without one.
    pub exe_inode: u64,
    /// Of the program's file, as in `st_dev`.
    pub exe_device: u32,
    /// Bytes of payload of each datagram of a GSO packet, or 0.
    pub gso_size: u32,
    /// Ends with a zero, if there is room.
    pub command: [u8; 16],
    /// Zero.
    pub reserved: [u32; 2],
}

/// [`MonHdr::version`].
pub const MON_VERSION: u8 = 1;
/// Sent.
pub const MON_OUT: u8 = 1;
/// Received.
pub const MON_IN: u8 = 2;
/// Given to a driver, or to the program.
pub const MON_PASSED: u8 = 0;
/// Dropped by the kernel's stack.
pub const MON_DROPPED: u8 = 1;
/// Dropped by KOPI.
pub const MON_REFUSED: u8 = 2;
/// The RX ring had no room.
pub const MON_REASON_RING_FULL: u32 = 1;
/// The FILL ring had no frame.
pub const MON_REASON_NO_FRAME: u32 = 2;
/// Longer than a chain may be, or than the RX ring.
pub const MON_REASON_TOO_LONG: u32 = 3;
/// A rule, or the default, denies it.
pub const MON_REASON_RULE: u32 = 4;
/// Over the rate of a rule.
pub const MON_REASON_RATE: u32 = 5;

/// `struct kopi_port_map`: what the XDP program of an attached device redirects to KOPI.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortMap {
    /// Port p: bit p % 64 of number p / 64.
    pub ports: [u64; 1024],
    /// The device that it is redirected to; 0: there is none.
    pub ifindex: u32,
    /// Zero.
    pub reserved: u32,
}

impl Default for PortMap {
    fn default() -> Self {
        Self {
            ports: [0; 1024],
            ifindex: 0,
            reserved: 0,
        }
    }
}

impl MonHdr {
    /// Bytes.
    pub const LEN: usize = size_of::<Self>();

    /// The header as it lies in front of a packet.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        // SAFETY: `MonHdr` is `repr(C)` without padding, so all its bytes are initialised.
        unsafe { core::mem::transmute(self) }
    }

    /// Reads what lies in front of a packet; `None` if it is shorter, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes = *bytes.first_chunk::<{ Self::LEN }>()?;
        // SAFETY: `MonHdr` is `repr(C)` without padding, and any bytes make one.
        let header: Self = unsafe { core::mem::transmute(bytes) };
        (header.version == MON_VERSION).then_some(header)
    }
}
