// SPDX-License-Identifier: GPL-2.0
/*
 * Sockets. Besides helpers: undoing a bind() that has succeeded, disconnecting, and forgetting a classic filter as it
 * was given.
 */

#include <linux/fs.h>
#include <linux/ipv6.h>
#include <linux/poll.h>
#include <linux/sched/signal.h>
#include <net/busy_poll.h>
#include <net/inet_sock.h>
#include <net/ip.h>
#include <net/rps.h>
#include <net/sock.h>
#include <net/udp.h>

#include "../shim.h"

void kopi_sock_graft(struct sock *sk, struct socket *parent)
{
	sock_graft(sk, parent);
}

void kopi_sock_put(struct sock *sk)
{
	sock_put(sk);
}

struct net *kopi_sock_net(const struct sock *sk)
{
	return sock_net(sk);
}

uid_t kopi_sk_uid(const struct sock *sk)
{
	return __kuid_val(sk_uid(sk));
}

gid_t kopi_sk_gid(const struct sock *sk)
{
	struct socket *socket = READ_ONCE(sk->sk_socket);

	return socket ? from_kgid(&init_user_ns, SOCK_INODE(socket)->i_gid) : (gid_t)-1;
}

/* The inode of the sock's socket, if it still has one; freed by RCU. */
void *kopi_sk_inode_private(const struct sock *sk)
{
	struct socket *socket = READ_ONCE(sk->sk_socket);

	/* Pairs with the store below: the data are initialised. */
	return socket ? smp_load_acquire(&SOCK_INODE(socket)->i_private) : NULL;
}

void kopi_set_sk_inode_private(struct sock *sk, void *data)
{
	/* Pairs with the load above. */
	smp_store_release(&SOCK_INODE(sk->sk_socket)->i_private, data);
}

bool kopi_sock_writeable(const struct sock *sk)
{
	return sock_writeable(sk);
}

int kopi_sock_error(struct sock *sk)
{
	return sock_error(sk);
}

/* Whether a reader is told when a packet came, by software: sock_recv_timestamp(), __sock_recv_timestamp() (net/socket.c). */
bool kopi_sock_wants_timestamp(const struct sock *sk)
{
	const u32 flags = READ_ONCE(sk->sk_tsflags);

	return sock_flag(sk, SOCK_RCVTSTAMP) ||
	       (flags & SOF_TIMESTAMPING_SOFTWARE &&
		(flags & SOF_TIMESTAMPING_RX_SOFTWARE || !(flags & SOF_TIMESTAMPING_OPT_RX_FILTER)));
}

bool kopi_sock_flag_rcvmark(const struct sock *sk)
{
	return sock_flag(sk, SOCK_RCVMARK);
}

long kopi_sock_rcvtimeo(const struct sock *sk, bool noblock)
{
	return sock_rcvtimeo(sk, noblock);
}

int kopi_sock_intr_errno(long timeo)
{
	return sock_intr_errno(timeo);
}

bool kopi_sk_can_busy_loop(const struct sock *sk)
{
	return sk_can_busy_loop(sk);
}

bool kopi_sk_busy_loop_timeout(struct sock *sk, unsigned long start_time)
{
	return sk_busy_loop_timeout(sk, start_time);
}

wait_queue_head_t *kopi_sk_sleep(struct sock *sk)
{
	return sk_sleep(sk);
}

void kopi_sk_wake_async(struct sock *sk)
{
	sk_wake_async(sk, SOCK_WAKE_WAITD, POLL_IN);
}

void kopi_write_lock_bh_callback(struct sock *sk)
{
	write_lock_bh(&sk->sk_callback_lock);
}

void kopi_write_unlock_bh_callback(struct sock *sk)
{
	write_unlock_bh(&sk->sk_callback_lock);
}

bool kopi_inet_has_options(const struct sock *sk)
{
	return rcu_access_pointer(inet_sk(sk)->inet_opt);
}

bool kopi_sk_no_check_tx(const struct sock *sk)
{
	return sk->sk_no_check_tx;
}

bool kopi_sock_flag_txtime(const struct sock *sk)
{
	return sock_flag(sk, SOCK_TXTIME);
}

bool kopi_sock_flag_localroute(const struct sock *sk)
{
	return sock_flag(sk, SOCK_LOCALROUTE);
}

/* Whether the sock has an IPsec policy of its own. */
bool kopi_sk_has_policy_out(const struct sock *sk)
{
	return rcu_access_pointer(sk->sk_policy[XFRM_POLICY_OUT]);
}

u8 kopi_inet_sk_flowi_flags(const struct sock *sk)
{
	return inet_sk_flowi_flags(sk);
}

void kopi_sock_rps_record_flow(const struct sock *sk)
{
	sock_rps_record_flow(sk);
}

bool kopi_sock_is_nospace(const struct sock *sk)
{
	return test_bit(SOCK_NOSPACE, &sk->sk_socket->flags);
}

