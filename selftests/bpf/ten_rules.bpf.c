// SPDX-License-Identifier: GPL-2.0
/*
 * The ten rules of bench/lib.sh's nft10_both as one BPF netfilter program, for the benchmark: in the same order,
 * with the same verdicts, for what comes (LOCAL_IN) and for what leaves (LOCAL_OUT).
 */

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NULL ((void *)0)

#define DROP 0
#define ACCEPT 1

/* include/uapi/linux/netfilter.h */
#define LOCAL_IN 1

#define REFUSED_USER 1003
#define REFUSED_MARK 0xdead
#define REFUSED_PORT 5353
#define REFUSED_NET 0xcb007100 /* 203.0.113.0/24 */
#define NET_MASK 0xffffff00
#define LOOPBACK 1

/* What is read of the kernel's structures. */
typedef struct {
	__u32 val;
} kuid_t;

struct cred {
	kuid_t fsuid;
} __attribute__((preserve_access_index));

struct file {
	const struct cred *f_cred;
} __attribute__((preserve_access_index));

struct socket {
	struct file *file;
} __attribute__((preserve_access_index));

struct sock {
	struct socket *sk_socket;
} __attribute__((preserve_access_index));

struct sk_buff {
	struct sock *sk;
	__u32 mark;
} __attribute__((preserve_access_index));

struct net_device {
	int ifindex;
} __attribute__((preserve_access_index));

struct nf_hook_state {
	__u8 hook;
	__u8 pf;
	struct net_device *in;
	struct net_device *out;
} __attribute__((preserve_access_index));

/* include/linux/bpf.h in the kernel. */
struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
} __attribute__((preserve_access_index));

extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *ptr, __u32 offset, void *buffer,
			      __u32 buffer__szk) __ksym;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u16);
	__type(value, __u8);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

/* The user whose packet it is; -1 if there is none. */
static __always_inline __s64 user(struct bpf_nf_ctx *ctx)
{
	struct sock *sk = ctx->skb->sk;
	struct socket *socket;
	struct file *file;

	if (!sk)
		return -1;
	socket = sk->sk_socket;
	if (!socket)
		return -1;
	file = socket->file;
	return file ? file->f_cred->fsuid.val : -1;
}

SEC("netfilter")
int ten_rules(struct bpf_nf_ctx *ctx)
{
	__u8 ip_buffer[sizeof(struct iphdr)], udp_buffer[sizeof(struct udphdr)];
	int incoming = ctx->state->hook == LOCAL_IN;
	struct net_device *device;
	struct bpf_dynptr packet;
	struct udphdr *udp;
	struct iphdr *ip;
	__u32 zero = 0;
	__u64 *counter;
	__u16 port;

	if (bpf_dynptr_from_skb((struct __sk_buff *)ctx->skb, 0, &packet))
		return DROP;
	ip = bpf_dynptr_slice(&packet, 0, ip_buffer, sizeof(ip_buffer));
	if (!ip)
		return DROP;
	if ((ip->daddr & bpf_htonl(NET_MASK)) == bpf_htonl(REFUSED_NET) ||
	    (ip->saddr & bpf_htonl(NET_MASK)) == bpf_htonl(REFUSED_NET))
		return DROP;
	if (user(ctx) == REFUSED_USER)
		return DROP;
	if (ip->protocol == IPPROTO_TCP)
		return ACCEPT;
	udp = ip->protocol != IPPROTO_UDP ? NULL :
	      bpf_dynptr_slice(&packet, ip->ihl * 4, udp_buffer, sizeof(udp_buffer));
	if ((udp && udp->dest == bpf_htons(REFUSED_PORT)) || ip->ttl < 2)
		return DROP;
	device = incoming ? ctx->state->in : ctx->state->out;
	if (device && device->ifindex == LOOPBACK)
		return ACCEPT;
	if (ctx->skb->mark == REFUSED_MARK)
		return DROP;
	if (!udp)
		return ACCEPT;
	port = incoming ? udp->dest : udp->source;
	if (bpf_map_lookup_elem(&ports, &port)) {
		counter = bpf_map_lookup_elem(&seen, &zero);
		if (counter)
			*counter += 1;
	}
	return ACCEPT;
}

char _license[] SEC("license") = "GPL";
