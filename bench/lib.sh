# SPDX-License-Identifier: GPL-2.0
# Sourced by what runs in the machine of `qemu/vm --icount --nic void`: its NIC, and policies.
# shellcheck shell=bash

# shellcheck source=selftests/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../selftests/lib.sh"

# Makes a namespace with a NIC, which is called as it and 0: namespace NAME NIC
namespace() {
	ip netns add "$1"
	ip link set "$2" netns "$1" name "${1}0"
	nsenter --net="/run/netns/$1" sysctl -qw net.ipv6.conf.all.disable_ipv6=1
	ip -n "$1" link set "${1}0" up
}

# 255 neighbours behind a namespace's NIC that never have to be asked for: neighbours NAME
neighbours() {
	local number
	for number in $(seq 255); do
		printf 'neigh add 198.18.1.%d dev %s lladdr 02:00:00:00:01:%02x nud permanent\n' "$number" "${1}0" "$number"
	done | ip -n "$1" -batch -
}

# As `namespace`, and neighbours behind it.
sending() {
	local number
	namespace "$1" "$2"
	ip -n "$1" addr add 198.18.0.0/15 dev "${1}0"
	neighbours "$1"
	# The source addresses of many sockets.
	for number in $(seq 0 9); do
		printf 'addr add 198.19.0.%d/32 dev %s\n' "$number" "${1}0"
	done | ip -n "$1" -batch -
}

# Two namespaces whose NICs are joined, and which never have to ask for each other:
# joined NAME NIC NAME NIC
joined() {
	namespace "$1" "$2"
	namespace "$3" "$4"
	ip -n "$1" addr add 198.51.100.1/24 dev "${1}0"
	ip -n "$3" addr add 198.51.100.2/24 dev "${3}0"
	ip -n "$1" neigh add 198.51.100.2 dev "${1}0" lladdr "$(mac "$3")" nud permanent
	# Where many senders are; a NIC drops what is sent to them, so that answers cost their receiver nothing.
	ip -n "$1" route add 198.18.0.0/15 dev "${1}0"
	neighbours "$1"
	ip -n "$3" neigh add 198.51.100.1 dev "${3}0" lladdr "$(mac "$1")" nud permanent
}
mac() { ip -n "$1" -j link show dev "${1}0" | jq -r '.[0].address'; }

