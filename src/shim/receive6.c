// SPDX-License-Identifier: GPL-2.0
/*
 * Datagrams of IPv6 that are received as frames, as receive4.c has those of IPv4. Each function mirrors a
 * part of the way from the driver to UDP's queue; its comment names the functions, of 7.3.4
 * (net/ipv6/ip6_input.c, unless said).
 */

#include <linux/ipv6.h>
#include <linux/netfilter.h>
#include <linux/skbuff.h>
#include <linux/udp.h>
#include <net/addrconf.h>
#include <net/dst_metadata.h>
#include <net/inet6_hashtables.h>
#include <net/inet_hashtables.h>
#include <net/inet_ecn.h>
#include <net/ip6_fib.h>
#include <net/ip6_route.h>
#include <net/ipv6.h>
#include <net/protocol.h>
#include <net/sock.h>
#include <net/udp.h>
#include <net/xfrm.h>

#include "../shim.h"
#include "receive.h"

/* Whether there are hooks that look at what is received by IPv6. RCU is held. */
bool kopi_has_input_hooks6(const struct net_device *dev)
{
	const struct net *net = dev_net_rcu(dev);

	return rcu_access_pointer(net->nf.hooks_ipv6[NF_INET_PRE_ROUTING]) ||
	       rcu_access_pointer(net->nf.hooks_ipv6[NF_INET_LOCAL_IN]);
}

/*
 * Whether nothing but its destination, and the tables of routes, whose changes make routes invalid, decides
 * about the route of a packet to this host: fib6_rule_lookup() (net/ipv6/fib6_rules.c), which asks the local
 * table first. Otherwise routing rules, or sources, do, too. RCU is held.
 */
bool kopi_routes_by_destination6(const struct net_device *dev)
{
	const struct net *net = dev_net_rcu(dev);

	return !fib6_has_custom_rules(net) && !fib6_routes_require_src(net);
}

/* Changes whenever an IPv6 route does. RCU is held. */
int kopi_routes_generation6(const struct net_device *dev)
{
	return rt_genid_ipv6(dev_net_rcu(dev));
}

/* What an IPv6 route is valid by. RCU is held. */
u32 kopi_route_cookie6(const struct dst_entry *dst)
{
	return rt6_get_cookie(dst_rt6_info(dst));
}

/* Gives a packet a route that RCU keeps. */
void kopi_use_route6(struct sk_buff *skb, struct dst_entry *dst)
{
	skb_dst_drop(skb);
	skb_dst_set_noref(skb, dst);
}

/* Whether IPv6 takes a packet with such a header from its device: ip6_rcv_core(). RCU is held. */
bool kopi_is_input6(const struct net_device *dev, const struct ipv6hdr *ip6h)
{
	const struct inet6_dev *idev = __in6_dev_get(dev);

	return idev && !READ_ONCE(idev->cnf.disable_ipv6) && !ipv6_addr_loopback(&ip6h->saddr) &&
	       !ipv6_addr_loopback(&ip6h->daddr) && !ipv6_addr_is_multicast(&ip6h->saddr) &&
	       !ipv6_addr_is_multicast(&ip6h->daddr);
}

/* Counts a packet that has come in a frame, with the frame's padding: ip6_rcv_core(). RCU is held. */
void kopi_count_input6(const struct sk_buff *skb, const struct xdp_frame *frame)
{
	struct inet6_dev *idev = __in6_dev_get(skb->dev);
	struct net *net = dev_net_rcu(skb->dev);

	__IP6_UPD_PO_STATS(net, idev, IPSTATS_MIB_IN, frame->len - ETH_HLEN);
	__IP6_INC_STATS(net, idev,
			IPSTATS_MIB_NOECTPKTS + (ipv6_get_dsfield(ipv6_hdr(skb)) & INET_ECN_MASK));
}

/* Finds the route of a packet, unless it has one, which may be an error: ip6_rcv_finish_core(). */
static void route6(struct sk_buff *skb)
{
	if (!skb_valid_dst(skb))
		ip6_route_input(skb);
}

/* Whether a packet with a route is for one host, which is this one. */
static bool is_for_here6(const struct sk_buff *skb)
{
	return skb_dst(skb)->input == ip6_input;
}

