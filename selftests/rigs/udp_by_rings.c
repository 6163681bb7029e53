// SPDX-License-Identifier: GPL-2.0
/*
 * A preloaded library that has an unmodified program's UDP sockets be KOPI
 * flows, and moves what it sends and receives through their rings.
 *
 * For tests. Control messages are not given on receipt and refused on sending,
 * and a full send buffer is waited for, with O_NONBLOCK, too.
 * KOPI_RIGS_LOG names a file that gets a line for each flow that carried
 * something.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
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
#define TX_FRAMES	63u
/* One more, for the notes. */
#define FRAMES		(RX_FRAMES + TX_FRAMES + 1)

/* What all processes that have the flow must agree on: in its region, in a frame of its own. */
struct notes {
	/* Not mutexes: a futex between processes can't be in a region. */
	int send, receive;
	unsigned char busy[TX_FRAMES];
	int logged;
};

struct flow {
	int descriptors;
	void *region;
	struct kopi_layout layout;
	struct notes *notes;
};

static struct flow *flows[FDS];
/* Of the table above. */
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void lock(int *word)
{
	while (__atomic_exchange_n(word, 1, __ATOMIC_ACQUIRE))
		sched_yield();
}

static void unlock(int *word)
{
	__atomic_store_n(word, 0, __ATOMIC_RELEASE);
}

static struct flow *flow_of(int fd)
{
	return fd >= 0 && fd < FDS ? flows[fd] : NULL;
}

/* Has the descriptor stand for the flow, or for none; what it stood for loses one. */
static void set_flow(int fd, struct flow *flow)
{
	struct flow *old = flow_of(fd);

	if (fd < 0 || fd >= FDS || old == flow)
		return;
	pthread_mutex_lock(&table);
	flows[fd] = flow;
	if (flow)
		flow->descriptors++;
	if (old && --old->descriptors == 0) {
		munmap(old->region, old->layout.region_size);
		free(old);
	}
	pthread_mutex_unlock(&table);
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

static int is_empty(struct flow *flow, struct kopi_ring_layout *ring)
{
	return get(flow, ring->producer) == get(flow, ring->consumer);
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

	if (flow->notes->logged || !path)
		return;
	flow->notes->logged = 1;
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0)
		return;
	len = snprintf(line, sizeof(line), "%s %s\n", program_invocation_short_name, how);
	if (REAL(write)(fd, line, len) < 0)
		perror(path);
	REAL(close)(fd);
}

static int family_number(void)
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

/* Maps the rings of a socket that has some. */
static struct flow *map(int fd)
{
	struct flow *flow = calloc(1, sizeof(*flow));
	socklen_t len = sizeof(flow->layout);

	if (!flow || getsockopt(fd, SOL_KOPI, KOPI_OPT_CHANNEL, &flow->layout, &len))
		goto fail;
	flow->region = mmap(NULL, flow->layout.region_size, PROT_READ | PROT_WRITE, MAP_SHARED,
			    fd, 0);
	if (flow->region == MAP_FAILED)
		goto fail;
	flow->notes = (void *)((char *)flow->region + flow->layout.frames + (FRAMES - 1) * FRAME);
	return flow;
fail:
	free(flow);
	return NULL;
}

/* Flows that a program before this one left open, such as a shell's redirections. */
__attribute__((constructor)) static void find_flows(void)
{
	int error = errno;

	for (int fd = 0; fd < FDS; fd++)
		set_flow(fd, map(fd));
	errno = error;
}

int socket(int domain, int type, int protocol)
{
	struct kopi_channel_req req = {
		.frame_size = FRAME, .frame_count = FRAMES,
		.tx_entries = 64, .completion_entries = 64,
		.fill_entries = 256, .rx_entries = 256,
	};
	struct flow *flow;
	int fd;

	if ((domain != AF_INET && domain != AF_INET6) || (type & 0xf) != SOCK_DGRAM ||
	    (protocol && protocol != IPPROTO_UDP))
		return REAL(socket)(domain, type, protocol);
	fd = REAL(socket)(family_number(), type, domain == AF_INET6 ? KOPI_PROTO_UDP6 : KOPI_PROTO_UDP);
	if (fd < 0 || fd >= FDS)
		return fd;
	flow = setsockopt(fd, SOL_KOPI, KOPI_OPT_CHANNEL, &req, sizeof(req)) ? NULL : map(fd);
	if (!flow) {
		perror("udp_by_rings");
		abort();
	}
	for (__u32 i = 0; i < RX_FRAMES; i++)
		fill(flow, flow->layout.frames + i * FRAME);
	set_flow(fd, flow);
	return fd;
}

int close(int fd)
{
	set_flow(fd, NULL);
	return REAL(close)(fd);
}

/* Programs that give a socket another number, or a second one. */
static int is_also(int from, int to)
{
	set_flow(to, flow_of(from));
	return to;
}

int dup(int from)
{
	return is_also(from, REAL(dup)(from));
}

int dup2(int from, int to)
{
	return is_also(from, REAL(dup2)(from, to));
}

int dup3(int from, int to, int flags)
{
	return is_also(from, REAL(dup3)(from, to, flags));
}

