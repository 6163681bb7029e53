// SPDX-License-Identifier: GPL-2.0
/* What fails, and by which errno. */
#include <netinet/udp.h>
#include <sys/resource.h>
#include "library_c.h"

/* What can't be opened, and why. */
void refused_to_open(void)
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
void refused_to_send(void)
{
	struct end end = end_of(AF_INET), six = end_of(AF_INET6);
	int fd = plain(AF_INET);
	struct sockaddr_storage peer = name_of(fd), gone = peer;
	struct sockaddr_in far = local4(9);
	struct sockaddr_in6 far6 = {
		.sin6_family = AF_INET6, .sin6_port = 9, .sin6_addr.s6_addr = { 0x20, 1, 0xd, 0xb9 },
	};
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
	IS(kopi_meta_to(&meta, (struct sockaddr *)&far6, sizeof(far6)), 0);
	IS(kopi_send(six.channel, six.number, "x", 1, &meta), -ENETUNREACH);
	close_end(&end);
	close_end(&six);
}

/* Frames that aren't the program's, or not so. */
void foreign_frames(void)
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

/* Without the module. */
void absent(void)
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
