// SPDX-License-Identifier: GPL-2.0
/*
 * Ordinary sockets of UDP and TCP: what KOPI keeps for each, and the functions by which programs of BPF's
 * LSM ask KOPI (tools/kopictl/src/bpf/enforce.bpf.c). These have the names of the hooks.
 */

#include <linux/bpf.h>
#include <linux/btf.h>
#include <linux/btf_ids.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/if_pppox.h>
#include <linux/mutex.h>
#include <linux/net.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/rhashtable.h>
#include <linux/skbuff.h>
#include <linux/sock_diag.h>
#include <net/inet_sock.h>
#include <net/ip.h>
#include <net/ipv6.h>
#include <net/sock.h>
#include <net/udp.h>

#include "../shim.h"

static const struct rhashtable_params known_params = {
	.head_offset = offsetof(struct kopi_known, node),
	.key_offset = offsetof(struct kopi_known, sk),
	.key_len = sizeof_field(struct kopi_known, sk),
	.automatic_shrinking = true,
};

static struct rhashtable known;

int kopi_known_init(void)
{
	return rhashtable_init(&known, &known_params);
}

static void free_one(void *entry, void *free)
{
	((void (*)(struct kopi_known *))free)(entry);
}

void kopi_known_destroy(void (*free)(struct kopi_known *entry))
{
	rhashtable_free_and_destroy(&known, free_one, free);
}

int kopi_known_insert(struct kopi_known *entry)
{
	return rhashtable_lookup_insert_fast(&known, &entry->node, known_params);
}

struct kopi_known *kopi_known_find(const struct sock *sk)
{
	return rhashtable_lookup(&known, &sk, known_params);
}

bool kopi_known_remove(struct kopi_known *entry)
{
	return !rhashtable_remove_fast(&known, &entry->node, known_params);
}

/* Entries that are taken out in one RCU read-side section. */
#define CLEARED_AT_ONCE 256

/*
 * Takes out what a walk of the table finds and isn't wanted; says whether it may have passed over others: where it
 * pauses at an entry that is gone by then. Process context.
 */
static bool clear_found(bool (*is_wanted)(const struct kopi_known *entry), void (*free)(struct kopi_known *entry))
{
	struct rhashtable_iter iter;
	struct kopi_known *entry;
	unsigned long found = 0;
	bool passed_over = false, wanted;

	rhashtable_walk_enter(&known, &iter);
	rhashtable_walk_start(&iter);
	while ((entry = rhashtable_walk_next(&iter))) {
		/* The table was resized, and the walk begins anew. */
		if (IS_ERR(entry))
			continue;
		wanted = is_wanted(entry);
		if (!wanted && kopi_known_remove(entry))
			free(entry);
		/* Those that stay take time, too. */
		if (++found % CLEARED_AT_ONCE)
			continue;
		passed_over |= !wanted;
		rhashtable_walk_stop(&iter);
		cond_resched();
		rhashtable_walk_start(&iter);
	}
	rhashtable_walk_stop(&iter);
	rhashtable_walk_exit(&iter);
	return passed_over;
}

void kopi_known_clear(bool (*is_wanted)(const struct kopi_known *entry), void (*free)(struct kopi_known *entry))
{
	while (clear_found(is_wanted, free))
		cond_resched();
}

bool kopi_known_is_empty(void)
{
	return !atomic_read(&known.nelems);
}

/* No other sock of the namespace ever has it. */
u64 kopi_sock_cookie(struct sock *sk)
{
	u32 halves[2];

	sock_diag_save_cookie(sk, halves);
	return (u64)halves[1] << 32 | halves[0];
}

/*
 * The MPTCP sock that has a TCP sock as a subflow, with a reference: both have the same socket. In an RCU
 * read-side section, which keeps the socket, and the memory of MPTCP's socks.
 */
struct sock *kopi_subflow_owner(struct sock *sk)
{
	struct socket *socket = READ_ONCE(sk->sk_socket);
	struct sock *owner = socket ? READ_ONCE(socket->sk) : NULL;

	if (!owner || owner == sk || !refcount_inc_not_zero(&owner->sk_refcnt))
		return NULL;
	/* The memory may be another's by now. */
	if (READ_ONCE(socket->sk) == owner && READ_ONCE(owner->sk_protocol) == IPPROTO_MPTCP)
		return owner;
	sock_put(owner);
	return NULL;
}

/* UDP and TCP, and MPTCP and SMC, which speak TCP. */
static bool is_ordinary(const struct sock *sk)
{
	if (sk->sk_family != AF_INET && sk->sk_family != AF_INET6)
		return false;
	switch (sk->sk_protocol) {
	case IPPROTO_UDP:
		return sk->sk_type == SOCK_DGRAM;
	case IPPROTO_TCP:
	case IPPROTO_MPTCP:
	case IPPROTO_SMC:
		return sk->sk_type == SOCK_STREAM;
	default:
		return false;
	}
}

