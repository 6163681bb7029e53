#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What sending costs, by each mode and with each policy: for the machine of
# `qemu/vm --icount --nic void`. Prints a JSON object for each row, and ends with 1 if
# any row could not be had; what happens besides goes to the same output, behind a #.

# shellcheck source=selftests/lib.sh
. "$(dirname "$0")/../selftests/lib.sh"
set -o pipefail
failed=0

# The NIC that takes all, in a namespace of its own, with 255 neighbours behind it that never
# have to be asked for.
set_up() {
	local nic number batch=/tmp/neighbours
	nic=$(basename "$(ls -d /sys/class/net/eth*)")
	ip netns add void
	ip link set "$nic" netns void name void0
	in_void sysctl -qw net.ipv6.conf.all.disable_ipv6=1
	ip -n void addr add 198.18.0.0/15 dev void0
	ip -n void link set void0 up
	for number in $(seq 255); do
		printf 'neigh add 198.18.1.%d dev void0 lladdr 02:00:00:00:01:%02x nud permanent\n' "$number" "$number"
	done >"$batch"
	ip -n void -batch "$batch"
}
in_void() { nsenter --net=/run/netns/void "$@"; }

# All modes with what is installed: rows POLICY [OPTION...]
rows() {
	echo "# $1, at $(cut -d ' ' -f 1 /proc/uptime) s" >&2
	in_void kopi-bench send --nic void0 --local 198.18.0.0 --policy "$@" || failed=1
}

# Ten rules, the last of which count what gets there.
nft10() {
	in_void nft -f - <<-'EOF'
		table inet bench {
			set ports { type inet_service; elements = { 53, 123, 443, 4789, 7001, 51820 } }
			counter seen { }
			chain out {
				type filter hook output priority 0
				ip daddr 203.0.113.0/24 drop
				ip saddr 203.0.113.0/24 drop
				meta skuid 1003 drop
				meta l4proto tcp accept
				udp dport 5353 drop
				ip ttl < 2 drop
				oifname "lo" accept
				meta mark 0xdead drop
				udp dport @ports counter name seen
				meta skuid 0 accept
			}
		}
	EOF
}

conntrack() {
	in_void nft -f - <<-'EOF'
		table inet bench {
			counter seen { }
			chain out {
				type filter hook output priority 0
				ct state new,established counter name seen accept
			}
		}
	EOF
}

nft_count='nft -j list counter inet bench seen | jq ".nftables[1].counter.packets"'
no_nft() { in_void nft delete table inet bench; }

# The mark chooses the class.
htb() {
	in_void tc qdisc add dev void0 root handle 1: htb default 20
	in_void tc class add dev void0 parent 1: classid 1:1 htb rate 40gbit
	in_void tc class add dev void0 parent 1:1 classid 1:10 htb rate 30gbit ceil 40gbit
	in_void tc class add dev void0 parent 1:1 classid 1:20 htb rate 10gbit ceil 40gbit
	in_void tc filter add dev void0 parent 1: handle 1 fw classid 1:10
}
htb_count='tc -s -j class show dev void0 classid 1:10 | jq ".[0].stats.packets"'

cgroup_bpf() {
	mkdir /sys/fs/cgroup/bench
	bpftool prog loadall /kopi/build/bpf/policy.bpf.o /sys/fs/bpf/bench pinmaps /sys/fs/bpf/bench/maps
	bpftool cgroup attach /sys/fs/cgroup/bench egress pinned /sys/fs/bpf/bench/egress_count
	echo $$ >/sys/fs/cgroup/bench/cgroup.procs
}
bpf_count='bpftool -j map dump pinned /sys/fs/bpf/bench/maps/seen | jq ".[0].formatted.value.packets"'
no_cgroup_bpf() {
	echo $$ >/sys/fs/cgroup/cgroup.procs
	bpftool cgroup detach /sys/fs/cgroup/bench egress pinned /sys/fs/bpf/bench/egress_count
	rm -r /sys/fs/bpf/bench
}

# A packet socket that counts what it sees, which is behind the segmentation that this NIC can't do
# itself; it and the rows must agree in the end.
tcpdump_rows() {
	local pid expected seen
	nsenter --net=/run/netns/void tcpdump -i void0 -n -w /dev/null udp port 7001 2>/tmp/tcpdump.log &
	pid=$!
	wait_for grep -q 'listening on' /tmp/tcpdump.log
	rows tcpdump --payloads 64 >/tmp/tcpdump.rows
	cat /tmp/tcpdump.rows
	kill $pid
	wait $pid
	expected=$(jq -s 'map(.warm_up + .sent) | add' /tmp/tcpdump.rows)
	seen=$(sed -n 's/ packets received by filter//p' /tmp/tcpdump.log)
	if [ "$seen" != "$expected" ]; then
		echo "not ok: tcpdump saw $seen packets, and not $expected" >&2
		failed=1
	fi
}

nsenter --net=/run/netns/host kopi-bench wire --nic eth0 --local 192.0.2.1 --peer-netns /run/netns/peer \
	--peer-nic eth1 --peer 192.0.2.2 || failed=1
set_up
rows none
rows none --peers many --payloads 64
nft10
rows nft10 --counts handed --count "$nft_count"
rows nft10 --counts handed --count "$nft_count" --peers many --payloads 64
no_nft
conntrack
rows conntrack --counts handed --count "$nft_count" --payloads 64
no_nft
htb
rows htb --mark 1 --counts datagrams --count "$htb_count" --payloads 64
in_void tc qdisc del dev void0 root
tcpdump_rows
cgroup_bpf
rows cgroup_bpf --counts handed --count "$bpf_count" --payloads 64
no_cgroup_bpf
exit $failed
