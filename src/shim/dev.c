// SPDX-License-Identifier: GPL-2.0
/* Network devices. */

#include <linux/bpf.h>
#include <linux/if_arp.h>
#include <linux/netdevice.h>
#include <net/dsa.h>
#include <net/pkt_sched.h>
#include <net/sock.h>
#include <net/xdp.h>

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

/*
 * Whether the driver takes frames now. Some say so without a program, too, and then have no queues
 * for them (qede, gve: drivers/net/ethernet, 7.3.4).
 */
bool kopi_dev_can_xdp_xmit(const struct net_device *dev)
{
	const struct bpf_xdp_entity *driver = &dev->xdp_state[XDP_MODE_DRV];

	return READ_ONCE(dev->xdp_features) & NETDEV_XDP_ACT_NDO_XMIT &&
	       (READ_ONCE(driver->prog) || READ_ONCE(driver->link));
}

/* Whether a NIC's driver has this name. Under RTNL, or as kopi_dev_lacks_queues(). */
bool kopi_dev_is_driven_by(const struct net_device *dev, const char *name)
{
	return dev->dev.parent && !strcmp(dev_driver_string(dev->dev.parent), name);
}

/*
 * Whether virtio_net would put frames in a queue that it hasn't: with more channels than CPUs, and without
 * a queue more for each CPU, virtnet_xdp_get_sq() (drivers/net/virtio_net.c, 7.3.4) goes past the last one.
 * With such queues, more of them receive than send. Of a device that is ready, in an RCU read-side section
 * or with softirqs off.
 */
bool kopi_dev_lacks_queues(const struct net_device *dev)
{
	unsigned int queues = READ_ONCE(dev->real_num_tx_queues);

	return queues > nr_cpu_ids && queues == READ_ONCE(dev->real_num_rx_queues) &&
	       kopi_dev_is_driven_by(dev, "virtio_net");
}

/*
 * Whether virtio_net has stopped the queue that virtnet_xdp_get_sq() would choose: because it is full, or
 * because `ethtool -G` makes it anew. virtnet_xdp_xmit() doesn't look, and would use a ring that is being
 * freed. virtnet_tx_pause() (7.3.4) doesn't wait for those who have looked before, so this makes that
 * rare, but can't exclude it: docs/admin.md. As kopi_dev_lacks_queues(), of a device that doesn't.
 */
static bool is_virtio_stopped(const struct net_device *dev)
{
	unsigned int queues = READ_ONCE(dev->real_num_rx_queues), index = smp_processor_id();

	if (!kopi_dev_is_driven_by(dev, "virtio_net"))
		return false;
	if (queues > nr_cpu_ids)
		index += READ_ONCE(dev->real_num_tx_queues);
	else
		index %= queues;
	return index >= dev->num_tx_queues || netif_xmit_stopped(netdev_get_tx_queue(dev, index));
}

/* The shortest frame that bnxt gives its NIC (BNXT_MIN_PKT_SIZE, 7.3.4): it pads skbs, but no frames. */
#define BNXT_FRAME_MIN 52

static void pad_for_driver(const struct net_device *dev, int n, struct xdp_frame **frames)
{
	int i;

	if (!kopi_dev_is_driven_by(dev, "bnxt_en"))
		return;
	for (i = 0; i < n; i++) {
		struct xdp_frame *frame = frames[i];

		/* There is memory for whole lines (src/sys/direct/frames.rs). */
		if (frame->len < BNXT_FRAME_MIN) {
			memset(frame->data + frame->len, 0, BNXT_FRAME_MIN - frame->len);
			frame->len = BNXT_FRAME_MIN;
		}
	}
}

/*
 * ndo_xdp_xmit, under the conditions of __xdp_enqueue() (kernel/bpf/devmap.c, 7.3.4). Drivers rely on the
 * flag of their features, which they clear with their queues for frames. 0 also for a queue that is stopped:
 * as of a full ring. Softirqs are off.
 */
int kopi_dev_xdp_xmit(struct net_device *dev, int n, struct xdp_frame **frames, u32 flags)
{
	if (!kopi_dev_can_xdp_xmit(dev) || !kopi_dev_is_ready(dev) || kopi_dev_lacks_queues(dev))
		return -ENETDOWN;
	if (is_virtio_stopped(dev))
		return 0;
	pad_for_driver(dev, n, frames);
	return dev->netdev_ops->ndo_xdp_xmit(dev, n, frames, flags);
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
