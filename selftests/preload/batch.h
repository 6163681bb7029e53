/* SPDX-License-Identifier: GPL-2.0 */
/* A list of messages that a ring has, for the programs here. */

#ifndef BATCH_H
#define BATCH_H

#include <sys/socket.h>

#define BATCH 8

static inline int send_batch(int fd)
{
	struct mmsghdr messages[BATCH] = {};
	struct iovec piece = { "batch", 5 };

	for (int i = 0; i < BATCH; i++) {
		messages[i].msg_hdr.msg_iov = &piece;
		messages[i].msg_hdr.msg_iovlen = 1;
	}
	return sendmmsg(fd, messages, BATCH, 0);
}

#endif
