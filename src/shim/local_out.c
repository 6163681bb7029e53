// SPDX-License-Identifier: GPL-2.0
/*
 * The first hook of LOCAL_OUT: the rules judge all packets of flows, however they are sent, and those of
 * ordinary sockets while the rules are enforced.
 */

#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/netfilter_ipv4.h>
#include <linux/netfilter_ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <linux/unaligned.h>
#include <net/ip.h>
#include <net/ip6_route.h>
#include <net/ipv6.h>
#include <net/request_sock.h>
#include <net/sock.h>

#include "../shim.h"

/* The final destination of a packet: with a source route, the options have it. */
static void ipv4_destination(const struct sk_buff *skb, struct in6_addr *to)
{
	const u8 *header = skb_network_header(skb);
	int srr = IPCB(skb)->opt.srr;

	if (srr)
		ipv6_addr_set_v4mapped(get_unaligned((__be32 *)(header + srr + header[srr + 1] - 4)), to);
}

/* The same for IPv6: a routing header that isn't used up has it. */
static bool ipv6_destination(const struct sk_buff *skb, struct in6_addr *to)
{
	unsigned int offset = 0;
	const struct ipv6_rt_hdr *header;
	struct ipv6_rt_hdr place;
	int last;

	if (ipv6_hdr(skb)->nexthdr == IPPROTO_UDP || ipv6_hdr(skb)->nexthdr == IPPROTO_TCP ||
	    ipv6_find_hdr(skb, &offset, NEXTHDR_ROUTING, NULL, NULL) < 0)
		return true;
	header = skb_header_pointer(skb, offset, sizeof(place), &place);
	if (!header)
		return false;
	if (!header->segments_left)
		return true;
	/* Segment routing has the addresses in reverse order. */
	last = header->type == IPV6_SRCRT_TYPE_4 ? 0 : (header->hdrlen >> 1) - 1;
	return last >= 0 && !skb_copy_bits(skb, offset + 8 + last * sizeof(*to), to, sizeof(*to));
}

/*
 * Whether a packet was judged before at the VRF that its device is of: vrf_ip_out() and vrf_ip6_out()
 * (drivers/net/vrf.c, 7.3.4) call the hooks for these, and do so before they are called for the device.
 */
static bool seen_by_vrf(const struct sk_buff *skb, const struct nf_hook_state *state)
{
	struct net_device *master;

	if (!state->out || !netif_is_l3_slave(state->out))
		return false;
	master = netdev_master_upper_dev_get_rcu(state->out);
	if (!master || !netif_is_l3_master(master))
		return false;
	if (state->pf == NFPROTO_IPV4)
		return !ipv4_is_multicast(ip_hdr(skb)->daddr) && !ipv4_is_lbcast(ip_hdr(skb)->daddr);
	return !rt6_need_strict(&ipv6_hdr(skb)->daddr);
}

static bool is_judged(const struct sock *sk)
{
	return sk_is_udp(sk) || sk_is_tcp(sk);
}

/*
 * The sock that a tunnel sends by, if that is a process's: L2TP takes any process's UDP socket, and sends by it
 * what was written to sockets of its own, which nobody has judged. None for a tunnel's own sock, which is the
 * kernel's: its inner packet was judged before.
 */
static struct sock *tunnel_sock(struct sock *sk)
{
	return sk && sk_fullsock(sk) && is_judged(sk) && !sk->sk_kern_sock ? sk : NULL;
}

/* Whether it is a packet of GUE, which IPVS sends from a port of its own. */
static bool is_wrapped_in_udp(const struct sk_buff *skb, const struct sock *sk)
{
#if IS_ENABLED(CONFIG_IP_VS)
	const struct udphdr *uh;
	struct udphdr place;

	/* A packet is new to IPVS when this hook has it first. */
	if (!skb->ipvs_property || !sk_is_udp(sk))
		return false;
	uh = skb_header_pointer(skb, skb_transport_offset(skb), sizeof(place), &place);
	return uh && uh->source != inet_sk(sk)->inet_sport;
#else
	return false;
#endif
}

/*
 * Whether a packet has another one of the same sock in it, which was judged before. Tunnels that leave the sock in
 * both places do so: ip_vs_tunnel_xmit(), pptp_xmit(), seg6_output() with nf_hooks_lwtunnel (7.3.4). They don't all
 * set skb->encapsulation, and the transport header need not be that of the outer packet. What can't be parsed is
 * judged.
 */
static bool is_wrapped(const struct sk_buff *skb, const struct sock *sk, const struct nf_hook_state *state)
{
	unsigned int offset = 0;

	if (state->pf == NFPROTO_IPV4) {
		if (ip_hdr(skb)->protocol != sk->sk_protocol)
			return true;
	} else if (ipv6_hdr(skb)->nexthdr != sk->sk_protocol &&
		   /* Options may come before the transport header. */
		   ipv6_find_hdr(skb, &offset, sk->sk_protocol, NULL, NULL) == -ENOENT) {
		return true;
	}
	return is_wrapped_in_udp(skb, sk);
}

/*
 * The listener of a connection that Fast Open made of a SYN, and that nobody has accepted yet, as long as the peer hasn't
 * answered: what it sends answers that SYN. RCU keeps listeners, and the memory of requests. That may be another
 * one's by now: while a packet is in a VRF's queue, nobody holds the connection's lock.
 */
static struct sock *fastopen_listener(const struct sock *sk)
{
	struct request_sock *req;
	struct sock *listener;

