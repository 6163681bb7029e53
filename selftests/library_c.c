// SPDX-License-Identifier: GPL-2.0
/*
 * Tests of libkopi: `library_c list` names them, `library_c NAME` runs one. Built by
 * qemu/build tools, run by library_c.sh.
 */
#include <errno.h>
#include <fcntl.h>
#include <kopi.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#define MUST(condition) must(!!(condition), #condition, __LINE__)
/* The value that an expression must have; errors are shown by their words. */
#define IS(expression, expected) is((long)(expression), (long)(expected), #expression, __LINE__)

static void must(int held, const char *what, int line)
{
	if (held)
		return;
	printf("# line %d: not so: %s (errno: %s)\n", line, what, strerror(errno));
	exit(1);
}

static void is(long got, long expected, const char *what, int line)
{
	if (got == expected)
		return;
	printf("# line %d: %s is %ld (%s) and not %ld (%s)\n", line, what, got, got < 0 ? kopi_strerror(got) : "",
	       expected, expected < 0 ? kopi_strerror(expected) : "");
	exit(1);
}

/* Number of allocations; the library's are counted, too. */
static unsigned long allocations;
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *malloc(size_t size) { allocations++; return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { allocations++; return __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { allocations++; return __libc_realloc(old, size); }

/* A hang, and not a busy machine. */
static const struct timespec patience = { .tv_sec = 60 };

/* Addresses of this machine. */
static struct sockaddr_in local4(int port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static struct sockaddr_in6 local6(int port)
{
	return (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = htons(port),
				      .sin6_addr = IN6ADDR_LOOPBACK_INIT };
}

static struct sockaddr_storage name_of(int fd)
{
	struct sockaddr_storage name = { 0 };
	socklen_t len = sizeof(name);

	MUST(!getsockname(fd, (struct sockaddr *)&name, &len));
	return name;
}

static socklen_t size_of(const struct sockaddr_storage *name)
{
	return name->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* A plain UDP socket, which waits a minute at most. */
static int plain(int family)
{
	struct sockaddr_in name4 = local4(0);
	struct sockaddr_in6 name6 = local6(0);
	struct timeval limit = { .tv_sec = 60 };
	int fd = socket(family, SOCK_DGRAM, 0);

	MUST(fd >= 0);
	MUST(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	if (family == AF_INET)
		MUST(!bind(fd, (struct sockaddr *)&name4, sizeof(name4)));
	else
		MUST(!bind(fd, (struct sockaddr *)&name6, sizeof(name6)));
	return fd;
}

static struct kopi_flow *flow_of(int family)
{
	struct sockaddr_in name4 = local4(0);
	struct sockaddr_in6 name6 = local6(0);
	struct kopi_flow *flow;

	IS(kopi_flow_open(&flow, family), 0);
	if (family == AF_INET)
		IS(kopi_flow_bind(flow, (struct sockaddr *)&name4, sizeof(name4)), 0);
	else
		IS(kopi_flow_bind(flow, (struct sockaddr *)&name6, sizeof(name6)), 0);
	return flow;
}

/* A flow on a channel of its own. */
struct end {
	struct kopi_flow *flow;
	struct kopi_channel *channel;
	uint32_t number;
	struct sockaddr_storage name;
};

static struct end end_with(int family, const struct kopi_options *options)
{
	struct end end = { .flow = flow_of(family) };

	IS(kopi_channel_open(&end.channel, end.flow, options), 0);
	end.number = kopi_flow_number(end.flow);
	end.name = name_of(kopi_flow_fd(end.flow));
	return end;
}

static struct end end_of(int family)
{
	return end_with(family, NULL);
}

static void close_end(struct end *end)
{
	kopi_flow_close(end->flow);
	kopi_channel_close(end->channel);
}

static struct kopi_meta meta_to(const struct sockaddr_storage *name)
{
	struct kopi_meta meta;

	IS(kopi_meta_to(&meta, (const struct sockaddr *)name, size_of(name)), 0);
	return meta;
}

static void send_plain(int fd, const struct sockaddr_storage *to, const void *data, size_t len)
{
	IS(sendto(fd, data, len, 0, (const struct sockaddr *)to, size_of(to)), len);
}

/* Waits until there is something to receive. */
static void await(struct kopi_channel *channel)
{
	MUST(kopi_wait(channel, KOPI_READABLE, &patience) & KOPI_READABLE);
}

static int same(const struct sockaddr_storage *one, const struct sockaddr_storage *other)
{
	return !memcmp(one, other, size_of(one));
}

static unsigned char *pattern(size_t len)
{
	unsigned char *data = malloc(len + 1);

	for (size_t i = 0; i < len; i++)
		data[i] = i * 7 + i / 251;
	return data;
}

/* Both ways, by IPv4 and IPv6, with the addresses that each side sees. */
static void echo(void)
{
	for (int family = AF_INET; family; family = family == AF_INET ? AF_INET6 : 0) {
		struct end end = end_of(family);
		int fd = plain(family);
		struct sockaddr_storage peer = name_of(fd), name = { 0 };
		char buffer[64];

		for (int round = 0; round < 100; round++) {
			socklen_t len = sizeof(name);
			struct kopi_meta meta;
			uint32_t flow = 99;

			IS(kopi_recv(end.channel, buffer, sizeof(buffer), &meta, &flow), -EAGAIN);
			send_plain(fd, &end.name, &round, sizeof(round));
			await(end.channel);
			IS(kopi_recv(end.channel, buffer, sizeof(buffer), &meta, &flow), sizeof(round));
			IS(flow, end.number);
			IS(meta.len, sizeof(round));
			IS(memcmp(buffer, &round, sizeof(round)), 0);
			IS(kopi_meta_peer(&meta, &name), size_of(&peer));
			MUST(same(&name, &peer));
			IS(kopi_meta_local(&meta, &name), size_of(&peer));
			MUST(same(&name, &end.name));
			IS(kopi_meta_reply(&meta), 0);
			meta.flags |= KOPI_META_LOCAL;
			IS(kopi_send(end.channel, flow, buffer, sizeof(round), &meta), sizeof(round));
			IS(recvfrom(fd, buffer, sizeof(buffer), 0, (struct sockaddr *)&name, &len), sizeof(round));
			IS(memcmp(buffer, &round, sizeof(round)), 0);
			MUST(same(&name, &end.name));
		}
		/* Nothing is something, too. */
		send_plain(fd, &end.name, "", 0);
		await(end.channel);
		IS(kopi_recv(end.channel, NULL, 0, NULL, NULL), 0);
		close_end(&end);
		close(fd);
	}
}

enum { PEERS = 64 };

/* Batches of 64 to 64 peers, and what they answer, in the frames in which it came. */
static void batches(void)
{
	struct end end = end_of(AF_INET);
	struct kopi_frame frames[PEERS];
	struct kopi_stats stats;
	int fds[PEERS];

	for (int i = 0; i < PEERS; i++)
		fds[i] = plain(AF_INET);
	for (int round = 0; round < 50; round++) {
		int count = 0, got, text[2];

		IS(kopi_reserve(end.channel, end.number, frames, PEERS), PEERS);
		for (int i = 0; i < PEERS; i++) {
			struct sockaddr_storage peer = name_of(fds[i]);

			IS(frames[i].len, 0);
			IS(frames[i].capacity, 2048 - 64);
			memcpy(frames[i].data, (int[]){ round, i }, sizeof(text));
			frames[i].len = sizeof(text);
			IS(kopi_meta_to(frames[i].meta, (struct sockaddr *)&peer, size_of(&peer)), 0);
		}
		IS(kopi_commit(end.channel, frames, PEERS), PEERS);
		IS(kopi_flush(end.channel), 1);
		for (int i = 0; i < PEERS; i++) {
			IS(recv(fds[i], text, sizeof(text), 0), sizeof(text));
			MUST(text[0] == round && text[1] == i);
			send_plain(fds[i], &end.name, text, sizeof(text));
		}
		while (count < PEERS) {
			await(end.channel);
			got = kopi_recv_frames(end.channel, frames, PEERS);
			MUST(got > 0);
			for (int i = 0; i < got; i++, count++) {
				struct sockaddr_storage peer = name_of(fds[count]), name = { 0 };

				memcpy(text, frames[i].data, sizeof(text));
				MUST(text[0] == round && text[1] == count && frames[i].len == sizeof(text));
				IS(kopi_meta_peer(frames[i].meta, &name), size_of(&peer));
				MUST(same(&name, &peer));
				IS(kopi_meta_reply(frames[i].meta), 0);
				((char *)frames[i].data)[0] ^= 0x55;
			}
			IS(kopi_commit(end.channel, frames, got), got);
		}
		IS(kopi_flush(end.channel), 1);
		for (int i = 0; i < PEERS; i++) {
			IS(recv(fds[i], text, sizeof(text), 0), sizeof(text));
			MUST(text[0] == (round ^ 0x55) && text[1] == i);
		}
	}
	IS(kopi_flow_stats(end.flow, &stats), 0);
	IS(stats.tx_packets, 2 * 50 * PEERS);
	IS(stats.rx_packets, 50 * PEERS);
	IS(stats.tx_errors, 0);
	close_end(&end);
}

/* What a buffer is too short for; what takes several frames; parts of frames. */
static void lengths(void)
{
	static const size_t sizes[] = { 1, 1983, 1984, 1985, 5000, 65507 };
	struct end end = end_of(AF_INET);
	int fd = plain(AF_INET), count;
	struct sockaddr_storage peer = name_of(fd);
	struct kopi_meta to = meta_to(&peer), meta;
	unsigned char *data = pattern(70000), *buffer = malloc(70000);
	struct kopi_frame frames[KOPI_CHAIN_MAX];

	/* Shortened. */
	send_plain(fd, &end.name, data, 1000);
	await(end.channel);
	memset(buffer, 0xee, 20);
	IS(kopi_recv(end.channel, buffer, 10, &meta, NULL), 10);
	IS(meta.len, 1000);
	IS(memcmp(buffer, data, 10), 0);
	IS(buffer[10], 0xee);
	send_plain(fd, &end.name, data, 5000);
	await(end.channel);
	IS(kopi_recv(end.channel, buffer, 2000, &meta, NULL), 2000);
	IS(meta.len, 5000);
	IS(memcmp(buffer, data, 2000), 0);
	IS(kopi_recv(end.channel, buffer, 10, NULL, NULL), -EAGAIN);

	for (unsigned int i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		int needed = (sizes[i] + 1983) / 1984;

		IS(kopi_send(end.channel, end.number, data, sizes[i], &to), sizes[i]);
		IS(recv(fd, buffer, 70000, 0), sizes[i]);
		IS(memcmp(buffer, data, sizes[i]), 0);
		send_plain(fd, &end.name, data, sizes[i]);
		await(end.channel);
		/* Into as many elements as it needs, and no fewer. */
		if (needed > 1)
			IS(kopi_recv_frames(end.channel, frames, needed - 1), -EMSGSIZE);
		count = kopi_recv_frames(end.channel, frames, KOPI_CHAIN_MAX);
		IS(count, needed);
		for (int j = 0; j < count; j++) {
			IS(!!(frames[j].flags & KOPI_DESC_MORE), j < count - 1);
			IS(!frames[j].meta, j > 0);
			IS(memcmp(frames[j].data, data + 1984 * j, frames[j].len), 0);
		}
		IS(frames[0].meta->len, sizes[i]);
		/* Back, without the first byte. */
		IS(kopi_meta_reply(frames[0].meta), 0);
		frames[0].data = (char *)frames[0].data + 1;
		frames[0].len--;
		IS(kopi_commit(end.channel, frames, count), count);
		IS(kopi_flush(end.channel), 1);
		IS(recv(fd, buffer, 70000, 0), sizes[i] - 1);
		IS(memcmp(buffer, data + 1, sizes[i] - 1), 0);
		send_plain(fd, &end.name, data, sizes[i]);
		await(end.channel);
		IS(kopi_recv(end.channel, buffer, 70000, NULL, NULL), sizes[i]);
		IS(memcmp(buffer, data, sizes[i]), 0);
	}
	IS(kopi_send(end.channel, end.number, data, 65508, &to), -EMSGSIZE);
	IS(kopi_send(end.channel, end.number, data, 65536, &to), -EMSGSIZE);
	IS(kopi_queue(end.channel, end.number, data, 65536, &to), -EMSGSIZE);
	IS(kopi_queue(end.channel, end.number, data, -1, &to), -EMSGSIZE);
	IS(kopi_send(end.channel, end.number, NULL, 0, &to), 0);
	IS(recv(fd, buffer, 1, 0), 0);
	close_end(&end);
}

/* What can't be opened, and why. */
static void refused_to_open(void)
{
	struct sockaddr_in taken, far = local4(9);
	struct kopi_options options = { 0 };
	struct end end = end_of(AF_INET), other = end_of(AF_INET);
	struct rlimit none = { 0 }, before;
	struct kopi_channel *channel = NULL;
	struct kopi_flow *flow, *fresh = flow_of(AF_INET);
	int corked = 1;

	memcpy(&taken, &end.name, sizeof(taken));
	IS(kopi_flow_open(&flow, AF_INET), 0);
	IS(kopi_flow_bind(flow, (struct sockaddr *)&taken, sizeof(taken)), -EADDRINUSE);
	far.sin_addr.s_addr = htonl(0xc6336401);
	far.sin_port = 0;
	IS(kopi_flow_bind(flow, (struct sockaddr *)&far, sizeof(far)), -EADDRNOTAVAIL);
	IS(kopi_flow_bind(flow, (struct sockaddr *)&far, 3), -EINVAL);
	if (geteuid()) {
		taken.sin_port = htons(80);
		IS(kopi_flow_bind(flow, (struct sockaddr *)&taken, sizeof(taken)), -EACCES);
	}
	IS(kopi_flow_number(flow), -ENOTCONN);
	IS(kopi_flow_open(&flow, AF_UNIX), -EAFNOSUPPORT);

	/* Options. */
	options.tx_entries = 3;
	IS(kopi_channel_open(&channel, fresh, &options), -EINVAL);
	options = (struct kopi_options){ .frame_size = 2047 };
	IS(kopi_channel_open(&channel, fresh, &options), -EINVAL);
	options = (struct kopi_options){ .flags = KOPI_CHANNEL_GRO_MERGED };
	IS(kopi_channel_open(&channel, fresh, &options), -EINVAL);
	options = (struct kopi_options){ .flags = 1u << 31 };
	IS(kopi_channel_open(&channel, fresh, &options), -EINVAL);
	options = (struct kopi_options){ .reserved[9] = 1 };
	IS(kopi_channel_open(&channel, fresh, &options), -EINVAL);
	MUST(!channel);
	IS(kopi_channel_open(&channel, end.flow, NULL), -EBUSY);
	IS(kopi_flow_join(other.flow, end.channel), -EBUSY);
	MUST(!setsockopt(kopi_flow_fd(fresh), SOL_UDP, UDP_CORK, &corked, sizeof(corked)));
	IS(kopi_channel_open(&channel, fresh, NULL), -EBUSY);
	kopi_flow_close(fresh);
	fresh = flow_of(AF_INET);

	/* Limits. */
	MUST(!getrlimit(RLIMIT_MEMLOCK, &before));
	MUST(!setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ .rlim_max = before.rlim_max }));
	if (geteuid()) {
		IS(kopi_channel_open(&channel, fresh, NULL), -ENOBUFS);
		MUST(strstr(kopi_strerror(-ENOBUFS), "RLIMIT_MEMLOCK"));
	}
	MUST(!setrlimit(RLIMIT_MEMLOCK, &before));
	IS(kopi_channel_open(&channel, fresh, NULL), 0);
	MUST(!getrlimit(RLIMIT_NOFILE, &before));
	none.rlim_max = before.rlim_max;
	MUST(!setrlimit(RLIMIT_NOFILE, &none));
	IS(kopi_flow_open(&flow, AF_INET), -EMFILE);
}

/* What the kernel says of a datagram, and of a flow. */
static void refused_to_send(void)
{
	struct end end = end_of(AF_INET), six = end_of(AF_INET6);
	int fd = plain(AF_INET);
	struct sockaddr_storage peer = name_of(fd), gone = peer;
	struct sockaddr_in far = local4(9);
	struct kopi_meta meta;

	IS(kopi_send(end.channel, end.number, "x", 1, NULL), -EDESTADDRREQ);
	meta = meta_to(&peer);
	IS(kopi_send(end.channel, 77, "x", 1, &meta), -EBADF);
	meta.flags = 1u << 15;
	IS(kopi_send(end.channel, end.number, "x", 1, &meta), -EINVAL);
	meta = meta_to(&peer);
	meta.gso_size = 100;
	IS(kopi_send(end.channel, end.number, "x", 1, &meta), -EINVAL);
	far.sin_addr.s_addr = htonl(INADDR_BROADCAST);
	IS(kopi_meta_to(&meta, (struct sockaddr *)&far, sizeof(far)), 0);
	IS(kopi_send(end.channel, end.number, "x", 1, &meta), -EACCES);
	if (geteuid()) {
		meta = meta_to(&peer);
		meta.mark = 1;
		meta.flags = KOPI_META_MARK;
		IS(kopi_send(end.channel, end.number, "x", 1, &meta), -EPERM);
	}
	/* Nobody is there. */
	close(fd);
	IS(kopi_flow_connect(end.flow, (struct sockaddr *)&gone, size_of(&gone)), 0);
	IS(kopi_send(end.channel, end.number, "x", 1, NULL), 1);
	MUST(kopi_wait(end.channel, KOPI_READABLE, &patience) & KOPI_ERROR);
	IS(kopi_flow_error(end.flow), -ECONNREFUSED);
	IS(kopi_flow_error(end.flow), 0);
	/* The next one works, after connecting to another. */
	fd = plain(AF_INET);
	peer = name_of(fd);
	IS(kopi_flow_connect(end.flow, (struct sockaddr *)&peer, size_of(&peer)), 0);
	IS(kopi_send(end.channel, end.number, "x", 1, NULL), 1);
	IS(recv(fd, (char[2]){ 0 }, 2, 0), 1);
	/* No route leads there. */
	IS(kopi_meta_to(&meta, (struct sockaddr *)&(struct sockaddr_in6){ .sin6_family = AF_INET6,
		.sin6_port = 9, .sin6_addr.s6_addr = { 0x20, 1, 0xd, 0xb9 } }, sizeof(struct sockaddr_in6)), 0);
	IS(kopi_send(six.channel, six.number, "x", 1, &meta), -ENETUNREACH);
	close_end(&end);
	close_end(&six);
}

/* Frames that aren't the program's, or not so. */
static void foreign_frames(void)
{
	struct end end = end_of(AF_INET), other = end_of(AF_INET);
	struct kopi_frame frames[KOPI_CHAIN_MAX + 1], bad, all[1024];
	int fd = plain(AF_INET), count;
	struct sockaddr_storage peer = name_of(fd);
	struct kopi_stats stats;

	IS(kopi_flow_connect(end.flow, (struct sockaddr *)&peer, size_of(&peer)), 0);
	IS(kopi_reserve(end.channel, end.number, frames, 2), 2);
	frames[0].len = frames[1].len = 1;
	bad = frames[0];
	bad.data = (char *)bad.data - 1;
	IS(kopi_commit(end.channel, &bad, 1), -EINVAL);
	bad = frames[0];
	bad.len = bad.capacity + 1;
	IS(kopi_commit(end.channel, &bad, 1), -EINVAL);
	bad.len = UINT32_MAX;
	IS(kopi_commit(end.channel, &bad, 1), -EINVAL);
	bad = frames[0];
	bad.data = NULL;
	IS(kopi_commit(end.channel, &bad, 1), -EINVAL);
	bad = frames[0];
	bad.data = (void *)UINTPTR_MAX;
	IS(kopi_commit(end.channel, &bad, 1), -EINVAL);
	bad = frames[0];
	bad.id++;
	IS(kopi_commit(end.channel, &bad, 1), -EINVAL);
	IS(kopi_release(end.channel, &bad, 1), -EINVAL);
	for (unsigned int id = 0; id < 32; id++) {
		bad.id = 1u << id;
		MUST(bad.id == frames[0].id || bad.id == frames[1].id ||
		     kopi_release(end.channel, &bad, 1) == -EINVAL);
	}
	bad = frames[0];
	bad.flags = 1u << 20;
	IS(kopi_commit(end.channel, &bad, 1), -EINVAL);
	/* It never ends; one twice; of another channel; one that was sent; one that was given back. */
	bad = frames[0];
	bad.flags |= KOPI_DESC_MORE;
	IS(kopi_commit(end.channel, &bad, 1), -EINVAL);
	IS(kopi_commit(end.channel, (struct kopi_frame[]){ bad, frames[0] }, 2), -EINVAL);
	IS(kopi_commit(other.channel, frames, 1), -EINVAL);
	IS(kopi_commit(end.channel, (struct kopi_frame[]){ frames[0], frames[0] }, 2), 1);
	IS(kopi_release(end.channel, frames, 1), -EINVAL);
	IS(kopi_release(end.channel, frames + 1, 1), 0);
	IS(kopi_release(end.channel, frames + 1, 1), -EINVAL);
	IS(kopi_commit(end.channel, frames + 1, 1), -EINVAL);
	IS(kopi_flush(end.channel), 1);
	IS(kopi_commit(end.channel, NULL, 0), 0);
	IS(kopi_commit(end.channel, NULL, 1), -EINVAL);
	IS(kopi_recv_frames(end.channel, NULL, 1), -EINVAL);
	IS(kopi_recv(end.channel, NULL, 1, NULL, NULL), -EINVAL);
	IS(kopi_send(end.channel, end.number, NULL, 1, NULL), -EINVAL);

	/* Too many for one packet. */
	IS(kopi_reserve(end.channel, end.number, frames, KOPI_CHAIN_MAX + 1), KOPI_CHAIN_MAX + 1);
	for (unsigned int i = 0; i < KOPI_CHAIN_MAX; i++)
		frames[i].flags |= KOPI_DESC_MORE;
	IS(kopi_commit(end.channel, frames, KOPI_CHAIN_MAX + 1), -EMSGSIZE);
	IS(kopi_release(end.channel, frames, KOPI_CHAIN_MAX + 1), 0);

	/* All there are, twice: none was lost. */
	for (int round = 0; round < 2; round++) {
		count = kopi_reserve(end.channel, end.number, all, 1024);
		IS(count, 512);
		IS(kopi_reserve(end.channel, end.number, all + count, 1), 0);
		IS(kopi_send(end.channel, end.number, "x", 1, NULL), -EAGAIN);
		IS(kopi_release(end.channel, all, count), 0);
	}
	IS(kopi_flow_stats(end.flow, &stats), 0);
	IS(stats.tx_packets, 1);
	IS(stats.tx_invalid, 0);
	close_end(&end);
	close_end(&other);
}

/* What became of each packet. */
static void completions(void)
{
	struct end end = end_of(AF_INET);
	struct kopi_completion done[16];
	struct kopi_frame frames[10];
	int fd = plain(AF_INET);
	struct sockaddr_storage peer = name_of(fd);
	long queued = 0, result;

	IS(kopi_flow_connect(end.flow, (struct sockaddr *)&peer, size_of(&peer)), 0);
	IS(kopi_complete(end.channel, done, 16), 0);
	IS(kopi_reserve(end.channel, end.number, frames, 10), 10);
	for (int i = 0; i < 10; i++)
		frames[i].len = i;
	frames[3].flow = 77;
	frames[5].flags |= KOPI_DESC_MORE;
	IS(kopi_commit(end.channel, frames, 10), 10);
	IS(kopi_doorbell(end.channel), 1);
	MUST(kopi_wait(end.channel, KOPI_COMPLETED, &patience) & KOPI_COMPLETED);
	IS(kopi_complete(end.channel, done, 4), 4);
	IS(kopi_complete(end.channel, done + 4, 0), 0);
	IS(kopi_complete(end.channel, done + 4, 12), 6);
	for (int i = 0; i < 10; i++) {
		IS(done[i].id, frames[i].id);
		IS(done[i].len, i);
		IS(done[i].flow, i == 3 ? 77u : end.number);
		IS(done[i].error, i == 3 ? EBADF : 0);
		IS(done[i].flags, i == 5 ? KOPI_DESC_MORE : 0);
	}
	/* While completions aren't taken, frames run out. */
	while ((result = kopi_queue(end.channel, end.number, "x", 1, NULL)) == 1) {
		queued++;
		IS(kopi_doorbell(end.channel), 1);
	}
	IS(result, -EAGAIN);
	IS(queued, 512);
	IS(kopi_flush(end.channel), 1);
	IS(kopi_queue(end.channel, end.number, "x", 1, NULL), 1);
	close_end(&end);
}

/* GSO and GRO packets, on channels that have asked for them. */
static void offloads(void)
{
	struct kopi_options gso = { .flags = KOPI_CHANNEL_GSO, .rx_frames = KOPI_NO_FRAMES };
	struct kopi_options gro = { .flags = KOPI_CHANNEL_GRO | KOPI_CHANNEL_GRO_MERGED | KOPI_CHANNEL_ENGINE,
				    .frame_size = 4096, .frames = 256, .rx_frames = 200, .tx_entries = 64,
				    .rx_entries = 256 };
	struct end from = end_with(AF_INET, &gso), to = end_with(AF_INET, &gro);
	unsigned char *data = pattern(10500), buffer[20000];
	struct kopi_frame frames[KOPI_CHAIN_MAX];
	struct kopi_meta meta = meta_to(&to.name);
	struct kopi_layout layout;
	unsigned long got = 0;
	int fd = plain(AF_INET), merged = 0;
	struct sockaddr_storage peer = name_of(fd);

	IS(kopi_channel_layout(to.channel, &layout), 0);
	MUST(layout.frame_size == 4096 && layout.frame_count == 256 && layout.tx.size == 64 && layout.rx.size == 256);
	IS(layout.flags, gro.flags);
	meta.gso_size = 1000;
	IS(kopi_send(from.channel, from.number, data, 10500, &meta), 10500);
	while (got < 10500) {
		long len;

		await(to.channel);
		len = kopi_recv(to.channel, buffer + got, sizeof(buffer) - got, &meta, NULL);
		MUST(len > 0);
		MUST(len <= 1000 || meta.gso_size == 1000);
		merged += meta.gso_size == 1000;
		got += len;
	}
	IS(memcmp(buffer, data, 10500), 0);
	MUST(merged);
	/* A plain socket gets datagrams. */
	meta = meta_to(&peer);
	meta.gso_size = 1000;
	IS(kopi_send(from.channel, from.number, data, 10500, &meta), 10500);
	for (int i = 0; i < 11; i++)
		IS(recv(fd, buffer, sizeof(buffer), 0), i < 10 ? 1000 : 500);
	/* Those queued in turn travel as one. */
	meta = meta_to(&to.name);
	for (int i = 0; i < 32; i++)
		IS(kopi_queue(from.channel, from.number, data + i, 100, &meta), 100);
	IS(kopi_flush(from.channel), 1);
	await(to.channel);
	IS(kopi_recv_frames(to.channel, frames, KOPI_CHAIN_MAX), 1);
	IS(frames[0].meta->gso_size, 100);
	IS(frames[0].len, 3200);
	for (int i = 0; i < 32; i++)
		IS(memcmp((char *)frames[0].data + 100 * i, data + i, 100), 0);
	IS(kopi_release(to.channel, frames, 1), 0);
	/* A channel that only sends receives nothing. */
	send_plain(fd, &from.name, "x", 1);
	IS(kopi_recv(from.channel, buffer, 1, NULL, NULL), -EAGAIN);
	close_end(&from);
	close_end(&to);
}

/* Control data, both ways. */
static void control_data(void)
{
	struct end from = end_of(AF_INET), to = end_of(AF_INET);
	struct kopi_meta meta = meta_to(&to.name);
	struct timespec now;
	int yes = 1;

	MUST(!setsockopt(kopi_flow_fd(to.flow), SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof(yes)));
	/* DSCP and ECN. */
	meta.tos = 0xb8 | 2;
	meta.ttl = 9;
	memcpy(meta.local, &(uint32_t){ htonl(0x7f000002) }, 4);
	meta.flags = KOPI_META_TOS | KOPI_META_TTL | KOPI_META_LOCAL;
	kopi_flow_close(from.flow);
	kopi_channel_close(from.channel);
	IS(kopi_flow_open(&from.flow, AF_INET), 0);
	IS(kopi_channel_open(&from.channel, from.flow, NULL), 0);
	IS(kopi_send(from.channel, kopi_flow_number(from.flow), "x", 1, &meta), 1);
	await(to.channel);
	IS(kopi_recv(to.channel, &yes, 1, &meta, NULL), 1);
	IS(meta.tos, 0xb8 | 2);
	IS(meta.ttl, 9);
	IS(memcmp(meta.peer, &(uint32_t){ htonl(0x7f000002) }, 4), 0);
	MUST(meta.ifindex);
	MUST(meta.flags & KOPI_META_TIMESTAMP);
	MUST(!clock_gettime(CLOCK_REALTIME, &now));
	MUST(now.tv_sec - (long)(meta.timestamp / 1000000000) < 60);
	close_end(&from);
	close_end(&to);
}

static void on_alarm(int signal)
{
	(void)signal;
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* Sleeps end when they should. */
static void waiting(void)
{
	struct timespec soon = { .tv_nsec = 50000000 }, wrong = { .tv_nsec = 1000000000 };
	struct itimerval alarm = { .it_value.tv_usec = 50000 };
	struct sigaction action = { .sa_handler = on_alarm };
	struct end end = end_of(AF_INET);
	int fd = plain(AF_INET);
	double start = seconds();

	IS(kopi_wait(end.channel, KOPI_READABLE, &soon), 0);
	MUST(seconds() - start >= 0.05);
	IS(kopi_wait(end.channel, KOPI_READABLE, &(struct timespec){ 0 }), 0);
	IS(kopi_wait(end.channel, KOPI_WRITABLE, NULL), KOPI_WRITABLE);
	IS(kopi_wait(end.channel, 0, &soon), -EINVAL);
	IS(kopi_wait(end.channel, KOPI_ERROR, &soon), -EINVAL);
	IS(kopi_wait(end.channel, 1u << 30, &soon), -EINVAL);
	IS(kopi_wait(end.channel, KOPI_READABLE, &wrong), -EINVAL);
	wrong = (struct timespec){ .tv_sec = -1 };
	IS(kopi_wait(end.channel, KOPI_READABLE, &wrong), -EINVAL);
	MUST(!sigaction(SIGALRM, &action, NULL));
	MUST(!setitimer(ITIMER_REAL, &alarm, NULL));
	IS(kopi_wait(end.channel, KOPI_READABLE, &patience), -EINTR);
	send_plain(fd, &end.name, "x", 1);
	IS(kopi_wait(end.channel, KOPI_READABLE, NULL), KOPI_READABLE);
	IS(kopi_recv(end.channel, &fd, 1, NULL, NULL), 1);
	close_end(&end);
}

/* The descriptor in an event loop of the program's own. */
static void event_loop(void)
{
	struct end end = end_of(AF_INET);
	struct epoll_event event = { .events = EPOLLIN | EPOLLWRBAND };
	int fd = plain(AF_INET), epoll = epoll_create1(0);
	struct kopi_frame frame;

	MUST(!epoll_ctl(epoll, EPOLL_CTL_ADD, kopi_channel_fd(end.channel), &event));
	for (int round = 0; round < 200; round++) {
		IS(kopi_arm(end.channel, 1), 0);
		IS(epoll_wait(epoll, &event, 1, 0), 0);
		send_plain(fd, &end.name, &round, sizeof(round));
		IS(epoll_wait(epoll, &event, 1, 60000), 1);
		MUST(event.events & EPOLLIN);
		IS(kopi_arm(end.channel, 1), 1);
		IS(kopi_arm(end.channel, 0), 1);
		IS(kopi_recv_frames(end.channel, &frame, 1), 1);
		IS(memcmp(frame.data, &round, sizeof(round)), 0);
		IS(kopi_meta_reply(frame.meta), 0);
		IS(kopi_commit(end.channel, &frame, 1), 1);
		IS(kopi_flush(end.channel), 1);
		IS(recv(fd, &(int){ 0 }, sizeof(int), 0), sizeof(int));
	}
	MUST(fcntl(kopi_channel_fd(end.channel), F_GETFD) & FD_CLOEXEC);
	close_end(&end);
	close(epoll);
}

/* Several flows on one channel. */
static void joined(void)
{
	struct end end = end_of(AF_INET);
	struct kopi_flow *flows[20];
	int fd = plain(AF_INET);
	struct sockaddr_storage peer = name_of(fd), name;
	struct kopi_meta to = meta_to(&peer);
	struct kopi_stats stats;
	uint32_t flow;

	for (int i = 0; i < 20; i++) {
		flows[i] = flow_of(i % 2 ? AF_INET6 : AF_INET);
		IS(kopi_flow_join(flows[i], end.channel), 0);
		MUST(kopi_flow_number(flows[i]) > 0);
	}
	for (int i = 0; i < 20; i += 2) {
		char buffer[8];
		socklen_t len = sizeof(name);

		name = name_of(kopi_flow_fd(flows[i]));
		send_plain(fd, &name, &i, sizeof(i));
		await(end.channel);
		IS(kopi_recv(end.channel, buffer, sizeof(buffer), NULL, &flow), sizeof(i));
		IS(flow, kopi_flow_number(flows[i]));
		IS(kopi_send(end.channel, flow, buffer, sizeof(i), &to), sizeof(i));
		IS(recvfrom(fd, buffer, sizeof(buffer), 0, (struct sockaddr *)&name, &len), sizeof(i));
		peer = name_of(kopi_flow_fd(flows[i]));
		MUST(same(&name, &peer));
	}
	IS(kopi_flow_stats(end.flow, &stats), 0);
	IS(stats.flows, 21);
	flow = kopi_flow_number(flows[0]);
	kopi_flow_close(flows[0]);
	IS(kopi_send(end.channel, flow, "x", 1, &to), -EBADF);
	/* The first flow goes, and the channel goes on. */
	kopi_flow_close(end.flow);
	IS(kopi_send(end.channel, kopi_flow_number(flows[2]), "x", 1, &to), 1);
	kopi_channel_close(end.channel);
	/* A flow without its channel is still a socket. */
	MUST(name_of(kopi_flow_fd(flows[2])).ss_family == AF_INET);
	for (int i = 1; i < 20; i++)
		kopi_flow_close(flows[i]);
}

enum { ROUNDS = 2000 };

/* Answers what comes, on a channel of its own, until an empty datagram. */
static void *answering(void *argument)
{
	struct end *end = argument;
	struct kopi_frame frames[16];
	int count, going = 1;

	while (going) {
		await(end->channel);
		while ((count = kopi_recv_frames(end->channel, frames, 16)) > 0) {
			for (int i = 0; i < count; i++) {
				going &= frames[i].len > 0;
				IS(kopi_meta_reply(frames[i].meta), 0);
			}
			IS(kopi_commit(end->channel, frames, count), count);
		}
		IS(kopi_flush(end->channel), 1);
	}
	return NULL;
}

/* Asks, from a channel of its own. */
static void *asking(void *argument)
{
	struct end *to = argument, end = end_of(AF_INET);
	struct kopi_meta meta = meta_to(&to->name);
	struct kopi_stats stats;

	for (int round = 0; round < ROUNDS; round++) {
		int answer = -1;

		IS(kopi_send(end.channel, end.number, &round, sizeof(round), &meta), sizeof(round));
		await(end.channel);
		IS(kopi_recv(end.channel, &answer, sizeof(answer), NULL, NULL), sizeof(answer));
		IS(answer, round);
		/* Of the other thread's flow. */
		IS(kopi_flow_stats(to->flow, &stats), 0);
		IS(kopi_flow_error(to->flow), 0);
		MUST(!strcmp(kopi_strerror(-EIO), strerror(EIO)));
	}
	IS(kopi_send(end.channel, end.number, "", 0, &meta), 0);
	close_end(&end);
	return NULL;
}

/* Each thread has its channel, and one goes from a thread to another. */
static void threads(void)
{
	struct end end = end_of(AF_INET);
	struct kopi_stats stats;
	pthread_t server, client;
	char byte;

	MUST(!pthread_create(&server, NULL, answering, &end));
	MUST(!pthread_create(&client, NULL, asking, &end));
	MUST(!pthread_join(client, NULL));
	MUST(!pthread_join(server, NULL));
	/* The channel is this thread's again. */
	IS(kopi_recv(end.channel, &byte, 1, NULL, NULL), -EAGAIN);
	IS(kopi_flow_stats(end.flow, &stats), 0);
	IS(stats.rx_packets, ROUNDS + 1);
	IS(stats.tx_packets, ROUNDS + 1);
	close_end(&end);
}

/* Sending and receiving allocate nothing. */
static void no_allocations(void)
{
	struct end end = end_of(AF_INET);
	int fd = plain(AF_INET);
	struct sockaddr_storage peer = name_of(fd);
	struct kopi_meta meta = meta_to(&peer);
	struct kopi_frame frames[16];
	static unsigned char data[5000];
	unsigned long before = allocations;

	MUST(before);
	for (int round = 0; round < 500; round++) {
		IS(kopi_send(end.channel, end.number, data, 5000, &meta), 5000);
		IS(recv(fd, data, sizeof(data), 0), 5000);
		send_plain(fd, &end.name, data, 5000);
		await(end.channel);
		IS(kopi_recv_frames(end.channel, frames, 16), 3);
		IS(kopi_meta_reply(frames[0].meta), 0);
		IS(kopi_commit(end.channel, frames, 3), 3);
		IS(kopi_flush(end.channel), 1);
		IS(recv(fd, data, sizeof(data), 0), 5000);
		send_plain(fd, &end.name, data, 10);
		await(end.channel);
		IS(kopi_recv(end.channel, data, sizeof(data), NULL, NULL), 10);
		IS(kopi_recv(end.channel, data, sizeof(data), NULL, NULL), -EAGAIN);
		IS(kopi_reserve(end.channel, end.number, frames, 16), 16);
		IS(kopi_release(end.channel, frames, 16), 0);
		IS(kopi_queue(end.channel, end.number, data, 3, &meta), 3);
		IS(kopi_doorbell(end.channel), 1);
		MUST(kopi_complete(end.channel, &(struct kopi_completion){ 0 }, 1) == 1);
		IS(recv(fd, data, sizeof(data), 0), 3);
	}
	IS(allocations - before, 0);
	close_end(&end);
}

/* Kilobytes of a line of /proc/self/status. */
static long status(const char *name)
{
	char line[128];
	long value = -1;
	FILE *file = fopen("/proc/self/status", "re");

	MUST(!!file);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)))
			value = atol(line + strlen(name) + 1);
	fclose(file);
	return value;
}

static void open_and_close(int count)
{
	for (int i = 0; i < count; i++) {
		struct end end = end_of(AF_INET);
		struct kopi_frame frames[10];
		struct kopi_meta meta = meta_to(&end.name);

		IS(kopi_send(end.channel, end.number, "x", 1, &meta), 1);
		IS(kopi_reserve(end.channel, end.number, frames, 10), 10);
		if (i % 2) {
			close_end(&end);
		} else {
			kopi_channel_close(end.channel);
			kopi_flow_close(end.flow);
		}
	}
}

/* A thousand channels leave nothing behind. */
static void leaks(void)
{
	long memory, mapped;
	int fd;

	open_and_close(50);
	memory = status("VmRSS");
	mapped = status("VmSize");
	fd = dup(0);
	close(fd);
	open_and_close(1000);
	IS(status("VmSize"), mapped);
	MUST(status("VmRSS") - memory < 256);
	IS(dup(0), fd);
}

/* A send buffer that is full, and empties: by way of the peer given, behind a slow device. */
static void full_send_buffer(const char *peer)
{
	struct kopi_flow *flow;
	struct kopi_channel *channel;
	struct sockaddr_in to = local4(9);
	struct kopi_meta meta;
	struct kopi_stats stats;
	static char data[1400];
	int small = 4608, sent = 0, stopped = 0;
	long result;

	to.sin_addr.s_addr = htonl(strtoul(peer, NULL, 16));
	IS(kopi_flow_open(&flow, AF_INET), 0);
	MUST(!setsockopt(kopi_flow_fd(flow), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)));
	IS(kopi_channel_open(&channel, flow, NULL), 0);
	IS(kopi_meta_to(&meta, (struct sockaddr *)&to, sizeof(to)), 0);
	while (sent < 30) {
		result = kopi_send(channel, kopi_flow_number(flow), data, sizeof(data), &meta);
		if (result == -EAGAIN) {
			stopped++;
			MUST(kopi_wait(channel, KOPI_WRITABLE | KOPI_COMPLETED, &patience) > 0);
			continue;
		}
		IS(result, sizeof(data));
		sent++;
	}
	MUST(stopped);
	while (!kopi_flush(channel))
		MUST(kopi_wait(channel, KOPI_WRITABLE, &patience) > 0);
	IS(kopi_flow_stats(flow, &stats), 0);
	IS(stats.tx_packets, 30);
	IS(stats.tx_errors, 0);
	kopi_channel_close(channel);
	kopi_flow_close(flow);
}

