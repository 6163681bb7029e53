// SPDX-License-Identifier: GPL-2.0
/*
 * Datagrams that leave as frames. Each function here mirrors a part of the way from ip_local_out() or
 * ip6_local_out() to the driver; its comment names the functions, of 7.3.4 (net/ipv4/ip_output.c and
 * net/ipv6/ip6_output.c, unless said). The tests that use selftests/equivalence/ compare the two.
 */

#include <linux/bpf-cgroup.h>
#include <linux/etherdevice.h>
#include <linux/netfilter.h>
#include <linux/netfilter_netdev.h>
#include <net/addrconf.h>
#include <net/arp.h>
#include <net/dst_metadata.h>
#include <net/ip.h>
#include <net/ip6_fib.h>
#include <net/ip6_route.h>
#include <net/ndisc.h>
#include <net/neighbour.h>
#include <net/route.h>
#include <net/sch_generic.h>
#include <net/sock.h>
#include <net/xdp.h>

#include "../shim.h"

/* The private data of a device's only egress hook, if this is its function. RCU is held. */
void *kopi_egress_only(const struct net_device *dev, const void *function)
{
	const struct nf_hook_entries *e = rcu_dereference_bh(dev->nf_hooks_egress);

	return e && e->num_hook_entries == 1 && e->hooks[0].hook == function ? e->hooks[0].priv : NULL;
}

static bool is_ipv6(const struct dst_entry *dst)
{
	return dst->ops->family == AF_INET6;
}

/* Whether ip6_output() sends by the route, and doesn't drop. */
static bool is_output6(const struct dst_entry *dst)
{
	const struct inet6_dev *idev = ip6_dst_idev(dst);

	return dst->output == ip6_output && idev && !READ_ONCE(idev->cnf.disable_ipv6);
}

/*
 * Whether nothing but netfilter hooks looks at a sock's packets until they reach the device of
 * their route: l3mdev_ip_out(), dst_output(), ip_finish_output(), ip_finish_output2(); and the same of
 * IPv6, whose l3mdev_ip6_out() has the same condition.
 */
bool kopi_output_is_plain(struct sock *sk, const struct dst_entry *dst)
{
	bool is_plain = is_ipv6(dst) ? is_output6(dst) :
				       dst->output == ip_output &&
				       dst_rtable(dst)->rt_gw_family != AF_INET6;

	return is_plain && !netif_is_l3_slave(dst_dev(dst)) &&
	       !(cgroup_bpf_enabled(CGROUP_INET_EGRESS) &&
		 cgroup_bpf_sock_enabled(sk, CGROUP_INET_EGRESS));
}

/* The device of a route. RCU is held. */
struct net_device *kopi_dst_dev(const struct dst_entry *dst)
{
	return dst_dev_rcu(dst);
}

/* The packet is about to leave by the device of its route. RCU is held. */
void kopi_skb_settle_dev(struct sk_buff *skb)
{
	skb->dev = skb_dst_dev_rcu(skb);
}

/* Whether the sock can send: sock_alloc_send_pskb() and sock_wmalloc() (net/core/sock.c). */
bool kopi_sock_can_send(const struct sock *sk)
{
	return !READ_ONCE(sk->sk_err) && !(READ_ONCE(sk->sk_shutdown) & SEND_SHUTDOWN) &&
	       refcount_read(&sk->sk_wmem_alloc) < READ_ONCE(sk->sk_sndbuf);
}

/* Makes an skb that stands for frames by the route, in `bytes` of pages, charged to the sock. */
struct sk_buff *kopi_alloc_frames_skb(struct sock *sk, struct dst_entry *dst, unsigned int bytes)
{
	struct sk_buff *skb = alloc_skb(0, GFP_ATOMIC | __GFP_NOWARN);

	if (!skb)
		return NULL;
	skb_dst_set(skb, dst_clone(dst));
	skb->truesize += bytes;
	skb_set_owner_w(skb, sk);
	return skb;
}

/* Charges an open UDP sock as skb_set_owner_w() does, without an skb, if it has room for so much and more. */
bool kopi_sock_charge(struct sock *sk, unsigned int bytes)
{
	if (refcount_read(&sk->sk_wmem_alloc) + bytes >= READ_ONCE(sk->sk_sndbuf))
		return false;
	refcount_add(bytes, &sk->sk_wmem_alloc);
	return true;
}

/* Lowers what the skb's sock is charged for it, to no less than a part. */
void kopi_skb_lower_charge(struct sk_buff *skb, unsigned int bytes)
{
	skb->truesize -= bytes;
	WARN_ON_ONCE(refcount_sub_and_test(bytes, &skb->sk->sk_wmem_alloc));
}

