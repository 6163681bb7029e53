#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The kernel's own selftests give the same verdicts by `kopi run`, which makes KOPI flows of their UDP sockets,
# has these send by channels from the first datagram on, and makes TCP flows sockets for those that are
# about TCP: programs lists them: run.sh [--with-udp | NAME]
#
# With --with-udp those that have no UDP traffic of their own are left out, and those that take minutes. With
# a name only those that match it are run, and those, too, that otherwise aren't for the time that they take.

# shellcheck source=selftests/lib.sh
. "$(dirname "$0")/../lib.sh"

rigs=$here/../build/rigs
work=/tmp/rigs
[ -d "$rigs/net" ] || { echo "1..0 # SKIP no build/rigs: run qemu/build rigs" && exit 4; }
rm -rf $work && cp -r "$rigs" $work
# All that is changed of them. They refuse a tainted kernel, as any is that has a module from outside its tree.
sed -i 's|^read t < /proc/sys/kernel/tainted$|&; t=$((t \& ~(1 << 12 \| 1 << 13)))|' \
	$work/net/netfilter/*.sh
# And fib_rule_tests asks a UDP server up to three times: an answer that comes while the client is still in send()
# is lost now and then, with neither KOPI nor its module (NO_SOCKET, 7.3.4, one of about 40 under load).
sed -i '2i nettest() { command nettest "$@" || command nettest "$@" || command nettest "$@"; }' $work/net/fib_rule_tests.sh

# What a rig says of each of its steps, without what changes from run to run.
verdicts() {
	grep -aE '^(PASS|FAIL|SKIP|OK|ERROR)|\[ *(OK|PASS|FAIL|SKIP|XFAIL) *\]|^(ok|not ok) |^TEST:|^test: ' "$1" |
		sed -E 's/-[A-Za-z0-9]{6,8}\b//g; s/\b[0-9]+(\.[0-9]+)? ?([mu]?s|bytes|packets)\b/N/g; s/0x[0-9a-f]+/N/g' | sort
}

# All calls of setsockopt() for KOPI's options, in whatever namespace and process, and their results: standard
# error may be compared by a rig.
tracing=/sys/kernel/tracing
[ -d $tracing/instances ] || mount -t tracefs tracefs $tracing
calls=$tracing/instances/rigs
mkdir -p $calls
trap 'rmdir $calls' EXIT
echo 'level == 0x4b4f && optname == 3' >$calls/events/syscalls/sys_enter_setsockopt/filter
echo 1 >$calls/events/syscalls/sys_enter_setsockopt/enable
echo 1 >$calls/events/syscalls/sys_exit_setsockopt/enable

# Flows that a channel has accepted (KOPI_OPT_JOIN), which they ask for when they send.
joined() {
	sed -nE 's/^.*-([0-9]+) +\[[0-9]+\].*: (sys_setsockopt)(.*)/\1 \3/p' $calls/trace | awk '
		$2 ~ /^\(fd/ { asks[$1] = 1; next }
		asks[$1] { asks[$1] = 0; if ($3 == "0x0") count++ }
		END { print count + 0 }'
}

# run_rig RIG udp|run [OPTION]: leaves output, status, and how many flows joined a channel, or are of TCP.
run_rig() {
	local dir base log=$work/$2.log rig
	dir=$(dirname "$1") base=$(basename "$1")
	# Two at once must not see each other: names of namespaces and the lock of iptables are in /run,
	# and programs that make no namespaces see all of the loopback device.
	rig=(unshare -m bash -c "mount -t tmpfs run /run && exec ./$base")
	[[ $base == *.sh ]] || rig=(unshare -n bash -c "ip link set lo up && exec ./$base")
	# It keeps the environment.
	[ "$2" = udp ] || rig=(kopi run --min-datagrams 1 ${3:+"--tcp" "--explain"} "${rig[@]}")
	[ "$2" = udp ] || echo >$calls/trace
	(
		cd "$work/net/$dir" || exit
		export KSFT_MACHINE_SLOW=yes
		timeout -k 5 500 "${rig[@]}" </dev/null >"$log" 2>&1
		echo $? >"$work/$2.status"
	)
	[ "$2" = udp ] || if [ -n "${3:-}" ]; then grep -ac 'a TCP flow' "$log"; else joined; fi >"$work/flows"
	verdicts "$log" >"$work/$2.verdicts"
}

# What both gave, in flows, code (not `status`, which check() has, too) and word.
look() {
	flows=$(<"$work/flows")
	code=$(<"$work/udp.status")
	word=failed
	[ "$code" = 0 ] && word=passed
	[ "$code" = 4 ] && word="skipped: $(grep -aiE -m1 'skip' "$work/udp.log")"
}

# How a try differs from what is expected.
say_difference() {
	echo "# status $code without KOPI, $(<"$work/run.status") by kopi run"
	diff "$work/udp.verdicts" "$work/run.verdicts" | sed 's/^/# /' | head -20
	tail -5 "$work/run.log" | sed 's/^/#   /'
}

# A rig that fails both times proves nothing, nor does one in which no flow sends by a channel, or is of TCP,
# unless the list says why it is there.
same() {
	[ "$code" = 0 ] && [ "$(<"$work/run.status")" = 0 ] &&
		cmp -s "$work/udp.verdicts" "$work/run.verdicts" && { [ -n "$reason" ] || [ "$flows" -gt 0 ]; }
}

# What it is about can't happen with rings (XFAIL), and its traffic passes.
untriggered() {
	[ "$code" = 0 ] && [ "$(<"$work/run.status")" = 2 ] && [ "$flows" -gt 0 ] &&
		grep -q ^XFAIL "$work/run.log" && ! grep -qE 'FAIL' "$work/run.verdicts"
}

# Without UDP of its own, what passes by `kopi run` need not be run without it.
passes() {
	[ "$(<"$work/run.status")" = 0 ] && ! grep -q FAIL "$work/run.verdicts"
}

with_udp=
[ "${1:-}" = --with-udp ] && with_udp=1 && shift
summary=()
while read -r rig reason; do
	[[ $rig == "#"* || -z $rig ]] && continue
	[[ $rig =~ ^([!~=+-]*)(.*) ]] && marks=${BASH_REMATCH[1]} rig=${BASH_REMATCH[2]}
	if [ $# != 0 ]; then
		[[ $rig =~ $1 ]] || continue
	elif [[ $marks == *!* ]]; then
		summary+=("$rig: not run: $reason")
		continue
	fi
	if [ -n "$with_udp" ]; then
		[ -n "$reason" ] && [ -z "$marks" ] && continue
		[[ $marks == *-* ]] && continue
	fi
	expected=same
	[[ $marks == *"~"* ]] && expected=untriggered
	start=$SECONDS again=1
	tcp=
	[[ $marks != *+* ]] || tcp=tcp
	if [ -n "$reason" ] && [ -z "$marks" ]; then
		run_rig "$rig" run
		if passes; then
			summary+=("$rig: passed, $(wc -l <"$work/run.verdicts") verdicts ($reason)")
			check "$rig: passes ($((SECONDS - start)) s)" true
			continue
		fi
	elif [[ $marks != *=* ]]; then
		# Both at once: mostly, they wait.
		run_rig "$rig" udp &
		run_rig "$rig" run $tcp
		wait
		look
		$expected && again=
		[ -z "$again" ] || say_difference
	fi
	for _ in ${again:+1 2 3}; do
		# Some don't stand it that another one runs, or that the machine is busy: one after the other, then.
		run_rig "$rig" udp
		run_rig "$rig" run $tcp
		look
		! $expected || break
		say_difference
	done
	summary+=("$rig: $word, $(wc -l <"$work/udp.verdicts") verdicts, $flows flows${reason:+ ($reason)}")
	check "$rig: $expected verdicts ($word, $flows flows, $((SECONDS - start)) s)" $expected
done <"$here/rigs/programs"
printf '# %s\n' "${summary[@]}"
[ $tests -gt 0 ] || check "some rig has that name" false
finish
