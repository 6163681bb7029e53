/* SPDX-License-Identifier: GPL-2.0 */
/* A UDP echo server on rings: cc -I uapi -o kopi-echo kopi-echo.c; ./kopi-echo 7777 */
#include <arpa/inet.h>
#include <err.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <kopi.h>

static unsigned char *region;
#define LOAD(at) __atomic_load_n((__u32 *)(region + (at)), __ATOMIC_ACQUIRE)
#define STORE(at, value) __atomic_store_n((__u32 *)(region + (at)), value, __ATOMIC_RELEASE)
#define BELL(flags) ioctl(fd, KOPI_IOC_DOORBELL, flags)
#define ENTRY(type, ring, i) (((type *)(region + (ring).entries))[(i) & ((ring).size - 1)])

int main(int argc, char **argv)
{
	struct kopi_channel_req req = { .frame_size = 2048, .frame_count = 256, .tx_entries = 256,
		.completion_entries = 256, .fill_entries = 256, .rx_entries = 256 };
	struct sockaddr_in addr = { .sin_family = AF_INET,
		.sin_port = htons(argc > 1 ? atoi(argv[1]) : 7) };
	struct kopi_layout l;
	socklen_t len = sizeof(l);
	__u32 fill, rx = 0, tx = 0, done = 0;
	int fd = socket(AF_KOPI, SOCK_DGRAM, KOPI_PROTO_UDP);
	struct pollfd full = { .fd = fd, .events = POLLIN | POLLOUT | KOPI_POLL_COMPLETION };

	if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) ||
	    setsockopt(fd, SOL_KOPI, KOPI_OPT_CHANNEL, &req, sizeof(req)) ||
	    getsockopt(fd, SOL_KOPI, KOPI_OPT_CHANNEL, &l, &len))
		err(1, "no channel (is kopi.ko loaded?)");
	if ((region = mmap(NULL, l.region_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
		err(1, "mmap");

	for (fill = 0; fill < l.frame_count; fill++)	/* all frames are for what comes */
		ENTRY(__u64, l.fill, fill) = l.frames + fill * l.frame_size;
	STORE(l.fill.producer, fill);
	while (BELL(KOPI_BELL_TX) >= 0 && (tx == LOAD(l.tx.consumer) || full.revents & POLLERR ?
	       BELL(KOPI_BELL_WAIT_RX | KOPI_BELL_WAIT_COMPLETION) :
	       poll(&full, 1, -1)) >= 0) {		/* until the send buffer has room */
		for (; done != LOAD(l.completion.producer); done++)	/* sent: for the next */
			ENTRY(__u64, l.fill, fill++) = ENTRY(struct kopi_desc, l.completion,
							     done).offset - KOPI_FRAME_HEADROOM;
		STORE(l.completion.consumer, done);
		STORE(l.fill.producer, fill);
		for (; rx != LOAD(l.rx.producer); rx++) {	/* back, from the same frame */
			struct kopi_desc d = ENTRY(struct kopi_desc, l.rx, rx);
			struct kopi_meta *meta = (void *)(region + d.offset - KOPI_FRAME_HEADROOM);

			if (d.flags & KOPI_DESC_META)	/* the first frame */
				meta->len = meta->ifindex = 0;
			ENTRY(struct kopi_desc, l.tx, tx++) = d;
		}
		STORE(l.rx.consumer, rx);
		STORE(l.tx.producer, tx);
	}
	err(1, "doorbell");
}
