// SPDX-License-Identifier: GPL-2.0
/*
 * A preloaded library that has an unmodified program's UDP sockets be KOPI
 * flows, and moves what it sends and receives through their rings.
 *
 * For tests: all calls take one lock, and control messages are not passed on.
 * KOPI_RIGS_LOG names a file that gets a line for each flow that carried
 * something.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "kopi.h"

#define FDS		1024
#define FRAME		2048u
#define ROOM		(FRAME - KOPI_FRAME_HEADROOM)
#define RX_FRAMES	192u
#define TX_FRAMES	64u

struct flow {
	void *region;
	struct kopi_layout layout;
	/* Shared with children: TX frames in use, and whether it was logged. */
	struct shared {
		unsigned char busy[TX_FRAMES];
		int logged;
	} *shared;
};

static struct flow flows[FDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static struct flow *flow_of(int fd)
{
	return fd >= 0 && fd < FDS && flows[fd].region ? &flows[fd] : NULL;
}

static __u32 *word(struct flow *flow, __u32 at)
{
	return (__u32 *)((char *)flow->region + at);
}

static __u32 get(struct flow *flow, __u32 at)
{
	return __atomic_load_n(word(flow, at), __ATOMIC_ACQUIRE);
}

static void put(struct flow *flow, __u32 at, __u32 value)
{
	__atomic_store_n(word(flow, at), value, __ATOMIC_RELEASE);
}

static void *entry(struct flow *flow, struct kopi_ring_layout *ring, __u32 index)
{
	return (char *)flow->region + ring->entries + (index & (ring->size - 1)) * ring->entry_size;
}

static void fill(struct flow *flow, __u64 frame)
{
	struct kopi_ring_layout *ring = &flow->layout.fill;
	__u32 index = get(flow, ring->producer);

	*(__u64 *)entry(flow, ring, index) = frame;
	put(flow, ring->producer, index + 1);
}

static void used(struct flow *flow, const char *how)
{
	const char *path = getenv("KOPI_RIGS_LOG");
	char line[64];
	int fd, len;

	if (flow->shared->logged || !path)
		return;
	flow->shared->logged = 1;
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0)
		return;
	len = snprintf(line, sizeof(line), "%s %s\n", program_invocation_short_name, how);
	if (REAL(write)(fd, line, len) < 0)
		perror(path);
	REAL(close)(fd);
}

static int family(void)
{
	int number = AF_ECONET;
	FILE *file = fopen("/sys/module/kopi/parameters/family", "re");

	if (file) {
		if (fscanf(file, "%d", &number) != 1)
			number = AF_ECONET;
		fclose(file);
	}
	return number;
}

int socket(int domain, int type, int protocol)
{
	struct kopi_channel_req req = {
		.frame_size = FRAME, .frame_count = RX_FRAMES + TX_FRAMES,
		.tx_entries = TX_FRAMES, .completion_entries = TX_FRAMES,
		.fill_entries = 256, .rx_entries = 256,
	};
	socklen_t len = sizeof(struct kopi_layout);
	struct flow flow = {};
	int fd;

	if ((domain != AF_INET && domain != AF_INET6) || (type & 0xf) != SOCK_DGRAM ||
	    (protocol && protocol != IPPROTO_UDP))
		return REAL(socket)(domain, type, protocol);
	fd = REAL(socket)(family(), type, domain == AF_INET6 ? KOPI_PROTO_UDP6 : KOPI_PROTO_UDP);
	if (fd < 0 || fd >= FDS)
		return fd;
	if (setsockopt(fd, SOL_KOPI, KOPI_OPT_CHANNEL, &req, sizeof(req)) ||
	    getsockopt(fd, SOL_KOPI, KOPI_OPT_CHANNEL, &flow.layout, &len))
		goto fail;
	flow.region = mmap(NULL, flow.layout.region_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	flow.shared = mmap(NULL, sizeof(*flow.shared), PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (flow.region == MAP_FAILED || flow.shared == MAP_FAILED)
		goto fail;
	for (__u32 i = 0; i < RX_FRAMES; i++)
		fill(&flow, flow.layout.frames + i * FRAME);
	flows[fd] = flow;
	return fd;
fail:
	perror("udp_by_rings");
	abort();
}

int close(int fd)
{
	struct flow *flow = flow_of(fd);

	if (flow) {
		munmap(flow->region, flow->layout.region_size);
		munmap(flow->shared, sizeof(*flow->shared));
		flow->region = NULL;
	}
	return REAL(close)(fd);
}

/* Programs that give a socket another number. */
int dup2(int from, int to)
{
	int fd = REAL(dup2)(from, to);

	if (fd >= 0 && fd != from && fd < FDS && flow_of(from))
		flows[fd] = flows[from];
	return fd;
}

static void set_name(struct kopi_meta *meta, struct sockaddr *name, socklen_t *len)
{
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = meta->peer_port };
	struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = meta->peer_port };

	memcpy(&six.sin6_addr, meta->peer, 16);
	memcpy(&four.sin_addr, meta->peer, 4);
	if (meta->family == AF_INET6) {
		memcpy(name, &six, *len < sizeof(six) ? *len : sizeof(six));
		*len = sizeof(six);
	} else {
		memcpy(name, &four, *len < sizeof(four) ? *len : sizeof(four));
		*len = sizeof(four);
	}
}