/* Whether errors of packets that were sent are reported, by the IP version of a route. */
bool kopi_inet_recverr(const struct sock *sk, const struct dst_entry *dst)
{
	return dst->ops->family == AF_INET6 ? inet6_test_bit(RECVERR6, sk) :
					      inet_test_bit(RECVERR, sk);
}

/* Turns softirqs off and locks the sock, unless a process has locked it. */
bool kopi_bh_lock_sock_unowned(struct sock *sk)
{
	local_bh_disable();
	bh_lock_sock(sk);
	if (!sock_owned_by_user(sk))
		return true;
	bh_unlock_sock(sk);
	local_bh_enable();
	return false;
}

void kopi_bh_unlock_sock(struct sock *sk)
{
	bh_unlock_sock(sk);
	local_bh_enable();
}

__be32 kopi_sk_rcv_saddr(const struct sock *sk)
{
	return READ_ONCE(sk->sk_rcv_saddr);
}

__be32 kopi_sk_daddr(const struct sock *sk)
{
	return READ_ONCE(sk->sk_daddr);
}

const struct in6_addr *kopi_sk_v6_saddr(const struct sock *sk)
{
	return &inet6_sk(sk)->saddr;
}

const struct in6_addr *kopi_sk_v6_rcv_saddr(const struct sock *sk)
{
	return &sk->sk_v6_rcv_saddr;
}

const struct in6_addr *kopi_sk_v6_daddr(const struct sock *sk)
{
	return &sk->sk_v6_daddr;
}

__be16 kopi_sk_dport(const struct sock *sk)
{
	return READ_ONCE(sk->sk_dport);
}

bool kopi_sk_is_kernels(const struct sock *sk)
{
	return sk->sk_kern_sock;
}

int kopi_sk_bound_dev_if(const struct sock *sk)
{
	return READ_ONCE(sk->sk_bound_dev_if);
}

void kopi_sk_set_mark(struct sock *sk, u32 mark)
{
	WRITE_ONCE(sk->sk_mark, mark);
	sk_dst_reset(sk);
}

/*
 * What __udp_disconnect() (net/ipv4/udp.c, 7.3.4) leaves of a peer of IPv6: the sock would get nothing from others, as
 * compute_score() (net/ipv6/udp.c) compares it. The sock is locked.
 */
static void forget_peer6(struct sock *sk)
{
	if (sk->sk_family == AF_INET6)
		sk->sk_v6_daddr = in6addr_any;
}

/*
 * Undoes a bind() that has succeeded, for which the kernel has no function: releases the port,
 * and restores the rest.
 */
void kopi_sk_unbind(struct sock *sk, int device, bool ipv6only)
{
	lock_sock(sk);
	sk->sk_userlocks &= ~(SOCK_BINDADDR_LOCK | SOCK_BINDPORT_LOCK);
	/* Another thread may have connected it meanwhile. */
	__udp_disconnect(sk, 0);
	forget_peer6(sk);
	WRITE_ONCE(sk->sk_bound_dev_if, device);
	sk->sk_ipv6only = ipv6only;
	release_sock(sk);
}

/*
 * Forgets a classic filter as it was given, as a filter of eBPF has none. SO_GET_FILTER, which the family isn't asked
 * about, would copy it to the program with the sock's lock held.
 */
void kopi_forget_classic_filter(struct sock *sk)
{
	struct sock_fprog_kern *given = NULL;
	struct sk_filter *filter;

	lock_sock(sk);
	filter = rcu_dereference_protected(sk->sk_filter, lockdep_sock_is_held(sk));
	if (filter && filter->prog->type != BPF_PROG_TYPE_SOCKET_FILTER)
		swap(given, filter->prog->orig_prog);
	release_sock(sk);
	if (given)
		kfree(given->filter);
	kfree(given);
}

bool kopi_sk_ipv6only(const struct sock *sk)
{
	return sk->sk_ipv6only;
}

/* Disconnects it, as connect() to AF_UNSPEC does, but without a trace of the peer; it stays bound to its device. */
void kopi_sk_disconnect(struct sock *sk, int device)
{
	sk->sk_prot->disconnect(sk, 0);
	lock_sock(sk);
	/* Another thread may have connected it anew meanwhile. */
	if (sk->sk_state != TCP_ESTABLISHED)
		forget_peer6(sk);
	WRITE_ONCE(sk->sk_bound_dev_if, device);
	release_sock(sk);
}

u32 kopi_sk_priority(const struct sock *sk)
{
	return READ_ONCE(sk->sk_priority);
}

void kopi_sk_set_priority(struct sock *sk, u32 priority)
{
	WRITE_ONCE(sk->sk_priority, priority);
}

u8 kopi_sk_default_ttl(const struct sock *sk)
{
	return READ_ONCE(sock_net(sk)->ipv4.sysctl_ip_default_ttl);
}

bool kopi_sk_fullsock(const struct sock *sk)
{
	return sk_fullsock(sk);
}

unsigned int kopi_sk_wmem_alloc(const struct sock *sk)
{
	return refcount_read(&sk->sk_wmem_alloc);
}
