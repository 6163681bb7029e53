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

/* <sys/socket.h>, which isn't for BPF. */
#define SOL_IP 0
#define SOL_SOCKET 1
#define SOL_IPV6 41
#define SO_PRIORITY 12
#define SO_MARK 36

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

/* What programs can find out about the socket of a packet. */
struct facts {
	__u64 packets;
	__u64 cookie;
	__u64 cgroup;
	__u64 ancestor;
	__u64 sk_cgroup;
	/* Packets by the socket's own storage. */
	__u64 stored;
	__u32 uid;
	__u32 family;
	__u32 type;
	__u32 protocol;
	__u32 src_port;
	__u32 dst_port;
	__u32 sk_mark;
	__u32 sk_priority;
	__u32 mark;
	__u32 priority;
	__u32 state;
	__u32 bound_dev;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct facts);
} facts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} storage SEC(".maps");

/* What the test wants: 0: a cgroup, 1: a device. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} wanted SEC(".maps");

static __u64 wants(__u32 key)
{
	__u64 *value = bpf_map_lookup_elem(&wanted, &key);

	return value ? *value : 0;
}

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

/* `in_cgroup`: it is a cgroup's program, which has a helper more. */
static __always_inline void find_out(struct __sk_buff *skb, int in_cgroup)
{
	struct bpf_sock *sk = skb->sk;
	struct facts *to;
	__u32 key = 0;
	__u64 *stored;

	to = bpf_map_lookup_elem(&facts, &key);
	if (!to || !sk)
		return;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return;
	to->packets++;
	to->cookie = bpf_get_socket_cookie(skb);
	to->cgroup = bpf_skb_cgroup_id(skb);
	to->ancestor = bpf_skb_ancestor_cgroup_id(skb, 1);
	to->uid = bpf_get_socket_uid(skb);
	to->family = sk->family;
	to->type = sk->type;
	to->protocol = sk->protocol;
	to->src_port = sk->src_port;
	to->dst_port = sk->dst_port;
	to->sk_mark = sk->mark;
	to->sk_priority = sk->priority;
	to->state = sk->state;
	to->bound_dev = sk->bound_dev_if;
	to->mark = skb->mark;
	to->priority = skb->priority;
	if (in_cgroup)
		to->sk_cgroup = bpf_sk_cgroup_id(sk);
	stored = bpf_sk_storage_get(&storage, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (stored)
		to->stored = ++*stored;
}

SEC("cgroup_skb/egress")
int egress_facts(struct __sk_buff *skb)
{
	if (goes_to(skb, PEER_PORT))
		find_out(skb, 1);
	return 1;
}

SEC("cgroup_skb/ingress")
int ingress_facts(struct __sk_buff *skb)
{
	if (goes_to(skb, SUBJECT_PORT))
		find_out(skb, 1);
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

/* Sets the socket's TOS, mark and priority, and reads them back. */
static __always_inline void set_options(struct bpf_sock_addr *ctx, int level, int name)
{
	int tos = 0x28, mark = 5, priority = 4, got_tos = 0, got_mark = 0, got_priority = 0;
	struct seen *to = counter();

	if (!to)
		return;
	if (bpf_setsockopt(ctx, level, name, &tos, sizeof(tos)) ||
	    bpf_setsockopt(ctx, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)) ||
	    bpf_setsockopt(ctx, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority)))
		return;
	if (bpf_getsockopt(ctx, level, name, &got_tos, sizeof(got_tos)) ||
	    bpf_getsockopt(ctx, SOL_SOCKET, SO_MARK, &got_mark, sizeof(got_mark)) ||
	    bpf_getsockopt(ctx, SOL_SOCKET, SO_PRIORITY, &got_priority, sizeof(got_priority)))
		return;
	to->packets++;
	to->bytes = got_tos;
	to->mark = got_mark;
	to->uid = got_priority;
	to->cgroup = bpf_get_socket_cookie(ctx);
}