/* Ends such a charge, which may be the last that keeps the sock: sock_wfree() (net/core/sock.c). */
void kopi_sock_uncharge(struct sock *sk, unsigned int bytes)
{
	WARN_ON_ONCE(refcount_sub_and_test(bytes - 1, &sk->sk_wmem_alloc));
	READ_ONCE(sk->sk_write_space)(sk);
	sk_free(sk);
}

/* Fills in the length, the IP ID and the checksum, which is ip_send_check(). */
void kopi_ip_finish_header(struct iphdr *iph, struct sock *sk, unsigned int len, bool ignore_df,
			   struct kopi_ip_ids *ids)
{
	iph_set_totlen(iph, len);
	kopi_ip_select_ident(iph, sk, ignore_df, ids);
	ip_send_check(iph);
}

/* Whether it is a function of that name. */
static bool has_name(const void *function, const char *name)
{
	char found[KSYM_NAME_LEN];

	snprintf(found, sizeof(found), "%ps", function);
	return !strcmp(found, name);
}

/*
 * Whether a hook lets pass whatever has no security mark, without a look at anything else: as
 * apparmor_ip_postroute() (security/apparmor/lsm.c) does. Every machine with AppArmor has it. It
 * isn't exported, so its name tells.
 */
static bool passes_unmarked(const void *function)
{
	static const void *apparmors, *other;

	if (function == READ_ONCE(apparmors))
		return true;
	if (function == READ_ONCE(other))
		return false;
	if (has_name(function, "apparmor_ip_postroute"))
		WRITE_ONCE(apparmors, function);
	else
		WRITE_ONCE(other, function);
	return function == READ_ONCE(apparmors);
}

/* Whether there are hooks that look at what is sent by a route. RCU is held. */
bool kopi_has_output_hooks(const struct sock *sk, const struct dst_entry *dst)
{
	const struct netns_nf *nf = &sock_net(sk)->nf;
	struct nf_hook_entries __rcu *const *hooks = is_ipv6(dst) ? nf->hooks_ipv6 : nf->hooks_ipv4;
	const struct nf_hook_entries *last;

	if (rcu_access_pointer(hooks[NF_INET_LOCAL_OUT]))
		return true;
	last = rcu_dereference(hooks[NF_INET_POST_ROUTING]);
	return last && (last->num_hook_entries > 1 || !passes_unmarked(last->hooks[0].hook));
}

/* Makes an skb around `size` bytes at `head`, in the memory of `skb`, if there is one. */
struct sk_buff *kopi_build_skb(struct sk_buff *skb, void *head, unsigned int size)
{
	if (!skb)
		return build_skb(head, size);
	memset(skb, 0, offsetof(struct sk_buff, tail));
	return build_skb_around(skb, head, size);
}

/*
 * Makes an skb around a datagram in a page: the IP header is at `start` of `size` bytes. Uses the
 * memory of `skb`, if there is one. The skb is charged to the sock and owns a reference to the page.
 */
struct sk_buff *kopi_build_frame_skb(struct sk_buff *skb, void *head, unsigned int size,
				     unsigned int start, unsigned int len, struct sock *sk,
				     struct dst_entry *dst, u32 mark, bool ignore_df)
{
	skb = kopi_build_skb(skb, head, size);
	if (!skb)
		return NULL;
	get_page(virt_to_head_page(head));
	skb->truesize = size;
	skb_reserve(skb, start);
	skb_reset_network_header(skb);
	if (is_ipv6(dst)) {
		skb_set_transport_header(skb, sizeof(struct ipv6hdr));
		skb->protocol = htons(ETH_P_IPV6);
		/* __ip6_local_out() (net/ipv6/output_core.c) */
		IP6CB(skb)->nhoff = offsetof(struct ipv6hdr, nexthdr);
	} else {
		skb_set_transport_header(skb, sizeof(struct iphdr));
		skb->protocol = htons(ETH_P_IP);
	}
	__skb_put(skb, len);
	skb->mark = mark;
	skb->priority = READ_ONCE(sk->sk_priority);
	skb->ignore_df = ignore_df;
	skb_set_owner_w(skb, sk);
	skb_dst_set_noref(skb, dst);
	return skb;
}

/* Takes the frame back from such an skb that nobody else refers to. */
void kopi_release_frame_skb(struct sk_buff *skb)
{
	/* The socket, which the caller has, holds the last one. */
	WARN_ON_ONCE(refcount_sub_and_test(skb->truesize, &skb->sk->sk_wmem_alloc));
	skb->sk = NULL;
	skb->destructor = NULL;
	put_page(virt_to_head_page(skb->head));
	kopi_unwrap_frame(skb);
}

