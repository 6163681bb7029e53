// SPDX-License-Identifier: GPL-2.0
/*
 * Datagrams of IPv6 that are sent by routes that a channel remembers. Each function here mirrors a part
 * of udpv6_sendmsg() and of the functions that it calls, of 7.3.4 (net/ipv6/udp.c, unless said).
 */

#include <linux/bpf-cgroup.h>
#include <linux/ipv6.h>
#include <linux/security.h>
#include <linux/udp.h>
#include <net/addrconf.h>
#include <net/flow.h>
#include <net/flow_dissector.h>
#include <net/ip6_checksum.h>
#include <net/ip6_fib.h>
#include <net/ip6_route.h>
#include <net/ipv6.h>
#include <net/sock.h>
#include <net/xfrm.h>

#include "../shim.h"

/* Whether labels are made of the flow hash: ip6_autoflowlabel(), ip6_make_flowlabel(). */
static bool has_labels(const struct sock *sk)
{
	const struct net *net = sock_net(sk);

	switch (READ_ONCE(net->ipv6.sysctl.auto_flowlabels)) {
	case IP6_AUTO_FLOW_LABEL_OFF:
		return false;
	case IP6_AUTO_FLOW_LABEL_FORCED:
		return true;
	default:
		return inet6_test_bit(AUTOFLOWLABEL_SET, sk) ? inet6_test_bit(AUTOFLOWLABEL, sk) :
							       ip6_default_np_autolabel(net);
	}
}

/*
 * The options of an IPv6 sock; false if one is set that only udpv6_sendmsg() implements, or if the
 * peer is one of IPv4, or a group.
 */
bool kopi_options6(const struct sock *sk, struct kopi_options6 *o)
{
	const struct ipv6_pinfo *np = inet6_sk(sk);
	const struct net *net = sock_net(sk);

	o->discovery = READ_ONCE(np->pmtudisc);
	o->fragment = READ_ONCE(np->frag_size);
	if (udp_get_no_check6_tx(sk) || rcu_access_pointer(np->opt))
		return false;
	o->connected = READ_ONCE(sk->sk_state) == TCP_ESTABLISHED;
	o->peer = sk->sk_v6_daddr;
	/* Groups have a device and a hop limit of their own: ip6_sk_dst_hoplimit(). */
	if (o->connected && (ipv6_addr_v4mapped(&o->peer) || ipv6_addr_is_multicast(&o->peer)))
		return false;
	o->source = np->saddr;
	o->flow_label = o->connected ? READ_ONCE(np->flow_label) & IPV6_FLOWLABEL_MASK : 0;
	o->device = READ_ONCE(sk->sk_bound_dev_if) ?: READ_ONCE(np->sticky_pktinfo.ipi6_ifindex);
	o->unicast_device = READ_ONCE(np->ucast_oif);
	o->hop_limit = READ_ONCE(np->hop_limit);
	o->mark = READ_ONCE(sk->sk_mark);
	o->user = __kuid_val(sk_uid(sk));
	/* skb_set_hash_from_sk() (include/net/sock.h) */
	o->hash = READ_ONCE(sk->sk_txhash);
	o->source_port = READ_ONCE(inet_sk(sk)->inet_sport);
	o->peer_port = READ_ONCE(inet_sk(sk)->inet_dport);
	o->tclass = READ_ONCE(np->tclass);
	o->preferences = READ_ONCE(np->srcprefs);
	o->has_labels = has_labels(sk);
	o->has_stateless_labels = READ_ONCE(net->ipv6.sysctl.flowlabel_state_ranges);
	return true;
}

/* Whether a key of a route is other than this address: ip6_rt_check() (net/ipv6/ip6_output.c). */
static bool differs(const struct rt6key *key, const struct in6_addr *address,
		    const struct in6_addr *cached)
{
	return (key->plen != 128 || !ipv6_addr_equal(address, &key->addr)) &&
	       (!cached || !ipv6_addr_equal(address, cached));
}

