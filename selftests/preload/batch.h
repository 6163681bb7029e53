/* SPDX-License-Identifier: GPL-2.0 */
/* A list of messages that a ring has, for the programs here. */

#ifndef BATCH_H
#define BATCH_H

#include <sys/socket.h>

#define BATCH 8
/* More than one doorbell sends. */
#define LONG_BATCH 128

static inline int send_list(int fd, int count)
{
	struct mmsghdr messages[LONG_BATCH] = {};
	struct iovec piece = { "batch", 5 };
	int sent;

	for (int i = 0; i < count; i++) {
		messages[i].msg_hdr.msg_iov = &piece;
		messages[i].msg_hdr.msg_iovlen = 1;
	}
	sent = sendmmsg(fd, messages, count, 0);
	for (int i = 0; i < sent; i++)
		if (messages[i].msg_len != 5)
			return -1;
	return sent;
}

static inline int send_batch(int fd)
{
	return send_list(fd, BATCH);
}

#endif