/* Frees the memory of an skb that was released so. */
void kopi_free_frame_skb(struct sk_buff *skb)
{
	kfree_skb_partial(skb, true);
}

/* Sets the flow hash, if it isn't 0: skb_get_hash_flowi6() (include/linux/skbuff.h). */
void kopi_skb_set_flow_hash(struct sk_buff *skb, u32 hash)
{
	if (hash)
		__skb_set_sw_hash(skb, hash, true);
}

/* What follows LOCAL_OUT: __ip_local_out()'s end, __ip6_local_out()'s (net/ipv6/output_core.c). */
static int after_local_out(struct net *net, struct sock *sk, struct sk_buff *skb)
{
	return dst_output(net, sk, skb);
}

/* What follows POSTROUTING: ip_finish_output(), by ip_output(), which leaves POSTROUTING out. */
static int after_post_routing(struct net *net, struct sock *sk, struct sk_buff *skb)
{
	IPCB(skb)->flags |= IPSKB_REROUTED;
	return ip_output(net, sk, skb);
}

/* The same of IPv6: ip6_finish_output(), by ip6_output(). */
static int after_post_routing6(struct net *net, struct sock *sk, struct sk_buff *skb)
{
	IP6CB(skb)->flags |= IP6SKB_REROUTED;
	return ip6_output(net, sk, skb);
}

/* Whether a hook has left the skb as a frame of this length, to which nobody else refers. */
static bool is_frame(const struct sk_buff *skb, const struct dst_entry *dst, const void *data,
		     unsigned int len)
{
	return skb->destructor == sock_wfree && skb->data == data && skb->len == len &&
	       skb_dst(skb) == dst && !skb_shared(skb) && !skb_cloned(skb) && !skb_is_nonlinear(skb) && !skb->encapsulation &&
	       !skb_vlan_tag_present(skb) && !skb->tstamp && skb->ip_summed == CHECKSUM_NONE;
}

/* The neighbour to which a route sends a packet: ip_finish_output2(), ip6_finish_output2(). */
static struct neighbour *neighbour(const struct dst_entry *dst, const void *header)
{
	const struct rtable *rt = dst_rtable(dst);
	const struct ipv6hdr *ip6h = header;
	const struct iphdr *iph = header;

	if (is_ipv6(dst))
		return __ipv6_neigh_lookup_noref(dst_dev_rcu(dst),
						 rt6_nexthop(dst_rt6_info(dst), &ip6h->daddr));
	return __ipv4_neigh_lookup_noref(dst_dev_rcu(dst),
					 rt->rt_gw_family ? (__force u32)rt->rt_gw4 :
							    (__force u32)iph->daddr);
}

/*
 * Writes the Ethernet header in front of a datagram's IP header, if the neighbour is known:
 * neigh_output(), neigh_resolve_output(), neigh_hh_output(). RCU is held.
 */
bool kopi_put_hard_header(const struct dst_entry *dst, void *header)
{
	const u8 known = NUD_CONNECTED | NUD_DELAY | NUD_PROBE;
	const struct hh_cache *hh;
	struct neighbour *neigh;
	unsigned long now = jiffies;
	unsigned int seq;
	bool filled;

	neigh = neighbour(dst, header);
	if (IS_ERR_OR_NULL(neigh) || !(READ_ONCE(neigh->nud_state) & known))
		return false;
	hh = &neigh->hh;
	do {
		seq = read_seqbegin(&hh->hh_lock);
		filled = READ_ONCE(hh->hh_len) == ETH_HLEN;
		memcpy((u8 *)header - HH_DATA_MOD, hh->hh_data, HH_DATA_MOD);
	} while (read_seqretry(&hh->hh_lock, seq));
	if (!(READ_ONCE(neigh->nud_state) & NUD_CONNECTED) && READ_ONCE(neigh->used) != now)
		WRITE_ONCE(neigh->used, now);
	return filled;
}

/*
 * A datagram that the stack has to go on with. It may wait there, for its neighbour's address, say: if memory
 * allows, it leaves the page, whose other frames would wait for it. RCU is held until now.
 */
static int go_on(struct sk_buff *skb, int stage)
{
	const unsigned int size = skb_end_offset(skb);
	unsigned int more;

	skb_dst_force(skb);
	if (!skb->head_frag || skb_shared(skb) || pskb_expand_head(skb, 0, 0, GFP_ATOMIC | __GFP_NOWARN))
		return stage;
	/* It has more memory there, for which pskb_expand_head() charges no owner. */
	more = skb_end_offset(skb) - size;
	if (skb->destructor == sock_wfree) {
		skb->truesize += more;
		refcount_add(more, &skb->sk->sk_wmem_alloc);
	}
	return stage;
}