static ssize_t receive(int fd, struct flow *flow, const struct iovec *iov, int count, int flags,
		       struct sockaddr *name, socklen_t *name_len, int *out_flags)
{
	struct kopi_ring_layout *ring = &flow->layout.rx;
	size_t room = 0, at = 0, total = 0;
	char flat[65536];
	__u32 index, more;

	while (get(flow, ring->producer) == get(flow, ring->consumer)) {
		int nonblock = flags & MSG_DONTWAIT || fcntl(fd, F_GETFL) & O_NONBLOCK;
		int error = 0;
		socklen_t len = sizeof(error);

		if (nonblock) {
			getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
			errno = error ?: EAGAIN;
			return -1;
		}
		if (ioctl(fd, KOPI_IOC_DOORBELL, KOPI_BELL_WAIT_RX) < 0)
			return -1;
		/* Or the socket is shut down. */
		if (get(flow, ring->producer) == get(flow, ring->consumer))
			return 0;
	}
	used(flow, "received");
	index = get(flow, ring->consumer);
	do {
		struct kopi_desc *desc = entry(flow, ring, index);
		__u32 frame = desc->offset & ~(FRAME - 1);

		/* Frames begin at a page. */
		more = desc->flags & KOPI_DESC_MORE;
		if (desc->flags & KOPI_DESC_META && name)
			set_name((void *)((char *)flow->region + frame), name, name_len);
		if (total + desc->len <= sizeof(flat))
			memcpy(flat + total, (char *)flow->region + desc->offset, desc->len);
		total += desc->len;
		index++;
		if (!(flags & MSG_PEEK)) {
			fill(flow, frame);
			put(flow, ring->consumer, index);
		}
	} while (more);
	for (int i = 0; i < count; i++) {
		size_t part = total - at < iov[i].iov_len ? total - at : iov[i].iov_len;

		memcpy(iov[i].iov_base, flat + at, part);
		at += part;
		room += iov[i].iov_len;
	}
	if (out_flags)
		*out_flags = total > room ? MSG_TRUNC : 0;
	return flags & MSG_TRUNC || total <= room ? (ssize_t)total : (ssize_t)room;
}

static void reap(struct flow *flow, __u32 ours, int *error)
{
	struct kopi_ring_layout *ring = &flow->layout.completion;
	__u32 index = get(flow, ring->consumer);

	while (index != get(flow, ring->producer)) {
		struct kopi_desc *desc = entry(flow, ring, index++);
		__u32 number = (desc->offset - flow->layout.frames) / FRAME - RX_FRAMES;

		flow->shared->busy[number] = 0;
		if (number == ours)
			*error = desc->error;
		put(flow, ring->consumer, index);
	}
}

