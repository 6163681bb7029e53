// SPDX-License-Identifier: GPL-2.0
/*
 * Packets. Besides helpers: the IP IDs of what no connected sock sends, and which packets need no more than
 * segmentation and checksums.
 */

#include <linux/etherdevice.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/netdevice.h>
#include <linux/netfilter_netdev.h>
#include <linux/udp.h>
#include <net/checksum.h>
#include <net/dsfield.h>
#include <net/dst_metadata.h>
#include <net/ip.h>
#include <net/ipv6.h>
#include <net/page_pool/helpers.h>
#include <net/sock.h>
#include <net/xdp.h>
#include <net/xfrm.h>

#include "../shim.h"

bool kopi_skb_is_ipv4(const struct sk_buff *skb)
{
	return skb->protocol == htons(ETH_P_IP);
}

int kopi_skb_iif(const struct sk_buff *skb)
{
	return skb->skb_iif;
}

int kopi_ip6cb_iif(const struct sk_buff *skb)
{
	return IP6CB(skb)->iif;
}

int kopi_pktinfo_cb_ifindex(const struct sk_buff *skb)
{
	return PKTINFO_SKB_CB(skb)->ipi_ifindex;
}

u32 kopi_skb_mark(const struct sk_buff *skb)
{
	return skb->mark;
}

u32 kopi_skb_priority(const struct sk_buff *skb)
{
	return skb->priority;
}

const struct iphdr *kopi_ip_hdr(const struct sk_buff *skb)
{
	return ip_hdr(skb);
}

const struct ipv6hdr *kopi_ipv6_hdr(const struct sk_buff *skb)
{
	return ipv6_hdr(skb);
}

const struct udphdr *kopi_udp_hdr(const struct sk_buff *skb)
{
	return udp_hdr(skb);
}

unsigned int kopi_skb_gso_size(const struct sk_buff *skb)
{
	/* With another type it is one datagram, which would be fragmented. */
	return skb_shinfo(skb)->gso_type & SKB_GSO_UDP_L4 ? skb_shinfo(skb)->gso_size : 0;
}

u8 kopi_ipv6_get_dsfield(const struct ipv6hdr *ip6h)
{
	return ipv6_get_dsfield(ip6h);
}

u64 kopi_skb_timestamp_ns(struct sk_buff *skb)
{
	return ktime_to_ns(skb->tstamp ? skb->tstamp : ktime_get_real());
}

/* How long IP IDs that were reserved are taken, and how many are reserved at most. */
#define IDS_AGE HZ
#define IDS_MAX 16

/*
 * An IP ID to a destination to which no sock is connected: __ip_select_ident(), whose hash and random number are
 * expensive. As for a GSO packet, it reserves several that follow each other, the more of them the more often
 * there are packets: so they are unique as the stack's are. Those that are old are given up, as the stack leaves
 * some out with time.
 */
static void reserved_ip_id(struct net *net, struct iphdr *iph, struct kopi_ip_ids *ids)
{
	u32 now = (u32)jiffies;
	bool fresh = ids->reserved && now - ids->since < IDS_AGE;

	if (!fresh || !ids->left) {
		ids->reserved = fresh ? min(2 * ids->reserved, IDS_MAX) : 1;
		ids->left = ids->reserved;
		ids->since = now;
		__ip_select_ident(net, iph, ids->reserved);
		ids->next = ntohs(iph->id);
	}
	iph->id = htons(ids->next++);
	ids->left--;
}

/* Chooses the IP ID of one packet: ip_select_ident_segs(). The caller has `ids` to itself. */
void kopi_ip_select_ident(struct iphdr *iph, struct sock *sk, bool ignore_df,
			  struct kopi_ip_ids *ids)
{
	if (inet_sk(sk)->inet_daddr)
		iph->id = htons(atomic_add_return(1, &inet_sk(sk)->inet_id));
	else if (iph->frag_off & htons(IP_DF) && !ignore_df)
		iph->id = 0;
	else
		reserved_ip_id(sock_net(sk), iph, ids);
}

/* Opens len bytes behind the headroom; they begin with the network header. */
void *kopi_skb_begin(struct sk_buff *skb, unsigned int headroom, unsigned int len,
		     int transport, u32 mark)
{
	skb_reserve(skb, headroom);
	skb_reset_network_header(skb);
	skb_set_transport_header(skb, transport);
	skb->mark = mark;
	return __skb_put(skb, len);
}

/*
 * Sets the flow hash of an IPv4 datagram, and computes it if it isn't known. One that the sock had stays
 * (skb_set_hash_from_sk()).
 */
u32 kopi_skb_flow_hash(struct sk_buff *skb, u32 known)
{
	if (skb->l4_hash)
		return known;
	skb->protocol = htons(ETH_P_IP);
	if (known)
		__skb_set_sw_hash(skb, known, true);
	return skb_get_hash(skb);
}

u32 kopi_csum_partial_copy_nocheck(const void *from, void *to, int len)
{
	return (__force u32)csum_partial_copy_nocheck(from, to, len);
}

void kopi_skb_dst_set_noref(struct sk_buff *skb, struct dst_entry *dst)
{
	skb_dst_set_noref(skb, dst);
}

void kopi_ubuf_init(struct ubuf_info *ubuf, const struct ubuf_info_ops *ops)
{
	refcount_set(&ubuf->refcnt, 1);
	ubuf->flags = SKBFL_ZEROCOPY_FRAG | SKBFL_DONT_ORPHAN;
	ubuf->ops = ops;
}

bool kopi_ubuf_put(struct ubuf_info *ubuf)
{
	return refcount_dec_and_test(&ubuf->refcnt);
}

