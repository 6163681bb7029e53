/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A UDP echo server with libkopi, in C11, which answers from the frames in which the
 * questions came: cc libkopi-echo.c $(pkg-config --cflags --libs kopi); ./a.out 0.0.0.0 7777
 */
#include <kopi.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64 };

static int check(int result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "libkopi-echo: %s: %s\n", what, kopi_strerror(result));
		exit(1);
	}
	return result;
}

/* Whether an answer can come from where the question went: a multicast address and 255.255.255.255 can't be. */
static int can_be_source(const struct kopi_meta *meta)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
	const unsigned char *host = meta->local;

	if (meta->family == AF_INET6) {
		if (memcmp(host, mapped, sizeof(mapped)))
			return host[0] != 0xff;
		host += sizeof(mapped);
	}
	return host[0] >> 4 != 14 && memcmp(host, "\xff\xff\xff\xff", 4);
}

/* Answers all that is there. */
static void answer(struct kopi_channel *channel)
{
	struct kopi_frame frames[KOPI_CHAIN_MAX + BATCH];
	int count, sent;

	while ((count = check(kopi_recv_frames(channel, frames, KOPI_CHAIN_MAX + BATCH),
			      "receiving")) > 0) {
		for (int i = 0; i < count; i++) {
			if (!frames[i].meta)
				continue;	/* the packet began earlier */
			kopi_meta_reply(frames[i].meta);
			/* From the address that was asked, or else one that the kernel chooses. */
			if (can_be_source(frames[i].meta))
				frames[i].meta->flags = KOPI_META_LOCAL;
		}
		/* What doesn't fit into the ring is dropped, as a network may. */
		sent = kopi_commit(channel, frames, count);
		if (sent < 0)
			sent = 0;
		kopi_release(channel, frames + sent, count - sent);
		check(kopi_flush(channel), "sending");
	}
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_socktype = SOCK_DGRAM, .ai_flags = AI_PASSIVE }, *address;
	struct kopi_channel *channel;
	struct kopi_flow *flow;

	if (argc != 3 || getaddrinfo(argv[1], argv[2], &hints, &address)) {
		fprintf(stderr, "usage: libkopi-echo ADDRESS PORT\n");
		return 2;
	}
	check(kopi_flow_open(&flow, address->ai_family), "no flow");
	check(kopi_flow_bind(flow, address->ai_addr, address->ai_addrlen), argv[1]);
	check(kopi_channel_open(&channel, flow, NULL), "no channel");
	printf("listening on %s port %s\n", argv[1], argv[2]);
	fflush(stdout);
	for (;;) {
		int events = KOPI_READABLE;

		if (!check(kopi_flush(channel), "sending"))
			events |= KOPI_WRITABLE;	/* the send buffer is full */
		/* As long as an error isn't taken, no wait sleeps. */
		if (check(kopi_wait(channel, events, NULL), "waiting") & KOPI_ERROR)
			fprintf(stderr, "libkopi-echo: %s\n",
				kopi_strerror(kopi_flow_error(flow)));
		answer(channel);
	}
}
