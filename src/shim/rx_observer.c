// SPDX-License-Identifier: GPL-2.0
/*
 * What sees the packets that a device receives before UDP does, of both versions of IP. Each function here
 * mirrors a part of the way from the driver to UDP; its comment names the functions, of 7.3.4
 * (net/ipv4/ip_input.c, unless said).
 */

#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <net/dsa.h>
#include <net/inet_sock.h>
#include <net/l3mdev.h>
#include <net/netdev_rx_queue.h>
#include <net/raw.h>
#include <net/rawv6.h>
#include <net/sock.h>
#include <net/xfrm.h>

#include "../shim.h"

/* Entries of a list of packet sockets, or raw ones, that are looked at: more count as one that sees all. */
#define SOCKETS_MAX 16

/* Whether a list of packet sockets has one that sees packets of IP. RCU is held. */
static bool has_tap(const struct list_head *list)
{
	const struct packet_type *tap;
	int left = SOCKETS_MAX;

	list_for_each_entry_rcu(tap, list, list)
		if (tap->type == htons(ETH_P_IP) || tap->type == htons(ETH_P_IPV6) ||
		    tap->type == htons(ETH_P_ALL) || !left--)
			return true;
	return false;
}

/* Whether packets of one of its queues are processed on other CPUs: get_rps_cpu() (net/core/dev.c). */
static bool has_rps(const struct net_device *dev)
{
#ifdef CONFIG_RPS
	unsigned int i;

	for (i = 0; i < READ_ONCE(dev->real_num_rx_queues); i++)
		if (rcu_access_pointer(dev->_rx[i].rps_map) || READ_ONCE(dev->_rx[i].rps_flow_table))
			return true;
#endif
	return false;
}

/*
 * Whether a raw socket of one version of IP sees UDP packets: raw_local_deliver() (net/ipv4/raw.c),
 * ipv6_raw_deliver() (net/ipv6/raw.c). Those of other namespaces may be in the list, which their users can
 * make long: then any raw socket of this namespace counts. RCU is held.
 */
static bool has_raw(const struct net *net, const struct raw_hashinfo *of)
{
	const struct sock *sk;
	int left = SOCKETS_MAX;

	sk_for_each_rcu(sk, &of->ht[raw_hashfunc(net, IPPROTO_UDP)]) {
		if (net_eq(sock_net(sk), net) && inet_sk(sk)->inet_num == IPPROTO_UDP)
			return true;
		if (!left--)
			return sock_prot_inuse_get((struct net *)net, sk->sk_prot) != 0;
	}
	return false;
}

/*
 * What looks at a packet before IP does: netif_receive_skb_internal(), __netif_receive_skb_core()
 * (net/core/dev.c), ip_rcv_finish(); what else gets it, ip_protocol_deliver_rcu(); and the policies
 * of IPsec, which UDP asks. RCU is held.
 */
enum kopi_rx_observer kopi_dev_rx_observer(const struct net_device *dev)
{
	const struct net *net = dev_net_rcu(dev);

	if (has_tap(&net->ptype_all) || has_tap(&dev->ptype_all) ||
	    has_tap(&net->ptype_specific) || has_tap(&dev->ptype_specific))
		return KOPI_RX_TAP;
	if (rcu_access_pointer(dev->tcx_ingress))
		return KOPI_RX_TC;
	if (rcu_access_pointer(dev->nf_hooks_ingress))
		return KOPI_RX_HOOK;
	if (rcu_access_pointer(dev->xdp_prog))
		return KOPI_RX_XDP;
	if (has_raw(net, &raw_v4_hashinfo) || has_raw(net, &raw_v6_hashinfo))
		return KOPI_RX_RAW;
	if (rcu_access_pointer(dev->rx_handler) || netif_is_l3_slave(dev) || netdev_uses_dsa(dev))
		return KOPI_RX_UPPER;
	if (has_rps(dev))
		return KOPI_RX_RPS;
	if (READ_ONCE(net->xfrm.policy_count[XFRM_POLICY_IN]) ||
	    READ_ONCE(net->xfrm.policy_default[XFRM_POLICY_IN]) != XFRM_USERPOLICY_ACCEPT)
		return KOPI_RX_IPSEC;
	return KOPI_RX_NONE;
}
