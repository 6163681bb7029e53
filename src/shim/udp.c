// SPDX-License-Identifier: GPL-2.0
/*
 * UDP sockets: queues, counters, BPF programs of cgroups. Besides helpers: which datagrams rules
 * can't judge, because they came to another port or device, or from an address that stands for one of IPv4.
 */

#include <linux/bpf-cgroup.h>
#include <linux/udp.h>
#include <net/l3mdev.h>
#include <net/sock.h>
#include <net/udp.h>

#include "../shim.h"

bool kopi_udp_queues_empty(struct sock *sk)
{
	return skb_queue_empty_lockless(&sk->sk_receive_queue) &&
	       skb_queue_empty_lockless(&udp_sk(sk)->reader_queue);
}

/*
 * Whether a packet came by IPv6 from an address that stands for one of IPv4. No host has that address: the
 * packet would pass for one of that IPv4 host. TCP drops it (tcp_v6_conn_request(), net/ipv6/tcp_ipv6.c,
 * 7.3.4), and UDP doesn't.
 */
bool kopi_skb_is_mapped(const struct sk_buff *skb)
{
	return skb->protocol == htons(ETH_P_IPV6) && ipv6_addr_v4mapped(&ipv6_hdr(skb)->saddr);
}

/*
 * Whether a datagram came to another port than a sock has now, or to another device than that to which the sock
 * is bound now: connect() to AF_UNSPEC and SO_BINDTODEVICE leave the queue as it is. What is sent on this host
 * may come by the loopback device for any. What comes by a port of a VRF has the VRF's index; by which port it
 * came isn't known any more, as ipv4_pktinfo_prepare() (net/ipv4/ip_sockglue.c, 7.3.4) has written over that.
 */
bool kopi_udp_is_of_old_end(const struct sock *sk, const struct sk_buff *skb)
{
	const int bound = READ_ONCE(sk->sk_bound_dev_if);
	const struct net_device *dev;

	if (udp_hdr(skb)->dest != READ_ONCE(inet_sk(sk)->inet_sport))
		return true;
	if (!bound || skb->skb_iif == bound || skb->skb_iif == LOOPBACK_IFINDEX)
		return false;
	/* As l3mdev_master_ifindex_by_index(), but not by its hash, whose chains can be made long. */
	guard(rcu)();
	dev = kopi_net_dev(sock_net(sk), bound);
	return skb->skb_iif != (dev ? l3mdev_master_ifindex_rcu(dev) : 0);
}

/* Of the datagram that was peeked at, which is where readers find it, at this moment. */
bool kopi_udp_is_first_of_old_end(struct sock *sk)
{
	struct sk_buff_head *queue = &udp_sk(sk)->reader_queue;
	const struct sk_buff *skb;
	bool is_of_old_end;

	spin_lock_bh(&queue->lock);
	skb = skb_peek(queue);
	is_of_old_end = skb && kopi_udp_is_of_old_end(sk, skb);
	spin_unlock_bh(&queue->lock);
	return is_of_old_end;
}

/*
 * Whether a CPU is about to queue a packet, which is counted here until it is in the queue:
 * __udp_enqueue_schedule_skb() (net/ipv4/udp.c, 7.3.4). To be asked before the queues.
 */
bool kopi_udp_is_queueing(struct sock *sk)
{
	for (unsigned int node = 0; node < nr_node_ids; node++) {
		if (atomic_read(&udp_sk(sk)->udp_prod_queue[node].rmem_alloc))
			return true;
	}
	/* What isn't counted any more is in the queue, which is read next. */
	smp_rmb();
	return false;
}

/* Counts for UDP of the IP version of a route. */
void kopi_udp_inc_stats(const struct sock *sk, const struct dst_entry *dst, int field)
{
	SNMP_INC_STATS(__UDPX_MIB(sk, dst->ops->family == AF_INET), field);
}

