/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * KOPI: the interface between the kernel module and programs.
 *
 * socket(AF_KOPI, SOCK_DGRAM, protocol) gives a flow: a UDP socket in every
 * respect. setsockopt(SOL_KOPI, KOPI_OPT_CHANNEL) or KOPI_OPT_JOIN puts it on a
 * channel: a mapped region of frames and four rings, which from then on carries
 * its packets. docs/abi.md has the memory layout, the ordering rules and the
 * table of errors.
 *
 * socket(AF_KOPI, SOCK_STREAM, protocol) gives a flow that is a TCP socket. It
 * has no channel. accept(2) gives flows.
 *
 * All fields are in host byte order, except addresses and ports, which are in
 * network byte order. Fields named reserved must be zero if the program writes
 * them, and are zero if the kernel does.
 */
#ifndef _UAPI_KOPI_H
#define _UAPI_KOPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* What KOPI_OPT_INFO reports as abi_version. */
#define KOPI_ABI_VERSION	2

/*
 * The default family number, once Econet's. A module parameter can move it:
 * programs ask /sys/module/kopi/parameters/family.
 */
#ifndef AF_KOPI
#define AF_KOPI			19
#endif
#ifndef PF_KOPI
#define PF_KOPI			AF_KOPI
#endif

/*
 * The protocol argument of socket(); 0 means KOPI_PROTO_UDP with SOCK_DGRAM,
 * KOPI_PROTO_TCP with SOCK_STREAM.
 */
#define KOPI_PROTO_UDP		17	/* UDP over IPv4: IPPROTO_UDP */
#define KOPI_PROTO_UDP6		273	/* UDP over IPv6, dual stack as AF_INET6 */
#define KOPI_PROTO_TCP		6	/* TCP over IPv4: IPPROTO_TCP */
#define KOPI_PROTO_TCP6		262	/* TCP over IPv6, dual stack as AF_INET6 */

/* The level of the socket options below. */
#define SOL_KOPI		0x4b4f

#define KOPI_OPT_INFO		1	/* get: struct kopi_info */
#define KOPI_OPT_CHANNEL	2	/* set: struct kopi_channel_req; get: struct kopi_layout */
#define KOPI_OPT_JOIN		3	/* set: struct kopi_join */
#define KOPI_OPT_STATS		4	/* get: struct kopi_stats */

/* Limits; the kernel's are in struct kopi_info. */
#define KOPI_FRAME_HEADROOM	64u	/* bytes before the payload of each frame */
#define KOPI_FRAME_SIZE_MIN	512u
#define KOPI_FRAME_SIZE_MAX	65536u
#define KOPI_FRAMES_MAX		(1u << 20)
#define KOPI_RING_ENTRIES_MAX	(1u << 15)
#define KOPI_REGION_SIZE_MAX	(1u << 30)
#define KOPI_CHAIN_MAX		160u	/* descriptors of one packet */

/* struct kopi_info, KOPI_OPT_INFO: the kernel's version and limits. */
struct kopi_info {
	__u32	abi_version;
	__u32	family;			/* the number of AF_KOPI on this machine */
	__u32	flow;			/* this flow's number on its channel */
	__u32	has_channel;		/* 1 once on a channel, else 0 */
	__u32	frame_headroom;		/* bytes */
	__u32	frame_size_min;		/* bytes */
	__u32	frame_size_max;		/* bytes */
	__u32	frames_max;
	__u32	ring_entries_max;
	__u32	region_size_max;	/* bytes */
	__u32	chain_max;		/* descriptors */
	__u32	copybreak;		/* bytes: a descriptor with more is sent by reference */
	__u32	reserved[4];
};

/* kopi_channel_req.flags */
/*
 * GSO, sending: consecutive datagrams of one size to one peer in the TX ring
 * travel as one GSO packet, which meets each hook once, as with UDP_SEGMENT.
 */
#define KOPI_CHANNEL_GSO	(1u << 0)
/* GRO, receiving: the same for datagrams from one peer, as with UDP_GRO. */
#define KOPI_CHANNEL_GRO	(1u << 1)
/*
 * A GRO packet is delivered to the RX ring as one packet with its gso_size; without
 * this it is segmented there. Needs KOPI_CHANNEL_GRO.
 */
