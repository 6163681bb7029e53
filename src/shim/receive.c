// SPDX-License-Identifier: GPL-2.0
/*
 * Datagrams that are received as frames: what both versions of IP share, and what is IPv4's; receive6.c has
 * what is IPv6's. Each function here mirrors a part of the way from the driver to UDP's queue; its comment
 * names the functions, of 7.3.4 (net/ipv4/ip_input.c, unless said). The tests that use
 * selftests/equivalence/, and selftests/direct_receives_datagrams.py, compare the two.
 */

#include <linux/etherdevice.h>
#include <linux/filter.h>
#include <linux/inetdevice.h>
#include <linux/netfilter.h>
#include <linux/skbuff.h>
#include <net/busy_poll.h>
#include <net/dst_metadata.h>
#include <net/inet_ecn.h>
#include <net/inet_hashtables.h>
#include <net/ip.h>
#include <net/l3mdev.h>
#include <net/protocol.h>
#include <net/route.h>
#include <net/sock.h>
#include <net/sock_reuseport.h>
#include <net/udp.h>
#include <net/xdp.h>
#include <net/xfrm.h>

#include "../shim.h"

/* Whether there are hooks that look at what is received by IPv4. RCU is held. */
bool kopi_has_input_hooks(const struct net_device *dev)
{
	const struct net *net = dev_net_rcu(dev);

	return rcu_access_pointer(net->nf.hooks_ipv4[NF_INET_PRE_ROUTING]) ||
	       rcu_access_pointer(net->nf.hooks_ipv4[NF_INET_LOCAL_IN]);
}

/*
 * Sets what a frame changes in an skb that was one before, and that only UDP's filters have seen
 * since: programs of cgroups may have written to it.
 */
static void rewrap_frame(struct sk_buff *skb, void *head, unsigned int size)
{
	struct skb_shared_info *shinfo;

	size = SKB_WITH_OVERHEAD(size);
	skb->head = head;
	skb->data = head;
	skb_set_end_offset(skb, size);
	skb_reset_tail_pointer(skb);
	skb->len = 0;
	skb->truesize = SKB_TRUESIZE(size);
	skb->pfmemalloc = page_is_pfmemalloc(virt_to_head_page(head));
	skb->pp_recycle = 0;
	skb->tstamp = 0;
	skb->mark = 0;
	skb->priority = 0;
	skb_clear_hash(skb);
	shinfo = skb_shinfo(skb);
	memset(shinfo, 0, offsetof(struct skb_shared_info, dataref));
	atomic_set(&shinfo->dataref, 1);
}

/*
 * Makes an skb around a frame with `len` bytes, of which the first are an Ethernet header, an IPv4
 * header without options or an IPv6 header, and a UDP header, all with right checksums: as
 * __xdp_build_skb_from_frame() (net/core/xdp.c), netif_receive_skb_core() (net/core/dev.c),
 * ip_rcv_core() and ip6_rcv_core() (net/ipv6/ip6_input.c) have it. Uses the memory of `skb`, if there is
 * one; a plain one was made by this function, and hooks haven't seen it. NULL if the packet isn't for
 * this host, or memory is short.
 */
struct sk_buff *kopi_wrap_frame(struct sk_buff *skb, bool is_plain, struct xdp_frame *frame,
				struct net_device *dev, unsigned int len, u32 napi_id)
{
	unsigned int headroom = sizeof(*frame) + frame->headroom;
	const struct ethhdr *eth = frame->data;
	const bool v6 = eth->h_proto == htons(ETH_P_IPV6);
	void *head = frame->data - headroom;

