// SPDX-License-Identifier: GPL-2.0
/*
 * Signal handlers that leave by siglongjmp(): out of the first send of sockets, again and again, and then out
 * of a sendmmsg() that has sent. Says in how many rounds the thread couldn't be cancelled any more, and whether
 * a further socket gets to a channel. For preload_kinds.py.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "batch.h"
#include "channel.h"

#define ROUNDS 300

static sigjmp_buf back;
static volatile sig_atomic_t is_armed;
static atomic_bool is_over;
static pthread_t sender;

static void on_signal(int number)
{
	(void)number;
	if (is_armed) {
		is_armed = 0;
		siglongjmp(back, 1);
	}
}

static int self_connected(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	socklen_t len = sizeof(name);

	if (fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof(name)) ||
	    getsockname(fd, (struct sockaddr *)&name, &len) ||
	    connect(fd, (struct sockaddr *)&name, sizeof(name)))
		return -1;
	return fd;
}

static void *interrupt(void *unused)
{
	while (!is_over)
		if (is_armed)
			pthread_kill(sender, SIGUSR1);
	return unused;
}

/* Whether this thread could still be cancelled after a jump out of a socket's first send. */
static bool first_send(void)
{
	int fd = self_connected(), state;

	if (!sigsetjmp(back, 1)) {
		is_armed = 1;
		send(fd, "first", 5, 0);
		is_armed = 0;
	}
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
	return state == PTHREAD_CANCEL_ENABLE;
}

static void leave_batch(int fd)
{
	/* What has come signals that as the call returns. */
	if (fcntl(fd, F_SETOWN, getpid()) || fcntl(fd, F_SETFL, O_ASYNC))
		return;
	if (!sigsetjmp(back, 1)) {
		is_armed = 1;
		send_batch(fd);
		is_armed = 0;
	}
	fcntl(fd, F_SETFL, 0);
}

int main(void)
{
	struct sigaction action = { .sa_handler = on_signal };
	int fd, stuck = 0, sent = 0;
	pthread_t thread;

	sender = pthread_self();
	if (sigaction(SIGIO, &action, NULL) || sigaction(SIGUSR1, &action, NULL))
		return 1;
	if (pthread_create(&thread, NULL, interrupt, NULL))
		return 1;
	for (int i = 0; i < ROUNDS; i++)
		stuck += !first_send();
	is_over = true;
	pthread_join(thread, NULL);
	printf("stuck: %d\n", stuck);
	/* A ring that is left so. */
	fd = self_connected();
	send(fd, "first", 5, 0);
	leave_batch(fd);
	fd = self_connected();
	for (int i = 0; i < 20; i++)
		sent += send(fd, "first", 5, 0) == 5;
	printf("sent %d\n", sent);
	print_channel(fd);
	return 0;
}
