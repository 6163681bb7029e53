// SPDX-License-Identifier: GPL-2.0
/*
 * Redirects the UDP datagrams that flows want to a device of KOPI's, and passes all else
 * on. Before the module has written what it wants, that is everything: drivers send
 * frames for others only while they have a program of their own.
 */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <kopi.h>

/* First byte of IPv4 without options: version 4, five words of header. */
#define IPV4_PLAIN 0x45
/* More fragments, or an offset. */
#define IPV4_FRAGMENT 0x3fff

/*
 * The module writes to the first entry. The second one has kopictl's note of the offloads
 * that it has turned off, as long as the program is there.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct kopi_port_map);
} port_map SEC(".maps");

/* Redirects what is for that port, if the port map has its port. */
static __always_inline int redirect(__u16 port)
{
	const struct kopi_port_map *found;
	__u32 key = 0;

	found = bpf_map_lookup_elem(&port_map, &key);
	if (!found || !found->ifindex || !(found->ports[port / 64] >> port % 64 & 1))
		return XDP_PASS;
	return bpf_redirect(found->ifindex, 0);
}

SEC("xdp")
int kopi_redirect(struct xdp_md *packet)
{
	const void *end = (void *)(long)packet->data_end;
	const struct ethhdr *ethernet = (void *)(long)packet->data;
	const void *ip = ethernet + 1;
	const struct iphdr *v4 = ip;
	const struct ipv6hdr *v6 = ip;
	const struct udphdr *udp = (const void *)(v4 + 1);
	__be16 protocol;

	/* The last bit of a destination's first byte says that it is a group. */
	if ((const void *)(udp + 1) > end || ethernet->h_dest[0] & 1)
		return XDP_PASS;
	/* h_proto, which is aligned, though the structure is packed. */
	protocol = *((const __be16 *)ip - 1);
	if (protocol == bpf_htons(ETH_P_IP)) {
		if (*(const __u8 *)ip != IPV4_PLAIN || v4->protocol != IPPROTO_UDP ||
		    v4->frag_off & bpf_htons(IPV4_FRAGMENT))
			return XDP_PASS;
		return redirect(bpf_ntohs(udp->dest));
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		udp = (const void *)(v6 + 1);
		if ((const void *)(udp + 1) > end || v6->nexthdr != IPPROTO_UDP)
			return XDP_PASS;
		return redirect(bpf_ntohs(udp->dest));
	}
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
