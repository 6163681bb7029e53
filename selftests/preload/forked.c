// SPDX-License-Identifier: GPL-2.0
/*
 * A signal handler that calls fork() while the thread is in sendmmsg(): both processes come back from that
 * call, and say what it gave. The signal is that of a socket that has received, which sends to itself. For
 * preload_kinds.py.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "batch.h"
#include "channel.h"

#define ROUNDS 5

static volatile sig_atomic_t is_armed;
static volatile pid_t child;

static void on_datagram(int number)
{
	(void)number;
	if (is_armed) {
		is_armed = 0;
		child = fork();
	}
}

static bool receives(int fd)
{
	char got[16];
	ssize_t size;

	do {
		size = recv(fd, got, sizeof(got), 0);
	} while (size < 0 && errno == EINTR);
	return size == 5;
}

static void send_forking(int fd, int count)
{
	int status = -1, sent;

	child = -1;
	is_armed = 1;
	sent = send_list(fd, count);
	/* On a busy machine the signal may be late. */
	while (child == -1)
		usleep(1000);
	if (child == 0) {
		printf("child: sent %d\n", sent);
		fflush(stdout);
		_exit(0);
	}
	waitpid(child, &status, 0);
	printf("parent: sent %d, the child ended with %d\n", sent, status);
	fflush(stdout);
}

int main(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sigaction action = { .sa_handler = on_datagram };
	struct timeval patience = { .tv_sec = 20 };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	socklen_t len = sizeof(name);

	if (fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof(name)) ||
	    getsockname(fd, (struct sockaddr *)&name, &len) ||
	    connect(fd, (struct sockaddr *)&name, sizeof(name)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) ||
	    sigaction(SIGIO, &action, NULL) || fcntl(fd, F_SETOWN, getpid()) ||
	    fcntl(fd, F_SETFL, O_ASYNC))
		return 1;
	/* The first one puts it on a channel. */
	send(fd, "first", 5, 0);
	receives(fd);
	for (int i = 0; i < ROUNDS; i++) {
		int count = 0, all = i % 2 ? LONG_BATCH : BATCH;

		send_forking(fd, all);
		while (count < all && receives(fd))
			count++;
		printf("received %d\n", count);
		fflush(stdout);
	}
	print_channel(fd);
	close(fd);
	return 0;
}