#define KOPI_CHANNEL_GRO_MERGED	(1u << 2)
/*
 * The kernel's engines, if an administrator has set some, poll the TX ring: while
 * its need_wakeup is clear, no doorbell is needed.
 */
#define KOPI_CHANNEL_ENGINE	(1u << 3)
/*
 * The rings only send: what the channel's flows receive stays in their sockets'
 * queues, for recvmsg() and poll() as without a channel. Not with the GRO flags.
 */
#define KOPI_CHANNEL_TX_ONLY	(1u << 4)

/* struct kopi_channel_req, KOPI_OPT_CHANNEL: the channel to make. */
struct kopi_channel_req {
	__u32	flags;
	__u32	frame_size;		/* bytes, a power of two, headroom included */
	__u32	frame_count;
	__u32	tx_entries;		/* each ring: a power of two */
	__u32	completion_entries;
	__u32	fill_entries;
	__u32	rx_entries;
	__u32	reserved[9];
};

/* struct kopi_join, KOPI_OPT_JOIN: use the channel of another AF_KOPI socket. */
struct kopi_join {
	__s32	fd;
	__u32	reserved[3];
};

/* Where one ring lies: offsets in bytes from the start of the region. */
struct kopi_ring_layout {
	__u32	producer;		/* __u32, free running */
	__u32	consumer;		/* __u32, free running */
	__u32	flags;			/* __u32, KOPI_RING_* */
	__u32	entries;		/* the array */
	__u32	size;			/* entries in the array, a power of two */
	__u32	entry_size;		/* bytes: 16, or 8 for the FILL ring */
	__u32	reserved[2];
};

/*
 * struct kopi_layout, KOPI_OPT_CHANNEL: the region, which
 * mmap(NULL, region_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) maps, of
 * the process that asked for this last.
 */
struct kopi_layout {
	__u64	region_size;		/* bytes, whole pages */
	__u32	flags;			/* as asked for */
	__u32	frames;			/* offset of the first frame */
	__u32	frame_size;		/* bytes */
	__u32	frame_count;
	__u32	reserved[2];
	struct kopi_ring_layout tx;		/* struct kopi_desc, program to kernel */
	struct kopi_ring_layout completion;	/* struct kopi_desc, kernel to program */
	struct kopi_ring_layout fill;		/* __u64, program to kernel */
	struct kopi_ring_layout rx;		/* struct kopi_desc, kernel to program */
};

/*
 * Flags of a ring, in shared memory. The kernel writes those of TX and FILL,
 * the program those of RX and COMPLETION.
 *
 * TX: set while the kernel reads the ring only when the doorbell rings.
 * FILL: always clear, since the kernel reads the ring when a packet arrives.
 * RX, COMPLETION: set while the program wants to be woken for a new entry; it is
 * set when the channel is made. A program that polls the ring may clear it.
 * Before such a program sleeps, it must set it, and then check the ring again.
 */
#define KOPI_RING_NEED_WAKEUP	(1u << 0)

/*
 * struct kopi_desc: an entry of the TX, COMPLETION and RX rings. (An entry of
 * the FILL ring is a __u64: the offset of a frame's first byte.)
 */
struct kopi_desc {
	__u32	offset;		/* of the payload, from the start of the region */
	__u32	len;		/* bytes of payload in this frame */
	__u32	flow;		/* number of the flow on this channel */
	__u16	flags;		/* KOPI_DESC_* */
	__u16	error;		/* COMPLETION: 0 or an errno; else 0 */
};

#define KOPI_DESC_MORE	(1u << 0)	/* the packet goes on in the next entry */
#define KOPI_DESC_META	(1u << 1)	/* the frame's headroom has a struct kopi_meta */

/*
 * struct kopi_meta: at the first byte of a frame, in its headroom. TX: read
 * where the packet's first entry has KOPI_DESC_META; a packet without it goes to
 * the connected peer. RX: written in the first frame of each packet.
 */
