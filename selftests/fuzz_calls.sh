#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Threads of a hostile process call what sockets have, in any order and on the same
# few descriptors and mappings; then in a place where he has all that a user namespace gives; then on
# ordinary sockets, while rules that judge these change all the time. Others must be served meanwhile.
# FUZZ_SECONDS and FUZZ_SEED change the run.

. "$(dirname "$0")/lib.sh"

seconds=${FUZZ_SECONDS:-5}
seed=${FUZZ_SEED:-$(date +%s)}

memory_is_back() { [ $((before - $(available))) -lt 16384 ]; }
run=(kopi-fuzz calls --seed "$seed" --seconds "$seconds")
limit=(timeout -k 5 $((seconds + 60)))

# Runs it: fuzz WHERE COMMAND...
fuzz() {
	local before status
	before=$(available)
	echo "# ${*:2}"
	"${@:2}" >/tmp/calls.out 2>&1
	status=$?
	sed "s/^run: {/&\"what\": \"calls, $1\", /; s/^/# /" /tmp/calls.out
	check "$1, seed $seed: the process ends by itself" [ $status = 0 ]
	[ "$1" = alone ] || check "$1: others were served in time" [ $status != 3 ]
	check "$1: nothing holds the module" wait_for unused
	check "$1: memory is back" wait_for memory_is_back
}

fuzz alone as bob "${limit[@]}" "${run[@]}"
hostile=(--threads 8 --slow /tmp/hostile/file --at 198.51.100.1 --at 198.51.100.2 --at 2001:db8:51::1
	--at 2001:db8:51::2 --at 203.0.113.2 --at 198.18.0.2 --at 198.18.1.2)
# Slabs that are filled there for the first time stay with the kernel: 8 MB in seven minutes, and 0.2 MB in the next.
hostile "${limit[@]}" kopi-fuzz calls --seed $((seed + 1)) --seconds $((seconds / 4)) "${hostile[@]}" >/dev/null
fuzz 'with root of a namespace' hostile "${limit[@]}" "${run[@]}" "${hostile[@]}"
# What bob may do with any socket: some, less, nothing, or what he likes.
sets=('default allow
enforce on
user bob local-port 9200-9203 deny
user bob remote-port 9204 direction out rate 100kbit burst 10k allow
user bob protocol udp remote ::1 mark 7 priority 3 allow' 'default allow
enforce on
user bob exe /bin/true deny
user bob protocol tcp direction in remote 127.0.0.0/8 deny
user bob protocol udp rate 50pps burst 5 shared allow' 'default allow
enforce on
user bob deny' 'default allow
enforce off
user bob protocol tcp local-port 9200-9207 deny')
change_rules() {
	local set
	while [ -e /tmp/changing ]; do
		for set in "${sets[@]}"; do
			kopictl restore - <<<"$set" >/tmp/changes 2>&1 || return
			sleep 0.2
		done
	done
}
# Runs a command meanwhile, and takes the rules away: enforced COMMAND...
enforced() {
	local status changing
	touch /tmp/changing
	change_rules &
	changing=$!
	"$@"
	status=$?
	rm /tmp/changing
	wait "$changing"
	changed=$?
	kopictl rule flush
	kopictl rule enforce off
	return "$status"
}

fuzz 'under enforced rules' enforced "$here/watchdog.py" setpriv --reuid bob --regid bob --clear-groups -- \
	"${limit[@]}" "${run[@]}" --ordinary 12
check "rules were changed meanwhile" [ "$changed" = 0 ]
[ "$changed" = 0 ] || cat /tmp/changes
check "a flow still works" bash -c 'kopi-echo --bind 127.0.0.1:9101 >/tmp/echo.out &
	until grep -q listening /tmp/echo.out; do sleep 0.05; done
	echo hello | kopi-nc -n 1 -w 5 127.0.0.1 9101 | grep -q hello; status=$?; kill %1; exit $status'
finish