# The NIC that takes all; and, if they are there, two that are joined, and one that is as they are and
# takes all; the three of `--nic zero-copy`; one to a tap device; and three to such, of which two are joined, and
# one takes all.
set_up() {
	local nics
	mapfile -t nics < <(cd /sys/class/net && printf '%s\n' eth* | sort -V)
	sending void "${nics[0]}"
	nics=("${nics[@]:1}")
	[ ${#nics[@]} -ge 3 ] || return 0
	joined near "${nics[0]}" far "${nics[1]}"
	namespace twin "${nics[2]}"
	# Packets of many senders leave in the order in which they were sent.
	tc -n far qdisc replace dev far0 root pfifo
	tc -n twin qdisc replace dev twin0 root pfifo
	nics=("${nics[@]:3}")
	if [ ${#nics[@]} -ge 3 ] && ! has_offloads "${nics[0]}"; then
		joined znear "${nics[0]}" zfar "${nics[1]}"
		tc -n zfar qdisc replace dev zfar0 root pfifo
		sending zvoid "${nics[2]}"
		nics=("${nics[@]:3}")
	fi
	[ ${#nics[@]} != 0 ] || return 0
	sending tap "${nics[0]}"
	nics=("${nics[@]:1}")
	[ ${#nics[@]} != 0 ] || return 0
	joined onear "${nics[0]}" ofar "${nics[1]}"
	# Sends as the far one does.
	namespace otwin "${nics[2]}"
	ip -n otwin addr add 198.51.100.2/24 dev otwin0
	ip -n otwin neigh add 198.51.100.1 dev otwin0 lladdr "$(mac onear)" nud permanent
}
has_offloads() { ethtool -k "$1" | grep -q '^tx-udp-segmentation: on'; }
in_void() { nsenter --net=/run/netns/void "$@"; }
in_near() { nsenter --net=/run/netns/near "$@"; }
in_far() { nsenter --net=/run/netns/far "$@"; }

# kopi-bench sends from one of two that are joined to the other, and back: round_trips OPTION...
round_trips() {
	in_near kopi-bench rtt --nic near0 --local 198.51.100.1 --far-netns /run/netns/far --far 198.51.100.2 "$@"
}

# kopi-bench receives at the first of two that are joined, beside one that takes all:
# receive NAME NAME NAME OPTION...
receive() {
	nsenter --net="/run/netns/$1" kopi-bench recv --nic "${1}0" --local 198.51.100.1 \
		--far-netns "/run/netns/$2" --far-nic "${2}0" --far 198.51.100.2 \
		--void-netns "/run/netns/$3" --void-nic "${3}0" "${@:4}"
}

# Those that one of the ten rules looks for.
ports='53, 123, 443, 4789, 7001, 51820'

# Rules in a namespace, at a hook: nft_rules NAMESPACE output|input RULES
nft_rules() {
	nsenter --net="/run/netns/$1" nft -f - <<-EOF
		table inet bench {
			set ports { type inet_service; elements = { $ports } }
			counter seen { }
			chain rules {
				type filter hook $2 priority 0
				$3
			}
		}
	EOF
}

# Ten of them, among them a user, a look-up in a set and a counter: ten_rules iifname|oifname sport|dport
ten_rules() {
	cat <<-EOF
		ip daddr 203.0.113.0/24 drop
		ip saddr 203.0.113.0/24 drop
		meta skuid 1003 drop
		meta l4proto tcp accept
		udp dport 5353 drop
		ip ttl < 2 drop
		$1 lo accept
		meta mark 0xdead drop
		udp $2 @ports counter name seen
		meta skuid 0 accept
	EOF
}

# These: nft10 NAMESPACE output|input
nft10() {
	local device=oifname
	[ "$2" = input ] && device=iifname
	nft_rules "$1" "$2" "$(ten_rules $device dport)"
}

# The same ten for what is sent, besides those for what is received; with the same counter: nft10_both NAMESPACE
nft10_both() {
	nft10 "$1" input
	nft_answers "$1" "$(ten_rules oifname sport)"
}

# Rules for what is sent, besides those for what is received: nft_answers NAMESPACE RULES
nft_answers() {
	nsenter --net="/run/netns/$1" nft -f - <<-EOF
		table inet bench {
			chain answers {
				type filter hook output priority 0
				$2
			}
		}
	EOF
}

# The ten rules as one BPF program, both ways: bpf_netfilter NAMESPACE
bpf_netfilter() {
	bpftool prog loadall /kopi/build/bpf/ten_rules.bpf.o /sys/fs/bpf/bench pinmaps /sys/fs/bpf/bench/maps
	local port
	for port in ${ports//,/}; do
		bpftool map update pinned /sys/fs/bpf/bench/maps/ports \
			key hex "$(printf %02x $((port >> 8)))" "$(printf %02x $((port & 255)))" value 1
	done
	nsenter --net="/run/netns/$1" "$(dirname "${BASH_SOURCE[0]}")/attach_netfilter.py" /sys/fs/bpf/bench/ten_rules
}
bpf_netfilter_count='bpftool -j map dump pinned /sys/fs/bpf/bench/maps/seen | jq "[.[0].formatted.values[].value] | add"'
no_bpf_netfilter() { rm -r /sys/fs/bpf/bench; }

# As above.
conntrack_rule='ct state new,established counter name seen accept'
conntrack() { nft_rules "$1" "$2" "$conntrack_rule"; }
conntrack_both() {
	conntrack "$1" input
	nft_answers "$1" "$conntrack_rule"
}

# Besides those there are: also_conntrack NAMESPACE output|input
also_conntrack() {
	nsenter --net="/run/netns/$1" nft "add table inet more; add chain inet more tracked \
		{ type filter hook $2 priority -1; }; add rule inet more tracked ct state new,established accept"
}

# And the source becomes another one: nat NAMESPACE output
nat() {
	conntrack "$1" "$2"
	nsenter --net="/run/netns/$1" nft 'add chain inet bench nat { type nat hook postrouting priority srcnat; }'
	nsenter --net="/run/netns/$1" nft 'add rule inet bench nat snat ip to 198.19.0.9'
}

nft_count='nft -j list counter inet bench seen | jq ".nftables[1].counter.packets"'
no_nft() { nsenter --net="/run/netns/$1" nft delete table inet bench; }

# A class of its own for some.
htb_classes() {
	in_void tc qdisc add dev void0 root handle 1: htb default 20
	in_void tc class add dev void0 parent 1: classid 1:1 htb rate 40gbit
	in_void tc class add dev void0 parent 1:1 classid 1:10 htb rate 30gbit ceil 40gbit
	in_void tc class add dev void0 parent 1:1 classid 1:20 htb rate 10gbit ceil 40gbit
}
# The mark chooses the class.
htb() {
	htb_classes
	in_void tc filter add dev void0 parent 1: handle 1 fw classid 1:10
}
# The cgroup does.
htb_cgroup() {
	htb_classes
	mkdir /sys/fs/cgroup/bench
	nft_rules void output 'socket cgroupv2 level 1 "bench" meta priority set 1:10 counter name seen'
	echo $$ >/sys/fs/cgroup/bench/cgroup.procs
}
no_htb_cgroup() {
	echo $$ >/sys/fs/cgroup/cgroup.procs
	no_nft void
	rmdir /sys/fs/cgroup/bench
	in_void tc qdisc del dev void0 root
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

# Rules that are enforced, so that ordinary sockets are judged, too: a user's program has a port, which is none of
# the rows': enforced NAMESPACE
enforced() {
	nsenter --net="/run/netns/$1" kopictl restore - >&2 <<-EOF
		default allow
		enforce on
		user bob exe /usr/bin/psql local-port 5432 allow
		local-port 5432 deny
	EOF
	nsenter --net="/run/netns/$1" timeout 5 socat -u UDP-RECV:5432 - 2>/dev/null
	[ $? = 1 ] || { echo "not ok: the port isn't refused in $1" >&2 && return 1; }
}
not_enforced() { printf 'default allow\nenforce off\n' | nsenter --net="/run/netns/$1" kopictl restore - >&2; }

# TCP on a namespace's loopback device: streams NAMESPACE OPTION...
streams() { nsenter --net="/run/netns/$1" kopi-bench streams "${@:2}"; }