struct sk_buff *kopi_alloc_skb(unsigned int size, gfp_t gfp)
{
	return alloc_skb(size, gfp);
}

struct sock *kopi_skb_sk(const struct sk_buff *skb)
{
	return skb->sk;
}

struct net_device *kopi_skb_dev(const struct sk_buff *skb)
{
	return skb->dev;
}

void kopi_skb_set_dev(struct sk_buff *skb, struct net_device *dev)
{
	skb->dev = dev;
}

int kopi_skb_network_offset(const struct sk_buff *skb)
{
	return skb_network_offset(skb);
}

unsigned int kopi_skb_headroom(const struct sk_buff *skb)
{
	return skb_headroom(skb);
}

unsigned int kopi_skb_headlen(const struct sk_buff *skb)
{
	return skb_headlen(skb);
}

void kopi_skb_gso_reset(struct sk_buff *skb)
{
	skb_gso_reset(skb);
}

void kopi_skb_reset_mac_header(struct sk_buff *skb)
{
	skb_reset_mac_header(skb);
}

void kopi_skb_reset_network_header(struct sk_buff *skb)
{
	skb_reset_network_header(skb);
}

void kopi_skb_set_protocol(struct sk_buff *skb, u16 protocol)
{
	skb->protocol = htons(protocol);
}

bool kopi_skb_is_ip(const struct sk_buff *skb)
{
	return skb->protocol == htons(ETH_P_IP) || skb->protocol == htons(ETH_P_IPV6);
}

bool kopi_skb_has_route(const struct sk_buff *skb)
{
	return skb_dst(skb);
}

/* Whether IPsec, or a device for it, has to transform an outgoing packet, or has begun to. */
bool kopi_skb_is_being_transformed(struct sk_buff *skb)
{
	const struct dst_entry *dst = skb_dst(skb);

	return (dst && dst_xfrm(dst)) || xfrm_offload(skb);
}

void kopi_skb_add_xdp_frame(struct sk_buff *skb, int i, const struct xdp_frame *frame,
			    unsigned int skip, unsigned int len)
{
	const void *start = frame->data + skip;
	struct page *page = virt_to_head_page(start);

	if (frame->mem_type == MEM_TYPE_PAGE_POOL)
		skb_mark_for_recycle(skb);
	skb_add_rx_frag(skb, i, page, start - page_address(page), len, frame->frame_sz);
}

/* The id of the NAPI to which the frame's memory belongs; 0 if it isn't known. */
u32 kopi_xdp_frame_napi_id(const struct xdp_frame *frame)
{
	const struct napi_struct *napi = NULL;
	netmem_ref memory;

	if (frame->mem_type == MEM_TYPE_PAGE_POOL) {
		memory = netmem_compound_head(virt_to_netmem(frame->data));
		napi = READ_ONCE(netmem_get_pp(memory)->p.napi);
	}
	return napi ? napi->napi_id : 0;
}

void kopi_skb_set_napi_id(struct sk_buff *skb, u32 id)
{
	skb->napi_id = id;
}

void kopi_skb_set_verified(struct sk_buff *skb)
{
	skb->ip_summed = CHECKSUM_UNNECESSARY;
}

void kopi_skb_set_received(struct sk_buff *skb, struct net_device *dev)
{
	skb->protocol = eth_type_trans(skb, dev);
}

u16 kopi_skb_gso_segs(const struct sk_buff *skb)
{
	return skb_shinfo(skb)->gso_segs;
}

bool kopi_skb_is_udp_gso(const struct sk_buff *skb)
{
	return skb_is_gso(skb) && skb_shinfo(skb)->gso_type & SKB_GSO_UDP_L4;
}

/*
 * Whether it needs nothing from a driver or a device but segmentation and checksums. A dst of metadata tells
 * a driver for which port of a switch it is, or what to do with it.
 */
bool kopi_skb_is_plain(const struct sk_buff *skb)
{
	return !skb->encapsulation && !skb_vlan_tag_present(skb) && !skb_sec_path(skb) &&
	       !skb_metadata_dst(skb) &&
	       !(skb_shinfo(skb)->tx_flags & SKBTX_ANY_TSTAMP) && !skb->tstamp &&
	       (!skb_is_gso(skb) || kopi_skb_is_udp_gso(skb));
}

bool kopi_skb_is_partial(const struct sk_buff *skb)
{
	return skb->ip_summed == CHECKSUM_PARTIAL;
}

unsigned int kopi_skb_truesize(const struct sk_buff *skb)
{
	return skb->truesize;
}

void kopi_skb_dst_force(struct sk_buff *skb)
{
	skb_dst_force(skb);
}

/* __dev_queue_xmit() (net/core/dev.c) makes the stamp once more otherwise. */
void kopi_skb_forget_sched_stamp(struct sk_buff *skb)
{
	skb_shinfo(skb)->tx_flags &= ~SKBTX_SCHED_TSTAMP;
}

void kopi_nf_skip_egress(struct sk_buff *skb)
{
	nf_skip_egress(skb, true);
}

int kopi_dev_queue_xmit(struct sk_buff *skb)
{
	return dev_queue_xmit(skb);
}

void kopi_skb_queue_head_init(struct sk_buff_head *list)
{
	__skb_queue_head_init(list);
}

void kopi_skb_queue_tail(struct sk_buff_head *list, struct sk_buff *skb)
{
	__skb_queue_tail(list, skb);
}

struct sk_buff *kopi_skb_dequeue(struct sk_buff_head *list)
{
	return __skb_dequeue(list);
}

struct sk_buff *kopi_skb_peek(const struct sk_buff_head *list)
{
	return skb_peek(list);
}
