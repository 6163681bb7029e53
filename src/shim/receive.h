/* SPDX-License-Identifier: GPL-2.0 */
/* What receive4.c and receive6.c share. Each function names the kernel's that it mirrors, of 7.3.4. */

#ifndef KOPI_SHIM_RECEIVE_H
#define KOPI_SHIM_RECEIVE_H

#include <linux/filter.h>
#include <linux/netfilter.h>
#include <linux/skbuff.h>
#include <linux/udp.h>
#include <net/busy_poll.h>
#include <net/dst.h>
#include <net/sock.h>
#include <net/udp.h>

/*
 * Gives a packet the connected sock to which it goes, and the route that the sock remembers, if that is valid
 * by the cookie: udp_v4_early_demux() (net/ipv4/udp.c), udp_v6_early_demux() (net/ipv6/udp.c). RCU keeps both.
 */
static inline void set_early_sock(struct sk_buff *skb, struct sock *sk, u32 cookie)
{
	struct dst_entry *dst;

	skb->sk = sk;
	skb->destructor = sock_pfree;
	dst = rcu_dereference(sk->sk_rx_dst);
	if (dst)
		dst = dst_check(dst, cookie);
	if (dst)
		skb_dst_set_noref(skb, dst);
}

/*
 * Takes that sock away again, unless hooks have given the packet another one: UDP finds it once more, or one
 * that has come since.
 */
static inline void clear_early_sock(struct sk_buff *skb, const struct sock *sk)
{
	if (skb->sk == sk && skb->destructor == sock_pfree) {
		skb->sk = NULL;
		skb->destructor = NULL;
	}
}

/*
 * Whether a packet that hooks have seen is still one whole datagram, with a right checksum, whose sock they
 * haven't chosen. `size` is that of its IP header, which has to be checked, too.
 */
static inline bool is_whole_datagram(const struct sk_buff *skb, unsigned int size)
{
	return !skb->sk && !skb_is_nonlinear(skb) && skb->ip_summed == CHECKSUM_UNNECESSARY &&
	       skb->len >= size + sizeof(struct udphdr) && skb->len == size + ntohs(udp_hdr(skb)->len);
}

/*
 * Asks the filters of a sock about a packet whose data begin with UDP's header: udp_queue_rcv_one_skb()
 * (net/ipv4/udp.c), udpv6_queue_rcv_one_skb() (net/ipv6/udp.c). The reason if it is to be dropped, or 0.
 */
static inline int ask_filters(struct sock *sk, struct sk_buff *skb)
{
	int reason;

	nf_reset_ct(skb);
	reason = sk_filter_trim_cap(sk, skb, sizeof(struct udphdr));
	if (reason)
		udp_drops_inc(sk);
	return reason;
}

/*
 * The packet's data begin with the payload from here, and the sock notes which NAPI and CPU have received it:
 * __udp_queue_rcv_skb() (net/ipv4/udp.c), __udpv6_queue_rcv_skb() (net/ipv6/udp.c).
 */
static inline void enter_payload(struct sock *sk, struct sk_buff *skb, bool is_connected)
{
	__skb_pull(skb, sizeof(struct udphdr));
	skb_dst_drop(skb);
	if (is_connected) {
		sk_mark_napi_id(sk, skb);
		sk_incoming_cpu_update(sk);
	} else {
		sk_mark_napi_id_once(sk, skb);
	}
}

#endif
