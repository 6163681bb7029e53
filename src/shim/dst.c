// SPDX-License-Identifier: GPL-2.0
/* Routes. */

#include <linux/netdevice.h>
#include <net/dst.h>
#include <net/ip.h>
#include <net/route.h>
#include <net/sock.h>
#include <net/xfrm.h>

#include "../shim.h"

void kopi_flowi4_init_output(struct flowi4 *fl4, int oif, u32 mark, u8 tos, u8 flags,
			     __be32 daddr, __be32 saddr, __be16 dport, __be16 sport,
			     const struct sock *sk)
{
	flowi4_init_output(fl4, oif, mark, tos & INET_DSCP_MASK, RT_SCOPE_UNIVERSE,
			   IPPROTO_UDP, flags, daddr, saddr, dport, sport, sk_uid(sk));
}

/* rt_is_expired() (net/ipv4/route.c, 7.3.4) compares it. */
int kopi_rt_genid(const struct sock *sk)
{
	return rt_genid_ipv4(sock_net(sk));
}

bool kopi_dst_check(struct dst_entry *dst, u32 cookie)
{
	return dst_check(dst, cookie);
}

/*
 * The longest packet that a sock with this IP_MTU_DISCOVER sends whole: ip_setup_cork()
 * (net/ipv4/ip_output.c), ip_sk_use_pmtu() (include/net/ip.h).
 */
u32 kopi_dst4_mtu(const struct dst_entry *dst, u8 discovery)
{
	return discovery < IP_PMTUDISC_PROBE ? dst4_mtu(dst) : READ_ONCE(dst_dev(dst)->mtu);
}

/* By IPsec, which may have to find out how first, or by a tunnel. */
bool kopi_dst_is_transformed(const struct dst_entry *dst)
{
	return dst_xfrm(dst) || dst->flags & DST_XFRM_QUEUE || dst->header_len || dst->trailer_len || dst->lwtstate;
}

/*
 * Whether a look-up finds the same route as before, as far as the route itself says. Policies of IPsec end
 * without a word to routes (xfrm_policy_delete(), 7.3.4): where there are any, each datagram asks.
 */
bool kopi_look_up_lasts(const struct sock *sk, unsigned long until)
{
#ifdef CONFIG_XFRM
	if (READ_ONCE(sock_net(sk)->xfrm.policy_count[XFRM_POLICY_OUT]))
		return false;
#endif
	return time_before(jiffies, until);
}

/*
 * How long it may: redirects that expire, and gateways that don't answer any more (fib_select_default(),
 * fib_select_multipath()), have no generation; nor have the groups of devices (fib4_rule_suppress()), nor
 * ignore_routes_with_linkdown.
 */
unsigned long kopi_look_up4_ends(void)
{
	return jiffies + ROUTE_AGE;
}

unsigned int kopi_ll_reserved_space(const struct dst_entry *dst)
{
	return LL_RESERVED_SPACE(dst_dev(dst));
}

/* As __ip_append_data() and __ip6_append_data() ask. */
bool kopi_dst_has_checksums(const struct dst_entry *dst)
{
	const netdev_features_t of_version =
		dst->ops->family == AF_INET6 ? NETIF_F_IPV6_CSUM : NETIF_F_IP_CSUM;

	return dst_dev(dst)->features & (NETIF_F_HW_CSUM | of_version);
}

/* Whether it is one of its own for who looked it up. */
bool kopi_dst_is_uncached(const struct dst_entry *dst)
{
	return !list_empty(&dst->rt_uncached);
}

u32 kopi_rt_flags(const struct dst_entry *dst)
{
	return dst_rtable(dst)->rt_flags;
}

u32 kopi_dst_hoplimit(const struct dst_entry *dst)
{
	return dst_metric_raw(dst, RTAX_HOPLIMIT);
}

/*
 * Whether the stack chooses a queue of the device by the flow hash. The packets of a bond or a team have none before
 * these look for their port.
 */
bool kopi_dst_has_queues(const struct dst_entry *dst)
{
	const struct net_device *dev = dst_dev(dst);

	return READ_ONCE(dev->real_num_tx_queues) > 1 && !netif_is_lag_master(dev);
}

bool kopi_ip_mtu_locked(const struct dst_entry *dst)
{
	return ip_mtu_locked(dst);
}
