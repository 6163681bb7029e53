// SPDX-License-Identifier: GPL-2.0
/*
 * Datagrams that are received as frames, by either version of IP: the skb around a frame, and its receiver.
 * receive4.c and receive6.c have what differs by version. Each function mirrors a part of the way from the
 * driver to UDP's queue; its comment names the functions, of 7.3.4. The tests that use
 * selftests/equivalence/, and selftests/direct_receives_datagrams.py, compare the two.
 */

#include <linux/etherdevice.h>
#include <linux/ipv6.h>
#include <linux/netfilter.h>
#include <linux/skbuff.h>
#include <net/dst.h>
#include <net/ip.h>
#include <net/sock.h>
#include <net/sock_reuseport.h>
#include <net/udp.h>
#include <net/xdp.h>

#include "../shim.h"

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
	/*
	 * One may be connected to port 0, and gets what its peer sends from any port. The peer's address of IPv6 stays
	 * when a sock is disconnected.
	 */
	if (READ_ONCE(sk->sk_state) != TCP_ESTABLISHED && !READ_ONCE(inet_sk(sk)->inet_daddr) &&
	    (sk->sk_family == AF_INET || ipv6_addr_any(&sk->sk_v6_daddr)) &&
	    READ_ONCE(udp_hashslot(net->ipv4.udp_table, net, inet_sk(sk)->inet_num)->count) == 1)
		return KOPI_RECEIVES_ALL;
	return KOPI_RECEIVES_SAME_ENDS;
}

/*
 * Whether UDP queues what the sock gets as it is: no tunnel, no IPsec policy, no sockmap:
 * udp_queue_rcv_one_skb() (net/ipv4/udp.c).
 */
bool kopi_sock_receives_plainly(const struct sock *sk, const void *data_ready)
{
	return !READ_ONCE(udp_sk(sk)->encap_type) &&
	       !rcu_access_pointer(sk->sk_policy[XFRM_POLICY_IN]) &&
	       READ_ONCE(sk->sk_data_ready) == data_ready;
}
