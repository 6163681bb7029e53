/* SPDX-License-Identifier: GPL-2.0 */
/*
 * libkopi: flows and channels of KOPI in C. libkopi(3) explains how they work
 * together; <linux/kopi.h> has the structs and numbers that the kernel shares.
 *
 * Errors. A function that fails gives a negative errno, and leaves errno as
 * undefined. Each can give -EINVAL: a pointer is NULL that must not be, or an
 * argument makes no sense. Those that system calls give (bind(2), say) come as
 * they are. kopi_strerror() has the words. No function throws or unwinds: if the
 * library finds a bug of its own, it writes a message to stderr and aborts.
 *
 * Threads. A channel, and all frames of it, belong to one thread at a time.
 * Another thread may take it over when the first one has stopped using it, with
 * the memory order that a mutex or pthread_join() gives. Functions of a flow can
 * be called by any thread, except kopi_flow_close(), which must be the last. Those
 * of channels that only concern the channel's flows count as the channel's:
 * kopi_flow_join() and kopi_channel_open(). kopi_family(), kopi_strerror() and
 * those of metadata can be called by any thread. Nothing may be called from a
 * signal handler, unless it is said.
 *
 * Forks. The child must not use channels, nor frames of them, as long as the
 * parent does. It may close them, which the parent doesn't notice.
 *
 * Memory. Only kopi_family(), kopi_flow_open() and kopi_channel_open() allocate; others
 * don't, except where a call fails.
 */
#ifndef KOPI_H
#define KOPI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>
#include <linux/kopi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A KOPI socket: a UDP socket, which can be put on a channel. */
struct kopi_flow;
/* Mapped frames, and the rings that carry them. */
struct kopi_channel;

/*
 * struct kopi_options: the channel to open. 0 in any field stands for its default.
 */
struct kopi_options {
	uint32_t flags;		/* KOPI_CHANNEL_GSO, _GRO, _GRO_MERGED, _ENGINE */
	uint32_t frame_size;	/* bytes, a power of two, headroom included; default: 2048 */
	uint32_t frames;	/* number of frames; default: 1024 */
	uint32_t rx_frames;	/* of them, for what is received; KOPI_NO_FRAMES: none;
				 * default: half of them
				 */
	uint32_t tx_entries;	/* of the TX and COMPLETION rings, a power of two; default: 1024 */
	uint32_t rx_entries;	/* of the FILL and RX rings, a power of two; default: 1024 */
	uint32_t reserved[10];	/* 0 */
};

/* kopi_options.rx_frames of a channel that only sends. */
#define KOPI_NO_FRAMES	UINT32_MAX

/*
 * struct kopi_frame: a frame that the program has, with a packet or a part of one.
 *
 * The program may read and write `len` bytes at `data`, move `data` within the
 * frame, and write to `meta`; up to `capacity` bytes fit behind the first `data`.
 */
struct kopi_frame {
	void *data;		/* payload */
	struct kopi_meta *meta;	/* address and the like; NULL if the packet began earlier */
	uint32_t len;		/* bytes of payload in this frame */
	uint32_t capacity;	/* bytes of payload that fit into this frame */
	uint32_t flow;		/* number of the flow: kopi_flow_number() */
	uint32_t flags;		/* KOPI_DESC_MORE: the packet goes on in the next element;
				 * KOPI_DESC_META: `meta` is to be heeded
				 */
	uint32_t id;		/* of the frame, as in kopi_completion; not to be written */
	uint32_t reserved;	/* 0 */
};

/* struct kopi_completion: what became of a frame that was sent. */
struct kopi_completion {
	uint32_t flow;		/* number of the flow */
	uint32_t id;		/* as in kopi_frame */
	uint32_t len;		/* bytes of payload that the frame held */
	uint16_t flags;		/* KOPI_DESC_MORE: the packet goes on in the next completion */
	uint16_t error;		/* 0, or the errno (positive) with which the packet was refused */
};

/* What kopi_wait() waits for, and what it found. */
#define KOPI_READABLE	(1u << 0)	/* a packet to receive */
#define KOPI_WRITABLE	(1u << 1)	/* room to send */
#define KOPI_COMPLETED	(1u << 2)	/* completions */
#define KOPI_ERROR	(1u << 3)	/* found only: the first flow's kopi_flow_error() */

/*
 * kopi_family - the number of AF_KOPI on this machine, above 0.
 *
 * -EAFNOSUPPORT: the module isn't loaded, speaks another version of the interface,
 * or the process may not use it. The environment variable KOPI_FAMILY overrides what
 * the module says.
 */
