// SPDX-License-Identifier: GPL-2.0
/*
 * Mirrors of kernel functions that can't be called, because they aren't exported or do more than
 * is wanted. Each comment names that function, and the version that it was compared with.
 */

#include <linux/netdevice.h>
#include <linux/udp.h>
#include <net/busy_poll.h>
#include <net/inet_common.h>
#include <net/ip.h>
#include <net/rps.h>
#include <net/sch_generic.h>
#include <net/sock.h>
#include <net/udp.h>

#include "../shim.h"

/*
 * As sk_busy_loop() (include/net/busy_poll.h, 7.3.4), with an end of its own: the kernel's end
 * checks the sock's queue, which a channel keeps empty.
 */
void kopi_sk_busy_loop(struct sock *sk, bool (*loop_end)(void *, unsigned long), void *arg)
{
	unsigned int napi_id = READ_ONCE(sk->sk_napi_id);

	if (napi_id_valid(napi_id))
		napi_busy_loop(napi_id, loop_end, arg, READ_ONCE(sk->sk_prefer_busy_poll),
			       READ_ONCE(sk->sk_busy_poll_budget) ?: BUSY_POLL_BUDGET);
}

/*
 * Ends what a sock is charged for a packet that has left its queues, both of which are locked, as udp_rmem_release()
 * (net/ipv4/udp.c, 7.3.4), which isn't exported: up to a page stays with the sock, so that the next packet needn't ask
 * the protocol for it.
 */
static void udp_uncharge(struct sock *sk, const struct sk_buff *skb)
{
	int size = skb->truesize + udp_sk(sk)->forward_deficit;
	int unused;

	udp_sk(sk)->forward_deficit = 0;
	sk_forward_alloc_add(sk, size);
	unused = (sk->sk_forward_alloc - 1) & PAGE_MASK;
	if (unused)
		__sk_mem_reclaim(sk, unused);
	atomic_sub(size, &sk->sk_rmem_alloc);
}

/*
 * As __skb_recv_udp() (net/ipv4/udp.c, 7.3.4) with MSG_DONTWAIT, with three differences. It never
 * busy polls: NAPI, run under the caller's lock, would deliver to the caller again. It leaves a
 * pending error of the sock pending. And an empty reader queue is passed over.
 */
static struct sk_buff *udp_dequeue(struct sock *sk)
{
	struct sk_buff_head *queue = &udp_sk(sk)->reader_queue;
	struct sk_buff_head *sk_queue = &sk->sk_receive_queue;
	struct sk_buff *skb;

	spin_lock_bh(&queue->lock);
	spin_lock(&sk_queue->lock);
	skb = __skb_dequeue(skb_queue_empty(queue) ? sk_queue : queue);
	if (skb)
		udp_uncharge(sk, skb);
	spin_unlock(&sk_queue->lock);
	spin_unlock_bh(&queue->lock);
	return skb;
}

/*
 * As udp_read_skb() (net/ipv4/udp.c, 7.3.4), but never polls the NIC, and doesn't make the sock the
 * packet's owner. A bad checksum counts for the packet's version of IP, as in udpv6_recvmsg()
 * (net/ipv6/udp.c). Takes at most *left packets off the queue, and subtracts their number from *left.
 * RCU, or the caller, keeps the sock.
 */
struct sk_buff *kopi_udp_read_skb(struct sock *sk, u32 *left)
{
	struct sk_buff *skb = NULL;
	struct udp_mib __percpu *mib;

	while (*left) {
		--*left;
		skb = udp_dequeue(sk);
		if (!skb || !udp_lib_checksum_complete(skb))
			break;
		mib = __UDPX_MIB(sk, skb->protocol == htons(ETH_P_IP));
		__SNMP_INC_STATS(mib, UDP_MIB_CSUMERRORS);
		__SNMP_INC_STATS(mib, UDP_MIB_INERRORS);
		udp_drops_inc(sk);
		kfree_skb_reason(skb, SKB_DROP_REASON_UDP_CSUM);
		skb = NULL;
	}
	/* The field held UDP's dev_scratch. */
	if (skb)
		skb->dev = NULL;
	return skb;
}

/*
 * Drops a datagram that was peeked at, for a wrong checksum, unless poll() was faster (first_packet_length()): as
 * __sk_queue_drop_skb() (net/core/datagram.c, 7.3.4), whose destructor, UDP's, isn't exported. Process context.
 */
void kopi_udp_drop_peeked(struct sock *sk, struct sk_buff *skb)
{
	struct udp_mib __percpu *mib = __UDPX_MIB(sk, skb->protocol == htons(ETH_P_IP));
	struct sk_buff_head *queue = &udp_sk(sk)->reader_queue;
	bool is_there;

	spin_lock_bh(&queue->lock);
	is_there = skb->next;
	if (is_there) {
		__skb_unlink(skb, queue);
		refcount_dec(&skb->users);
		spin_lock(&sk->sk_receive_queue.lock);
		udp_uncharge(sk, skb);
		spin_unlock(&sk->sk_receive_queue.lock);
	}
	spin_unlock_bh(&queue->lock);
	if (is_there) {
		SNMP_INC_STATS(mib, UDP_MIB_CSUMERRORS);
		SNMP_INC_STATS(mib, UDP_MIB_INERRORS);
		udp_drops_inc(sk);
	}
	kfree_skb_reason(skb, SKB_DROP_REASON_UDP_CSUM);
}

