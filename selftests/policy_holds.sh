#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Ordinary tools see a KOPI flow, know whose it is, and stop it.

. "$(dirname "$0")/lib.sh"

ip netns exec host setpriv --reuid bob --regid bob --clear-groups -- \
	kopi-echo --bind 192.0.2.1:7777 >/tmp/echo.out 2>&1 &
echo_pid=$!
trap 'kill $echo_pid 2>/dev/null; in_host nft flush ruleset' EXIT
wait_for grep -q listening /tmp/echo.out

answers() { echoes 7777 "$1"; }
silent() { [ -z "$(ask 7777 "$1" 1)" ]; }
# The packets that bob's counter has seen.
counted() { in_host nft -j list counter inet t bob | sed 's/.*"packets": *\([0-9]*\).*/\1/'; }

check "an ordinary client gets its answer" answers hello

in_host nft -f - <<'EOF'
table inet t {
	counter bob { }
	chain out {
		type filter hook output priority 0
		meta skuid bob counter name bob
	}
}
EOF
check "answers with a counting rule" answers counted
check "nft meta skuid counts it" [ "$(counted)" = 1 ]

in_host tcpdump -i eth0 -U -w /tmp/seen.pcap udp port 7777 2>/tmp/tcpdump.err &
tcpdump_pid=$!
wait_for grep -q listening /tmp/tcpdump.err
ask 7777 tcpdump-sees-me >/dev/null
seen_twice() { [ "$(tcpdump -r /tmp/seen.pcap -A 2>/dev/null | grep -c tcpdump-sees-me)" = 2 ]; }
check "tcpdump sees both ways, with the right bytes" wait_for seen_twice
kill $tcpdump_pid
wait $tcpdump_pid
bad_checksums() { tcpdump -vv -r /tmp/seen.pcap 2>/dev/null | grep -q 'bad udp cksum'; }
check "with right checksums" eval '! bad_checksums'

ss_shows() { in_host ss -uapn | grep 192.0.2.1:7777 | grep -q kopi-echo; }
check "ss shows the program" ss_shows
check "/proc/net/udp shows the user" eval "in_host grep -q ' 1002 ' /proc/net/udp"

in_host nft add rule inet t out meta skuid bob drop
check "a drop rule stops the live flow" silent dropped
in_host nft flush chain inet t out
check "and without it, it goes on" answers again

in_host tc qdisc add dev eth0 root netem loss 100%
check "tc stops it" silent lost
in_host tc qdisc del dev eth0 root
check "and lets it go on" answers last
finish