int kopi_family(void);

/*
 * kopi_strerror - words for an errno, negative as functions here give it, or positive.
 *
 * Never NULL. The text is the calling thread's, until it calls this again.
 */
const char *kopi_strerror(int error);

/*
 * kopi_flow_open - makes a flow, with no address yet, and gives it by `flow`.
 *
 * `family` is AF_INET, or AF_INET6, which has IPv4 peers too, as mapped addresses, unless
 * IPV6_V6ONLY is set. The descriptor is closed by exec.
 *
 * 0, or: -EAFNOSUPPORT: another family, or as for kopi_family(). -EMFILE, -ENFILE,
 * -ENOMEM, -EACCES, -EPERM: as socket(2). -EMFILE: over net.kopi.user_max_flows, too.
 */
int kopi_flow_open(struct kopi_flow **flow, int family);

/*
 * kopi_flow_close - frees a flow; NULL is fine.
 *
 * The socket is closed when its descriptor is that of no channel either: that of the flow
 * that opened a channel stays until the channel is closed.
 */
void kopi_flow_close(struct kopi_flow *flow);

/*
 * kopi_flow_fd - the flow's file descriptor, for all that isn't here: getsockname(2),
 * setsockopt(2), poll(2). It remains the library's: it must not be closed.
 */
int kopi_flow_fd(const struct kopi_flow *flow);

/* kopi_flow_bind - as bind(2): 0, or its errno, negative. -EACCES: a rule denies it. */
int kopi_flow_bind(struct kopi_flow *flow, const struct sockaddr *address, socklen_t len);

/*
 * kopi_flow_connect - as connect(2): only the peer's packets arrive from now on. What is queued
 * without an address goes to it, too: flush before, and with KOPI_CHANNEL_ENGINE wait for its completions.
 *
 * 0, or its errno, negative. -EACCES: a rule denies it.
 */
int kopi_flow_connect(struct kopi_flow *flow, const struct sockaddr *address, socklen_t len);

/*
 * kopi_flow_join - puts a flow on a channel that another one opened.
 *
 * 0, or: -EBUSY: it is on a channel already, or has ever been corked. -EXDEV: the
 * channel is of another network namespace. -EPERM: of another user. -EACCES: the process may
 * not receive. -ENOMEM.
 */
int kopi_flow_join(struct kopi_flow *flow, struct kopi_channel *channel);

/*
 * kopi_flow_number - the flow's number on its channel, from 0.
 *
 * -ENOTCONN: it is on none. The numbers of flows that are closed are used again.
 */
int kopi_flow_number(const struct kopi_flow *flow);

/*
 * kopi_flow_error - takes the pending error, an ICMP message's for example: -ECONNREFUSED and
 * the like, or 0 if there is none.
 */
int kopi_flow_error(struct kopi_flow *flow);

/* kopi_flow_stats - the counters of the flow and of its channel: 0, and fills `stats`. */
int kopi_flow_stats(const struct kopi_flow *flow, struct kopi_stats *stats);

/*
 * kopi_channel_open - makes a channel with `flow` as the first one on it, and gives it by
 * `channel`. `options` may be NULL: all defaults, two megabytes.
 *
 * 0, or: -EINVAL: a size is out of range or no power of two, a flag is unknown,
 * KOPI_CHANNEL_GRO_MERGED is without _GRO, a reserved field isn't 0. -EBUSY: the flow is on
 * a channel already, or has ever been corked. -ENOBUFS: over RLIMIT_MEMLOCK or
 * net.kopi.user_max_frames, which count all channels of a user together, or over
 * net.kopi.netns_max_frames. -EMFILE: over net.kopi.user_max_channels. -EACCES: the process may
 * not receive. -ENOMEM: also over the cgroup's limit.
 */
int kopi_channel_open(struct kopi_channel **channel, struct kopi_flow *flow,
		      const struct kopi_options *options);

/*
 * kopi_channel_close - frees a channel and all its frames; NULL is fine.
 *
 * Flows on it can be closed before or after. What was queued and never flushed isn't sent.
 */
void kopi_channel_close(struct kopi_channel *channel);

/*
 * kopi_channel_fd - a file descriptor for poll(2), epoll(7) and select(2): see kopi_arm().
 * It remains the library's: it must not be closed.
 */
int kopi_channel_fd(const struct kopi_channel *channel);

