// SPDX-License-Identifier: GPL-2.0
/*
 * Sends datagrams to itself by each function that sends, and says what came: for preload_kinds.py, which
 * builds it in several ways. At the end, whether its socket is on a channel. With an argument it writes
 * beyond the end of an array, which is for AddressSanitizer.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "channel.h"

#define BATCH 8

static struct iovec piece(char *text)
{
	return (struct iovec){ text, strlen(text) };
}

/* Several at once, as a ring takes them. */
static int send_batch(int fd)
{
	struct mmsghdr messages[BATCH] = {};
	struct iovec pieces[BATCH];
	char texts[BATCH][8];

	for (int i = 0; i < BATCH; i++) {
		snprintf(texts[i], sizeof(texts[i]), "batch %d", i);
		pieces[i] = piece(texts[i]);
		messages[i].msg_hdr.msg_iov = &pieces[i];
		messages[i].msg_hdr.msg_iovlen = 1;
	}
	return sendmmsg(fd, messages, BATCH, 0);
}

static void send_all(int fd, const struct sockaddr_in *to)
{
	struct iovec pieces[2] = { piece("in two "), piece("pieces") };
	struct msghdr message = { .msg_iov = pieces, .msg_iovlen = 2 };

	printf("send %zd\n", send(fd, "one", 3, 0));
	printf("sendto %zd\n", sendto(fd, "two", 3, 0, (const struct sockaddr *)to, sizeof(*to)));
	printf("write %zd\n", write(fd, "three", 5));
	printf("writev %zd\n", writev(fd, pieces, 2));
	printf("sendmsg %zd\n", sendmsg(fd, &message, 0));
	printf("sendmmsg %d\n", send_batch(fd));
	printf("syscall %ld\n", syscall(SYS_sendto, fd, "four", 4, 0, NULL, 0));
}

int main(int argc, char **argv)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct timeval patience = { .tv_sec = 20 };
	socklen_t len = sizeof(name);
	char *got = malloc(100);

	if (fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof(name)) ||
	    getsockname(fd, (struct sockaddr *)&name, &len) ||
	    connect(fd, (struct sockaddr *)&name, sizeof(name)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)))
		return 1;
	send_all(fd, &name);
	for (int i = 0; i < 6 + BATCH; i++) {
		ssize_t size = recv(fd, got, 100, 0);

		printf("received %.*s\n", (int)size, got);
	}
	if (argc > 1)
		got[100 + argc] = argv[1][0];
	print_channel(fd);
	free(got);
	close(fd);
	return 0;
}
