#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What a question costs Debian's servers, with its answer: with sockets, by `kopi run`, and so with an attached
# device. For the machine of `qemu/vm --icount --nic void --nic joined`; prints as rows.sh does.

# shellcheck disable=SC2086 # Names without spaces.
. "$(dirname "$0")/lib.sh"
# shellcheck source=selftests/servers.sh
. "$here/servers.sh"

work=/tmp/programs workers=1
mkdir -p $work/tftp
chmod 777 $work
cd $work || exit
zone >$work/example.zone
failed=0

set_up
ip -n near addr add 192.0.2.1/32 dev near0
ip -n near link set lo up
# Datagrams of an attached device take 4 KB each of a receive buffer, and 64 come at once.
sysctl -qw net.core.rmem_default=1048576 net.core.rmem_max=4194304

# A question about a host's address.
printf '\x12\x34\0\0\0\1\0\0\0\0\0\0\5host1\7example\4test\0\0\1\0\1' >dns.question
# memcached's are behind a header; the value has 50 bytes.
printf '\0\1\0\0\0\1\0\0get some\r\n' >memcached.question
printf '\0\1\0\0\0\1\0\0set some 0 0 50\r\n%050d\r\n' 0 >memcached.prepare

declare -A kind=([nsd]=dns [knot]=dns [unbound]=dns [named]=dns [dnsmasq]=dns [memcached]=memcached)
declare -A port=([dns]=53 [memcached]=11211)

# What the server answers to a file, at home: asked FILE PORT
asked() {
	in_near bash -c 'exec 3<>"/dev/udp/192.0.2.1/$1" && cat "$2" >&3 && timeout 1 head -c 1 <&3 | wc -c' ask "$2" "$1" 2>/dev/null
}
answers() { [ "$(asked "$@")" = 1 ]; }

# A server runs, and is asked: row NAME HOW COMMAND...
row() {
	local name=$1 how=$2 of=${kind[$1]} server
	shift 2
	# Not in_near, whose process would be another one.
	nsenter --net=/run/netns/near bash -c "$(declare -f "run_$name" zone); work=$work workers=$workers; run_$name $*" >"$name.log" 2>&1 &
	server=$!
	wait_for answers $of.question ${port[$of]} || { echo "not ok: $name, $how: it doesn't answer" >&2 && failed=1; }
	[ ! -e $of.prepare ] || asked $of.prepare ${port[$of]} >/dev/null
	in_near kopi-bench ask --nic near0 --local 192.0.2.1 --far-netns /run/netns/far --far-nic far0 \
		--far 198.51.100.2 --void-netns /run/netns/twin --void-nic twin0 --peers many \
		--port ${port[$of]} --question $of.question --program "$name" --mode "$how" || failed=1
	kill $server
	wait $server
}

for name in nsd knot unbound named dnsmasq memcached; do
	echo "# $name, at $(cut -d ' ' -f 1 /proc/uptime) s" >&2
	row "$name" sockets
	row "$name" kopi_run kopi run
	in_near kopictl attach near0
	row "$name" sockets_attached
	row "$name" kopi_run_direct kopi run
	in_near kopictl detach near0
done
exit $failed
