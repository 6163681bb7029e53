// SPDX-License-Identifier: GPL-2.0
/* The tracepoints of sent, dropped and, of TCP, received packets, for monitors. */

#include <linux/netdevice.h>
#include <linux/tracepoint.h>
#include <trace/events/skb.h>

#include "../shim.h"

struct search {
	const char *name;
	struct tracepoint *found;
};

static void compare_name(struct tracepoint *tp, void *data)
{
	struct search *search = data;

	if (!strcmp(tp->name, search->name))
		search->found = tp;
}

/* Modules can't link to a tracepoint that isn't exported. */
static struct tracepoint *find_tracepoint(const char *name)
{
	struct search search = { .name = name };

	for_each_kernel_tracepoint(compare_name, &search);
	return search.found;
}

struct tracepoint *kopi_tracepoint_start_xmit(void)
{
	return find_tracepoint("net_dev_start_xmit");
}

/* Of each segment that a TCP sock in ESTABLISHED receives, which is locked then. */
struct tracepoint *kopi_tracepoint_tcp_probe(void)
{
	return find_tracepoint("tcp_probe");
}

static void tcp_probe(void *data, struct sock *sk, const struct sk_buff *skb)
{
	kopi_on_tcp_probe(sk, (struct sk_buff *)skb);
}

int kopi_probe_tcp(struct tracepoint *tp)
{
	return tracepoint_probe_register(tp, tcp_probe, NULL);
}

void kopi_unprobe_tcp(struct tracepoint *tp)
{
	tracepoint_probe_unregister(tp, tcp_probe, NULL);
}

static void start_xmit_probe(void *data, const struct sk_buff *skb,
			     const struct net_device *dev)
{
	kopi_on_start_xmit((struct sk_buff *)skb, (struct net_device *)dev);
}

int kopi_probe_start_xmit(struct tracepoint *tp)
{
	return tracepoint_probe_register(tp, start_xmit_probe, NULL);
}

void kopi_unprobe_start_xmit(struct tracepoint *tp)
{
	tracepoint_probe_unregister(tp, start_xmit_probe, NULL);
}

static void kfree_skb_probe(void *data, struct sk_buff *skb, void *location,
			    enum skb_drop_reason reason, const struct sock *rx_sk)
{
	kopi_on_kfree_skb(skb, reason, (struct sock *)rx_sk);
}

int kopi_probe_kfree_skb(void)
{
	return register_trace_kfree_skb(kfree_skb_probe, NULL);
}

void kopi_unprobe_kfree_skb(void)
{
	unregister_trace_kfree_skb(kfree_skb_probe, NULL);
}

void kopi_tracepoint_synchronize_unregister(void)
{
	tracepoint_synchronize_unregister();
}