static ssize_t transmit(int fd, struct flow *flow, const struct iovec *iov, int count,
			const struct sockaddr *name, socklen_t name_len)
{
	struct kopi_ring_layout *ring = &flow->layout.tx;
	size_t total = 0, at = 0, wanted, found = 0;
	__u32 frames[TX_FRAMES], index = get(flow, ring->producer);
	char flat[65536];
	int error = 0;

	for (int i = 0; i < count; i++) {
		if (total + iov[i].iov_len > sizeof(flat)) {
			errno = EMSGSIZE;
			return -1;
		}
		memcpy(flat + total, iov[i].iov_base, iov[i].iov_len);
		total += iov[i].iov_len;
	}
	wanted = total ? (total + ROOM - 1) / ROOM : 1;
	for (;;) {
		reap(flow, -1, &error);
		for (__u32 i = found = 0; i < TX_FRAMES && found < wanted; i++)
			if (!flow->shared->busy[i])
				frames[found++] = i;
		if (found == wanted)
			break;
		if (ioctl(fd, KOPI_IOC_DOORBELL, KOPI_BELL_WAIT_COMPLETION) < 0)
			return -1;
	}
	used(flow, "sent");
	for (size_t i = 0; i < wanted; i++) {
		__u32 start = flow->layout.frames + (RX_FRAMES + frames[i]) * FRAME;
		size_t part = total - at < ROOM ? total - at : ROOM;
		struct kopi_desc desc = {
			.offset = start + KOPI_FRAME_HEADROOM, .len = part,
			.flags = i + 1 < wanted ? KOPI_DESC_MORE : 0,
		};

		if (i == 0 && name) {
			struct kopi_meta meta = { .family = name->sa_family };
			const struct sockaddr_in6 *six = (const void *)name;
			const struct sockaddr_in *four = (const void *)name;

			if (name->sa_family == AF_INET6 && name_len >= sizeof(*six)) {
				memcpy(meta.peer, &six->sin6_addr, 16);
				meta.peer_port = six->sin6_port;
				meta.ifindex = six->sin6_scope_id;
			} else {
				memcpy(meta.peer, &four->sin_addr, 4);
				meta.peer_port = four->sin_port;
			}
			memcpy((char *)flow->region + start, &meta, sizeof(meta));
			desc.flags |= KOPI_DESC_META;
		}
		memcpy((char *)flow->region + desc.offset, flat + at, part);
		at += part;
		flow->shared->busy[frames[i]] = 1;
		*(struct kopi_desc *)entry(flow, ring, index++) = desc;
	}
	put(flow, ring->producer, index);
	while (get(flow, ring->consumer) != index)
		if (ioctl(fd, KOPI_IOC_DOORBELL, KOPI_BELL_TX) < 0)
			return -1;
	reap(flow, frames[0], &error);
	if (error) {
		errno = error;
		return -1;
	}
	return total;
}

ssize_t recvfrom(int fd, void *data, size_t size, int flags, struct sockaddr *name, socklen_t *len)
{
	struct flow *flow = flow_of(fd);
	struct iovec iov = { data, size };
	ssize_t got;

	if (!flow || flags & MSG_ERRQUEUE)
		return REAL(recvfrom)(fd, data, size, flags, name, len);
	pthread_mutex_lock(&lock);
	got = receive(fd, flow, &iov, 1, flags, name, len, NULL);
	pthread_mutex_unlock(&lock);
	return got;
}

ssize_t recv(int fd, void *data, size_t size, int flags)
{
	return flow_of(fd) ? recvfrom(fd, data, size, flags, NULL, NULL) :
			     REAL(recv)(fd, data, size, flags);
}

ssize_t read(int fd, void *data, size_t size)
{
	return flow_of(fd) ? recvfrom(fd, data, size, 0, NULL, NULL) : REAL(read)(fd, data, size);
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	struct flow *flow = flow_of(fd);
	ssize_t got;

	if (!flow || flags & MSG_ERRQUEUE)
		return REAL(recvmsg)(fd, msg, flags);
	pthread_mutex_lock(&lock);
	msg->msg_controllen = 0;
	got = receive(fd, flow, msg->msg_iov, msg->msg_iovlen, flags, msg->msg_name,
		      &msg->msg_namelen, &msg->msg_flags);
	pthread_mutex_unlock(&lock);
	return got;
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	struct flow *flow = flow_of(fd);
	ssize_t sent;

	if (!flow)
		return REAL(sendmsg)(fd, msg, flags);
	pthread_mutex_lock(&lock);
	sent = transmit(fd, flow, msg->msg_iov, msg->msg_iovlen, msg->msg_name, msg->msg_namelen);
	pthread_mutex_unlock(&lock);
	return sent;
}

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *name,
	       socklen_t len)
{
	struct iovec iov = { (void *)data, size };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1,
		.msg_name = (void *)name, .msg_namelen = len,
	};

	return flow_of(fd) ? sendmsg(fd, &msg, flags) : REAL(sendto)(fd, data, size, flags, name, len);
}

ssize_t send(int fd, const void *data, size_t size, int flags)
{
	return flow_of(fd) ? sendto(fd, data, size, flags, NULL, 0) :
			     REAL(send)(fd, data, size, flags);
}

ssize_t write(int fd, const void *data, size_t size)
{
	return flow_of(fd) ? sendto(fd, data, size, 0, NULL, 0) : REAL(write)(fd, data, size);
}
