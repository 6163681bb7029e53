// SPDX-License-Identifier: GPL-2.0
/*
 * Datagrams of IPv4 that are received as frames: their route, the hooks that are asked, their sock and its
 * filters. Each function mirrors a part of the way from the driver to UDP's queue; its comment names the
 * functions, of 7.3.4 (net/ipv4/ip_input.c, unless said).
 */

#include <linux/inetdevice.h>
#include <linux/netfilter.h>
#include <linux/skbuff.h>
#include <linux/udp.h>
#include <net/dst_metadata.h>
#include <net/inet_ecn.h>
#include <net/inet_hashtables.h>
#include <net/ip.h>
#include <net/l3mdev.h>
#include <net/protocol.h>
#include <net/route.h>
#include <net/sock.h>
#include <net/udp.h>
#include <net/xdp.h>
#include <net/xfrm.h>

#include "../shim.h"
#include "receive.h"

/* Whether there are hooks that look at what is received by IPv4. RCU is held. */
bool kopi_has_input_hooks4(const struct net_device *dev)
{
	const struct net *net = dev_net_rcu(dev);

	return rcu_access_pointer(net->nf.hooks_ipv4[NF_INET_PRE_ROUTING]) ||
	       rcu_access_pointer(net->nf.hooks_ipv4[NF_INET_LOCAL_IN]);
}

/* Whether routing rules ask for ports: fib4_rules_early_flow_dissect() (include/net/ip_fib.h). */
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
 * routes expire: __fib_validate_source() (net/ipv4/fib_frontend.c). It changes each tenth of a second, too, since
 * some things change without a word: another device's ignore_routes_with_linkdown, and the groups of devices for
 * rules with suppress_ifgroup. ~0 if ports decide, too. RCU is held.
 */
u32 kopi_route_conf4(const struct net_device *dev)
{
	struct in_device *in_dev = __in_dev_get_rcu(dev);

	if (!in_dev || needs_ports(dev_net_rcu(dev)))
		return ~0U;
	return IN_DEV_RPFILTER(in_dev) | IN_DEV_ACCEPT_LOCAL(in_dev) << 8 |
	       IN_DEV_ROUTE_LOCALNET(in_dev) << 9 | !!IN_DEV_SRC_VMARK(in_dev) << 10 |
	       (u32)(u16)(jiffies / ROUTE_AGE) << 16;
}

/* Counts a packet that has come in a frame, with the frame's padding: ip_rcv_core(). */
void kopi_count_input4(const struct sk_buff *skb, const struct xdp_frame *frame)
{
	struct net *net = dev_net_rcu(skb->dev);

	__IP_UPD_PO_STATS(net, IPSTATS_MIB_IN, frame->len - ETH_HLEN);
	__IP_INC_STATS(net, IPSTATS_MIB_NOECTPKTS + (ip_hdr(skb)->tos & INET_ECN_MASK));
}

/* Finds the route of a packet, unless it has one: ip_rcv_finish_core(). The reason for a drop, or 0. */
static int route4(struct sk_buff *skb)
{
	const struct iphdr *iph = ip_hdr(skb);

	if (skb_valid_dst(skb))
		return 0;
	return ip_route_input_noref(skb, iph->daddr, iph->saddr, ip4h_dscp(iph), skb->dev);
}

/* Whether a packet with a route is for one host, which is this one. */
static bool is_for_here4(const struct sk_buff *skb)
{
	return skb_rtable(skb)->rt_type == RTN_LOCAL && skb_dst(skb)->input == ip_local_deliver;
}

/* Whether a packet is for this host, before anything else was done with it. RCU is held. */
bool kopi_route_here4(struct sk_buff *skb)
{
	return !route4(skb) && is_for_here4(skb);
}

