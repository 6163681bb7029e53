// SPDX-License-Identifier: GPL-2.0
/*
 * TCP sockets. Besides helpers: who may take them over, their end, undoing a bind(), their greatest rate, and their
 * counters.
 */

#include <linux/bpf.h>
#include <linux/tcp.h>
#include <net/inet_connection_sock.h>
#include <net/sock.h>
#include <net/tcp.h>

#include "../shim.h"

void kopi_lock_sock(struct sock *sk)
{
	lock_sock(sk);
}

/* What sk_user_data of connected streams points to. Nobody reads it. */
static u64 occupant;

/*
 * Occupies sk_user_data, unless it is ours already: EBUSY. What takes over a connection by its
 * descriptor wants it to be free: ovpn, which replaces the socket's operations, KCM, sockmaps. Children
 * don't inherit it. Process context.
 */
int kopi_tcp_occupy(struct sock *sk)
{
	int error = 0;
	void *user;

	/* ovpn looks at it under this lock only. */
	lock_sock(sk);
	write_lock_bh(&sk->sk_callback_lock);
	user = __locked_read_sk_user_data_with_flags(sk, SK_USER_DATA_NOCOPY);
	if (!sk->sk_user_data)
		__rcu_assign_sk_user_data_with_flags(sk, &occupant, SK_USER_DATA_NOCOPY);
	else if (user != &occupant)
		error = -EBUSY;
	write_unlock_bh(&sk->sk_callback_lock);
	release_sock(sk);
	return error;
}

/* Gives it up, if it is ours. */
void kopi_tcp_vacate(struct sock *sk)
{
	write_lock_bh(&sk->sk_callback_lock);
	if (__locked_read_sk_user_data_with_flags(sk, SK_USER_DATA_NOCOPY) == &occupant)
		rcu_assign_sk_user_data(sk, NULL);
	write_unlock_bh(&sk->sk_callback_lock);
}

bool kopi_tcp_has_ulp(const struct sock *sk)
{
	return READ_ONCE(inet_csk(sk)->icsk_ulp_ops);
}

#ifndef CONFIG_BPF_SYSCALL
#error "tcp_abort() would lock the sock again"
#endif

/*
 * Ends a connection whose sock is locked. tcp_abort() (net/ipv4/tcp.c, 7.3.4) takes the lock to be
 * held where a BPF program runs.
 */
void kopi_tcp_abort_locked(struct sock *sk, int error)
{
	struct bpf_run_ctx context = {};
	struct bpf_run_ctx *before = bpf_set_run_ctx(&context);

	tcp_abort(sk, error);
	bpf_reset_run_ctx(before);
}

/* Undoes a bind() that has succeeded, as kopi_sk_unbind() does for UDP. */
void kopi_tcp_unbind(struct sock *sk, int device, bool ipv6only)
{
	lock_sock(sk);
	sk->sk_userlocks &= ~(SOCK_BINDADDR_LOCK | SOCK_BINDPORT_LOCK);
	/* Another thread may have connected it meanwhile. */
	sk->sk_prot->disconnect(sk, 0);
	if (inet_sk(sk)->inet_num)
		sk->sk_prot->put_port(sk);
	inet_sk(sk)->inet_sport = 0;
	WRITE_ONCE(sk->sk_bound_dev_if, device);
	sk->sk_ipv6only = ipv6only;
	release_sock(sk);
}

/* Bytes a second; ~0 is no limit. The sock is locked. */
unsigned long kopi_sk_max_pacing_rate(const struct sock *sk)
{
	return READ_ONCE(sk->sk_max_pacing_rate);
}

/* As SO_MAX_PACING_RATE (net/core/sock.c, 7.3.4). The sock is locked. */
void kopi_sk_set_max_pacing_rate(struct sock *sk, unsigned long rate)
{
	if (rate != ~0UL)
		cmpxchg(&sk->sk_pacing_status, SK_PACING_NONE, SK_PACING_NEEDED);
	WRITE_ONCE(sk->sk_max_pacing_rate, rate);
	WRITE_ONCE(sk->sk_pacing_rate, min(READ_ONCE(sk->sk_pacing_rate), rate));
}

/* The sock may be in use meanwhile. */
void kopi_tcp_counts(const struct sock *sk, struct kopi_tcp_counts *counts)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	/* A listener has other data in these. */
	if (inet_sk_state_load(sk) == TCP_LISTEN)
		return;
	counts->tx_segments = READ_ONCE(tp->data_segs_out);
	counts->tx_bytes = READ_ONCE(tp->bytes_sent);
	counts->rx_segments = READ_ONCE(tp->data_segs_in);
	counts->rx_bytes = READ_ONCE(tp->bytes_received);
}
