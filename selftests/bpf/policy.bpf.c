// SPDX-License-Identifier: GPL-2.0
/* Programs of an administrator, for policy_bpf.py: each does one thing to ports 7000 and 7001. */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define SUBJECT_PORT 7000
#define PEER_PORT 7001
#define OTHER_PORT 7999

/* Packets, bytes, and facts of the socket, by program. */
struct seen {
	__u64 packets;
	__u64 bytes;
	__u64 uid;
	__u64 cgroup;
	__u64 mark;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct seen);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} group SEC(".maps");

static struct seen *counter(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&seen, &key);
}

/* Whether a packet that begins with its IP header goes to the port. */
static int goes_to(struct __sk_buff *skb, __u16 port)
{
	struct udphdr udp;
	__u32 at;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		at = sizeof(struct iphdr);
	else
		at = sizeof(struct ipv6hdr);
	if (bpf_skb_load_bytes(skb, at, &udp, sizeof(udp)))
		return 0;
	return udp.dest == bpf_htons(port);
}

static void count(struct __sk_buff *skb)
{
	struct seen *to = counter();

	if (!to)
		return;
	to->packets++;
	to->bytes += skb->len;
}

SEC("cgroup_skb/egress")
int egress_count(struct __sk_buff *skb)
{
	struct seen *to = counter();

	if (to && goes_to(skb, PEER_PORT)) {
		to->packets++;
		to->bytes += skb->len;
		to->uid = bpf_get_socket_uid(skb);
		to->cgroup = bpf_skb_cgroup_id(skb);
		to->mark = skb->mark;
	}
	return 1;
}

SEC("cgroup_skb/egress")
int egress_drop(struct __sk_buff *skb)
{
	if (!goes_to(skb, PEER_PORT))
		return 1;
	count(skb);
	return 0;
}

SEC("cgroup_skb/ingress")
int ingress_count(struct __sk_buff *skb)
{
	if (goes_to(skb, SUBJECT_PORT))
		count(skb);
	return 1;
}

SEC("cgroup_skb/ingress")
int ingress_drop(struct __sk_buff *skb)
{
	if (!goes_to(skb, SUBJECT_PORT))
		return 1;
	count(skb);
	return 0;
}

SEC("cgroup/sock_create")
int sock_create_refuse(struct bpf_sock *sk)
{
	return sk->type != 2; /* SOCK_DGRAM */
}

SEC("cgroup/sock_create")
int sock_create_mark(struct bpf_sock *sk)
{
	sk->mark = 77;
	sk->priority = 3;
	return 1;
}

#define ADDRESS_PROGRAMS(VERSION)						\
SEC("cgroup/bind" #VERSION)							\
int bind##VERSION##_refuse(struct bpf_sock_addr *ctx)				\
{										\
	return ctx->user_port != bpf_htons(SUBJECT_PORT);			\
}										\
										\
SEC("cgroup/bind" #VERSION)							\
int bind##VERSION##_rewrite(struct bpf_sock_addr *ctx)				\
{										\
	if (ctx->user_port == bpf_htons(OTHER_PORT))				\
		ctx->user_port = bpf_htons(SUBJECT_PORT);			\
	return 1;								\
}										\
										\
SEC("cgroup/connect" #VERSION)							\
int connect##VERSION##_refuse(struct bpf_sock_addr *ctx)			\
{										\
	return ctx->user_port != bpf_htons(PEER_PORT);				\
}										\
										\
SEC("cgroup/connect" #VERSION)							\
int connect##VERSION##_rewrite(struct bpf_sock_addr *ctx)			\
{										\
	if (ctx->user_port == bpf_htons(OTHER_PORT))				\
		ctx->user_port = bpf_htons(PEER_PORT);				\
	return 1;								\
}										\
										\
SEC("cgroup/sendmsg" #VERSION)							\
int sendmsg##VERSION##_refuse(struct bpf_sock_addr *ctx)			\
{										\
	return ctx->user_port != bpf_htons(PEER_PORT);				\
}										\
										\
SEC("cgroup/sendmsg" #VERSION)							\
int sendmsg##VERSION##_rewrite(struct bpf_sock_addr *ctx)			\
{										\
	if (ctx->user_port == bpf_htons(OTHER_PORT))				\
		ctx->user_port = bpf_htons(PEER_PORT);				\
	return 1;								\
}										\
										\
SEC("cgroup/recvmsg" #VERSION)							\
int recvmsg##VERSION##_rewrite(struct bpf_sock_addr *ctx)			\
{										\
	struct seen *to = counter();						\
										\
	if (to)									\
		to->packets++;							\
	ctx->user_port = bpf_htons(OTHER_PORT);					\
	return 1;								\
}

ADDRESS_PROGRAMS(4)
ADDRESS_PROGRAMS(6)

SEC("cgroup/setsockopt")
int setsockopt_refuse(struct bpf_sockopt *ctx)
{
	/* SOL_SOCKET, SO_PRIORITY */
	return !(ctx->level == 1 && ctx->optname == 12);
}

SEC("cgroup/getsockopt")
int getsockopt_change(struct bpf_sockopt *ctx)
{
	__u32 *value = ctx->optval;

	if (ctx->level == 1 && ctx->optname == 12 && (void *)(value + 1) <= ctx->optval_end)
		*value = 42;
	return 1;
}

/* The skb of a socket filter begins with its UDP header. */
SEC("socket")
int filter_drop_small(struct __sk_buff *skb)
{
	return skb->len < 100 ? 0 : skb->len;
}

SEC("socket")
int filter_trim(struct __sk_buff *skb)
{
	return 8 + 32;
}

SEC("netfilter")
int netfilter_drop(void *ctx)
{
	return 0; /* NF_DROP */
}

SEC("sk_lookup")
int sk_lookup_steer(struct bpf_sk_lookup *ctx)
{
	struct bpf_sock *sk;
	__u32 key = 0;
	int error;

	if (ctx->local_port != OTHER_PORT)
		return SK_PASS;
	sk = bpf_map_lookup_elem(&sockets, &key);
	if (!sk)
		return SK_DROP;
	error = bpf_sk_assign(ctx, sk, 0);
	bpf_sk_release(sk);
	return error ? SK_DROP : SK_PASS;
}

SEC("sk_reuseport")
int reuseport_second(struct sk_reuseport_md *ctx)
{
	__u32 key = 1;

	return bpf_sk_select_reuseport(ctx, &group, &key, 0) ? SK_DROP : SK_PASS;
}

SEC("socket")
int reuseport_index(struct __sk_buff *skb)
{
	return 1;
}

SEC("tc")
int tc_drop_peer(struct __sk_buff *skb)
{
	struct udphdr udp;
	__u32 at = ETH_HLEN;

	at += skb->protocol == bpf_htons(ETH_P_IP) ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	if (bpf_skb_load_bytes(skb, at, &udp, sizeof(udp)))
		return TC_ACT_OK;
	if (udp.dest != bpf_htons(PEER_PORT) && udp.dest != bpf_htons(SUBJECT_PORT))
		return TC_ACT_OK;
	count(skb);
	return TC_ACT_SHOT;
}

SEC("tc")
int tc_mark(struct __sk_buff *skb)
{
	skb->mark = 9;
	count(skb);
	return TC_ACT_OK;
}

char _license[] SEC("license") = "GPL";
