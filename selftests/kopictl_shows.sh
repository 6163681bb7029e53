#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What kopictl shows of a flow is what the flow did, and what ss knows of it.

. "$(dirname "$0")/lib.sh"

mkdir -p /sys/fs/cgroup/echoes
in_group echoes bob kopi-echo --bind 192.0.2.1:7777 >/tmp/echo.out 2>&1 &
trap 'kill $pid 2>/dev/null; in_host nft flush ruleset; wait_for rmdir /sys/fs/cgroup/echoes' EXIT
wait_for grep -q listening /tmp/echo.out
pid=$(in_host ss -uapnH 'sport = :7777' | sed 's/.*pid=\([0-9]*\).*/\1/')

kopictl() { in_host kopictl "$@"; }
as_user() { local user=$1; shift; in_host setpriv --reuid "$user" --regid "$user" --clear-groups -- kopictl "$@"; }
flow() { kopictl ps --json | jq '.[0]'; }

check "three questions are answered" eval 'echoes 7777 one && echoes 7777 three && echoes 7777 fifteen'

family=$(</sys/module/kopi/parameters/family)
check "info has the versions" eval 'kopictl info --json | has --argjson family "$family" --arg kernel "$(uname -r)" \
	".abi_version == 2 and .address_family == \$family and .kernel == \$kernel and .flows == 1"'
check "info, for people" eval 'kopictl info | grep -qE "^flows +1$"'

check "ps shows the process that ss shows" eval 'kopictl ps --json | has --argjson pid "$pid" \
	"length == 1 and (.[0] | .pid == \$pid and .program == \"kopi-echo\" and .user == \"bob\" and .uid == 1002
	and .local_address == \"192.0.2.1\" and .local_port == 7777 and .cgroup_path == \"/echoes\")"'
check "and in a table" eval 'kopictl ps | grep -qE "^ *[0-9]+ +$pid +kopi-echo +bob +/echoes +udp +- +192.0.2.1:7777 +- "'
check "--wide has the path" eval 'kopictl ps --wide | grep -q "$(readlink "/proc/$pid/exe")"'
check "--numeric has numbers" eval 'kopictl ps -n | grep -qE "kopi-echo +1002 "'
many() { [ "$(kopictl ps --json "${@:2}" | jq length)" = "$1" ]; }
check "filters find it" eval 'many 1 --user bob --pid "$pid" --exe kopi-echo'
check "or not" eval 'many 0 --user alice && many 0 --pid 1 && many 0 --exe /usr/bin/kopi-echo'

check "its counters are what was asked and answered" eval 'flow | has \
	".stats | .rx_packets == 3 and .rx_bytes == 18 and .tx_packets == 3 and .tx_bytes == 18 and .tx_taken == 3"'
id=$(flow | jq .id) channel=$(flow | jq .channel)
check "show flow has them, explained" eval \
	'kopictl show flow "$id" | grep -qE "^  rx-bytes +18 +Their payload"'
check "show flow --json is what ps has of it" eval '[ "$(kopictl show flow "$id" --json | jq -S .)" = "$(flow | jq -S .)" ]'
check "show channel has the rings' levels" eval 'kopictl show channel "$channel" | grep -qE "^  RX +0 of [0-9]+ \(0 %\)"'
check "and that there are frames to receive into" eval \
	'kopictl show channel "$channel" --json | has "(.fill.producer - .fill.consumer) > 0 and .flows == 1 and .uid == 1002"'
check "what isn't there is refused" ends_with 1 kopictl show flow 4000000

# Of all flows of the namespace, also of those that other tests had.
denied() { kopictl stats | sed -nE 's/^tx-drop-denied +([0-9]+) .*/\1/p'; }
before=$(denied)
in_host nft -f - <<'EOF'
table inet t {
	chain out {
		type filter hook output priority 0
		udp sport 7777 drop
	}
}
EOF
check "a filtered answer doesn't come" eval '! echoes 7777 lost 1'
check "and is a drop with its reason" wait_for eval 'flow | has ".stats.tx_drop_denied == 1 and .stats.rx_packets == 4"'
check "stats has it, too" eval '[ "$(denied)" = $((before + 1)) ]'
in_host nft flush ruleset

check "its user sees it" eval 'as_user bob ps --json | has "length == 1"'
check "others don't" eval 'as_user alice ps --json | has "length == 0"'
check "nor a flow that they name" ends_with 4 as_user alice show flow "$id"
check "sums take a privilege" ends_with 4 as_user bob stats
check "and the error says which" grep -q CAP_NET_ADMIN /tmp/out

in_host kopi-gen flood 192.0.2.2:9 --size 100 >/tmp/flood.out 2>&1 &
flooding() { many 1 --exe kopi-gen; }
wait_for flooding
check "ps --interval has rates" eval 'kopictl ps --interval 1 --exe kopi-gen --json | has \
	".[0].rates | .out_packets > 0 and ((.out_bytes / .out_packets) - 100 | fabs) < 0.1"'
check "top, without a terminal, is a table with it first" eval \
	'kopictl top | sed -n 2p | grep -qE "^ *[0-9]+ +kopi-gen +root +1 "'
live() {
	# Sorts by drops, and quits; the terminal is one of script's.
	(wait_for grep -q kopi-gen /tmp/top.out && printf dq) |
		in_host script -qefc 'stty rows 30 cols 120; kopictl top' /tmp/top.out >/dev/null
}
check "top is live, and ends with q" live
check "and gives the terminal back" grep -q $'\e\[?1049l' /tmp/top.out
pkill kopi-gen
wait %2

before=$(kopictl stats --json | jq .stats.tx_packets)
kill "$pid"
gone() { many 0; }
wait_for gone
check "sums keep what closed flows did" [ "$(kopictl stats --json | jq .stats.tx_packets)" = "$before" ]

check "colours are for terminals" eval '! kopictl ps | grep -q $'"'\\e'"
paint() { in_host script -qec "$1 kopictl ps" /dev/null | grep -q $'\e\[1m'; }
check "which get them" paint ''
check "unless NO_COLOR is set" eval '! paint NO_COLOR=1'
check "an early reader's end is no error" eval 'set -o pipefail; kopictl stats | head -1 | grep -q COUNTER'

# In the initial network namespace.
limit=$(sysctl -n net.kopi.user_max_flows)
check "limits are shown and set" eval 'command kopictl limit user_max_flows 77 &&
	[ "$(command kopictl limit user_max_flows)" = 77 ] && command kopictl limit --json | has ".user_max_flows == 77"'
sysctl -q "net.kopi.user_max_flows=$limit"
check "which takes a privilege" ends_with 4 as bob kopictl limit user_max_flows 78
check "limits that aren't there are named" ends_with 2 command kopictl limit user_max_fish 1

check "the module goes" wait_for rmmod kopi
check "without it the status says so" ends_with 3 kopictl info
check "and the error says what to do" grep -q 'modprobe kopi' /tmp/out
check "the module comes back" insmod "/kopi/build/$(uname -r)/kopi.ko"
finish
