// SPDX-License-Identifier: GPL-2.0
/* Network devices. Besides helpers: which of them are NICs, and where the driver chooses queues by priority. */

#include <linux/bpf.h>
#include <linux/if_arp.h>
#include <linux/netdevice.h>
#include <net/dsa.h>
#include <net/pkt_sched.h>
#include <net/sock.h>

#include "../shim.h"

int kopi_net_xmit_errno(int code)
{
	return net_xmit_errno(code);
}

bool kopi_device_name(struct net *net, int ifindex, char *name)
{
	const struct net_device *dev;

	guard(rcu)();
	dev = kopi_net_dev(net, ifindex);
	return dev && strscpy_pad(name, dev->name, IFNAMSIZ) > 0;
}

/* The index of a device among the first of a namespace; 0 if it isn't there. RCU is held. */
int kopi_net_find_dev(struct net *net, const struct net_device *sought, u32 most)
{
	struct net_device *dev;

	for_each_netdev_rcu(net, dev) {
		if (dev == sought)
			return dev->ifindex;
		if (!--most)
			break;
	}
	return 0;
}

struct net *kopi_dev_net(const struct net_device *dev)
{
	return dev_net(dev);
}

int kopi_dev_ifindex(const struct net_device *dev)
{
	return READ_ONCE(dev->ifindex);
}

void kopi_dev_rx_dropped_inc(struct net_device *dev)
{
	dev_core_stats_rx_dropped_inc(dev);
}

void kopi_dev_lstats_add(struct net_device *dev, unsigned int len)
{
	dev_lstats_add(dev, len);
}

bool kopi_dev_is_up(const struct net_device *dev)
{
	return dev->flags & IFF_UP;
}

bool kopi_dev_strips_vlans(const struct net_device *dev)
{
	return dev->features & (NETIF_F_HW_VLAN_CTAG_RX | NETIF_F_HW_VLAN_STAG_RX);
}

/* Whether the driver runs an XDP program of this name. In an RCU read-side section. */
bool kopi_dev_runs_xdp(const struct net_device *dev, const char *name)
{
	const struct bpf_prog *prog = READ_ONCE(dev->xdp_state[XDP_MODE_DRV].prog);

	return prog && !strcmp(prog->aux->name, name);
}

bool kopi_dev_has_gro(const struct net_device *dev)
{
	return dev->features & NETIF_F_GRO;
}

void kopi_dev_put(struct net_device *dev)
{
	dev_put(dev);
}

bool kopi_dev_is_registered(const struct net_device *dev)
{
	return dev->reg_state == NETREG_REGISTERED;
}

bool kopi_dev_is_ethernet(const struct net_device *dev)
{
	return dev->type == ARPHRD_ETHER;
}

/*
 * Whether it has hardware and a driver of its own. A device that consists of other
 * devices, or of software, has hooks of others behind it. A conduit of DSA, or a NIC whose
 * driver says that it is in switchdev mode, is a part of a switch: its packets may belong
 * to the devices of other ports, and its XDP program sees them before the driver finds out
 * (bnxt_rx_pkt(), drivers/net/ethernet/broadcom/bnxt/bnxt.c, 7.3.4). That devlink knows a
 * switch says nothing: it does of most NICs, in each mode. Under RTNL.
 */
bool kopi_dev_is_nic(struct net_device *dev)
{
	const struct net_device_ops *ops = dev->netdev_ops;
	const struct device *parent = dev->dev.parent;
	struct netdev_phys_item_id id;

	return parent && parent->bus && parent->driver && !dev->rtnl_link_ops &&
	       list_empty(&dev->adj_list.lower) && !netdev_uses_dsa(dev) &&
	       !(ops->ndo_get_port_parent_id && !ops->ndo_get_port_parent_id(dev, &id));
}

/* The stack's conditions for giving packets to a driver. */
bool kopi_dev_is_ready(const struct net_device *dev)
{
	return netif_running(dev) && netif_device_present(dev) && netif_carrier_ok(dev);
}

bool kopi_dev_has_xdp_xmit(const struct net_device *dev)
{
	return dev->netdev_ops->ndo_xdp_xmit;
}

bool kopi_dev_has_tcx_egress(const struct net_device *dev)
{
	return rcu_access_pointer(dev->tcx_egress);
}

unsigned int kopi_dev_real_num_tx_queues(const struct net_device *dev)
{
	return READ_ONCE(dev->real_num_tx_queues);
}

/*
 * Whether it has traffic classes (mqprio, taprio, DCB, htb with offload): netdev_pick_tx() or the driver
 * chooses the queue by skb->priority then, drivers that of a frame by the CPU. Softirqs are off.
 */
bool kopi_dev_has_classes(const struct net_device *dev)
{
	const struct Qdisc *root = rcu_dereference_bh(dev->qdisc);

	return READ_ONCE(dev->num_tc) || (root->flags & TCQ_F_MQROOT && strcmp(root->ops->id, "mq"));
}