static bool is_asked(const struct sock *sk)
{
	return sk && sk_fullsock(sk) && is_ordinary(sk);
}

/*
 * A socket of PPP over L2TP. It has any UDP socket carry what it sends, and takes what comes to that before the
 * hook for packets is asked. Or one of L2TP over IP, which any user may have, and which sends what he likes to whom he
 * likes (l2tp_ip_sendmsg(), 7.3.4). So it is refused all, as long as rules are enforced.
 */
static bool is_l2tp(const struct sock *sk)
{
	switch (sk->sk_family) {
	case PF_PPPOX:
		return sk->sk_protocol == PX_PROTO_OL2TP;
	case AF_INET:
	case AF_INET6:
		return sk->sk_protocol == IPPROTO_L2TP;
	default:
		return false;
	}
}

/*
 * A socket that sends by another one, whose packets aren't the user's: so it is refused all, too. That of AF_RXRPC may
 * have been made for another user, and be bound to a port that rules keep for others (rxrpc_lookup_local(), 7.3.4); RDS
 * has one for all users (rds_tcp_conn_path_connect()); SMC one for each of its own (smc_create_clcsk()). TIPC has a UDP
 * bearer of the administrator's (tipc_udp_xmit()), and KCM a TCP socket that its owner gave it (kcm_tx_work()).
 */
static bool sends_by_another_socket(const struct sock *sk)
{
	switch (sk->sk_family) {
	case AF_RXRPC:
	case AF_RDS:
	case AF_SMC:
	case AF_TIPC:
	case AF_KCM:
		return true;
	default:
		return false;
	}
}

/* The socket that asks whether the programs are there, and whether one was called for it; one at a time. */
static DEFINE_MUTEX(probing);
static const struct sock *probed;
static bool answered;

int kopi_lsm_is_there(struct net *net)
{
	struct msghdr nothing = { .msg_flags = MSG_DONTWAIT };
	struct socket *sock;
	int result;

	result = sock_create_kern(net, AF_INET, SOCK_DGRAM, IPPROTO_UDP, &sock);
	if (result)
		return result;
	mutex_lock(&probing);
	WRITE_ONCE(answered, false);
	WRITE_ONCE(probed, sock->sk);
	/* It has no peer, so that nothing is sent. */
	sock_sendmsg(sock, &nothing);
	WRITE_ONCE(probed, NULL);
	result = READ_ONCE(answered);
	mutex_unlock(&probing);
	sock_release(sock);
	return result;
}

/*
 * Whether the kernel itself makes the call, by a socket of its own or for one of its own purposes. The current
 * process isn't the socket's owner then, though it may be in a call of its own: when it reads a file, NFS and SMB
 * send by the kernel's sockets (net/sunrpc/sched.c, 7.3.4), and nbd by one that a user has made (__sock_xmit()).
 * The call of an ordinary socket isn't judged; the packets are. That of a flow, which nbd and others take for a
 * TCP socket, is judged as its owner's. One case only looks like that: where SMC falls back to TCP, a user's
 * file goes over to a socket of the kernel's (smc_switch_to_fallback()). Such a file isn't the socket's own.
 */
bool kopi_call_is_kernels(struct socket *sock)
{
	if (current->flags & (PF_KTHREAD | PF_MEMALLOC))
		return true;
	return sock->sk && sock->sk->sk_kern_sock &&
	       !(sock->file && file_inode(sock->file) != SOCK_INODE(sock));
}

static int ask(struct socket *sock, enum kopi_call call, const void *address, int len)
{
	struct sock *sk = sock->sk;

	if (kopi_call_is_kernels(sock))
		return 0;
	if (is_asked(sk))
		return kopi_ordinary_calls(sk, call, address, len);
	if (!sk || !(is_l2tp(sk) || sends_by_another_socket(sk)))
		return 0;
	return kopi_ordinary_are_judged(sock_net(sk)) ? -EACCES : 0;
}

/* The headers of UDP and TCP begin with the ports: that of the sender is first. */
bool kopi_skb_sender(const struct sk_buff *skb, struct in6_addr *address, u16 *port)
{
	__be16 place, *found;

	found = skb_header_pointer(skb, skb_transport_offset(skb), sizeof(place), &place);
	if (!found)
		return false;
	*port = ntohs(*found);
	if (skb->protocol == htons(ETH_P_IP))
		ipv6_addr_set_v4mapped(ip_hdr(skb)->saddr, address);
	else if (skb->protocol == htons(ETH_P_IPV6))
		*address = ipv6_hdr(skb)->saddr;
	else
		return false;
	return true;
}

__bpf_kfunc_start_defs();

__bpf_kfunc int kopi_lsm_socket_bind(struct socket *sock, struct sockaddr *address, int addrlen)
{
	return ask(sock, KOPI_CALL_BIND, address, addrlen);
}

