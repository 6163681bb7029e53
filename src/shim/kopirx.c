// SPDX-License-Identifier: GPL-2.0
/* The type of redirect devices. src/direct/receive.rs receives their frames. */

#include <linux/if_arp.h>
#include <linux/netdevice.h>
#include <net/xdp.h>

#include "../shim.h"

static int redirect_stop(struct net_device *dev)
{
	kopi_redirect_stop(*(void **)netdev_priv(dev));
	return 0;
}

static int redirect_xdp_xmit(struct net_device *dev, int n, struct xdp_frame **frames, u32 flags)
{
	return kopi_redirect_xmit(*(void **)netdev_priv(dev), n, frames, flags);
}

static netdev_tx_t redirect_start_xmit(struct sk_buff *skb, struct net_device *dev)
{
	dev_kfree_skb(skb);
	return NETDEV_TX_OK;
}

static const struct net_device_ops redirect_ops = {
	.ndo_stop = redirect_stop,
	.ndo_start_xmit = redirect_start_xmit,
	.ndo_xdp_xmit = redirect_xdp_xmit,
};

static void redirect_setup(struct net_device *dev)
{
	dev->type = ARPHRD_NONE;
	dev->priv_flags |= IFF_NO_QUEUE | IFF_NO_ADDRCONF;
	dev->lltx = true;
	dev->netns_immutable = true;
	dev->netdev_ops = &redirect_ops;
	dev->needs_free_netdev = true;
	dev->flags = IFF_NOARP;
	dev->mtu = ETH_MAX_MTU;
	dev->xdp_features = NETDEV_XDP_ACT_NDO_XMIT;
}

struct net_device *kopi_redirect_new(struct net *net, void *receiver)
{
	struct net_device *dev;

	dev = alloc_netdev(sizeof(void *), "kopirx%d", NET_NAME_ENUM, redirect_setup);
	if (dev) {
		dev_net_set(dev, net);
		*(void **)netdev_priv(dev) = receiver;
	}
	return dev;
}

/* Not as ndo_open: the kernel gives a device no frames before that has returned. */
void kopi_redirect_came_up(const struct net_device *dev)
{
	kopi_redirect_up(*(void **)netdev_priv(dev));
}

bool kopi_redirect_is(const struct net_device *dev)
{
	return dev->netdev_ops == &redirect_ops;
}
