// SPDX-License-Identifier: GPL-2.0
/* Programs that count calls of one process: for asked_once.py, and limits_hold.py. */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* 0: the process that matters, then its calls: 1: messages about which the security module is asked, 2: RCU's barrier. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 3);
	__type(key, __u32);
	__type(value, __u64);
} asked SEC(".maps");

static void count(__u32 call)
{
	__u32 process = 0;
	__u64 *of = bpf_map_lookup_elem(&asked, &process);
	__u64 *times = bpf_map_lookup_elem(&asked, &call);

	if (of && times && *of == bpf_get_current_pid_tgid() >> 32)
		__sync_fetch_and_add(times, 1);
}

SEC("lsm/socket_sendmsg")
int socket_sendmsg(void *arguments)
{
	count(1);
	return 0;
}

SEC("fentry/rcu_barrier")
int rcu_barriers(void *arguments)
{
	count(2);
	return 0;
}

char _license[] SEC("license") = "GPL";
