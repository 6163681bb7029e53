// SPDX-License-Identifier: GPL-2.0
/*
 * A preloaded library that has an unmodified program's TCP sockets be KOPI flows. It changes the
 * family of socket(2), and nothing else.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>

#include "kopi.h"

static int family(void)
{
	static int number;
	FILE *parameter;

	if (number)
		return number;
	parameter = fopen("/sys/module/kopi/parameters/family", "r");
	if (!parameter || fscanf(parameter, "%d", &number) != 1)
		number = AF_KOPI;
	if (parameter)
		fclose(parameter);
	return number;
}

int socket(int domain, int type, int protocol)
{
	int (*real)(int domain, int type, int protocol) = dlsym(RTLD_NEXT, "socket");
	int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (kind != SOCK_STREAM || (protocol && protocol != IPPROTO_TCP) ||
	    (domain != AF_INET && domain != AF_INET6))
		return real(domain, type, protocol);
	return real(family(), type, domain == AF_INET ? KOPI_PROTO_TCP : KOPI_PROTO_TCP6);
}