	if (!ether_addr_equal_64bits(eth->h_dest, dev->dev_addr))
		return NULL;
	if (v6 && !kopi_is_input6(dev, (const void *)(eth + 1)))
		return NULL;
	is_plain = is_plain && skb && skb->protocol == eth->h_proto;
	if (is_plain) {
		rewrap_frame(skb, head, frame->frame_sz);
	} else {
		skb = kopi_build_skb(skb, head, frame->frame_sz);
		if (!skb)
			return NULL;
	}
	if (frame->mem_type == MEM_TYPE_PAGE_POOL)
		skb_mark_for_recycle(skb);
	skb_reserve(skb, headroom);
	__skb_put(skb, len);
	skb_reset_mac_header(skb);
	__skb_pull(skb, ETH_HLEN);
	skb_reset_network_header(skb);
	skb_set_transport_header(skb, v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	if (!is_plain) {
		skb->dev = dev;
		skb->skb_iif = dev->ifindex;
		skb->protocol = v6 ? htons(ETH_P_IPV6) : htons(ETH_P_IP);
		if (v6)
			IP6CB(skb)->nhoff = offsetof(struct ipv6hdr, nexthdr);
		skb->pkt_type = PACKET_HOST;
		skb->ip_summed = CHECKSUM_UNNECESSARY;
		skb_reset_mac_len(skb);
	}
	kopi_skb_set_napi_id(skb, napi_id);
	/* IP6CB(skb)->iif is at the same place. */
	BUILD_BUG_ON(offsetof(struct inet_skb_parm, iif) != offsetof(struct inet6_skb_parm, iif));
	IPCB(skb)->iif = skb->skb_iif;
	/* The route of the frame before may have left some. */
	if (!v6)
		IPCB(skb)->flags = 0;
	/* net_timestamp_check() (net/core/dev.c) */
	if (static_branch_unlikely(&netstamp_needed_key))
		skb->tstamp = ktime_get_real();
	return skb;
}

/* Whether rules of routing ask for ports: fib4_rules_early_flow_dissect() (include/net/ip_fib.h). */
static bool needs_ports(const struct net *net)
{
#ifdef CONFIG_IP_MULTIPLE_TABLES
	return READ_ONCE(net->ipv4.fib_rules_require_fldissect);
#else
	return false;
#endif
}

/*
 * What decides about sources besides addresses, TOS, and the tables of routes, whose changes make
 * routes expire: __fib_validate_source() (net/ipv4/fib_frontend.c). ~0 if ports do, too. RCU is held.
 */
u32 kopi_route_conf(const struct net_device *dev)
{
	struct in_device *in_dev = __in_dev_get_rcu(dev);

	if (!in_dev || needs_ports(dev_net_rcu(dev)))
		return ~0U;
	return IN_DEV_RPFILTER(in_dev) | IN_DEV_ACCEPT_LOCAL(in_dev) << 8 |
	       IN_DEV_ROUTE_LOCALNET(in_dev) << 9 | !!IN_DEV_SRC_VMARK(in_dev) << 10;
}

/* Another reference to the route of an skb; NULL if it is about to end. RCU is held. */
struct dst_entry *kopi_hold_route(const struct sk_buff *skb)
{
	struct dst_entry *dst = skb_dst(skb);

