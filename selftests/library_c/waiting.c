// SPDX-License-Identifier: GPL-2.0
/* Completions, sleeps, several flows, several threads. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include "library_c.h"

/* What became of each packet. */
void completions(void)
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
void waiting(void)
{
	struct timespec soon = { .tv_nsec = 50000000 }, wrong = { .tv_nsec = 1000000000 };
	/* Again and again: the first may come before the wait. */
	struct itimerval alarm = { .it_value.tv_usec = 50000, .it_interval.tv_usec = 50000 };
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
	MUST(!setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL));
	send_plain(fd, &end.name, "x", 1);
	IS(kopi_wait(end.channel, KOPI_READABLE, NULL), KOPI_READABLE);
	IS(kopi_recv(end.channel, &fd, 1, NULL, NULL), 1);
	close_end(&end);
}

/* The descriptor in an event loop of the program's own. */
void event_loop(void)
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
void joined(void)
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
void threads(void)
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

/* A send buffer that is full, and empties: by way of the peer given, behind a slow device. */
void full_send_buffer(const char *peer)
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