int fcntl(int fd, int command, ...)
{
	va_list list;
	void *arg;
	int done;

	va_start(list, command);
	arg = va_arg(list, void *);
	va_end(list);
	done = REAL(fcntl)(fd, command, arg);
	return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? is_also(fd, done) : done;
}

int fcntl64(int fd, int command, ...) __attribute__((alias("fcntl")));

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

/* Waits until there is something to receive: 1, 0 if there won't be, or -1. */
static int wait_rx(int fd, struct flow *flow, int flags)
{
	int nonblock = flags & MSG_DONTWAIT || fcntl(fd, F_GETFL) & O_NONBLOCK;
	socklen_t len = sizeof(int);
	int error = 0;

	if (!is_empty(flow, &flow->layout.rx))
		return 1;
	if (nonblock) {
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
		errno = error ?: EAGAIN;
		return -1;
	}
	if (ioctl(fd, KOPI_IOC_DOORBELL, KOPI_BELL_WAIT_RX) < 0)
		return -1;
	/* None: it is shut down. */
	return !is_empty(flow, &flow->layout.rx);
}

/* Takes a packet from the RX ring, which has one, or leaves it there with MSG_PEEK. */
static ssize_t take(struct flow *flow, struct msghdr *msg, int flags)
{
	struct kopi_ring_layout *ring = &flow->layout.rx;
	__u32 more, index = get(flow, ring->consumer);
	size_t room = 0, at = 0, total = 0;
	char flat[65536];

	do {
		struct kopi_desc *desc = entry(flow, ring, index++);
		__u32 frame = desc->offset & ~(FRAME - 1);

		more = desc->flags & KOPI_DESC_MORE;
		if (desc->flags & KOPI_DESC_META && msg->msg_name)
			set_name((void *)((char *)flow->region + frame), msg->msg_name,
				 &msg->msg_namelen);
		if (total + desc->len <= sizeof(flat))
			memcpy(flat + total, (char *)flow->region + desc->offset, desc->len);
		total += desc->len;
		if (!(flags & MSG_PEEK)) {
			fill(flow, frame);
			put(flow, ring->consumer, index);
		}
	} while (more);
	for (size_t i = 0; i < msg->msg_iovlen; i++) {
		struct iovec *iov = &msg->msg_iov[i];
		size_t part = total - at < iov->iov_len ? total - at : iov->iov_len;

		memcpy(iov->iov_base, flat + at, part);
		at += part;
		room += iov->iov_len;
	}
	msg->msg_flags = total > room ? MSG_TRUNC : 0;
	return flags & MSG_TRUNC || total <= room ? (ssize_t)total : (ssize_t)room;
}

static ssize_t receive(int fd, struct flow *flow, struct msghdr *msg, int flags)
{
	ssize_t got = -1;

	while (got < 0) {
		int ready = wait_rx(fd, flow, flags);

		if (ready <= 0)
			return ready;
		lock(&flow->notes->receive);
		/* Not one that another has taken in the meantime. */
		if (!is_empty(flow, &flow->layout.rx))
			got = take(flow, msg, flags);
		unlock(&flow->notes->receive);
	}
	used(flow, "received");
	msg->msg_controllen = 0;
	return got;
}

/* Takes what the stack has let go of; the error of the packet that began in frame ours. */
static int reap(struct flow *flow, __u32 ours)
{
	struct kopi_ring_layout *ring = &flow->layout.completion;
	__u32 index = get(flow, ring->consumer);
	int error = 0;

	while (index != get(flow, ring->producer)) {
		struct kopi_desc *desc = entry(flow, ring, index++);
		__u32 number = (desc->offset - flow->layout.frames) / FRAME - RX_FRAMES;

		if (number < TX_FRAMES)
			flow->notes->busy[number] = 0;
		if (number == ours)
			error = desc->error;
		put(flow, ring->consumer, index);
	}
	return error;
}

/* Finds a number of frames that are not in use, and waits for them: 0, or -1. */
static int find_frames(int fd, struct flow *flow, __u32 *frames, size_t wanted)
{
	for (;;) {
		size_t found = 0;

		reap(flow, TX_FRAMES);
		for (__u32 i = 0; i < TX_FRAMES && found < wanted; i++)
			if (!flow->notes->busy[i])
				frames[found++] = i;
		if (found == wanted)
			return 0;
		if (ioctl(fd, KOPI_IOC_DOORBELL, KOPI_BELL_WAIT_COMPLETION) < 0)
			return -1;
	}
}

static void set_peer(struct kopi_meta *meta, const struct sockaddr *name)
{
	const struct sockaddr_in6 *six = (const void *)name;
	const struct sockaddr_in *four = (const void *)name;

	meta->family = name->sa_family;
	if (name->sa_family == AF_INET6) {
		memcpy(meta->peer, &six->sin6_addr, 16);
		meta->peer_port = six->sin6_port;
		meta->ifindex = six->sin6_scope_id;
	} else {
		memcpy(meta->peer, &four->sin_addr, 4);
		meta->peer_port = four->sin_port;
	}
}