/* Whether a connected sock's route is still that of its options: ip6_sk_dst_check(). */
static bool is_route_of(const struct sock *sk, const struct dst_entry *dst,
			const struct kopi_options6 *o)
{
	const int device = o->device ?: o->unicast_device;
	const struct ipv6_pinfo *np = inet6_sk(sk);
	const struct rt6_info *rt = dst_rt6_info(dst);

	if (dst->ops->family != AF_INET6 || (device && device != dst_dev(dst)->ifindex))
		return false;
#ifdef CONFIG_IPV6_SUBTREES
	if (differs(&rt->rt6i_src, &o->source, np->saddr_cache ? &np->saddr : NULL))
		return false;
#endif
	return !differs(&rt->rt6i_dst, &o->peer, np->daddr_cache ? &sk->sk_v6_daddr : NULL);
}

/*
 * The route that a connected sock remembers, if it is still valid, and what it is valid by:
 * ip6_sk_dst_lookup_flow() (net/ipv6/ip6_output.c).
 */
struct dst_entry *kopi_connected_route6(struct sock *sk, const struct kopi_options6 *o, u32 *cookie)
{
	struct dst_entry *dst;

	*cookie = READ_ONCE(inet6_sk(sk)->dst_cookie);
	dst = sk_dst_check(sk, *cookie);
	if (dst && !is_route_of(sk, dst, o)) {
		dst_release(dst);
		return NULL;
	}
	return dst;
}

/*
 * Whether a datagram may have a control message's source: ip6_datagram_send_ctl()
 * (net/ipv6/datagram.c), without anycast addresses and those that aren't this host's.
 */
static bool has_source(struct net *net, const struct kopi_flow6 *flow)
{
	const int type = __ipv6_addr_type(&flow->from);
	const bool strict = __ipv6_addr_src_scope(type) <= IPV6_ADDR_SCOPE_LINKLOCAL;
	const struct net_device *dev = NULL;
	bool has;

	rcu_read_lock();
	if (flow->device)
		dev = dev_get_by_index_rcu(net, flow->device);
	has = flow->device ? !!dev : !(type & IPV6_ADDR_LINKLOCAL);
	has = has && ipv6_chk_addr_and_flags(net, &flow->from, dev, !strict, 0, IFA_F_TENTATIVE);
	rcu_read_unlock();
	return has;
}

/* What a look-up depends on besides the flow, as of now. */
static void read_generation(const struct net *net, struct kopi_generation6 *now)
{
	now->routes = rt_genid_ipv6(net);
	now->addresses = atomic_read(&net->ipv6.dev_addr_genid);
	now->labels = READ_ONCE(net->ipv6.ip6addrlbl_table.seq);
}

/*
 * Whether a look-up finds the same route for the same flow each time, as long as its generation lasts:
 * not one of several, among which the stack chooses by the state of nexthops.
 */
static bool is_only_route(const struct dst_entry *dst)
{
	const struct fib6_info *from;
	bool is_only;

	rcu_read_lock();
	from = rcu_dereference(dst_rt6_info(dst)->from);
	is_only = from && !from->nh && !READ_ONCE(from->fib6_nsiblings);
	rcu_read_unlock();
	return is_only;
}

/*
 * Looks up the route of a datagram, and its source if the flow has none. NULL if udpv6_sendmsg() has to
 * send it, or to report the error.
 */
struct dst_entry *kopi_look_up_route6(struct sock *sk, const struct kopi_flow6 *flow,
				      struct in6_addr *source, struct kopi_generation6 *generation)
{
	struct net *net = sock_net(sk);
	struct flowi6 first, fl6 = {
		.flowi6_oif = flow->device,
		.flowi6_mark = flow->mark,
		.flowi6_proto = IPPROTO_UDP,
		.flowi6_uid = sk_uid(sk),
		.daddr = flow->to,
		.saddr = flow->from,
		.fl6_dport = flow->port,
		.fl6_sport = flow->source_port,
	};
	struct dst_entry *dst;
	int error;

