#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What sending and receiving cost, by each mode and with each policy: for the machine of
# `qemu/vm --icount --nic void --nic joined --nic zero-copy --nic tap --nic joined-taps`, of which
# the last two may be missing. Prints a JSON object for each row, and ends with 1 if
# any row could not be had; what happens besides goes to the same output, behind a #.

. "$(dirname "$0")/lib.sh"
set -o pipefail
failed=0

# All modes with what is installed: rows POLICY [OPTION...]
rows() {
	echo "# $1, at $(cut -d ' ' -f 1 /proc/uptime) s" >&2
	in_void kopi-bench send --nic void0 --local 198.18.0.0 --policy "$@" || failed=1
}

# All modes of receiving: received POLICY [OPTION...]
received() {
	echo "# receiving, $1, at $(cut -d ' ' -f 1 /proc/uptime) s" >&2
	receive near far twin --policy "$@" || failed=1
}

# Servers of random clients, without a policy and with each both ways: served MODES
served() {
	local options=(--peers many --payloads 64 --modes "$1")
	received none "${options[@]}"
	nft10_both near
	received nft10 --counts handed --count "$nft_count" "${options[@]}"
	no_nft near
	conntrack_both near
	received conntrack --counts handed --count "$nft_count" "${options[@]}"
	no_nft near
	bpf_netfilter near
	received bpf_netfilter --counts handed --count "$bpf_netfilter_count" "${options[@]}"
	no_bpf_netfilter
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
	expected=$(jq -s 'map(select(.policy_holds != false) | .warm_up + .sent) | add' /tmp/tcpdump.rows)
	seen=$(sed -n 's/ packets received by filter//p' /tmp/tcpdump.log)
	if [ "$seen" != "$expected" ]; then
		echo "not ok: tcpdump saw $seen packets, and not $expected" >&2
		failed=1
	fi
}

# What many sockets and flows cost, and round trips.
many() {
	echo "# many flows, at $(cut -d ' ' -f 1 /proc/uptime) s" >&2
	sysctl -qw net.kopi.user_max_flows=131072
	in_void kopi-bench scale --nic void0 --local 198.18.0.0 "$@" || failed=1
}
there_and_back() {
	echo "# round trips, at $(cut -d ' ' -f 1 /proc/uptime) s" >&2
	round_trips "$@" || failed=1
}

nsenter --net=/run/netns/host kopi-bench wire --nic eth0 --local 192.0.2.1 --peer-netns /run/netns/peer \
	--peer-nic eth1 --peer 192.0.2.2 || failed=1
set_up
# For `kopi_engine`; it sleeps while there is nothing for it.
kopictl engine set --cpus 0 >&2 || failed=1
rows none
rows none --peers many --payloads 64
rows none --payloads 64000 --packets 512
nft10 void output
rows nft10 --counts handed --count "$nft_count"
rows nft10 --counts handed --count "$nft_count" --peers many --payloads 64
no_nft void
conntrack void output
rows conntrack --counts handed --count "$nft_count" --payloads 64
no_nft void
nat void output
rows nat --counts handed --count "$nft_count" --payloads 64
no_nft void
htb
rows htb --mark 1 --counts datagrams --count "$htb_count" --payloads 64
in_void tc qdisc del dev void0 root
htb_cgroup
rows htb_cgroup --counts handed --count "$nft_count" --payloads 64
no_htb_cgroup
tcpdump_rows
cgroup_bpf
rows cgroup_bpf --counts handed --count "$bpf_count" --payloads 64
no_cgroup_bpf

# TCP, and what it costs ordinary sockets and flows that rules are enforced.
ip -n near link set lo up
streams near || failed=1
for namespace in void near; do enforced $namespace || failed=1; done
streams near --policy enforced || failed=1
rows enforced --payloads 64 --modes sendmmsg,udp_segment,kopi_doorbell
received enforced --payloads 64 --modes recvmmsg,kopi
for namespace in void near; do not_enforced $namespace || failed=1; done

# By the driver.
in_void kopictl attach void0 || failed=1
rows none --modes kopi_direct,kopi_direct_gso,kopi_direct_datagrams
rows none --peers many --payloads 64 --modes kopi_direct,kopi_direct_datagrams
nft10 void output
rows nft10 --counts handed --count "$nft_count" --modes kopi_direct,kopi_direct_gso,kopi_direct_datagrams
rows nft10 --counts handed --count "$nft_count" --peers many --payloads 64 --modes kopi_direct_datagrams
also_conntrack void output
rows nft10_conntrack --counts handed --count "$nft_count" --modes sendmmsg,kopi_direct,kopi_direct_gso \
	--payloads 64,1400
in_void nft delete table inet more
no_nft void
in_void kopictl detach void0

