// SPDX-License-Identifier: GPL-2.0
/* The notifier of device events, and the position of KOPI's egress hook. */

#include <linux/netdevice.h>
#include <linux/netfilter_netdev.h>
#include <linux/rtnetlink.h>

#include "../shim.h"

static int netdev_event(struct notifier_block *block, unsigned long event, void *info)
{
	struct netdev_notifier_changeupper_info *upper;
	struct net_device *dev = netdev_notifier_info_to_dev(info);

	/* Redirect devices come and go with attached devices, and can't be parts of others. */
	if (kopi_redirect_is(dev)) {
		if (event == NETDEV_UP)
			kopi_redirect_came_up(dev);
		if (event != NETDEV_PRECHANGEUPPER)
			return NOTIFY_DONE;
		NL_SET_ERR_MSG(netdev_notifier_info_to_extack(info),
			       "nothing can be put on a device that takes what KOPI receives");
		return notifier_from_errno(-EOPNOTSUPP);
	}
	switch (event) {
	case NETDEV_CHANGEUPPER:
		upper = container_of(info, struct netdev_notifier_changeupper_info, info);
		if (upper->linking)
			kopi_device_going(upper->upper_dev);
		break;
	case NETDEV_DOWN:
		kopi_device_down(dev);
		break;
	case NETDEV_FEAT_CHANGE:
		kopi_device_changed(dev);
		break;
	case NETDEV_UNREGISTER:
		kopi_device_going(dev);
		break;
	}
	return NOTIFY_DONE;
}

static struct notifier_block netdev_block = {
	.notifier_call = netdev_event,
};

int kopi_netdev_register(void)
{
	return register_netdevice_notifier(&netdev_block);
}

void kopi_netdev_unregister(void)
{
	unregister_netdevice_notifier(&netdev_block);
}

bool kopi_egress_is_last(const struct net_device *dev, const void *hook)
{
	const struct nf_hook_entries *e = rcu_dereference_bh(dev->nf_hooks_egress);

	return e && e->hooks[e->num_hook_entries - 1].priv == hook;
}