struct kopi_meta {
	__u8	peer[16];	/* address, IPv4 in the first four bytes */
	__u8	local[16];	/* RX: destination; TX: source, with KOPI_META_LOCAL */
	__be16	peer_port;
	__be16	local_port;	/* RX only */
	__u16	family;		/* AF_INET, AF_INET6; TX: AF_UNSPEC, or no peer and
				 * no port, is the connected peer
				 */
	__u16	gso_size;	/* bytes of each datagram in a GSO or GRO packet, or 0 */
	__u32	ifindex;	/* RX: device; TX: scope of a link-local peer, and with
				 * KOPI_META_LOCAL the device to leave by, or 0
				 */
	__u16	flags;		/* KOPI_META_* */
	__u8	tos;		/* RX: TOS or traffic class; TX: with KOPI_META_TOS */
	__u8	ttl;		/* RX: TTL or hop limit; TX: with KOPI_META_TTL */
	__u32	len;		/* RX: payload of the whole packet, bytes; TX: 0 */
	__u32	mark;		/* RX: with SO_RCVMARK; TX: with KOPI_META_MARK */
	__u64	timestamp;	/* ns. RX: with KOPI_META_TIMESTAMP, CLOCK_REALTIME;
				 * TX: with KOPI_META_TXTIME, of the clock of SO_TXTIME
				 */
};

#define KOPI_META_LOCAL		(1u << 0)
#define KOPI_META_TOS		(1u << 1)
#define KOPI_META_TTL		(1u << 2)
#define KOPI_META_MARK		(1u << 3)
#define KOPI_META_TIMESTAMP	(1u << 4)	/* RX: SO_TIMESTAMPNS or the like is set */
#define KOPI_META_TXTIME	(1u << 5)	/* TX: SO_TXTIME is set */

/* struct kopi_stats, KOPI_OPT_STATS: counters since the socket was made. */
struct kopi_stats {
	/* of the flow: datagrams, and bytes of payload */
	__u64	tx_packets;		/* taken by the stack */
	__u64	tx_bytes;
	__u64	tx_errors;		/* completed with an error from the stack */
	__u64	tx_zerocopy;		/* of tx_packets, still held by reference when sent */
	__u64	rx_packets;
	__u64	rx_bytes;
	__u64	rx_drop_ring_full;	/* the RX ring had no room */
	__u64	rx_drop_no_frame;	/* the FILL ring had too few frames */
	__u64	rx_drop_too_long;	/* more frames than KOPI_CHAIN_MAX or the RX ring */
	/* of the channel */
	__u64	tx_invalid;		/* TX descriptors refused */
	__u64	fill_invalid;		/* FILL entries that are no frame */
	__u64	ring_broken;		/* times an index of the program made no sense */
	__u64	tx_pending;		/* frames that the stack has not released */
	__u64	flows;			/* on this channel now */
	/*
	 * of the flow: tx_taken is tx_packets and all tx_drop_*, rx_taken is
	 * rx_packets and all rx_drop_*: no datagram is unaccounted for
	 */
	__u64	tx_taken;		/* from the TX ring, or by sendmsg() and the channel's routes */
	__u64	rx_taken;		/* datagrams that reached the flow */
	__u64	tx_drop_denied;		/* EPERM, EACCES: filter, cgroup, LSM */
	__u64	tx_drop_unreachable;	/* ENETUNREACH, ECONNREFUSED and the like */
	__u64	tx_drop_too_long;	/* EMSGSIZE */
	__u64	tx_drop_no_buffer;	/* ENOBUFS, ENOMEM, EAGAIN */
	__u64	tx_drop_invalid;	/* descriptors or metadata make no sense */
	__u64	tx_drop_other;		/* any other errno */
	__u64	tx_drop_rule;		/* EACCES: a rule of KOPI's */
	__u64	tx_drop_rate;		/* ENOBUFS: over the rate of a rule */
	__u64	rx_drop_rule;		/* denied by a rule of KOPI's */
	__u64	rx_drop_rate;		/* over the rate of a rule */
	/* of the channel */
	__u64	engine_time;		/* ns that engines have worked for it */
	__u64	reserved[5];
};

/*
 * ioctl(fd, KOPI_IOC_DOORBELL, flags): makes the kernel process the channel.
 * Returns the number of TX descriptors that were taken.
 */
#define KOPI_IOC_DOORBELL	_IO(0xcb, 1)

