// SPDX-License-Identifier: GPL-2.0
/* Programs of an administrator, for streams_bpf.py: what sockops say of connections, and who gets them. */

#include <linux/bpf.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Those of streams_bpf.py. */
#define FIRST_PORT 7400
#define LAST_PORT 7499
#define OPERATIONS 20
#define SOL_TCP 6

/* How often each operation came. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, OPERATIONS);
	__type(key, __u32);
	__type(value, __u64);
} operations SEC(".maps");

/* Of the connecting end, and of the accepted one. */
struct end {
	__u64 cookie;
	__u32 family;
	__u32 local_port;
	__u32 remote_port;
	__u32 state;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct end);
} ends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
	__uint(max_entries, 3);
	__type(key, __u32);
	__type(value, __u64);
} listeners SEC(".maps");

/* Which of them gets connections, and how many that were another's. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} choice SEC(".maps");

static __always_inline int is_ours(__u32 port)
{
	return port >= FIRST_PORT && port <= LAST_PORT;
}

SEC("sockops")
int sockops_count(struct bpf_sock_ops *ops)
{
	__u32 local = ops->local_port, remote = bpf_ntohl(ops->remote_port), key = ops->op;
	char reno[] = "reno";
	struct end end = {};
	__u64 *counted;

	if (!is_ours(local) && !is_ours(remote))
		return 1;
	counted = bpf_map_lookup_elem(&operations, &key);
	if (counted)
		__sync_fetch_and_add(counted, 1);
	if (key == BPF_SOCK_OPS_TCP_CONNECT_CB || key == BPF_SOCK_OPS_TCP_LISTEN_CB)
		bpf_sock_ops_cb_flags_set(ops, BPF_SOCK_OPS_STATE_CB_FLAG);
	if (key != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && key != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return 1;
	bpf_sock_ops_cb_flags_set(ops, BPF_SOCK_OPS_STATE_CB_FLAG);
	bpf_setsockopt(ops, SOL_TCP, TCP_CONGESTION, reno, sizeof(reno));
	end.cookie = bpf_get_socket_cookie(ops);
	end.family = ops->family;
	end.local_port = local;
	end.remote_port = remote;
	end.state = ops->state;
	key = key == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB;
	bpf_map_update_elem(&ends, &key, &end, BPF_ANY);
	return 1;
}

SEC("sk_reuseport/migrate")
int choose(struct sk_reuseport_md *ctx)
{
	__u32 key = 0, migrated = 1, number;
	__u64 *chosen = bpf_map_lookup_elem(&choice, &key);
	__u64 *count = bpf_map_lookup_elem(&choice, &migrated);

	if (!chosen || !count)
		return SK_DROP;
	number = *chosen;
	if (ctx->migrating_sk)
		__sync_fetch_and_add(count, 1);
	return bpf_sk_select_reuseport(ctx, &listeners, &number, 0) ? SK_DROP : SK_PASS;
}

char _license[] SEC("license") = "GPL";