/* Drops a packet without a route: ip_rcv_finish_core(). */
static int drop_unrouted(struct net *net, struct sk_buff *skb, int reason)
{
	if (reason == SKB_DROP_REASON_IP_RPFILTER)
		__NET_INC_STATS(net, LINUX_MIB_IPRPFILTER);
	kfree_skb_reason(skb, reason);
	return NET_RX_DROP;
}

/*
 * Whether a hook has made of a packet for one host one that the link has given to many, which such a host may
 * refuse: ip_rcv_finish_core().
 */
static bool is_refused_from_many(const struct sk_buff *skb)
{
	const struct in_device *in_dev = __in_dev_get_rcu(skb->dev);

	return (skb->pkt_type == PACKET_BROADCAST || skb->pkt_type == PACKET_MULTICAST) && in_dev &&
	       IN_DEV_ORCONF(in_dev, DROP_UNICAST_IN_L2_MULTICAST);
}

/* What follows a route: ip_rcv_finish_core(), ip_rcv_finish(). */
static int after_route(struct net *net, struct sk_buff *skb)
{
	if (skb_rtable(skb)->rt_type == RTN_MULTICAST) {
		__IP_UPD_PO_STATS(net, IPSTATS_MIB_INMCAST, skb->len);
	} else if (skb_rtable(skb)->rt_type == RTN_BROADCAST) {
		__IP_UPD_PO_STATS(net, IPSTATS_MIB_INBCAST, skb->len);
	} else if (is_refused_from_many(skb)) {
		kfree_skb_reason(skb, SKB_DROP_REASON_UNICAST_IN_L2_MULTICAST);
		return NET_RX_DROP;
	}
	return dst_input(skb);
}

/* Whether a connected sock gets a packet: __udp4_lib_demux_lookup() (net/ipv4/udp.c). */
static bool is_connected4(struct net *net, const struct sock *sk, const struct sk_buff *skb)
{
	INET_ADDR_COOKIE(cookie, ip_hdr(skb)->saddr, ip_hdr(skb)->daddr);
	const struct udphdr *udp = udp_hdr(skb);
	const __portpair ports = INET_COMBINED_PORTS(udp->source, ntohs(udp->dest));

	return inet_match(net, sk, cookie, ports, inet_iif(skb), inet_sdif(skb));
}

/* Whether the headers of a datagram without IP options can be read. */
static bool has_headers4(const struct sk_buff *skb)
{
	return skb_headlen(skb) >= sizeof(struct iphdr) + sizeof(struct udphdr) && ip_hdr(skb)->ihl == 5 &&
	       ip_hdr(skb)->protocol == IPPROTO_UDP;
}

/*
 * Finds a connected sock that gets a packet, so that hooks of LOCAL_IN can ask whose it is:
 * ip_rcv_finish_core(), udp_v4_early_demux(), __udp4_lib_demux_lookup() (net/ipv4/udp.c).
 */
static struct sock *early_demux4(struct net *net, struct sk_buff *skb)
{
	unsigned int hash;
	struct sock *sk;

	if (!READ_ONCE(net->ipv4.sysctl_ip_early_demux) ||
	    !READ_ONCE(net->ipv4.sysctl_udp_early_demux) || skb_dst(skb) || skb->sk ||
	    skb->pkt_type != PACKET_HOST || !has_headers4(skb))
		return NULL;
	hash = ipv4_portaddr_hash(net, ip_hdr(skb)->daddr, ntohs(udp_hdr(skb)->dest));
	udp_portaddr_for_each_entry_rcu(sk, &udp_hashslot2(net->ipv4.udp_table, hash)->head) {
		if (!is_connected4(net, sk, skb))
			break;
		set_early_sock(skb, sk, 0);
		return sk;
	}
	return NULL;
}

/* What follows PRE_ROUTING for a packet that a hook has kept: ip_rcv_finish(). */
static int after_pre_routing4(struct net *net, struct sock *sk, struct sk_buff *skb)
{
	int reason;

	early_demux4(net, skb);
	reason = route4(skb);
	return reason ? drop_unrouted(net, skb, reason) : after_route(net, skb);
}

