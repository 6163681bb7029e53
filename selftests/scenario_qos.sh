#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# A game whose port changes each session is shaped by its cgroup to a tenth;
# another program gets the rest, and all when the game is silent.
#
# SCENARIO_SECONDS is how long each measurement takes.

. "$(dirname "$0")/lib.sh"

seconds=${SCENARIO_SECONDS:-4}
title "Scenario 4, quality of service: a game gets a tenth of 2 Mbit/s, whatever port it uses."
cleanup() {
	pkill kopi-gen
	wait
	in_host nft delete table inet qos 2>/dev/null
	in_host tc qdisc del dev eth0 root 2>/dev/null
	rmdir /sys/fs/cgroup/game 2>/dev/null
}
trap cleanup EXIT
mkdir -p /sys/fs/cgroup/game

# The other's queue and bursts are for a busy machine, where nobody runs for a tenth of a second.
in_host tc -batch - <<'EOF'
qdisc add dev eth0 root handle 1: htb default 20
class add dev eth0 parent 1: classid 1:1 htb rate 2mbit ceil 2mbit burst 16k cburst 16k
class add dev eth0 parent 1:1 classid 1:10 htb rate 200kbit ceil 200kbit burst 4k cburst 4k
class add dev eth0 parent 1:1 classid 1:20 htb rate 1800kbit ceil 2mbit burst 16k cburst 16k
qdisc add dev eth0 parent 1:10 pfifo limit 20
qdisc add dev eth0 parent 1:20 pfifo limit 100
EOF
in_host nft -f - <<'EOF'
table inet qos {
	chain out {
		type filter hook output priority 0
		socket cgroupv2 level 1 "game" meta priority set 1:10
	}
}
EOF
typed "tc class add dev eth0 parent 1:1 classid 1:10 htb rate 200kbit ceil 200kbit"
typed "tc class add dev eth0 parent 1:1 classid 1:20 htb rate 1800kbit ceil 2mbit"
typed "nft add rule inet qos out socket cgroupv2 level 1 game meta priority set 1:10"

# Bytes that have left by a class.
sent() {
	in_host tc -s -j class show dev eth0 | jq ".[] | select(.handle == \"$1\") | .stats.bytes"
}
# Kilobits a second of both classes over a while: `game` and `rest`.
measure() {
	local game rest start elapsed
	game=$(sent 1:10) rest=$(sent 1:20) start=$EPOCHREALTIME
	sleep "$seconds"
	game=$(($(sent 1:10) - game)) rest=$(($(sent 1:20) - rest))
	elapsed=$((${EPOCHREALTIME/./} - ${start/./}))
	game_kbit=$((game * 8000 / elapsed)) rest_kbit=$((rest * 8000 / elapsed))
}
near() { [ "$1" -ge $(($2 * 9 / 10)) ] && [ "$1" -le $(($2 * 11 / 10)) ]; }
# Measures until the rates are those expected, ten times at most: a busy machine may not send at
# the full rate for a moment.
expect() {
	for _ in {1..10}; do
		measure
		near $rest_kbit "$2" && { [ "$1" = 0 ] || near $game_kbit "$1"; } && return
	done
}
play() { in_group game alice kopi-gen flood 192.0.2.2:9 --size 1000 --batch 8 >/dev/null 2>&1 & }

in_host setpriv --reuid bob --regid bob --clear-groups -- \
	kopi-gen flood 192.0.2.2:9 --size 1000 --batch 8 >/dev/null 2>&1 &
play
busy() { [ "$(sent 1:10)" -gt 20000 ] && [ "$(sent 1:20)" -gt 50000 ]; }
wait_for busy
expect 200 1800
tell "both send: the game $game_kbit kbit/s, the other $rest_kbit kbit/s"
check "the game gets a tenth ($game_kbit kbit/s)" near "$game_kbit" 200
check "the other the rest ($rest_kbit kbit/s)" near "$rest_kbit" 1800

pkill -u alice kopi-gen
# What its queue still holds leaves.
quiet() { [ "$(in_host tc -s -j class show dev eth0 | jq '.[] | select(.handle == "1:10") | .stats.qlen')" = 0 ]; }
wait_for quiet
expect 0 2000
tell "the game is silent: the other $rest_kbit kbit/s"
check "when it is silent, the other gets all ($rest_kbit kbit/s)" near "$rest_kbit" 2000

play
before=$(sent 1:10)
again() { [ "$(sent 1:10)" -gt $((before + 20000)) ]; }
wait_for again
expect 200 1800
tell "another session, another port: the game $game_kbit kbit/s, the other $rest_kbit kbit/s"
check "in the next session, from another port, it gets a tenth again ($game_kbit kbit/s)" near "$game_kbit" 200
check "and the other the rest ($rest_kbit kbit/s)" near "$rest_kbit" 1800
finish
