// SPDX-License-Identifier: GPL-2.0
/* The tracepoints of sent and dropped packets, for monitors. */

#include <linux/netdevice.h>
#include <linux/tracepoint.h>
#include <trace/events/skb.h>

#include "../shim.h"

/* Modules can't link to this tracepoint, which isn't exported. */
static void find_start_xmit(struct tracepoint *tp, void *found)
{
	if (!strcmp(tp->name, "net_dev_start_xmit"))
		*(struct tracepoint **)found = tp;
}

struct tracepoint *kopi_tracepoint_start_xmit(void)
{
	struct tracepoint *found = NULL;

	for_each_kernel_tracepoint(find_start_xmit, &found);
	return found;
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
