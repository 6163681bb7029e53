// SPDX-License-Identifier: GPL-2.0
/* Datagrams out and in. */
#include "library_c.h"

/* Both ways, by IPv4 and IPv6, with the addresses that each side sees. */
void echo(void)
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
void batches(void)
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
void lengths(void)
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

/* GSO and GRO packets, on channels that have asked for them. */
void offloads(void)
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
void control_data(void)
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