/* Sends what lies flat, with the lock held. */
static ssize_t transmit(int fd, struct flow *flow, const char *flat, size_t total,
			const struct sockaddr *name)
{
	struct kopi_ring_layout *ring = &flow->layout.tx;
	size_t at = 0, wanted = total ? (total + ROOM - 1) / ROOM : 1;
	__u32 frames[TX_FRAMES], index = get(flow, ring->producer);
	struct pollfd room = { fd, POLLOUT, 0 };
	int error;

	if (find_frames(fd, flow, frames, wanted))
		return -1;
	for (size_t i = 0; i < wanted; i++) {
		__u32 start = flow->layout.frames + (RX_FRAMES + frames[i]) * FRAME;
		size_t part = total - at < ROOM ? total - at : ROOM;
		struct kopi_desc desc = {
			.offset = start + KOPI_FRAME_HEADROOM, .len = part,
			.flags = i + 1 < wanted ? KOPI_DESC_MORE : 0,
		};

		if (i == 0 && name) {
			struct kopi_meta meta = {};

			set_peer(&meta, name);
			memcpy((char *)flow->region + start, &meta, sizeof(meta));
			desc.flags |= KOPI_DESC_META;
		}
		memcpy((char *)flow->region + desc.offset, flat + at, part);
		at += part;
		flow->notes->busy[frames[i]] = 1;
		*(struct kopi_desc *)entry(flow, ring, index++) = desc;
	}
	put(flow, ring->producer, index);
	while (get(flow, ring->consumer) != index) {
		if (ioctl(fd, KOPI_IOC_DOORBELL, KOPI_BELL_TX) < 0)
			return -1;
		if (get(flow, ring->consumer) != index)
			poll(&room, 1, -1);
	}
	error = reap(flow, frames[0]);
	if (error) {
		errno = error;
		return -1;
	}
	return total;
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	struct flow *flow = flow_of(fd);
	char flat[TX_FRAMES * ROOM];
	size_t total = 0;
	ssize_t sent;

	if (!flow)
		return REAL(sendmsg)(fd, msg, flags);
	if (msg->msg_controllen || flags & MSG_MORE) {
		errno = EOPNOTSUPP;
		return -1;
	}
	for (size_t i = 0; i < msg->msg_iovlen; i++) {
		if (total + msg->msg_iov[i].iov_len > sizeof(flat)) {
			errno = EMSGSIZE;
			return -1;
		}
		memcpy(flat + total, msg->msg_iov[i].iov_base, msg->msg_iov[i].iov_len);
		total += msg->msg_iov[i].iov_len;
	}
	lock(&flow->notes->send);
	sent = transmit(fd, flow, flat, total, msg->msg_name);
	unlock(&flow->notes->send);
	used(flow, "sent");
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

ssize_t writev(int fd, const struct iovec *iov, int count)
{
	struct msghdr msg = { .msg_iov = (struct iovec *)iov, .msg_iovlen = count };

	return flow_of(fd) ? sendmsg(fd, &msg, 0) : REAL(writev)(fd, iov, count);
}

int sendmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags)
{
	unsigned int done;

	if (!flow_of(fd))
		return REAL(sendmmsg)(fd, messages, count, flags);
	for (done = 0; done < count; done++) {
		ssize_t sent = sendmsg(fd, &messages[done].msg_hdr, flags);

		if (sent < 0)
			return done ? (int)done : -1;
		messages[done].msg_len = sent;
	}
	return done;
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	struct flow *flow = flow_of(fd);

	return flow && !(flags & MSG_ERRQUEUE) ? receive(fd, flow, msg, flags) :
						 REAL(recvmsg)(fd, msg, flags);
}

ssize_t recvfrom(int fd, void *data, size_t size, int flags, struct sockaddr *name, socklen_t *len)
{
	struct iovec iov = { data, size };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1,
		.msg_name = name, .msg_namelen = name && len ? *len : 0,
	};
	ssize_t got;

	if (!flow_of(fd))
		return REAL(recvfrom)(fd, data, size, flags, name, len);
	got = recvmsg(fd, &msg, flags);
	if (got >= 0 && name && len)
		*len = msg.msg_namelen;
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

ssize_t readv(int fd, const struct iovec *iov, int count)
{
	struct msghdr msg = { .msg_iov = (struct iovec *)iov, .msg_iovlen = count };

	return flow_of(fd) ? recvmsg(fd, &msg, 0) : REAL(readv)(fd, iov, count);
}

/* What _FORTIFY_SOURCE makes of the above. */
ssize_t __read_chk(int fd, void *data, size_t size, size_t room)
{
	return size <= room ? read(fd, data, size) : (abort(), -1);
}

ssize_t __recv_chk(int fd, void *data, size_t size, size_t room, int flags)
{
	return size <= room ? recv(fd, data, size, flags) : (abort(), -1);
}

ssize_t __recvfrom_chk(int fd, void *data, size_t size, size_t room, int flags,
		       struct sockaddr *name, socklen_t *len)
{
	return size <= room ? recvfrom(fd, data, size, flags, name, len) : (abort(), -1);
}
