// SPDX-License-Identifier: GPL-2.0
/*
 * Threads that are to be cancelled (pthread_cancel()) when they make a first socket, when a first datagram
 * puts it on a channel, and when a ring sends: says whether each ended there, or went on to the next call
 * that may be cancelled. For preload_kinds.py.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "batch.h"
#include "channel.h"

/* More than there are rings. */
#define ROUNDS 40

static struct sockaddr_in here;
static atomic_bool is_ready, is_cancelled;
/* The last call that the thread came back from. */
static const char *came_to;

/* Until somebody has cancelled this thread. Nothing here is a place for that to happen. */
static void await_cancellation(void)
{
	is_ready = true;
	while (!is_cancelled)
		;
}

static int connected(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	return fd < 0 || connect(fd, (struct sockaddr *)&here, sizeof(here)) ? -1 : fd;
}

static void *at_socket(void *unused)
{
	int fd;

	await_cancellation();
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	came_to = fd < 0 ? "no socket" : "socket";
	send(fd, "", 0, 0);
	came_to = "send";
	return unused;
}

static void *at_join(void *unused)
{
	int fd = connected();

	await_cancellation();
	came_to = "begin";
	send(fd, "first", 5, 0);
	came_to = "send";
	return unused;
}

static void *at_batch(void *unused)
{
	int fd = connected();

	/* The first one puts it on a channel. */
	send(fd, "first", 5, 0);
	await_cancellation();
	came_to = "begin";
	send_batch(fd);
	came_to = "sendmmsg";
	return unused;
}

static void cancel(const char *name, void *(*work)(void *))
{
	void *result = NULL;
	pthread_t thread;

	is_ready = is_cancelled = false;
	came_to = "nothing";
	pthread_create(&thread, NULL, work, NULL);
	while (!is_ready)
		;
	pthread_cancel(thread);
	is_cancelled = true;
	pthread_join(thread, &result);
	printf("%s: came to %s, %s\n", name, came_to, result == PTHREAD_CANCELED ? "cancelled" : "ended");
	fflush(stdout);
}

/* Whether this thread still sends, and receives it. */
static void goes_on(void)
{
	struct timeval patience = { .tv_sec = 20 };
	struct sockaddr_in name = here;
	socklen_t len = sizeof(name);
	char got[16];
	int fd = socket(AF_INET, SOCK_DGRAM, 0), count = 0;

	name.sin_port = 0;
	if (bind(fd, (struct sockaddr *)&name, sizeof(name)) || getsockname(fd, (struct sockaddr *)&name, &len) ||
	    connect(fd, (struct sockaddr *)&name, sizeof(name)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)))
		return;
	send(fd, "first", 5, 0);
	printf("sent %d\n", send_batch(fd));
	while (count < 1 + BATCH && recv(fd, got, sizeof(got), 0) == 5)
		count++;
	printf("received %d\n", count);
	print_channel(fd);
	close(fd);
}

int main(void)
{
	here = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(9),
				     .sin_addr.s_addr = inet_addr("127.0.0.1") };
	cancel("socket", at_socket);
	for (int i = 0; i < ROUNDS; i++) {
		cancel("join", at_join);
		cancel("batch", at_batch);
	}
	goes_on();
	return 0;
}