# On the NIC with offloads, if there is one: packets of GSO packets cost it so little that it takes more
# of them to tell.
offloaded() {
	echo "# with offloads, $1, at $(cut -d ' ' -f 1 /proc/uptime) s" >&2
	nsenter --net=/run/netns/tap kopi-bench send --nic tap0 --local 198.18.0.0 --offloads \
		--modes sendmmsg,io_uring,af_packet,af_xdp_copy,kopi_doorbell --policy "$@" || failed=1
	nsenter --net=/run/netns/tap kopi-bench send --nic tap0 --local 198.18.0.0 --offloads \
		--modes udp_segment,kopi_gso_descs,kopi_gso --packets 65536 --policy "$@" || failed=1
}
# By the driver, which takes the payload from the pages that the program wrote.
offloaded_frames() {
	nsenter --net=/run/netns/tap kopi-bench send --nic tap0 --local 198.18.0.0 --offloads \
		--modes "$1" --policy "${@:2}" || failed=1
}
offloaded_to_many() {
	nsenter --net=/run/netns/tap kopi-bench send --nic tap0 --local 198.18.0.0 --offloads --peers many \
		--payloads 64 --modes sendmmsg,io_uring,kopi_doorbell --policy "$@" || failed=1
}
received_offloaded() {
	echo "# receiving with offloads, $1, at $(cut -d ' ' -f 1 /proc/uptime) s" >&2
	receive onear ofar otwin --offloads --modes recvmmsg,udp_gro,kopi,kopi_gro,kopi_merged --policy "$@" || failed=1
}
if ip -n tap link show tap0 >/dev/null 2>&1; then
	offloaded none
	nft10 tap output
	offloaded nft10 --counts handed --count "$nft_count"
	no_nft tap
	offloaded_to_many none
	# By two queues: which of them is to be found out for each packet.
	nsenter --net=/run/netns/tap ethtool -L tap0 combined 2 >&2
	offloaded none --queues 2 --payloads 64
	offloaded_to_many none --queues 2
	nsenter --net=/run/netns/tap ethtool -L tap0 combined 1 >&2
	nsenter --net=/run/netns/tap kopictl attach tap0 || failed=1
	offloaded_frames kopi_direct,kopi_direct_gso,kopi_direct_datagrams none
	nft10 tap output
	offloaded_frames kopi_direct,kopi_direct_gso,kopi_direct_datagrams nft10 --counts handed --count "$nft_count"
	also_conntrack tap output
	offloaded_frames kopi_direct,kopi_direct_gso nft10_conntrack --counts handed --count "$nft_count"
	nsenter --net=/run/netns/tap nft delete table inet more
	no_nft tap
	nsenter --net=/run/netns/tap kopictl detach tap0
	received_offloaded none
	nft10 onear input
	received_offloaded nft10 --counts handed --count "$nft_count"
	no_nft onear
else
	echo '# no NIC with offloads: no rows of it' >&2
fi

received none
received none --peers many --payloads 64 --modes recvmmsg,kopi
nft10 near input
received nft10 --counts handed --count "$nft_count"
received nft10 --counts handed --count "$nft_count" --peers many --payloads 64 --modes recvmmsg,kopi
no_nft near
served serve_mmsg,serve_kopi
conntrack near input
received conntrack --counts handed --count "$nft_count" --payloads 64
no_nft near
there_and_back

# One at a time, since the port is free again some time after.
for payload in 64 512 1400; do received none --modes io_uring --payloads $payload; done
served serve_io_uring
nft10 near input
received nft10 --modes io_uring --counts handed --count "$nft_count" --payloads 64
no_nft near
# Past the stack, by devices that the others are not measured on.
nsenter --net=/run/netns/znear kopi-bench wire --nic znear0 --local 198.51.100.1 --peer-netns /run/netns/zfar \
	--peer-nic zfar0 --peer 198.51.100.2 --modes af_xdp_zero_copy || failed=1
zero_copy() {
	nsenter --net=/run/netns/zvoid kopi-bench send --nic zvoid0 --local 198.18.0.0 \
		--modes af_xdp_zero_copy --policy "$@" || failed=1
}
zero_copy none
zero_copy none --peers many --payloads 64
nft10 zvoid output
zero_copy nft10 --counts handed --count "$nft_count" --payloads 64
received_zero_copy() { receive znear zfar twin --modes af_xdp_zero_copy --policy "$@" || failed=1; }
received_zero_copy none
receive znear zfar twin --policy none --peers many --payloads 64 --modes serve_af_xdp_zero_copy || failed=1
nft10 znear input
received_zero_copy nft10 --counts handed --count "$nft_count" --payloads 64
# Merged before they are skbs, or without any.
in_near kopictl attach near0 || failed=1
received none --modes kopi_direct,kopi_direct_merged,kopi_direct_datagrams
received none --peers many --payloads 64 --modes kopi_direct_datagrams
served serve_kopi_direct
nft10 near input
received nft10 --counts handed --count "$nft_count" --modes kopi_direct,kopi_direct_merged,kopi_direct_datagrams
received nft10 --counts handed --count "$nft_count" --peers many --payloads 64 --modes kopi_direct_datagrams
also_conntrack near input
received nft10_conntrack --counts handed --count "$nft_count" --modes kopi_direct,kopi_direct_merged --payloads 64
in_near nft delete table inet more
no_nft near
in_far kopictl attach far0 || failed=1
there_and_back --modes kopi_direct_both,kopi_direct_socket
in_far kopictl detach far0
in_near kopictl detach near0
# These leave nothing to the stack, which would answer; tc's ingress is behind AF_PACKET.
in_near tc qdisc add dev near0 clsact
in_near tc filter add dev near0 ingress matchall action drop
received none --modes af_packet
nft10 near input
received nft10 --modes af_packet --counts handed --count "$nft_count" --payloads 64
in_near tc qdisc del dev near0 clsact
received nft10 --modes af_xdp_copy --counts handed --count "$nft_count" --payloads 64
no_nft near
received none --modes af_xdp_copy,xdp_drop
received none --peers many --payloads 64 --modes af_xdp_copy,serve_af_xdp_copy,xdp_drop
many
in_void kopictl attach void0 || failed=1
many --modes kopi_direct_datagrams
in_void kopictl detach void0
exit $failed