	return dst && dst_hold_safe(dst) ? dst : NULL;
}

struct dst_entry *kopi_skb_dst(const struct sk_buff *skb)
{
	return skb_dst(skb);
}

/* Takes the frame back from such an skb that nobody else refers to. */
void kopi_unwrap_frame(struct sk_buff *skb)
{
	nf_reset_ct(skb);
	skb_ext_reset(skb);
	skb_dst_drop(skb);
	skb->head = NULL;
}

/* Whether such an skb can be taken back, after hooks have seen it: it has the same memory alone. */
bool kopi_is_frame_alone(const struct sk_buff *skb, const void *head)
{
	return skb->head == head && !skb_shared(skb) && !skb_cloned(skb) && !skb_is_nonlinear(skb) &&
	       !skb->sk && !skb->destructor;
}

/* Counts a packet that has come in a frame, with the frame's padding: ip_rcv_core(). */
void kopi_count_input(const struct sk_buff *skb, const struct xdp_frame *frame)
{
	struct net *net = dev_net_rcu(skb->dev);

	__IP_UPD_PO_STATS(net, IPSTATS_MIB_IN, frame->len - ETH_HLEN);
	__IP_INC_STATS(net, IPSTATS_MIB_NOECTPKTS + (ip_hdr(skb)->tos & INET_ECN_MASK));
}

/* Finds the route of a packet, unless it has one: ip_rcv_finish_core(). The reason for a drop, or 0. */
static int route(struct sk_buff *skb)
{
	const struct iphdr *iph = ip_hdr(skb);

	if (skb_valid_dst(skb))
		return 0;
	return ip_route_input_noref(skb, iph->daddr, iph->saddr, ip4h_dscp(iph), skb->dev);
}

/* Whether a packet with a route is for one host, which is this one. */
static bool is_for_here(const struct sk_buff *skb)
{
	return skb_rtable(skb)->rt_type == RTN_LOCAL && skb_dst(skb)->input == ip_local_deliver;
}

/* Whether a packet is for this host, before anything else was done with it. RCU is held. */
bool kopi_route_here(struct sk_buff *skb)
{
	return !route(skb) && is_for_here(skb);
}

/* Drops a packet without a route: ip_rcv_finish_core(). */
static int drop_unrouted(struct net *net, struct sk_buff *skb, int reason)
{
	if (reason == SKB_DROP_REASON_IP_RPFILTER)
		__NET_INC_STATS(net, LINUX_MIB_IPRPFILTER);
	kfree_skb_reason(skb, reason);
	return NET_RX_DROP;
}

/* What follows a route: ip_rcv_finish_core(), ip_rcv_finish(). */
static int after_route(struct net *net, struct sk_buff *skb)
{
	if (skb_rtable(skb)->rt_type == RTN_MULTICAST)
		__IP_UPD_PO_STATS(net, IPSTATS_MIB_INMCAST, skb->len);
	else if (skb_rtable(skb)->rt_type == RTN_BROADCAST)
		__IP_UPD_PO_STATS(net, IPSTATS_MIB_INBCAST, skb->len);
	return dst_input(skb);
}

/*
 * Finds a connected sock that gets a packet, so that hooks of LOCAL_IN can ask whose it is:
 * ip_rcv_finish_core(), udp_v4_early_demux(), __udp4_lib_demux_lookup() (net/ipv4/udp.c).
 */
static struct sock *early_demux(struct net *net, struct sk_buff *skb)
{
	INET_ADDR_COOKIE(cookie, ip_hdr(skb)->saddr, ip_hdr(skb)->daddr);
	const struct iphdr *iph = ip_hdr(skb);
	const struct udphdr *udp = udp_hdr(skb);
	unsigned int hash = ipv4_portaddr_hash(net, iph->daddr, ntohs(udp->dest));
	const __portpair ports = INET_COMBINED_PORTS(udp->source, ntohs(udp->dest));
	struct dst_entry *dst;
	struct sock *sk;