/* The packet's data begin with UDP's header from here: ip_local_deliver_finish(). */
void kopi_enter_udp4(struct sk_buff *skb)
{
	__IP_INC_STATS(dev_net_rcu(skb->dev), IPSTATS_MIB_INDELIVERS);
	__skb_pull(skb, skb_network_header_len(skb));
}

/*
 * What follows LOCAL_IN: ip_local_deliver_finish() and ip_protocol_deliver_rcu(), for UDP, of which
 * there were no raw sockets. Raw sockets of a protocol inside don't see it, nor hears the peer that
 * there is no such protocol.
 */
static int after_local_in4(struct net *net, struct sock *sk, struct sk_buff *skb)
{
	int protocol = ip_hdr(skb)->protocol;

	if (protocol != IPPROTO_UDP) {
		kfree_skb_reason(skb, SKB_DROP_REASON_IP_NOPROTO);
		return NET_RX_DROP;
	}
	rcu_read_lock();
	kopi_enter_udp4(skb);
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
bool kopi_ask_input_hooks4(struct sk_buff *skb, struct dst_entry *known)
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
		    after_pre_routing4) != 1)
		return false;
	sk = early_demux4(net, skb);
	if (known && !skb->mark && ip_hdr(skb)->saddr == saddr && ip_hdr(skb)->daddr == daddr &&
	    ip_hdr(skb)->tos == tos && !skb_dst(skb))
		skb_dst_set_noref(skb, known);
	reason = route4(skb);
	if (reason) {
		drop_unrouted(net, skb, reason);
		return false;
	}
	if (!is_for_here4(skb) || is_refused_from_many(skb)) {
		after_route(net, skb);
		return false;
	}
	if (nf_hook(NFPROTO_IPV4, NF_INET_LOCAL_IN, net, NULL, skb, dev, NULL, after_local_in4) != 1)
		return false;
	/* UDP gives it to that sock, also if hooks have written other addresses or ports to it. */
	if (sk && has_headers4(skb) && is_connected4(net, sk, skb))
		clear_early_sock(skb, sk);
	return true;
}

/* Gives UDP a packet that the hooks have let pass. RCU is held. */
void kopi_input_by_stack4(struct sk_buff *skb)
{
	after_local_in4(dev_net_rcu(skb->dev), NULL, skb);
}

/* Whether a packet that hooks have seen is still one whole datagram, whose sock they haven't chosen. */
bool kopi_is_datagram4(const struct sk_buff *skb)
{
	const struct iphdr *iph = ip_hdr(skb);

	return is_whole_datagram(skb, sizeof(*iph)) && iph->ihl == 5 && iph->protocol == IPPROTO_UDP;
}

/*
 * The UDP sock to which a datagram goes: __udp4_lib_rcv() (net/ipv4/udp.c). NULL if there is none, or if
 * BPF programs are to choose it. RCU keeps the sock.
 */
struct sock *kopi_find_receiver4(struct sk_buff *skb)
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
 * Asks the filters of a sock about a packet whose data begin with UDP's header:
 * udp_queue_rcv_one_skb(), __udp_queue_rcv_skb() (net/ipv4/udp.c). If it passes, they begin with the
 * payload afterwards. The reason if it is to be dropped, which is counted; or 0.
 */
int kopi_filter_datagram4(struct sock *sk, struct sk_buff *skb)
{
	int reason = ask_filters(sk, skb);

	if (reason) {
		/* Of IPv4, also for an IPv6 sock. */
		__UDP_INC_STATS(sock_net(sk), UDP_MIB_INERRORS);
		return reason;
	}
	enter_payload(sk, skb, inet_sk(sk)->inet_daddr);
	/* ipv4_pktinfo_prepare() (net/ipv4/ip_sockglue.c): the index is that of the skb. */
	PKTINFO_SKB_CB(skb)->ipi_ifindex = 0;
	return 0;
}
