/* SPDX-License-Identifier: GPL-2.0 */
/* Whether a socket is on a channel, which the programs here say at their end. */

#ifndef CHANNEL_H
#define CHANNEL_H

#include <stdio.h>
#include <sys/socket.h>

#include "../../uapi/kopi.h"

static inline void print_channel(int fd)
{
	struct kopi_info info = {};
	socklen_t len = sizeof(info);

	if (getsockopt(fd, SOL_KOPI, KOPI_OPT_INFO, &info, &len))
		printf("channel: no flow\n");
	else
		printf("channel: %u\n", info.has_channel);
}

#endif
