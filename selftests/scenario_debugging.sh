#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Three programs of two users send through rings, and one floods: kopictl tells
# which it is, and so do ordinary tools.

. "$(dirname "$0")/lib.sh"

title "Scenario 1, debugging: something floods the network. Which program of whom?"
trap 'pkill "kopi-(echo|nc|gen)"; kill $(jobs -p) 2>/dev/null; wait; in_host nft delete table inet debug 2>/dev/null; in_peer nft delete table inet sink' EXIT
# Nobody listens at the other end, which says nothing of it: a refusal would end a program.
in_peer nft 'add table inet sink; add chain inet sink in { type filter hook input priority 0; };
	add rule inet sink in udp dport 9 drop'
# Two that do their work, and one that has gone mad.
in_host setpriv --reuid alice --regid alice --clear-groups -- \
	kopi-echo --bind 192.0.2.1:6001 >/tmp/echo.out 2>&1 &
in_host setpriv --reuid bob --regid bob --clear-groups -- \
	kopi-nc -p 6002 192.0.2.2 9 < <(while sleep 0.2; do echo beat; done) >/dev/null 2>&1 &
in_host setpriv --reuid bob --regid bob --clear-groups -- \
	kopi-gen flood 192.0.2.2:9 --size 200 >/dev/null 2>&1 &
wait_for grep -q listening /tmp/echo.out
for _ in 1 2 3; do ask 6001 ping >/dev/null; done

tell "KOPI's own tool says it in one command:"
typed "kopictl capture --summary --seconds 2"
# A busy machine may let one of them stand still for so long.
for _ in {1..10}; do
	in_host kopictl capture --summary --seconds 2 >/tmp/summary.out 2>/dev/null
	grep -qE '^[0-9]+ +kopi-nc +bob ' /tmp/summary.out && break
done
shown </tmp/summary.out
check "kopictl names the program and its user, first of all" eval \
	'[[ $(sed -n 2p /tmp/summary.out) =~ ^[0-9]+\ +kopi-gen\ +bob\  ]]'
check "and the one that beats slowly" grep -qE '^[0-9]+ +kopi-nc +bob ' /tmp/summary.out

tell "And with ordinary tools: whose packets are they, and from which port?"
in_host nft -f - <<'EOF'
table inet debug {
	set who { typeof meta skuid . udp sport; flags dynamic; counter; size 1000; timeout 1h; }
	chain out {
		type filter hook output priority 0
		meta l4proto udp add @who { meta skuid . udp sport }
	}
}
EOF
typed "nft 'table inet debug { set who { typeof meta skuid . udp sport; flags dynamic; counter; timeout 1h; }"
typed "     chain out { type filter hook output priority 0; add @who { meta skuid . udp sport }; }; }'"
ask 6001 ping >/dev/null
# Most packets first: packets, user, port.
busiest() {
	in_host nft -j list set inet debug who | jq -r '.nftables[] | select(.set) | .set.elem[].elem |
		"\(.counter.packets) \(.val.concat[0]) \(.val.concat[1])"' | sort -rn
}
all_seen() { [ "$(busiest | wc -l)" -ge 3 ] && [ "$(busiest | head -c4)" -gt 500 ] 2>/dev/null; }
wait_for all_seen
typed "nft list set inet debug who"
busiest | while read -r packets user port; do
	echo "user $(getent passwd "$user" | cut -d: -f1), port $port: $packets packets"
done >/tmp/who.out
shown </tmp/who.out
read -r _ user port < <(busiest)
check "nft's counters by user and port tell the flood from the rest" [ "$user" = 1002 ]

tell "Which process has that port?"
typed "ss -uapn sport = :$port"
in_host ss -Huapn "sport = :$port" | tr -s ' ' >/tmp/ss.out
shown </tmp/ss.out
pid=$(sed -n 's/.*pid=\([0-9]*\).*/\1/p' /tmp/ss.out)
check "ss names the process behind the rings" grep -q kopi-gen /tmp/ss.out
check "it is the one that floods" grep -qz flood "/proc/$pid/cmdline"

tell "And without a port: whose packets does the device get?"
typed "perf record -a -e net:net_dev_queue --filter 'name == \"eth0\"' sleep 1; perf script -F comm"
for _ in {1..5}; do
	perf record -q -a -e net:net_dev_queue --filter 'name == "eth0"' -o /tmp/perf.data sleep 1 >/dev/null 2>&1
	perf script -i /tmp/perf.data -F comm 2>/dev/null | sort | uniq -c | sort -rn | tr -s ' ' >/tmp/perf.out
	grep -q kopi-gen <(head -1 /tmp/perf.out) && break
done
shown </tmp/perf.out
check "perf names the program by the kernel's tracepoint" grep -q "kopi-gen" <(head -1 /tmp/perf.out)

tell "What does it send?"
typed "tcpdump -c 2 -n -i eth0 udp src port $port"
in_host timeout 60 tcpdump -c 2 -t -n -i eth0 udp src port "$port" >/tmp/tcpdump.out 2>/dev/null
shown </tmp/tcpdump.out
check "tcpdump shows its packets" grep -q "192.0.2.1.$port > 192.0.2.2.9: UDP, length 200" /tmp/tcpdump.out

typed "kill $pid"
kill "$pid"
wait_for [ ! -e "/proc/$pid" ]
before=$(busiest | awk -v port="$port" '$3 == port { print $1 }')
ask 6001 ping >/tmp/after.out
check "the others go on" grep -q ping /tmp/after.out
check "and the flood is over" [ "$before" = "$(busiest | awk -v port="$port" '$3 == port { print $1 }')" ]
finish