	if (!READ_ONCE(net->ipv4.sysctl_ip_early_demux) ||
	    !READ_ONCE(net->ipv4.sysctl_udp_early_demux) || skb_dst(skb) || skb->sk ||
	    iph->protocol != IPPROTO_UDP || iph->ihl != 5 ||
	    skb_headlen(skb) < sizeof(*iph) + sizeof(*udp))
		return NULL;
	udp_portaddr_for_each_entry_rcu(sk, &udp_hashslot2(net->ipv4.udp_table, hash)->head) {
		if (!inet_match(net, sk, cookie, ports, inet_iif(skb), inet_sdif(skb)))
			break;
		skb->sk = sk;
		skb->destructor = sock_pfree;
		dst = rcu_dereference(sk->sk_rx_dst);
		if (dst)
			dst = dst_check(dst, 0);
		if (dst)
			skb_dst_set_noref(skb, dst);
		return sk;
	}
	return NULL;
}

/* What follows PRE_ROUTING for a packet that a hook has kept: ip_rcv_finish(). */
static int after_pre_routing(struct net *net, struct sock *sk, struct sk_buff *skb)
{
	int reason;

	early_demux(net, skb);
	reason = route(skb);
	return reason ? drop_unrouted(net, skb, reason) : after_route(net, skb);
}

/* The packet's data begin with UDP's header from here: ip_local_deliver_finish(). */
void kopi_enter_udp(struct sk_buff *skb)
{
	__IP_INC_STATS(dev_net_rcu(skb->dev), IPSTATS_MIB_INDELIVERS);
	__skb_pull(skb, skb_network_header_len(skb));
}

/*
 * What follows LOCAL_IN: ip_local_deliver_finish() and ip_protocol_deliver_rcu(), for UDP, of which
 * there were no raw sockets. Raw sockets of a protocol inside don't see it, nor hears the peer that
 * there is no such protocol.
 */
static int after_local_in(struct net *net, struct sock *sk, struct sk_buff *skb)
{
	int protocol = ip_hdr(skb)->protocol;

	if (protocol != IPPROTO_UDP) {
		kfree_skb_reason(skb, SKB_DROP_REASON_IP_NOPROTO);
		return NET_RX_DROP;
	}
	rcu_read_lock();
	kopi_enter_udp(skb);
	while (protocol > 0) {
		const struct net_protocol *handler = rcu_dereference(inet_protos[protocol]);

		if (!handler) {
			kfree_skb_reason(skb, SKB_DROP_REASON_IP_NOPROTO);
			break;
		}
		if (!handler->no_policy) {
			if (!xfrm4_policy_check(NULL, XFRM_POLICY_IN, skb)) {
				kfree_skb_reason(skb, SKB_DROP_REASON_XFRM_POLICY);
				break;
			}
			nf_reset_ct(skb);
		}
		/* A tunnel may give it to another protocol. */
		protocol = -handler->handler(skb);
	}
	rcu_read_unlock();
	return NET_RX_SUCCESS;
}

/*
 * Has the hooks decide about a packet: ip_rcv(), ip_local_deliver(). `known` is the route of a packet
 * with its addresses and TOS, or NULL. False if it has gone: dropped, queued, taken, or given to the
 * stack. RCU is held.
 */
bool kopi_ask_input_hooks(struct sk_buff *skb, struct dst_entry *known)
{
	const __be32 saddr = ip_hdr(skb)->saddr, daddr = ip_hdr(skb)->daddr;
	struct net_device *dev = skb->dev;
	struct net *net = dev_net_rcu(dev);
	const u8 tos = ip_hdr(skb)->tos;
	struct sock *sk;
	int reason;

	skb_dst_drop(skb);
	/* The route may have noted that the sender should know of a shorter way. */
	IPCB(skb)->flags = 0;
	if (nf_hook(NFPROTO_IPV4, NF_INET_PRE_ROUTING, net, NULL, skb, dev, NULL,
		    after_pre_routing) != 1)
		return false;
	sk = early_demux(net, skb);
	if (known && !skb->mark && ip_hdr(skb)->saddr == saddr && ip_hdr(skb)->daddr == daddr &&
	    ip_hdr(skb)->tos == tos && !skb_dst(skb))
		skb_dst_set_noref(skb, known);
	reason = route(skb);
	if (reason) {
		drop_unrouted(net, skb, reason);
		return false;
	}
	if (!is_for_here(skb)) {
		after_route(net, skb);
		return false;
	}
	if (nf_hook(NFPROTO_IPV4, NF_INET_LOCAL_IN, net, NULL, skb, dev, NULL, after_local_in) != 1)
		return false;
	/* UDP finds it again, or another one that has come since. */
	if (sk && skb->sk == sk && skb->destructor == sock_pfree) {
		skb->sk = NULL;
		skb->destructor = NULL;
	}
	return true;
}

/* Gives UDP a packet that the hooks have let pass. RCU is held. */
void kopi_input_by_stack(struct sk_buff *skb)
{
	after_local_in(dev_net_rcu(skb->dev), NULL, skb);
}

/*
 * Whether a packet that hooks have seen is still one whole datagram, with a right checksum, whose
 * sock they haven't chosen.
 */
bool kopi_is_datagram(const struct sk_buff *skb)
{
	const struct iphdr *iph = ip_hdr(skb);
	const unsigned int headers = sizeof(*iph) + sizeof(struct udphdr);

	return !skb->sk && !skb_is_nonlinear(skb) && skb->ip_summed == CHECKSUM_UNNECESSARY &&
	       skb->len >= headers && iph->ihl == 5 && iph->protocol == IPPROTO_UDP &&
	       skb->len == sizeof(*iph) + ntohs(udp_hdr(skb)->len);
}

/*
 * A sock that was looked up without the packet, so that no program of a group was run; NULL if there is one,
 * which is to choose: once, and so by the stack. RCU keeps the sock.
 */
struct sock *kopi_unless_chosen(struct sock *sk)
{
	const struct sock_reuseport *group = sk ? rcu_dereference(sk->sk_reuseport_cb) : NULL;