__bpf_kfunc int kopi_lsm_socket_connect(struct socket *sock, struct sockaddr *address, int addrlen)
{
	return ask(sock, KOPI_CALL_CONNECT, address, addrlen);
}

__bpf_kfunc int kopi_lsm_socket_listen(struct socket *sock)
{
	return ask(sock, KOPI_CALL_LISTEN, NULL, 0);
}

__bpf_kfunc int kopi_lsm_socket_accept(struct socket *sock)
{
	return ask(sock, KOPI_CALL_ACCEPT, NULL, 0);
}

__bpf_kfunc int kopi_lsm_socket_sendmsg(struct socket *sock, struct msghdr *msg)
{
	if (sock->sk == READ_ONCE(probed))
		WRITE_ONCE(answered, true);
	return ask(sock, KOPI_CALL_SEND, msg->msg_name, msg->msg_namelen);
}

__bpf_kfunc int kopi_lsm_socket_recvmsg(struct socket *sock)
{
	return ask(sock, KOPI_CALL_RECEIVE, NULL, 0);
}

__bpf_kfunc int kopi_lsm_sock_rcv_skb(struct sock *sk, struct sk_buff *skb)
{
	return is_asked(sk) ? kopi_ordinary_gets(sk, skb) : 0;
}

__bpf_kfunc void kopi_lsm_sk_clone(const struct sock *sk, struct sock *newsk)
{
	if (is_asked(sk))
		kopi_ordinary_clones((struct sock *)sk, newsk);
}

__bpf_kfunc void kopi_lsm_mptcp_add_subflow(struct sock *sk, struct sock *ssk)
{
	if (is_asked(sk))
		kopi_ordinary_adds(sk, ssk);
}

/*
 * By number, since BPF doesn't trust a sock that is being freed. It is compared with what the table has,
 * and nothing else, so that any number does.
 */
__bpf_kfunc void kopi_lsm_sk_free(u64 sk)
{
	kopi_ordinary_ends((struct sock *)(unsigned long)sk);
}

/*
 * A task has a file open, which may be an ordinary socket. BPF doesn't trust what the iterator shows, so
 * both are looked up here by their numbers, of which any will do. In an RCU read-side section, as
 * the set says of it: the verifier refuses sleepable programs outside of one.
 */
__bpf_kfunc void kopi_iter_task_file(int tid, unsigned int fd)
{
	struct task_struct *task = pid_task(find_pid_ns(tid, &init_pid_ns), PIDTYPE_PID);
	unsigned int found = fd;
	struct socket *socket;
	struct file *file;

	if (!task)
		return;
	/* It gives the next one, if this one was closed meanwhile. */
	file = fget_task_next(task, &found);
	if (!file)
		return;
	socket = found == fd ? sock_from_file(file) : NULL;
	if (socket && is_asked(socket->sk))
		kopi_ordinary_found(socket->sk, task);
	fput(file);
}

__bpf_kfunc_end_defs();

BTF_KFUNCS_START(ids)
BTF_ID_FLAGS(func, kopi_lsm_socket_bind, KF_SLEEPABLE)
BTF_ID_FLAGS(func, kopi_lsm_socket_connect, KF_SLEEPABLE)
BTF_ID_FLAGS(func, kopi_lsm_socket_listen, KF_SLEEPABLE)
BTF_ID_FLAGS(func, kopi_lsm_socket_accept, KF_SLEEPABLE)
BTF_ID_FLAGS(func, kopi_lsm_socket_sendmsg, KF_SLEEPABLE)
BTF_ID_FLAGS(func, kopi_lsm_socket_recvmsg, KF_SLEEPABLE)
BTF_ID_FLAGS(func, kopi_lsm_sock_rcv_skb)
BTF_ID_FLAGS(func, kopi_lsm_sk_clone)
BTF_ID_FLAGS(func, kopi_lsm_mptcp_add_subflow)
BTF_ID_FLAGS(func, kopi_lsm_sk_free)
BTF_ID_FLAGS(func, kopi_iter_task_file, KF_RCU_PROTECTED)
BTF_KFUNCS_END(ids)

/* The set is for all programs that trace, of which those at other places than these hooks are refused. */
static int only_hooks(const struct bpf_prog *prog, u32 id)
{
	if (!btf_id_set8_contains(&ids, id) || prog->type == BPF_PROG_TYPE_LSM ||
	    prog->expected_attach_type == BPF_TRACE_ITER)
		return 0;
	return -EACCES;
}

static const struct btf_kfunc_id_set set = {
	.owner = THIS_MODULE,
	.set = &ids,
	.filter = only_hooks,
};

/* The kernel forgets the set with the module. */
int kopi_ordinary_register(void)
{
	return register_btf_kfunc_id_set(BPF_PROG_TYPE_LSM, &set);
}