	if (!sk_is_tcp(sk) || READ_ONCE(sk->sk_socket))
		return NULL;
	req = rcu_dereference(tcp_sk(sk)->fastopen_rsk);
	if (!req)
		return NULL;
	listener = READ_ONCE(req->rsk_listener);
	/* Pairs with the release of the request, after the connection has given it up. */
	smp_rmb();
	return rcu_access_pointer(tcp_sk(sk)->fastopen_rsk) == req ? listener : NULL;
}

/* Whether it is the connection that Fast Open made of a request: ip6_xmit() gives that for a second SYN-ACK. */
static bool is_fastopen_child(const struct sock *sk, const struct request_sock *req)
{
	return sk && sk_fullsock(sk) && sk_is_tcp(sk) && rcu_access_pointer(tcp_sk(sk)->fastopen_rsk) == req;
}

/* The sock that a packet is judged by: its own, or the listener of a SYN-ACK, which is a request's or a child's. */
static struct sock *judging_sock(const struct sk_buff *skb, const struct nf_hook_state *state)
{
	struct sock *sk = skb->sk, *listener;

	if (sk && sk == state->sk && sk_fullsock(sk)) {
		if (!is_judged(sk) || is_wrapped(skb, sk, state))
			return NULL;
		listener = fastopen_listener(sk);
		return listener ? listener : sk;
	}
	if (!sk || sk->sk_state != TCP_NEW_SYN_RECV)
		return tunnel_sock(state->sk);
	/* The request, which the packet holds, holds its listener. ip6_xmit() gives that. */
	listener = inet_reqsk(sk)->rsk_listener;
	if (state->sk != sk && state->sk != listener && !is_fastopen_child(state->sk, inet_reqsk(sk)))
		return tunnel_sock(state->sk);
	return is_wrapped(skb, listener, state) ? NULL : listener;
}

/* Reads ports and payload from the header behind IP's: false if memory is short. */
static bool read_transport(struct sk_buff *skb, const struct sock *sk, struct kopi_sent *sent)
{
	int offset = skb_transport_offset(skb), len = sizeof(struct udphdr);

	if (sk_is_tcp(sk)) {
		if (!pskb_may_pull(skb, offset + sizeof(struct tcphdr)))
			return false;
		len = tcp_hdrlen(skb);
		sent->port = ntohs(tcp_hdr(skb)->dest);
		sent->from_port = ntohs(tcp_hdr(skb)->source);
		sent->is_reset = tcp_hdr(skb)->rst;
	} else {
		if (!pskb_may_pull(skb, offset + len))
			return false;
		sent->port = ntohs(udp_hdr(skb)->dest);
		sent->from_port = ntohs(udp_hdr(skb)->source);
	}
	sent->bytes = skb->len - offset - len;
	sent->gso_size = skb_shinfo(skb)->gso_size;
	return true;
}

/*
 * Judges the packets of sockets when all their properties are known: the destination, whatever
 * address the program gave; mark and priority; the number of datagrams; the time, if it was
 * corked. It is the first of all hooks.
 */
static unsigned int local_out_hook(void *priv, struct sk_buff *skb,
				   const struct nf_hook_state *state)
{
	struct kopi_sent sent = { .mark = skb->mark, .priority = skb->priority };
	struct sock *sk = judging_sock(skb, state);
	bool transformed;
	int error;

	if (!sk)
		return NF_ACCEPT;
	if (state->pf == NFPROTO_IPV4) {
		ipv6_addr_set_v4mapped(ip_hdr(skb)->daddr, &sent.via);
		transformed = IPCB(skb)->flags & IPSKB_XFRM_TRANSFORMED;
	} else {
		sent.via = ipv6_hdr(skb)->daddr;
		transformed = IP6CB(skb)->flags & IP6SKB_XFRM_TRANSFORMED;
	}
	/* A packet that IPsec has transformed was judged before, too. */
	if (transformed)
		return NF_ACCEPT;
	if (!read_transport(skb, sk, &sent))
		return NF_DROP_ERR(-ENOMEM);
	sent.to = sent.via;
	if (state->pf == NFPROTO_IPV4)
		ipv4_destination(skb, &sent.to);
	else if (!ipv6_destination(skb, &sent.to))
		return NF_DROP_ERR(-EINVAL);
	sent.counted_before = seen_by_vrf(skb, state);
	error = kopi_local_out(sk, &sent);
	if (error)
		return NF_DROP_ERR(error);
	/* It has the rule's mark and priority. The VRF has made it forget its source route, and so who its peer is. */
	if (sent.counted_before)
		return NF_ACCEPT;
	skb->priority = sent.priority;
	if (skb->mark == sent.mark)
		return NF_ACCEPT;
	skb->mark = sent.mark;
	error = state->pf == NFPROTO_IPV4 ? ip_route_me_harder(state->net, sk, skb, RTN_UNSPEC) :
					    ip6_route_me_harder(state->net, sk, skb);
	return error ? NF_DROP_ERR(error) : NF_ACCEPT;
}

static const struct nf_hook_ops local_out_ops[] = {
	{
		.hook = local_out_hook,
		.pf = NFPROTO_IPV4,
		.hooknum = NF_INET_LOCAL_OUT,
		.priority = INT_MIN,
	},
	{
		.hook = local_out_hook,
		.pf = NFPROTO_IPV6,
		.hooknum = NF_INET_LOCAL_OUT,
		.priority = INT_MIN,
	},
};

int kopi_hook_local_out(struct net *net)
{
	return nf_register_net_hooks(net, local_out_ops, ARRAY_SIZE(local_out_ops));
}

void kopi_unhook_local_out(struct net *net)
{
	nf_unregister_net_hooks(net, local_out_ops, ARRAY_SIZE(local_out_ops));
}