/*
 * Has the hooks decide about a datagram: __ip_local_out(), ip_output(), __ip6_local_out(), ip6_output().
 * It may have other addresses afterwards. If it has gone, *error is what ip_local_out() would return.
 * RCU is held.
 */
enum kopi_hooks kopi_ask_output_hooks(struct sock *sk, struct sk_buff *skb, int *error)
{
	struct net *net = sock_net(sk);
	struct dst_entry *dst = skb_dst(skb);
	struct net_device *dev = dst_dev_rcu(dst);
	const void *data = skb->data;
	const bool v6 = is_ipv6(dst);
	const u8 family = v6 ? NFPROTO_IPV6 : NFPROTO_IPV4;
	unsigned int len = skb->len;

	*error = nf_hook(family, NF_INET_LOCAL_OUT, net, sk, skb, NULL, dev, after_local_out);
	if (*error != 1)
		return KOPI_HOOKS_GONE;
	if (!is_frame(skb, dst, data, len))
		return go_on(skb, KOPI_HOOKS_AFTER_LOCAL_OUT);
	skb->dev = dev;
	*error = nf_hook(family, NF_INET_POST_ROUTING, net, sk, skb, NULL, dev,
			 v6 ? after_post_routing6 : after_post_routing);
	if (*error != 1)
		return KOPI_HOOKS_GONE;
	if (!is_frame(skb, dst, data, len) || !kopi_put_hard_header(dst, skb_network_header(skb)))
		return go_on(skb, KOPI_HOOKS_AFTER_POST_ROUTING);
	return KOPI_HOOKS_PASSED;
}

/* Has the stack go on with a datagram after those hooks. RCU is held. */
int kopi_output_by_stack(struct sock *sk, struct sk_buff *skb, enum kopi_hooks stage)
{
	if (stage == KOPI_HOOKS_AFTER_LOCAL_OUT)
		return after_local_out(sock_net(sk), sk, skb);
	if (skb->protocol == htons(ETH_P_IPV6))
		return after_post_routing6(sock_net(sk), sk, skb);
	return after_post_routing(sock_net(sk), sk, skb);
}

/*
 * Drops what userspace was asked about and hasn't answered yet: it would go on with the functions
 * above. For when no flow is left.
 */
void kopi_drop_queued(struct net *net)
{
	nf_queue_nf_hook_drop(net);
}

/* Counts a datagram that leaves: ip_finish_output2(), ip6_finish_output2(). */
void kopi_count_output(const struct sock *sk, const struct dst_entry *dst, unsigned int len)
{
	if (is_ipv6(dst))
		IP6_UPD_PO_STATS(sock_net(sk), ip6_dst_idev(dst), IPSTATS_MIB_OUT, len);
	else
		IP_UPD_PO_STATS(sock_net(sk), IPSTATS_MIB_OUT, len);
}

/* Counts what becomes of a datagram that is sent by a route. */
void kopi_output_inc_stats(const struct sock *sk, const struct dst_entry *dst, int field)
{
	if (is_ipv6(dst))
		IP6_INC_STATS(sock_net(sk), ip6_dst_idev(dst), field);
	else
		IP_INC_STATS(sock_net(sk), field);
}

/*
 * Gives a copy of a sock's frame to the stack, with what hooks have made of its mark and priority, and the
 * flow hash if it isn't 0; behind the egress hooks if `skip` is set. Softirqs are off.
 */
int kopi_xmit_frame_copy(const struct sk_buff *of, struct sock *sk, const void *frame,
			 unsigned int len, u32 mark, u32 priority, u32 hash, bool skip)
{
	const struct ethhdr *eth = frame;
	const bool v6 = eth->h_proto == htons(ETH_P_IPV6);
	struct net_device *dev = of->dev;
	/* Once: it may grow. */
	const unsigned int headroom = LL_RESERVED_SPACE(dev);
	struct sk_buff *skb = alloc_skb(headroom + len, GFP_ATOMIC | __GFP_NOWARN);

	if (!skb) {
		kopi_output_inc_stats(sk, skb_dst(of), IPSTATS_MIB_OUTDISCARDS);
		return -ENOMEM;
	}
	skb_reserve(skb, headroom - ETH_HLEN);
	skb_put_data(skb, frame, len);
	skb_reset_mac_header(skb);
	skb_set_network_header(skb, ETH_HLEN);
	skb_set_transport_header(skb, ETH_HLEN + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)));
	skb->protocol = eth->h_proto;
	skb->dev = dev;
	skb->mark = mark;
	skb->priority = priority;
	kopi_skb_set_flow_hash(skb, hash);
	skb_set_owner_w(skb, sk);
	if (skip)
		nf_skip_egress(skb, true);
	return net_xmit_errno(dev_queue_xmit(skb));
}