	read_generation(net, generation);
	/* Whatever changes them has changed the rest before: fib6_add(), __ipv6_ifa_notify(). */
	smp_rmb();
	if (flow->is_from_message && !has_source(net, flow))
		return NULL;
	security_sk_classify_flow(sk, flowi6_to_flowi_common(&fl6));
	fl6.flowlabel = ip6_make_flowinfo(flow->tclass, 0);
	/* The look-up below would count a missing route, which udpv6_sendmsg() counts again. */
	first = fl6;
	dst = ip6_route_output(net, sk, &first);
	error = dst->error;
	dst_release(dst);
	if (error)
		return NULL;
	dst = ip6_dst_lookup_flow(net, sk, &fl6, NULL);
	if (IS_ERR(dst))
		return NULL;
	if (dst->ops->family != AF_INET6 || !is_only_route(dst)) {
		dst_release(dst);
		return NULL;
	}
	*source = fl6.saddr;
	generation->cookie = rt6_get_cookie(dst_rt6_info(dst));
	/*
	 * That a router answers again, and options of devices by which sources are chosen, have no
	 * generation.
	 */
	generation->until = jiffies + ROUTE_AGE;
	return dst;
}

/* Whether what a look-up depends on is as it was then. */
bool kopi_generation6_is_current(const struct sock *sk, const struct kopi_generation6 *generation)
{
	struct kopi_generation6 now;

	read_generation(sock_net(sk), &now);
	return now.routes == generation->routes && now.addresses == generation->addresses &&
	       now.labels == generation->labels && kopi_look_up_lasts(sk, generation->until);
}

/* Whether nothing is put between the headers of IPv6 and UDP, or around them. */
bool kopi_route6_is_plain(const struct dst_entry *dst)
{
	return !kopi_dst_is_transformed(dst) && !dst_rt6_info(dst)->rt6i_nfheader_len;
}

/* The longest packet that a sock sends whole: ip6_setup_cork() (net/ipv6/ip6_output.c). */
u32 kopi_dst6_mtu(const struct dst_entry *dst, const struct kopi_options6 *o)
{
	u32 mtu = o->discovery < IPV6_PMTUDISC_PROBE ? dst6_mtu(dst) : READ_ONCE(dst_dev(dst)->mtu);

	if (o->fragment && o->fragment < mtu)
		mtu = o->fragment;
	return min_t(u32, mtu, IP6_MAX_MTU);
}

/* The flow hash of datagrams without a flow label: skb_get_hash_flowi6() (include/linux/skbuff.h). */
u32 kopi_flow6_hash(const struct in6_addr *from, const struct in6_addr *to, __be16 source_port,
		    __be16 port)
{
	const struct flowi6 fl6 = {
		.flowi6_proto = IPPROTO_UDP,
		.daddr = *to,
		.saddr = *from,
		.fl6_dport = port,
		.fl6_sport = source_port,
	};
	struct flow_keys keys;

	return __get_hash_from_flowi6(&fl6, &keys);
}

/* Leaves the checksum of a whole datagram to the device: udp6_hwcsum_outgoing(). */
void kopi_udp6_hwcsum(struct sk_buff *skb)
{
	const struct ipv6hdr *ip6h = ipv6_hdr(skb);
	struct udphdr *uh = udp_hdr(skb);

	skb->csum_start = skb_transport_header(skb) - skb->head;
	skb->csum_offset = offsetof(struct udphdr, check);
	uh->check = ~csum_ipv6_magic(&ip6h->saddr, &ip6h->daddr,
				     skb->len - skb_transport_offset(skb), IPPROTO_UDP, 0);
}

bool kopi_cgroup_bpf_enabled_udp6_sendmsg(void)
{
	return cgroup_bpf_enabled(CGROUP_UDP6_SENDMSG);
}