	return group && rcu_access_pointer(group->prog) ? NULL : sk;
}

/*
 * The UDP sock to which a datagram goes: __udp4_lib_rcv() (net/ipv4/udp.c). NULL if there is none, or if
 * programs of BPF are to choose it. RCU keeps the sock.
 */
struct sock *kopi_find_receiver(struct sk_buff *skb)
{
	const struct iphdr *iph = ip_hdr(skb);
	const struct udphdr *udp = udp_hdr(skb);

	if (static_branch_unlikely(&bpf_sk_lookup_enabled))
		return NULL;
	return kopi_unless_chosen(__udp4_lib_lookup(dev_net_rcu(skb->dev), iph->saddr, udp->source,
						    iph->daddr, udp->dest, inet_iif(skb),
						    inet_sdif(skb), NULL));
}

/*
 * Which datagrams a sock gets that has got one: __udp4_lib_lookup(), udp_lib_get_port()
 * (net/ipv4/udp.c). Of a group, sources are shared out. Otherwise those with the same ends, or
 * those of all senders to the same address and port if no other sock can have that port, since this
 * one is alone in its slot.
 */
enum kopi_receives kopi_sock_receives(const struct sock *sk)
{
	const struct net *net = sock_net(sk);

	if (rcu_access_pointer(sk->sk_reuseport_cb))
		return KOPI_RECEIVES_THIS;
	/* One may be connected to port 0, and gets what its peer sends from any port. */
	if (READ_ONCE(sk->sk_state) != TCP_ESTABLISHED &&
	    READ_ONCE(udp_hashslot(net->ipv4.udp_table, net, inet_sk(sk)->inet_num)->count) == 1)
		return KOPI_RECEIVES_ALL;
	return KOPI_RECEIVES_SAME_ENDS;
}

/*
 * Whether UDP queues what the sock gets as it is: no tunnel, no policy of IPsec, no sockmap:
 * udp_queue_rcv_one_skb() (net/ipv4/udp.c).
 */
bool kopi_sock_receives_plainly(const struct sock *sk, const void *data_ready)
{
	return !READ_ONCE(udp_sk(sk)->encap_type) &&
	       !rcu_access_pointer(sk->sk_policy[XFRM_POLICY_IN]) &&
	       READ_ONCE(sk->sk_data_ready) == data_ready;
}

/*
 * Asks the filters of a sock about a packet whose data begin with UDP's header:
 * udp_queue_rcv_one_skb(), __udp_queue_rcv_skb() (net/ipv4/udp.c). If it passes, they begin with the
 * payload afterwards. The reason if it is to be dropped, which is counted; or 0.
 */
int kopi_filter_datagram(struct sock *sk, struct sk_buff *skb)
{
	int reason;

	nf_reset_ct(skb);
	reason = sk_filter_trim_cap(sk, skb, sizeof(struct udphdr));
	if (reason) {
		/* Of IPv4, also for a sock of IPv6. */
		__UDP_INC_STATS(sock_net(sk), UDP_MIB_INERRORS);
		udp_drops_inc(sk);
		return reason;
	}
	__skb_pull(skb, sizeof(struct udphdr));
	/* ipv4_pktinfo_prepare() (net/ipv4/ip_sockglue.c): the index is that of the skb. */
	PKTINFO_SKB_CB(skb)->ipi_ifindex = 0;
	skb_dst_drop(skb);
	if (inet_sk(sk)->inet_daddr) {
		sk_mark_napi_id(sk, skb);
		sk_incoming_cpu_update(sk);
	} else {
		sk_mark_napi_id_once(sk, skb);
	}
	return 0;
}
