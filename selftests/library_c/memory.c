// SPDX-License-Identifier: GPL-2.0
/* What is allocated, and freed. */
#include "library_c.h"

/* Number of allocations; the library's are counted, too. */
static unsigned long allocations;
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *malloc(size_t size) { allocations++; return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { allocations++; return __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { allocations++; return __libc_realloc(old, size); }

/* Sending and receiving allocate nothing. */
void no_allocations(void)
{
	struct end end = end_of(AF_INET);
	int fd = plain(AF_INET);
	struct sockaddr_storage peer = name_of(fd);
	struct kopi_meta meta = meta_to(&peer);
	struct kopi_frame frames[16];
	static unsigned char data[5000];
	unsigned long before = allocations;

	MUST(before);
	for (int round = 0; round < 500; round++) {
		IS(kopi_send(end.channel, end.number, data, 5000, &meta), 5000);
		IS(recv(fd, data, sizeof(data), 0), 5000);
		send_plain(fd, &end.name, data, 5000);
		await(end.channel);
		IS(kopi_recv_frames(end.channel, frames, 16), 3);
		IS(kopi_meta_reply(frames[0].meta), 0);
		IS(kopi_commit(end.channel, frames, 3), 3);
		IS(kopi_flush(end.channel), 1);
		IS(recv(fd, data, sizeof(data), 0), 5000);
		send_plain(fd, &end.name, data, 10);
		await(end.channel);
		IS(kopi_recv(end.channel, data, sizeof(data), NULL, NULL), 10);
		IS(kopi_recv(end.channel, data, sizeof(data), NULL, NULL), -EAGAIN);
		IS(kopi_reserve(end.channel, end.number, frames, 16), 16);
		IS(kopi_release(end.channel, frames, 16), 0);
		IS(kopi_queue(end.channel, end.number, data, 3, &meta), 3);
		IS(kopi_doorbell(end.channel), 1);
		MUST(kopi_complete(end.channel, &(struct kopi_completion){ 0 }, 1) == 1);
		IS(recv(fd, data, sizeof(data), 0), 3);
	}
	IS(allocations - before, 0);
	close_end(&end);
}

/* Kilobytes of a line of /proc/self/status. */
static long status(const char *name)
{
	char line[128];
	long value = -1;
	FILE *file = fopen("/proc/self/status", "re");

	MUST(!!file);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)))
			value = atol(line + strlen(name) + 1);
	fclose(file);
	return value;
}

static void open_and_close(int count)
{
	for (int i = 0; i < count; i++) {
		struct end end = end_of(AF_INET);
		struct kopi_frame frames[10];
		struct kopi_meta meta = meta_to(&end.name);

		IS(kopi_send(end.channel, end.number, "x", 1, &meta), 1);
		IS(kopi_reserve(end.channel, end.number, frames, 10), 10);
		if (i % 2) {
			close_end(&end);
		} else {
			kopi_channel_close(end.channel);
			kopi_flow_close(end.flow);
		}
	}
}

/* A thousand channels leave nothing behind. */
void leaks(void)
{
	long memory, mapped;
	int fd;

	open_and_close(50);
	memory = status("VmRSS");
	mapped = status("VmSize");
	fd = dup(0);
	close(fd);
	open_and_close(1000);
	IS(status("VmSize"), mapped);
	MUST(status("VmRSS") - memory < 256);
	IS(dup(0), fd);
}