/* Without the module. */
static void absent(void)
{
	struct kopi_flow *flow;

	IS(kopi_family(), -EAFNOSUPPORT);
	IS(kopi_flow_open(&flow, AF_INET), -EAFNOSUPPORT);
	IS(kopi_flow_open(&flow, AF_INET6), -EAFNOSUPPORT);
	MUST(strstr(kopi_strerror(-EAFNOSUPPORT), "not loaded"));
	MUST(!setenv("KOPI_FAMILY", "2", 1));
	IS(kopi_family(), -EAFNOSUPPORT);
	MUST(!setenv("KOPI_FAMILY", "nonsense", 1));
	IS(kopi_family(), -EINVAL);
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "echo", echo },
	{ "batches", batches },
	{ "lengths", lengths },
	{ "refused_to_open", refused_to_open },
	{ "refused_to_send", refused_to_send },
	{ "foreign_frames", foreign_frames },
	{ "completions", completions },
	{ "offloads", offloads },
	{ "control_data", control_data },
	{ "waiting", waiting },
	{ "event_loop", event_loop },
	{ "joined", joined },
	{ "threads", threads },
	{ "no_allocations", no_allocations },
	{ "leaks", leaks },
};

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	if (!strcmp(name, "absent"))
		return absent(), 0;
	if (!strcmp(name, "full_send_buffer") && argc > 2)
		return full_send_buffer(argv[2]), 0;
	for (unsigned int i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
		if (!strcmp(name, "list"))
			puts(tests[i].name);
		else if (!strcmp(name, tests[i].name))
			return tests[i].run(), 0;
	}
	return strcmp(name, "list") ? 2 : 0;
}