#define KOPI_BELL_TX		(1u << 0)	/* take what is in the TX ring */
/*
 * Then sleep until the RX ring (RX) or the COMPLETION ring (COMPLETION) has an
 * entry; not with O_NONBLOCK, and no longer than SO_RCVTIMEO allows.
 */
#define KOPI_BELL_WAIT_RX	(1u << 1)
#define KOPI_BELL_WAIT_COMPLETION (1u << 2)
/*
 * With TX: as sendmmsg(2) with MSG_DONTWAIT on this descriptor, up to the first entry of
 * another flow than its own, which stays in TX with all behind it. What a full send
 * buffer would hold up fails (EAGAIN). After a packet that fails, the others are not sent
 * (ECANCELED). All payload is copied, so that all that was taken has completed on return.
 * At most 1024 entries are taken.
 */
#define KOPI_BELL_SEND		(1u << 3)

/* poll(): POLLIN is RX, POLLOUT room to send, and this an unread COMPLETION. */
#define KOPI_POLL_COMPLETION	0x0200		/* POLLWRBAND */

/*
 * struct kopi_mon_hdr: the header that a device of type kopimon shows in front of
 * each packet.
 *
 * While such a device is up, packet sockets on it see the packets of its network
 * namespace's flows: as they are given to a NIC's driver, as they are put into an
 * RX ring or read without one, and as they are dropped, outgoing or incoming. The
 * IP header follows after `len` bytes. A GSO packet is shown as one packet.
 */
struct kopi_mon_hdr {
	__u8	version;		/* KOPI_MON_VERSION */
	__u8	len;			/* bytes of this header */
	__u8	direction;		/* KOPI_MON_OUT or KOPI_MON_IN */
	__u8	verdict;		/* KOPI_MON_PASSED and the like */
	__u32	reason;			/* by verdict: enum skb_drop_reason, or KOPI_MON_REASON_* */
	__u32	rule;			/* KOPI_MON_REASON_RULE, _RATE: its handle; 0: the default */
	__u32	ifindex;		/* the device; 0 where none is known yet */
	__u32	flow;			/* its number in the network namespace; 0 while accept() makes it */
	__u32	pid;			/* 0 where there is none to show */
	__u32	uid;			/* effective; as the namespace's owner names it */
	__u32	gid;
	__u64	cgroup;			/* of the socket */
	__u64	exe_inode;		/* of the program's file; 0 without one */
	__u32	exe_device;		/* of the same, as in st_dev */
	__u32	gso_size;		/* payload of each datagram of a GSO packet, in bytes, or 0 */
	char	command[16];		/* ends with a zero, if there is room */
	__u32	reserved[2];
};

#define KOPI_MON_VERSION	1
/* kopi_mon_hdr.direction */
#define KOPI_MON_OUT		1
#define KOPI_MON_IN		2
/* kopi_mon_hdr.verdict */
#define KOPI_MON_PASSED		0	/* given to a driver, or to the program */
#define KOPI_MON_DROPPED	1	/* by the kernel's stack: reason is its own */
#define KOPI_MON_REFUSED	2	/* by KOPI: reason is one of these */
/* kopi_mon_hdr.reason */
#define KOPI_MON_REASON_RING_FULL 1	/* the RX ring had no room */
#define KOPI_MON_REASON_NO_FRAME 2	/* the FILL ring had no frame */
#define KOPI_MON_REASON_TOO_LONG 3	/* longer than a chain may be, or than the RX ring */
#define KOPI_MON_REASON_RULE	4	/* a rule, or the default, denies it */
#define KOPI_MON_REASON_RATE	5	/* over the rate of a rule */

/*
 * struct kopi_port_map: the ports that the XDP program of an attached device
 * redirects to KOPI.
 *
 * It lies at the start of a page of shared memory (an array map with
 * BPF_F_MMAPABLE), whose address is an argument of device-attach. The kernel
 * writes it, the program reads it. If the bit of a UDP datagram's destination
 * port is set, the program may redirect the datagram to the device; it must pass
 * all other packets.
 */
struct kopi_port_map {
	__u64	ports[1024];		/* port p: bit p % 64 of ports[p / 64] */
	__u32	ifindex;		/* the device; 0: there is none */
	__u32	reserved;		/* 0 */
};

#endif /* _UAPI_KOPI_H */