/* Whether a packet is for this host, before anything else was done with it. RCU is held. */
bool kopi_route_here6(struct sk_buff *skb)
{
	route6(skb);
	return is_for_here6(skb);
}

/* Whether a connected sock gets a packet: __udp6_lib_demux_lookup() (net/ipv6/udp.c). */
static bool is_connected6(struct net *net, const struct sock *sk, const struct sk_buff *skb)
{
	const struct ipv6hdr *ip6h = ipv6_hdr(skb);
	const struct udphdr *udp = udp_hdr(skb);
	const __portpair ports = INET_COMBINED_PORTS(udp->source, ntohs(udp->dest));

	return READ_ONCE(sk->sk_state) == TCP_ESTABLISHED &&
	       inet6_match(net, sk, &ip6h->saddr, &ip6h->daddr, ports, inet6_iif(skb), inet6_sdif(skb));
}

/* Whether the headers of a datagram without extension headers can be read. */
static bool has_headers6(const struct sk_buff *skb)
{
	return skb_headlen(skb) >= sizeof(struct ipv6hdr) + sizeof(struct udphdr) &&
	       ipv6_hdr(skb)->nexthdr == IPPROTO_UDP;
}

/*
 * Finds a connected sock that gets a packet, and the route that it remembers, so that hooks of LOCAL_IN can
 * ask whose it is: ip6_rcv_finish_core(), udp_v6_early_demux(), __udp6_lib_demux_lookup()
 * (net/ipv6/udp.c).
 */
static struct sock *early_demux6(struct net *net, struct sk_buff *skb)
{
	unsigned int hash;
	struct sock *sk;

	if (!READ_ONCE(net->ipv4.sysctl_ip_early_demux) ||
	    !READ_ONCE(net->ipv4.sysctl_udp_early_demux) || skb_dst(skb) || skb->sk ||
	    skb->pkt_type != PACKET_HOST || !has_headers6(skb))
		return NULL;
	hash = ipv6_portaddr_hash(net, &ipv6_hdr(skb)->daddr, ntohs(udp_hdr(skb)->dest));
	udp_portaddr_for_each_entry_rcu(sk, &udp_hashslot2(net->ipv4.udp_table, hash)->head) {
		if (!is_connected6(net, sk, skb))
			break;
		set_early_sock(skb, sk, READ_ONCE(sk->sk_rx_dst_cookie));
		return sk;
	}
	return NULL;
}

/* What follows PRE_ROUTING for a packet that a hook has kept: ip6_rcv_finish(). */
static int after_pre_routing6(struct net *net, struct sock *sk, struct sk_buff *skb)
{
	early_demux6(net, skb);
	route6(skb);
	return dst_input(skb);
}

/*
 * The packet's data begin with UDP's header from here: ip6_protocol_deliver_rcu(), which counts it when UDP
 * has it.
 */
void kopi_enter_udp6(struct sk_buff *skb)
{
	__IP6_INC_STATS(dev_net_rcu(skb->dev), ip6_dst_idev(skb_dst(skb)), IPSTATS_MIB_INDELIVERS);
	__skb_pull(skb, skb_network_header_len(skb));
}

/*
 * What follows LOCAL_IN: ip6_input_finish() and ip6_protocol_deliver_rcu(), for UDP, of which there were no
 * raw sockets.
 */
static int after_local_in6(struct net *net, struct sock *sk, struct sk_buff *skb)
{
	struct inet6_dev *idev = ip6_dst_idev(skb_dst(skb));
	int protocol = ipv6_hdr(skb)->nexthdr;

	/* A hook may have changed the skb, and cut it off. */
	if (protocol != IPPROTO_UDP || !pskb_pull(skb, skb_transport_offset(skb))) {
		__IP6_INC_STATS(net, idev, IPSTATS_MIB_INDISCARDS);
		kfree_skb_reason(skb, SKB_DROP_REASON_IP_NOPROTO);
		return NET_RX_DROP;
	}
	rcu_read_lock();
	while (protocol > 0) {
		const struct inet6_protocol *handler = rcu_dereference(inet6_protos[protocol]);

		if (!handler || !(handler->flags & INET6_PROTO_FINAL)) {
			__IP6_INC_STATS(net, idev, IPSTATS_MIB_INDISCARDS);
			kfree_skb_reason(skb, SKB_DROP_REASON_IP_NOPROTO);
			break;
		}
		if (!(handler->flags & INET6_PROTO_NOPOLICY)) {
			if (!xfrm6_policy_check(NULL, XFRM_POLICY_IN, skb)) {
				__IP6_INC_STATS(net, idev, IPSTATS_MIB_INDISCARDS);
				kfree_skb_reason(skb, SKB_DROP_REASON_XFRM_POLICY);
				break;
			}
			nf_reset_ct(skb);
		}
		/* A tunnel may give it to another protocol. */
		protocol = handler->handler(skb);
		if (!protocol)
			__IP6_INC_STATS(net, idev, IPSTATS_MIB_INDELIVERS);
	}
	rcu_read_unlock();
	return NET_RX_SUCCESS;
}

