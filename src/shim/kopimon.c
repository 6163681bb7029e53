// SPDX-License-Identifier: GPL-2.0
/* The type of monitor devices. src/probes.rs and src/monitor.rs decide what they show. */

#include <linux/if_arp.h>
#include <linux/netdevice.h>
#include <linux/workqueue.h>
#include <net/rtnetlink.h>

#include "../shim.h"

static netdev_tx_t mon_xmit(struct sk_buff *skb, struct net_device *dev)
{
	dev_kfree_skb(skb);
	return NETDEV_TX_OK;
}

static void mon_get_stats64(struct net_device *dev, struct rtnl_link_stats64 *stats)
{
	dev_lstats_read(dev, &stats->rx_packets, &stats->rx_bytes);
}

static const struct net_device_ops mon_ops = {
	.ndo_open = kopi_mon_open,
	.ndo_stop = kopi_mon_stop,
	.ndo_start_xmit = mon_xmit,
	.ndo_get_stats64 = mon_get_stats64,
};

/* With header_ops, packet sockets find the IP header behind KOPI's; sending is refused. */
static int mon_create(struct sk_buff *skb, struct net_device *dev, unsigned short type,
		      const void *daddr, const void *saddr, unsigned int len)
{
	return -EOPNOTSUPP;
}

static const struct header_ops mon_header_ops = {
	.create = mon_create,
};

/* As drivers/net/nlmon.c. */
static void mon_setup(struct net_device *dev)
{
	dev->type = ARPHRD_NONE;
	dev->priv_flags |= IFF_NO_QUEUE | IFF_NO_ADDRCONF;
	dev->lltx = true;
	dev->netdev_ops = &mon_ops;
	dev->header_ops = &mon_header_ops;
	dev->needs_free_netdev = true;
	dev->features = NETIF_F_SG | NETIF_F_FRAGLIST | NETIF_F_HIGHDMA;
	dev->flags = IFF_NOARP;
	dev->pcpu_stat_type = NETDEV_PCPU_STAT_LSTATS;
	dev->mtu = ETH_MAX_MTU;
}

static struct rtnl_link_ops mon_link_ops __read_mostly = {
	.kind = "kopimon",
	.setup = mon_setup,
};

int kopi_mon_register(void)
{
	return rtnl_link_register(&mon_link_ops);
}

void kopi_mon_unregister(void)
{
	rtnl_link_unregister(&mon_link_ops);
}

static DECLARE_DELAYED_WORK(mon_unprobe, kopi_mon_unprobe);

/*
 * In a minute: to install the probes again patches the kernel's text on all CPUs under RTNL, and a user may take
 * a monitor up and down as fast as he likes.
 */
#define UNPROBE_DELAY (60 * HZ)

void kopi_mon_unprobe_later(void)
{
	mod_delayed_work(system_dfl_wq, &mon_unprobe, UNPROBE_DELAY);
}

void kopi_mon_cancel_unprobe(void)
{
	cancel_delayed_work_sync(&mon_unprobe);
}

bool kopi_mon_is(const struct net_device *dev)
{
	return dev->netdev_ops == &mon_ops;
}
