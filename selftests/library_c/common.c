// SPDX-License-Identifier: GPL-2.0
#include "library_c.h"

void must(int held, const char *what, int line)
{
	if (held)
		return;
	printf("# line %d: not so: %s (errno: %s)\n", line, what, strerror(errno));
	exit(1);
}

void is(long got, long expected, const char *what, int line)
{
	if (got == expected)
		return;
	printf("# line %d: %s is %ld (%s) and not %ld (%s)\n", line, what, got, got < 0 ? kopi_strerror(got) : "",
	       expected, expected < 0 ? kopi_strerror(expected) : "");
	exit(1);
}

const struct timespec patience = { .tv_sec = 60 };

struct sockaddr_in local4(int port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

struct sockaddr_in6 local6(int port)
{
	return (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = htons(port),
				      .sin6_addr = IN6ADDR_LOOPBACK_INIT };
}

struct sockaddr_storage name_of(int fd)
{
	struct sockaddr_storage name = { 0 };
	socklen_t len = sizeof(name);

	MUST(!getsockname(fd, (struct sockaddr *)&name, &len));
	return name;
}

socklen_t size_of(const struct sockaddr_storage *name)
{
	return name->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

int plain(int family)
{
	struct sockaddr_in name4 = local4(0);
	struct sockaddr_in6 name6 = local6(0);
	struct timeval limit = { .tv_sec = 60 };
	int fd = socket(family, SOCK_DGRAM, 0);

	MUST(fd >= 0);
	MUST(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	if (family == AF_INET)
		MUST(!bind(fd, (struct sockaddr *)&name4, sizeof(name4)));
	else
		MUST(!bind(fd, (struct sockaddr *)&name6, sizeof(name6)));
	return fd;
}

struct kopi_flow *flow_of(int family)
{
	struct sockaddr_in name4 = local4(0);
	struct sockaddr_in6 name6 = local6(0);
	struct kopi_flow *flow;

	IS(kopi_flow_open(&flow, family), 0);
	if (family == AF_INET)
		IS(kopi_flow_bind(flow, (struct sockaddr *)&name4, sizeof(name4)), 0);
	else
		IS(kopi_flow_bind(flow, (struct sockaddr *)&name6, sizeof(name6)), 0);
	return flow;
}

struct end end_with(int family, const struct kopi_options *options)
{
	struct end end = { .flow = flow_of(family) };

	IS(kopi_channel_open(&end.channel, end.flow, options), 0);
	end.number = kopi_flow_number(end.flow);
	end.name = name_of(kopi_flow_fd(end.flow));
	return end;
}

struct end end_of(int family)
{
	return end_with(family, NULL);
}

void close_end(struct end *end)
{
	kopi_flow_close(end->flow);
	kopi_channel_close(end->channel);
}

struct kopi_meta meta_to(const struct sockaddr_storage *name)
{
	struct kopi_meta meta;

	IS(kopi_meta_to(&meta, (const struct sockaddr *)name, size_of(name)), 0);
	return meta;
}

void send_plain(int fd, const struct sockaddr_storage *to, const void *data, size_t len)
{
	IS(sendto(fd, data, len, 0, (const struct sockaddr *)to, size_of(to)), len);
}

void await(struct kopi_channel *channel)
{
	MUST(kopi_wait(channel, KOPI_READABLE, &patience) & KOPI_READABLE);
}

int same(const struct sockaddr_storage *one, const struct sockaddr_storage *other)
{
	return !memcmp(one, other, size_of(one));
}

unsigned char *pattern(size_t len)
{
	unsigned char *data = malloc(len + 1);

	for (size_t i = 0; i < len; i++)
		data[i] = i * 7 + i / 251;
	return data;
}
