// SPDX-License-Identifier: GPL-2.0
/*
 * What recvmsg() does before the rules have permitted a datagram: see src/sys/family/reader.rs.
 */

#include <linux/bpf-cgroup.h>
#include <linux/udp.h>
#include <net/inet_sock.h>
#include <net/ipv6.h>
#include <net/sock.h>
#include <net/udp.h>

#include "../shim.h"

/*
 * The source, as udp_recvmsg() (net/ipv4/udp.c, 7.3.4) and udpv6_recvmsg() (net/ipv6/udp.c) give it: the programs of
 * the cgroup may change it.
 */
static void put_source(struct sock *sk, struct sk_buff *skb, struct sockaddr_in6 *source)
{
	struct sockaddr_in *in = (struct sockaddr_in *)source;
	const bool is_v4 = skb->protocol == htons(ETH_P_IP);
	int len = sizeof(*source);

	if (sk->sk_family == AF_INET) {
		len = sizeof(*in);
		in->sin_family = AF_INET;
		in->sin_port = udp_hdr(skb)->source;
		in->sin_addr.s_addr = ip_hdr(skb)->saddr;
		BPF_CGROUP_RUN_PROG_UDP4_RECVMSG_LOCK(sk, (struct sockaddr *)source, &len);
		return;
	}
	source->sin6_family = AF_INET6;
	source->sin6_port = udp_hdr(skb)->source;
	if (is_v4) {
		ipv6_addr_set_v4mapped(ip_hdr(skb)->saddr, &source->sin6_addr);
	} else {
		source->sin6_addr = ipv6_hdr(skb)->saddr;
		source->sin6_scope_id = ipv6_iface_scope_id(&source->sin6_addr, inet6_iif(skb));
	}
	BPF_CGROUP_RUN_PROG_UDP6_RECVMSG_LOCK(sk, (struct sockaddr *)source, &len);
}

/*
 * Tells of the first datagram in the queue what recvmsg() with MSG_PEEK would: 0, or an error, which is EAGAIN if there
 * is none. recvmsg() itself may give a notice of IPV6_RECVPATHMTU, which looks like a datagram. As there, datagrams
 * with a wrong checksum are dropped. The caller is the only one to read, and *first is all zeroes.
 */
int kopi_udp_peek(struct sock *sk, struct kopi_first *first)
{
	struct sk_buff *skb;
	int err, off;

	/* In a sockmap: recvmsg() would read what programs gave it (udp_bpf_recvmsg()), and not what is judged here. */
	if (READ_ONCE(sk->sk_prot)->sock_is_readable)
		return -EOPNOTSUPP;
	for (;;) {
		/* As where SO_PEEK_OFF isn't set: not behind an empty datagram that was peeked at. */
		off = -1;
		skb = __skb_recv_udp(sk, MSG_PEEK | MSG_DONTWAIT, &off, &err);
		if (!skb)
			return err;
		if (!udp_lib_checksum_complete(skb))
			break;
		kopi_udp_drop_peeked(sk, skb);
		cond_resched();
	}
	first->len = skb->len;
	first->gso_size = skb_shinfo(skb)->gso_size;
	first->is_mapped = kopi_skb_is_mapped(skb);
	put_source(sk, skb, &first->source);
	consume_skb(skb);
	return 0;
}

/*
 * Gives a notice of IPV6_RECVPATHMTU, as udpv6_recvmsg() (net/ipv6/udp.c, 7.3.4) does before it looks at the queue, by
 * ipv6_recv_rxpmtu() (net/ipv6/datagram.c), which isn't exported: the bytes, or EAGAIN if there is none.
 */
int kopi_recv_path_mtu(struct sock *sk, struct msghdr *msg, size_t len)
{
	struct sockaddr_in6 *name = msg->msg_name;
	struct ip6_mtuinfo info;
	struct ipv6_pinfo *np;
	struct sk_buff *skb;
	int copied, err;

	if (sk->sk_family != AF_INET6)
		return -EAGAIN;
	np = inet6_sk(sk);
	if (!np->rxopt.bits.rxpmtu || !READ_ONCE(np->rxpmtu))
		return -EAGAIN;
	skb = xchg(&np->rxpmtu, NULL);
	if (!skb)
		return -EAGAIN;

	copied = skb->len;
	if (copied > len) {
		msg->msg_flags |= MSG_TRUNC;
		copied = len;
	}
	err = skb_copy_datagram_msg(skb, 0, msg, copied);
	if (!err) {
		sock_recv_timestamp(msg, sk, skb);
		memcpy(&info, IP6CBMTU(skb), sizeof(info));
		if (name) {
			name->sin6_family = AF_INET6;
			name->sin6_flowinfo = 0;
			name->sin6_port = 0;
			name->sin6_scope_id = info.ip6m_addr.sin6_scope_id;
			name->sin6_addr = info.ip6m_addr.sin6_addr;
			msg->msg_namelen = sizeof(*name);
		}
		put_cmsg(msg, SOL_IPV6, IPV6_PATHMTU, sizeof(info), &info);
	}
	kfree_skb(skb);
	return err ?: copied;
}