#define OPTION_PROGRAMS(VERSION, LEVEL, TOS)					\
SEC("cgroup/connect" #VERSION)							\
int connect##VERSION##_options(struct bpf_sock_addr *ctx)			\
{										\
	set_options(ctx, LEVEL, TOS);						\
	return 1;								\
}										\
										\
SEC("cgroup/sendmsg" #VERSION)							\
int sendmsg##VERSION##_options(struct bpf_sock_addr *ctx)			\
{										\
	set_options(ctx, LEVEL, TOS);						\
	return 1;								\
}										\
										\
SEC("cgroup/recvmsg" #VERSION)							\
int recvmsg##VERSION##_options(struct bpf_sock_addr *ctx)			\
{										\
	set_options(ctx, LEVEL, TOS);						\
	return 1;								\
}										\
										\
/* The names that a socket tells: one port higher. */				\
SEC("cgroup/getsockname" #VERSION)						\
int getsockname##VERSION##_change(struct bpf_sock_addr *ctx)			\
{										\
	ctx->user_port = bpf_htons(bpf_ntohs(ctx->user_port) + 1);		\
	return 1;								\
}										\
										\
SEC("cgroup/getpeername" #VERSION)						\
int getpeername##VERSION##_change(struct bpf_sock_addr *ctx)			\
{										\
	ctx->user_port = bpf_htons(bpf_ntohs(ctx->user_port) + 1);		\
	return 1;								\
}										\
										\
SEC("cgroup/post_bind" #VERSION)						\
int post_bind##VERSION##_refuse(struct bpf_sock *sk)				\
{										\
	return sk->src_port != SUBJECT_PORT;					\
}

OPTION_PROGRAMS(4, SOL_IP, 1 /* IP_TOS */)
OPTION_PROGRAMS(6, SOL_IPV6, 67 /* IPV6_TCLASS */)

SEC("cgroup/sock_create")
int sock_create_count(struct bpf_sock *sk)
{
	struct seen *to = counter();

	if (to)
		to->packets++;
	return 1;
}

SEC("cgroup/sock_release")
int sock_release_count(struct bpf_sock *sk)
{
	struct seen *to = counter();

	if (to)
		to->bytes++;
	return 1;
}

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

SEC("socket")
int filter_trim_all(struct __sk_buff *skb)
{
	return 1;
}

SEC("socket")
int filter_drop(struct __sk_buff *skb)
{
	return 0;
}

/* include/linux/bpf.h in the kernel. */
struct bpf_nf_ctx {
	const void *state;
	struct sk_buff *skb;
} __attribute__((preserve_access_index));

extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags,
			       struct bpf_dynptr *ptr) __weak __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *ptr, __u32 offset,
			      void *buffer, __u32 buffer__szk) __weak __ksym;

/* Drops what goes to port 7000 or 7001. */
SEC("netfilter")
int netfilter_drop(struct bpf_nf_ctx *ctx)
{
	__u8 version_buffer[1] = {}, udp_buffer[sizeof(struct udphdr)] = {};
	struct bpf_dynptr packet;
	struct seen *to;
	struct udphdr *udp;
	__u8 *version;

	if (bpf_dynptr_from_skb((struct __sk_buff *)ctx->skb, 0, &packet))
		return 1; /* NF_ACCEPT */
	version = bpf_dynptr_slice(&packet, 0, version_buffer, sizeof(version_buffer));
	if (!version)
		return 1;
	if (*version >> 4 == 4)
		udp = bpf_dynptr_slice(&packet, sizeof(struct iphdr), udp_buffer,
				       sizeof(udp_buffer));
	else
		udp = bpf_dynptr_slice(&packet, sizeof(struct ipv6hdr), udp_buffer,
				       sizeof(udp_buffer));
	if (!udp || (udp->dest != bpf_htons(PEER_PORT) && udp->dest != bpf_htons(SUBJECT_PORT)))
		return 1;
	to = counter();
	if (to) {
		to->packets++;
		to->bytes += bpf_ntohs(udp->len);
	}
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

/* Where a packet that begins with its Ethernet header has its UDP header, if it goes to the port. */
static __always_inline __u32 udp_to(struct __sk_buff *skb, __u16 port)
{
	struct udphdr udp;
	__u32 at = ETH_HLEN;

	at += skb->protocol == bpf_htons(ETH_P_IP) ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	if (bpf_skb_load_bytes(skb, at, &udp, sizeof(udp)) || udp.dest != bpf_htons(port))
		return 0;
	return at;
}

SEC("tc")
int tc_facts(struct __sk_buff *skb)
{
	if (udp_to(skb, PEER_PORT))
		find_out(skb, 0);
	return TC_ACT_OK;
}

/* Class 1:20 for what comes from the wanted cgroup. */
SEC("tc")
int tc_priority_of_cgroup(struct __sk_buff *skb)
{
	if (bpf_skb_ancestor_cgroup_id(skb, 1) == wants(0)) {
		skb->priority = 0x10020;
		count(skb);
	}
	return TC_ACT_OK;
}

/* As a classifier that is no action: whether the packet comes from the wanted cgroup. */
SEC("tc")
int tc_match_cgroup(struct __sk_buff *skb)
{
	if (bpf_skb_ancestor_cgroup_id(skb, 1) != wants(0))
		return 0;
	count(skb);
	return -1;
}

SEC("tc")
int tc_redirect(struct __sk_buff *skb)
{
	if (!udp_to(skb, PEER_PORT))
		return TC_ACT_OK;
	count(skb);
	return bpf_redirect(wants(1), 0);
}

SEC("tc")
int tc_mirror(struct __sk_buff *skb)
{
	if (!udp_to(skb, PEER_PORT) && !udp_to(skb, SUBJECT_PORT))
		return TC_ACT_OK;
	count(skb);
	bpf_clone_redirect(skb, wants(1), 0);
	return TC_ACT_OK;
}

/* What goes to port 7999 goes to that of the peer, or of the subject. */
static __always_inline int change_port(struct __sk_buff *skb, __u16 port)
{
	__u16 old = bpf_htons(OTHER_PORT), new = bpf_htons(port);
	__u32 udp = udp_to(skb, OTHER_PORT);

	if (!udp)
		return TC_ACT_OK;
	count(skb);
	if (bpf_l4_csum_replace(skb, udp + 6, old, new, BPF_F_MARK_MANGLED_0 | sizeof(new)) ||
	    bpf_skb_store_bytes(skb, udp + 2, &new, sizeof(new), 0))
		return TC_ACT_SHOT;
	return TC_ACT_OK;
}

SEC("tc")
int tc_port_of_peer(struct __sk_buff *skb)
{
	return change_port(skb, PEER_PORT);
}

SEC("tc")
int tc_port_of_subject(struct __sk_buff *skb)
{
	return change_port(skb, SUBJECT_PORT);
}

/* What comes to port 7999 is the wanted socket's, whatever it is bound to. */
SEC("tc")
int tc_assign(struct __sk_buff *skb)
{
	struct bpf_sock *sk;
	__u32 key = 0;
	long error;

	if (!udp_to(skb, OTHER_PORT))
		return TC_ACT_OK;
	sk = bpf_map_lookup_elem(&sockets, &key);
	if (!sk)
		return TC_ACT_SHOT;
	error = bpf_sk_assign(skb, sk, 0);
	bpf_sk_release(sk);
	count(skb);
	return error ? TC_ACT_SHOT : TC_ACT_OK;
}

/* Finds the socket that will get the packet. */
SEC("tc")
int tc_look_up(struct __sk_buff *skb)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	struct facts *to;
	__u32 key = 0, size, udp = udp_to(skb, SUBJECT_PORT);

	if (!udp)
		return TC_ACT_OK;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		size = sizeof(tuple.ipv4);
		if (bpf_skb_load_bytes(skb, ETH_HLEN + 12, &tuple.ipv4.saddr, 8) ||
		    bpf_skb_load_bytes(skb, udp, &tuple.ipv4.sport, 4))
			return TC_ACT_SHOT;
	} else {
		size = sizeof(tuple.ipv6);
		if (bpf_skb_load_bytes(skb, ETH_HLEN + 8, &tuple.ipv6.saddr, 32) ||
		    bpf_skb_load_bytes(skb, udp, &tuple.ipv6.sport, 4))
			return TC_ACT_SHOT;
	}
	sk = bpf_sk_lookup_udp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return TC_ACT_OK;
	to = bpf_map_lookup_elem(&facts, &key);
	if (to) {
		to->packets++;
		to->family = sk->family;
		to->type = sk->type;
		to->protocol = sk->protocol;
		to->src_port = sk->src_port;
		to->sk_mark = sk->mark;
	}
	bpf_sk_release(sk);
	return TC_ACT_OK;
}

/* For a NIC that has a program of somebody else's. */
SEC("xdp")
int others_pass(struct xdp_md *packet)
{
	return XDP_PASS;
}

/* What a sockmap has of sockets. */
SEC("sk_skb/verdict")
int drop_all(struct __sk_buff *skb)
{
	return SK_DROP;
}

char _license[] SEC("license") = "GPL";