/* kopi_channel_layout - where rings and frames lie: 0, and fills `layout`. */
int kopi_channel_layout(const struct kopi_channel *channel, struct kopi_layout *layout);

/*
 * kopi_reserve - takes free frames, up to `count`, for packets of the flow of that number.
 *
 * Gives how many there are in `frames` now, 0 while none is free: frames become free by
 * kopi_release(), and by kopi_flush() or kopi_complete() when the kernel is done with
 * what was sent. `data` is at the first byte that payload can have, `len` is 0, `meta` is
 * empty, which is the connected peer, and `flags` has KOPI_DESC_META. What the payload holds is
 * what the frame last held.
 */
int kopi_reserve(struct kopi_channel *channel, uint32_t flow, struct kopi_frame *frames,
		 unsigned int count);

/*
 * kopi_commit - queues packets, reserved or received ones; the kernel sees them at the next
 * kopi_flush() or kopi_doorbell().
 *
 * Each element is a packet, or a part of one that goes on in the next (KOPI_DESC_MORE). Gives
 * how many elements were queued: their frames are the kernel's, and must not be touched any
 * more. Those from there on remain the program's.
 *
 * If the first packet can't be queued: -EAGAIN: no room in the TX ring; the kernel was shown
 * what is there: take completions, or wait for KOPI_WRITABLE. -EMSGSIZE: it has more frames than
 * KOPI_CHAIN_MAX or the ring has. -EINVAL: a frame isn't the program's, `data` and `len`
 * aren't within it, a flag is unknown, the last element has KOPI_DESC_MORE. All else (the flow's
 * number, `meta`) is looked at by the kernel, which says so in the completion.
 */
int kopi_commit(struct kopi_channel *channel, const struct kopi_frame *frames, unsigned int count);

/*
 * kopi_release - gives frames back that are not needed: 0.
 *
 * -EINVAL: one isn't the program's; those before it were given back.
 */
int kopi_release(struct kopi_channel *channel, const struct kopi_frame *frames, unsigned int count);

/*
 * kopi_recv_frames - receives packets, of all flows of the channel, where the kernel has them.
 *
 * Gives the number of elements of `frames` that were filled, 0 if no packet is there; it
 * doesn't sleep. A packet that fits no frame takes several elements, each but the last
 * with KOPI_DESC_MORE; the first one's `meta` has its source. Packets are never cut
 * apart between calls. The frames are the program's: it ends with kopi_release(), or sends
 * them by kopi_commit(), as they are or changed, after kopi_meta_reply() for one. While the program
 * has all frames, nothing can be received.
 *
 * -EMSGSIZE: the next packet takes more than `count` elements; KOPI_CHAIN_MAX are always
 * enough. -EIO: a ring is broken, since something else wrote to it.
 */
int kopi_recv_frames(struct kopi_channel *channel, struct kopi_frame *frames, unsigned int count);

/*
 * kopi_flush - shows the kernel what was queued, and takes back the frames that it is done with.
 *
 * 1 if the kernel has taken all; 0 if it stopped, since a flow's send buffer is full: wait
 * for KOPI_WRITABLE, and flush again. What became of packets is in kopi_flow_stats();
 * to be told of each, use kopi_doorbell() and kopi_complete(). Errors of the doorbell
 * (docs/abi.md) come as they are, -EIO: a ring is broken.
 */
int kopi_flush(struct kopi_channel *channel);

/*
 * kopi_doorbell - shows the kernel what was queued, and takes no completions.
 *
 * 1 if the kernel has taken all; 0 if it stopped: take completions, or wait for KOPI_WRITABLE, and
 * ring again.
 */
int kopi_doorbell(struct kopi_channel *channel);

/*
 * kopi_complete - takes completions, up to `count`, and gives their number, 0 if there are
 * none. Their frames are free.
 *
 * Completions come in any order, but those of one packet together. kopi_flush() and
 * kopi_send() take completions, too, and forget them.
 */
int kopi_complete(struct kopi_channel *channel, struct kopi_completion *completions,
		  unsigned int count);

/*
 * kopi_send - sends one datagram of the flow of that number, copied, and says what became of it.
 *
 * `meta` says where to and how; NULL: to the connected peer. Gives `len`, or: -EAGAIN: no frame is
 * free or the send buffer is full: wait for KOPI_WRITABLE | KOPI_COMPLETED. -EMSGSIZE: longer
 * than UDP allows, or than the frames of the channel. -EBADF: no flow has this number. All that
 * sendmsg(2) gives: -EPERM, -EACCES, -ENETUNREACH, -EDESTADDRREQ ...
 *
 * A datagram that the send buffer has no room for any more counts as sent, as does one that
 * goes by reference: it leaves by a later call, and errors of it are in kopi_flow_stats(). So does one
 * for which the doorbell failed; if it fails again, the next call says so.
 * Each call is a system call: batches cost less.
 */