/* As lock_sock_nested() (net/core/sock.c, 7.3.4), but fails instead of waiting. */
bool kopi_try_lock_sock(struct sock *sk)
{
	bool got;

	spin_lock_bh(&sk->sk_lock.slock);
	got = !sk->sk_lock.owned;
	if (got)
		sk->sk_lock.owned = 1;
	spin_unlock_bh(&sk->sk_lock.slock);
	if (got)
		mutex_acquire(&sk->sk_lock.dep_map, 0, 1, _RET_IP_);
	return got;
}

/*
 * As inet_sendmsg() (net/ipv4/af_inet.c, 7.3.4), whose inet_autobind() waits for the sock's
 * lock: EAGAIN if the lock is taken.
 */
int kopi_udp_sendmsg(struct sock *sk, struct msghdr *msg, size_t len)
{
	struct inet_sock *inet = inet_sk(sk);

	sock_rps_record_flow(sk);
	/* This is checked again under the lock. */
	if (!READ_ONCE(inet->inet_num)) {
		if (!kopi_try_lock_sock(sk))
			return -EAGAIN;
		if (!inet->inet_num) {
			if (sk->sk_prot->get_port(sk, 0)) {
				release_sock(sk);
				return -EAGAIN;
			}
			inet->inet_sport = htons(inet->inet_num);
		}
		release_sock(sk);
	}
	return sk->sk_prot->sendmsg(sk, msg, len);
}

/*
 * As dev_get_by_index_rcu() (net/core/dev.c, 7.3.4), whose hash chains a user can make long by
 * choosing the devices' indices. RCU is held.
 */
const struct net_device *kopi_net_dev(struct net *net, int ifindex)
{
	return xa_load(&net->dev_by_index, ifindex);
}

/* Sets the fields of a GRO packet as GRO and udp_gro_complete_segment() (udp_offload.c, 7.3.4). */
void kopi_skb_set_udp_gro(struct sk_buff *skb, unsigned int udp, u16 size, u16 segs)
{
	skb->csum_start = skb_headroom(skb) + udp;
	skb->csum_offset = offsetof(struct udphdr, check);
	skb->ip_summed = CHECKSUM_PARTIAL;
	skb_shinfo(skb)->gso_size = size;
	skb_shinfo(skb)->gso_segs = segs;
	skb_shinfo(skb)->gso_type = SKB_GSO_UDP_L4;
}

/* The check of lengths in xdp_ok_fwd_dev() (include/linux/filter.h, 7.3.4). */
bool kopi_dev_fits_mtu(const struct net_device *dev, unsigned int len)
{
	return len <= READ_ONCE(dev->mtu) + dev->hard_header_len + VLAN_HLEN;
}

/*
 * The check of __dev_xmit_skb() (net/core/dev.c, 7.3.4), but without qdisc_run_begin(), so the
 * result may be outdated when it is used. A rate that the NIC keeps for the queue isn't kept for frames, and a
 * table of sizes (qdisc_calculate_pkt_len()) isn't asked about them.
 */
bool kopi_txq_can_bypass(struct net_device *dev, unsigned int index)
{
	struct netdev_queue *txq = netdev_get_tx_queue(dev, index);
	struct Qdisc *q = rcu_dereference_bh(txq->qdisc);

	if (READ_ONCE(txq->tx_maxrate) || rcu_access_pointer(q->stab))
		return false;
	return !q->enqueue || (q->flags & TCQ_F_CAN_BYPASS && qdisc_is_empty(q) &&
			       !test_bit(__QDISC_STATE_DEACTIVATED, &q->state));
}

/*
 * Counts packets that bypass the qdisc, as __dev_xmit_skb() (net/core/dev.c, 7.3.4) does; without a queue, nothing
 * does.
 */
void kopi_qdisc_bstats_add(struct net_device *dev, unsigned int index, u32 bytes, u32 packets)
{
	struct Qdisc *q = rcu_dereference_bh(netdev_get_tx_queue(dev, index)->qdisc);

	if (!q->enqueue)
		return;
	if (qdisc_is_percpu_stats(q)) {
		_bstats_update(this_cpu_ptr(q->cpu_bstats), bytes, packets);
		return;
	}
	spin_lock(qdisc_lock(q));
	_bstats_update(&q->bstats, bytes, packets);
	spin_unlock(qdisc_lock(q));
}

/* The same of an skb: bstats_update() (include/net/sch_generic.h, 7.3.4). */
void kopi_qdisc_bstats_update(struct net_device *dev, unsigned int index, struct sk_buff *skb)
{
	kopi_qdisc_bstats_add(dev, index, qdisc_pkt_len(skb),
			      skb_is_gso(skb) ? skb_shinfo(skb)->gso_segs : 1);
}
