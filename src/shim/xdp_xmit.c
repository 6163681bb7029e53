// SPDX-License-Identifier: GPL-2.0
/* Giving frames to drivers, and what virtio_net and bnxt need. */

#include <linux/device.h>
#include <linux/netdevice.h>
#include <net/xdp.h>

#include "../shim.h"

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