ssize_t kopi_send(struct kopi_channel *channel, uint32_t flow, const void *data, size_t len,
		  const struct kopi_meta *meta);

/*
 * kopi_queue - as kopi_send(), but only queues the datagram: the kernel sees it at the next
 * kopi_flush() or kopi_doorbell(), and errors of the kernel's are in the completion.
 *
 * Gives `len`, -EAGAIN or -EMSGSIZE.
 */
ssize_t kopi_queue(struct kopi_channel *channel, uint32_t flow, const void *data, size_t len,
		   const struct kopi_meta *meta);

/*
 * kopi_recv - receives one packet into `buffer`, and gives the number of bytes copied.
 *
 * What doesn't fit into `size` bytes is lost, as with recv(2): meta->len is the length of the
 * whole packet. `meta` and `flow` may be NULL; else they get its source, and its flow.
 * `buffer` may be NULL if `size` is 0.
 *
 * -EAGAIN: no packet is there; it doesn't sleep. -EIO: a ring is broken.
 */
ssize_t kopi_recv(struct kopi_channel *channel, void *buffer, size_t size, struct kopi_meta *meta,
		  uint32_t *flow);

/*
 * kopi_wait - shows the kernel what was queued, and sleeps until there is something of `events`
 * (KOPI_READABLE, KOPI_WRITABLE, KOPI_COMPLETED), or the time is over; NULL: no end.
 *
 * Gives what was found, 0 after the time. Completions end the sleep unasked when they are
 * what is needed to go on; so flush before each wait. KOPI_ERROR ends it, too: the first flow
 * has an error (an ICMP message came, or a rule stopped the flow). As long as it isn't taken by
 * kopi_flow_error(), no wait sleeps.
 *
 * -EINTR: a signal. -EINVAL: an unknown event, or a time that is none.
 */
int kopi_wait(struct kopi_channel *channel, unsigned int events, const struct timespec *timeout);

/*
 * kopi_arm - before sleeping in a poll of the program's own: asks the kernel to wake this side
 * (`want` is not 0), or not to take the trouble (0).
 *
 * Gives 1 if there is something to do already: don't sleep, but receive and flush; 0: sleep, for
 * POLLIN | POLLWRBAND (EPOLLIN | EPOLLWRBAND) of kopi_channel_fd(), and POLLOUT if
 * kopi_flush() gave 0. POLLERR stays until kopi_flow_error() takes the error. kopi_wait() arms by
 * itself, and leaves the channel unarmed.
 */
int kopi_arm(struct kopi_channel *channel, int want);

/*
 * kopi_meta_to - empties `meta`, and sets the peer to send to, with the scope of an IPv6 address, but
 * without its flow information.
 *
 * 0, or -EINVAL: `len` is too short, or the port is 0. -EAFNOSUPPORT: neither AF_INET nor AF_INET6. Other fields
 * can be set afterwards: tos (with ECN), ttl, mark, timestamp and local, each with its flag, and
 * gso_size, for which the channel needs KOPI_CHANNEL_GSO.
 */
int kopi_meta_to(struct kopi_meta *meta, const struct sockaddr *peer, socklen_t len);

/*
 * kopi_meta_reply - makes, of what came with a packet, what goes back to its peer: 0.
 *
 * `local` remains, and is heeded if the program sets KOPI_META_LOCAL in meta->flags: the answer then
 * leaves from the address that was asked. Where that is a multicast or broadcast address, the answer is refused,
 * with EINVAL, and without the flag the kernel chooses its source.
 */
int kopi_meta_reply(struct kopi_meta *meta);

/*
 * kopi_meta_peer, kopi_meta_local - a received packet's source, and its destination.
 *
 * Gives the size of what was written to `address`, which is a struct sockaddr_in or
 * sockaddr_in6. -EAFNOSUPPORT: `meta` has no address.
 */
int kopi_meta_peer(const struct kopi_meta *meta, struct sockaddr_storage *address);
int kopi_meta_local(const struct kopi_meta *meta, struct sockaddr_storage *address);

#ifdef __cplusplus
}
#endif

#endif /* KOPI_H */