void kopi_udp_count_received(struct sock *sk, const struct sk_buff *skb)
{
	SNMP_INC_STATS(__UDPX_MIB(sk, skb->protocol == htons(ETH_P_IP)),
		       UDP_MIB_INDATAGRAMS);
}

void kopi_udp_count_dropped(struct sock *sk, const struct sk_buff *skb, int datagrams)
{
	struct udp_mib __percpu *mib = __UDPX_MIB(sk, skb->protocol == htons(ETH_P_IP));

	SNMP_ADD_STATS(mib, UDP_MIB_RCVBUFERRORS, datagrams);
	SNMP_ADD_STATS(mib, UDP_MIB_INERRORS, datagrams);
	numa_drop_add(&udp_sk(sk)->drop_counters, datagrams);
}

bool kopi_udp4_recvmsg_hooked(struct sock *sk)
{
	return cgroup_bpf_enabled(CGROUP_UDP4_RECVMSG) &&
	       cgroup_bpf_sock_enabled(sk, CGROUP_UDP4_RECVMSG);
}

bool kopi_udp6_recvmsg_hooked(struct sock *sk)
{
	return cgroup_bpf_enabled(CGROUP_UDP6_RECVMSG) &&
	       cgroup_bpf_sock_enabled(sk, CGROUP_UDP6_RECVMSG);
}

int kopi_run_udp4_recvmsg(struct sock *sk, void *addr, int *len)
{
	return BPF_CGROUP_RUN_SA_PROG(sk, addr, len, CGROUP_UDP4_RECVMSG);
}

int kopi_run_udp6_recvmsg(struct sock *sk, void *addr, int *len)
{
	return BPF_CGROUP_RUN_SA_PROG(sk, addr, len, CGROUP_UDP6_RECVMSG);
}

bool kopi_udp_is_corked(const struct sock *sk)
{
	return udp_test_bit(CORK, sk) || READ_ONCE(udp_sk(sk)->pending);
}

u16 kopi_udp_gso_size(const struct sock *sk)
{
	return READ_ONCE(udp_sk(sk)->gso_size);
}

bool kopi_cgroup_bpf_enabled_udp4_sendmsg(void)
{
	return cgroup_bpf_enabled(CGROUP_UDP4_SENDMSG);
}

static int wake_reader(struct wait_queue_entry *wait, unsigned int mode, int sync, void *key)
{
	if (key && !(key_to_poll(key) & (EPOLLIN | EPOLLERR)))
		return 0;
	return autoremove_wake_function(wait, mode, sync, key);
}

/*
 * Sleeps until a packet is queued, as recvmsg() does, or until is_over(): 1 if that may be, 0 if the receiving side is
 * shut down, or an error. Mirrors __skb_wait_for_more_packets() (net/core/datagram.c, 7.3.4), which can't ask
 * is_over() behind prepare_to_wait_exclusive(), where it can't be missed.
 */
int kopi_udp_wait(struct sock *sk, long *timeout, bool (*is_over)(void *arg), void *arg)
{
	DEFINE_WAIT_FUNC(wait, wake_reader);
	int error;

	if (!*timeout)
		return -EAGAIN;
	prepare_to_wait_exclusive(sk_sleep(sk), &wait, TASK_INTERRUPTIBLE);
	error = sock_error(sk);
	if (error) {
		/* It is the result. */
	} else if (!skb_queue_empty_lockless(&sk->sk_receive_queue) || is_over(arg)) {
		error = 1;
	} else if (sk->sk_shutdown & RCV_SHUTDOWN) {
		error = 0;
	} else if (signal_pending(current)) {
		error = sock_intr_errno(*timeout);
	} else {
		*timeout = schedule_timeout(*timeout);
		error = 1;
	}
	finish_wait(sk_sleep(sk), &wait);
	return error;
}

bool kopi_udp_wants_gro(const struct sock *sk)
{
	return udp_test_bit(GRO_ENABLED, sk);
}
