#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# A hostile process writes at random over all that it shares with the kernel, and a
# neighbour's traffic stays whole: by the loopback device, by attached NICs, where
# such a process is at both ends, and while it has all that a user namespace gives. Others are served
# meanwhile. FUZZ_SECONDS and FUZZ_SEED change the run.

. "$(dirname "$0")/lib.sh"

seconds=${FUZZ_SECONDS:-5}
# An even one: of such a seed the first round has an engine, and a slow machine may do but one.
seed=${FUZZ_SEED:-$(($(date +%s) / 2 * 2))}
log=/tmp/fuzz
# Each round has a region of up to four megabytes.
memory_is_back() { [ $((before - $(available))) -lt 16384 ]; }
# Runs as a user in a namespace: user_in SPACE USER COMMAND...
user_in() { nsenter --net="$1" setpriv --reuid "$2" --regid "$2" --clear-groups -- "${@:3}"; }

# Starts a hostile process: start SPACE OPTION...
start() {
	local space=$1 user=bob number=${#pids[@]}
	local run=(--seed $((seed + 1000000 * number)) --seconds "$seconds" "${@:2}")
	if [ -e /sys/kernel/debug/kcov ] && [ "$space" != hostile ]; then
		# Which only root of the initial user namespace may have.
		run+=(--coverage "$log/reached.$number")
		user=root
	fi
	echo "# kopi-fuzz rings ${run[*]}"
	run=(timeout -k 5 $((seconds + 60)) kopi-fuzz rings "${run[@]}")
	if [ "$space" = hostile ]; then
		run=(hostile "${run[@]}")
	else
		run=(user_in "$space" "$user" "${run[@]}")
	fi
	# Regions of up to four megabytes, and those of earlier rounds that are still in flight, of both processes.
	(ulimit -l 65536 && "${run[@]}") >"$log/fuzz.$number" 2>&1 &
	pids+=($!)
}

# Traffic that is checked; says what is missing or wrong: traffic FROM TO ADDRESS SIZES OPTION...
traffic() {
	local sent
	rm -f $log/recv.out
	user_in "$2" alice kopi-gen recv --json --timeout 60 "${@:5}" --bind "$3:9100" --count 2000 >$log/recv.out 2>&1 &
	wait_for [ -s $log/recv.out ] || return
	user_in "$1" alice kopi-gen send "${@:5}" "$3:9100" --count 2000 --size "$4" >$log/send.out 2>&1
	sent=$?
	wait $! && [ $sent = 0 ]
}
# What came of it was intact; a NIC that is flooded may have lost the rest.
came_intact() {
	[ "$(tail -n 1 $log/recv.out | jq '.received > 0 and .corrupt + .duplicate + .wrong_flow == 0')" = true ]
}

# One run after another, as long as the others work: neighbour WHERE TRAFFIC_ARGUMENT...
neighbour() {
	while [ -e $log/running ]; do
		traffic "${@:2}" || { [ "$1" = NICs ] && came_intact; } || return
		tail -n 1 $log/recv.out >>$log/passed
	done
}

# Has all of them at work, and looks what came of it.
fuzz() {
	local where=$1 before path neighbour pids=() pid bad=0 intact visits watchdog
	rm -rf $log && mkdir -m 777 $log
	touch $log/running
	before=$(available)
	"$here/watchdog.py" bash -c 'while [ -e "$0/running" ]; do sleep 0.1; done' $log >$log/watchdog 2>&1 &
	watchdog=$!
	# For half of the channels, and for so short a time that they come and go.
	kopictl engine set --cpus "$(cat /sys/devices/system/cpu/online)" --idle 100 --budget 4096
	if [ "$where" = loopback ]; then
		path=("$loopback" "$loopback" 127.0.0.1 0..9000)
		start $loopback
	elif [ "$where" = 'root of a namespace' ]; then
		path=("$loopback" "$loopback" 127.0.0.1 0..9000)
		start hostile --near 198.51.100.1 --far 198.51.100.2 --near 2001:db8:51::1 --far 2001:db8:51::2
	else
		path=("$host" "$peer" 192.0.2.2 0..1472 --offloads)
		start $host --near 192.0.2.1 --far 192.0.2.2 --near 2001:db8::1 --far 2001:db8::2
		start $peer --near 192.0.2.2 --far 192.0.2.1 --near 2001:db8::2 --far 2001:db8::1
	fi
	neighbour "$where" "${path[@]}" &
	neighbour=$!
	for pid in "${pids[@]}"; do
		wait "$pid" || bad=$?
	done
	sed "s/^run: {/&\"what\": \"rings, $where\", /; s/^/# /" $log/fuzz.*
	check "$where, seed $seed: hostile processes end by themselves" [ $bad = 0 ]
	rm $log/running
	wait $neighbour
	intact=$?
	check "$where: others were served in time" wait $watchdog
	sed 's/^# //; s/^/# /' $log/watchdog
	check "$where, seed $seed: their neighbour's datagrams arrive intact" [ $intact = 0 ]
	check "$where: of which there were some" [ -s $log/passed ]
	sed 's/^/# /' $log/passed
	[ $intact = 0 ] || tail -n 3 $log/send.out $log/recv.out
	visits=$(kopictl engine | awk 'NR > 1 { sum += $5 } END { print sum + 0 }')
	check "$where: engines sent, too" [ "$visits" -gt 0 ]
	echo "# $visits visits"
	kopictl engine off
	check "$where: and all of them afterwards" traffic "${path[@]}"
	check "$where: nothing holds the module" wait_for unused
	check "$where: memory is back" wait_for memory_is_back
	if [ -e $log/reached.0 ]; then
		"$here/reached.py" "$here/../build/$(uname -r)/kopi.ko" $log/reached.*
	fi
}

loopback=/proc/self/ns/net host=/run/netns/host peer=/run/netns/peer
fuzz loopback
fuzz 'root of a namespace'

in_host kopictl attach eth0
in_peer kopictl attach eth1
fuzz NICs
info=$(in_host kopictl info --json)
check "NICs: packets left by the driver, and came from it" \
	[ "$(jq '.devices[0] | .packets > 0 and .received > 0' <<<"$info")" = true ]
echo "# $(jq -c '.devices[0]' <<<"$info")"
in_host kopictl detach eth0
in_peer kopictl detach eth1
finish