/*
 * Has the hooks decide about a packet: ipv6_rcv(), ip6_input(). `known` is the route of a packet with its
 * destination, or NULL. False if it has gone: dropped, queued, taken, or given to the stack. RCU is held.
 */
bool kopi_ask_input_hooks6(struct sk_buff *skb, struct dst_entry *known)
{
	const struct in6_addr daddr = ipv6_hdr(skb)->daddr;
	struct net_device *dev = skb->dev;
	struct net *net = dev_net_rcu(dev);
	struct sock *sk;

	skb_dst_drop(skb);
	if (nf_hook(NFPROTO_IPV6, NF_INET_PRE_ROUTING, net, NULL, skb, dev, NULL,
		    after_pre_routing6) != 1)
		return false;
	sk = early_demux6(net, skb);
	if (known && ipv6_addr_equal(&ipv6_hdr(skb)->daddr, &daddr) && !skb_dst(skb))
		skb_dst_set_noref(skb, known);
	route6(skb);
	if (!is_for_here6(skb)) {
		dst_input(skb);
		return false;
	}
	if (nf_hook(NFPROTO_IPV6, NF_INET_LOCAL_IN, net, NULL, skb, dev, NULL,
		    after_local_in6) != 1)
		return false;
	/* UDP gives it to that sock, also if hooks have written other addresses or ports to it. */
	if (sk && has_headers6(skb) && is_connected6(net, sk, skb))
		clear_early_sock(skb, sk);
	return true;
}

/* Gives UDP a packet that the hooks have let pass. RCU is held. */
void kopi_input_by_stack6(struct sk_buff *skb)
{
	after_local_in6(dev_net_rcu(skb->dev), NULL, skb);
}

/* Whether a packet that hooks have seen is still one whole datagram, whose sock they haven't chosen. */
bool kopi_is_datagram6(const struct sk_buff *skb)
{
	const struct ipv6hdr *ip6h = ipv6_hdr(skb);

	return is_whole_datagram(skb, sizeof(*ip6h)) && ip6h->version == 6 && ip6h->nexthdr == IPPROTO_UDP;
}

/*
 * The UDP sock to which a datagram goes: udpv6_rcv() (net/ipv6/udp.c). NULL if there is none, or if programs
 * of BPF are to choose it. RCU keeps the sock.
 */
struct sock *kopi_find_receiver6(struct sk_buff *skb)
{
	const struct ipv6hdr *ip6h = ipv6_hdr(skb);
	const struct udphdr *udp = udp_hdr(skb);

	if (static_branch_unlikely(&bpf_sk_lookup_enabled))
		return NULL;
	return kopi_unless_chosen(__udp6_lib_lookup(dev_net_rcu(skb->dev), &ip6h->saddr, udp->source,
						    &ip6h->daddr, udp->dest, inet6_iif(skb),
						    inet6_sdif(skb), NULL));
}

/*
 * Asks the filters of a sock about a packet whose data begin with UDP's header:
 * udpv6_queue_rcv_one_skb(), __udpv6_queue_rcv_skb() (net/ipv6/udp.c). If it passes, they begin with the
 * payload afterwards. The reason if it is to be dropped, which is counted; or 0.
 */
int kopi_filter_datagram6(struct sock *sk, struct sk_buff *skb)
{
	int reason = ask_filters(sk, skb);

	if (reason) {
		__UDP6_INC_STATS(sock_net(sk), UDP_MIB_INERRORS);
		return reason;
	}
	enter_payload(sk, skb, !ipv6_addr_any(&sk->sk_v6_daddr));
	return 0;
}
