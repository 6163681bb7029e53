// SPDX-License-Identifier: GPL-2.0
/* What the tests of libkopi share; library_c.sh runs them. */
#ifndef LIBRARY_C_H
#define LIBRARY_C_H

#include <errno.h>
#include <kopi.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MUST(condition) must(!!(condition), #condition, __LINE__)
/* The value that an expression must have; errors are shown by their words. */
#define IS(expression, expected) is((long)(expression), (long)(expected), #expression, __LINE__)

void must(int held, const char *what, int line);
void is(long got, long expected, const char *what, int line);

/* A hang, and not a busy machine. */
extern const struct timespec patience;

/* A flow on a channel of its own. */
struct end {
	struct kopi_flow *flow;
	struct kopi_channel *channel;
	uint32_t number;
	struct sockaddr_storage name;
};

/* An address of this machine. */
struct sockaddr_in local4(int port);
struct sockaddr_in6 local6(int port);
struct sockaddr_storage name_of(int fd);
socklen_t size_of(const struct sockaddr_storage *name);
int same(const struct sockaddr_storage *one, const struct sockaddr_storage *other);

/* A plain UDP socket, which waits a minute at most. */
int plain(int family);
void send_plain(int fd, const struct sockaddr_storage *to, const void *data, size_t len);

struct kopi_flow *flow_of(int family);
struct end end_with(int family, const struct kopi_options *options);
struct end end_of(int family);
void close_end(struct end *end);
struct kopi_meta meta_to(const struct sockaddr_storage *name);
/* Waits until there is something to receive. */
void await(struct kopi_channel *channel);
/* So many bytes, to be freed. */
unsigned char *pattern(size_t len);

void echo(void);
void batches(void);
void lengths(void);
void refused_to_open(void);
void refused_to_send(void);
void foreign_frames(void);
void completions(void);
void offloads(void);
void control_data(void);
void waiting(void);
void event_loop(void);
void joined(void);
void threads(void);
void no_allocations(void);
void leaks(void);
void absent(void);
void full_send_buffer(const char *peer);

#endif
