#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The kernel's own selftests give the same verdicts when every UDP socket in them
# is a KOPI flow whose packets go through rings, and those about TCP when their sockets are flows: programs
# lists them, udp_by_rings.c and `kopi run --tcp` make the flows: run.sh [--with-udp | NAME]
#
# With --with-udp those that have no UDP traffic of their own are left out. With a name only those
# that match it are run, and those, too, that otherwise aren't for the time that they take.

# shellcheck source=selftests/lib.sh
. "$(dirname "$0")/../lib.sh"

rigs=$here/../build/rigs
work=/tmp/rigs
[ -e "$rigs/udp_by_rings.so" ] || { echo "1..0 # SKIP no build/rigs: run qemu/build rigs" && exit 4; }
rm -rf $work && cp -r "$rigs" $work
# All that is changed of them: they refuse a tainted kernel, as any is that has a module from
# outside its tree.
sed -i 's|^read t < /proc/sys/kernel/tainted$|&; t=$((t \& ~(1 << 12 \| 1 << 13)))|' \
	$work/net/netfilter/*.sh

# What a rig says of each of its steps, without what changes from run to run.
verdicts() {
	grep -aE '^(PASS|FAIL|SKIP|OK|ERROR)|\[ *(OK|PASS|FAIL|SKIP|XFAIL) *\]|^(ok|not ok) |^TEST:|^test: ' "$1" |
		sed -E 's/-[A-Za-z0-9]{6,8}\b//g; s/\b[0-9]+(\.[0-9]+)? ?([mu]?s|bytes|packets)\b/N/g; s/0x[0-9a-f]+/N/g' | sort
}

# run_rig RIG udp|rings|streams: leaves output, status and the flows that carried something, or are of TCP.
run_rig() {
	local dir base log=$work/$2.log rig
	dir=$(dirname "$1") base=$(basename "$1")
	# Two at once must not see each other: names of namespaces and the lock of iptables are in /run,
	# and programs that make no namespaces see all of the loopback device.
	rig=(unshare -m bash -c "mount -t tmpfs run /run && exec ./$base")
	[[ $base == *.sh ]] || rig=(unshare -n bash -c "ip link set lo up && exec ./$base")
	(
		cd "$work/net/$dir" || exit
		export KSFT_MACHINE_SLOW=yes
		if [ "$2" = rings ]; then
			export LD_PRELOAD=$work/udp_by_rings.so KOPI_RIGS_LOG="$work/flows"
		fi
		# It keeps the environment.
		[ "$2" != streams ] || rig=(kopi run --tcp --explain "${rig[@]}")
		timeout -k 5 500 "${rig[@]}" </dev/null >"$log" 2>&1
		echo $? >"$work/$2.status"
	)
	[ "$2" != streams ] || grep -a 'a TCP flow' "$log" >"$work/flows"
	verdicts "$log" >"$work/$2.verdicts"
}

# What both gave, in flows, code (not `status`, which check() has, too) and word.
look() {
	flows=$(wc -l <"$work/flows")
	code=$(<"$work/udp.status")
	word=failed
	[ "$code" = 0 ] && word=passed
	[ "$code" = 4 ] && word="skipped: $(grep -aiE -m1 'skip' "$work/udp.log")"
}

# A rig that fails both times proves nothing, nor does one in which no flow carries anything,
# unless the list says why it is there.
same() {
	[ "$code" = 0 ] && [ "$(<"$work/$with.status")" = 0 ] &&
		cmp -s "$work/udp.verdicts" "$work/$with.verdicts" && { [ -n "$reason" ] || [ "$flows" -gt 0 ]; }
}

# What it is about can't happen with rings (XFAIL), and its traffic passes.
untriggered() {
	[ "$code" = 0 ] && [ "$(<"$work/rings.status")" = 2 ] && [ "$flows" -gt 0 ] &&
		grep -q ^XFAIL "$work/rings.log" && ! grep -qE 'FAIL' "$work/rings.verdicts"
}

# Without UDP of its own, what passes with rings need not be run without them.
passes() {
	[ "$(<"$work/rings.status")" = 0 ] && ! grep -q FAIL "$work/rings.verdicts"
}

with_udp=
[ "${1:-}" = --with-udp ] && with_udp=1 && shift
summary=()
while read -r rig reason; do
	[[ $rig == "#"* || -z $rig ]] && continue
	[[ $rig =~ ^([!~=+]*)(.*) ]] && marks=${BASH_REMATCH[1]} rig=${BASH_REMATCH[2]}
	if [ $# != 0 ]; then
		[[ $rig =~ $1 ]] || continue
	elif [[ $marks == *!* ]]; then
		summary+=("$rig: not run: $reason")
		continue
	fi
	[ -n "$with_udp" ] && [ -n "$reason" ] && [ -z "$marks" ] && continue
	expected=same
	[[ $marks == *"~"* ]] && expected=untriggered
	start=$SECONDS again=1
	: >"$work/flows"
	with=rings
	[[ $marks != *+* ]] || with=streams
	if [ -n "$reason" ] && [ -z "$marks" ]; then
		run_rig "$rig" rings
		if passes; then
			summary+=("$rig: passed, $(wc -l <"$work/rings.verdicts") verdicts ($reason)")
			check "$rig: passes ($((SECONDS - start)) s)" true
			continue
		fi
	elif [[ $marks != *=* ]]; then
		# Both at once: mostly, they wait.
		run_rig "$rig" udp &
		run_rig "$rig" $with
		wait
		look
		$expected && again=
	fi
	if [ -n "$again" ]; then
		# Some don't stand it that another one runs: one after the other, then.
		: >"$work/flows"
		run_rig "$rig" udp
		run_rig "$rig" $with
		look
	fi
	summary+=("$rig: $word, $(wc -l <"$work/udp.verdicts") verdicts, $flows flows carried packets${reason:+ ($reason)}")
	check "$rig: $expected verdicts ($word, $flows flows, $((SECONDS - start)) s)" $expected
	if ! $expected; then
		echo "# status $code without KOPI, $(<"$work/$with.status") with $with"
		diff "$work/udp.verdicts" "$work/$with.verdicts" | sed 's/^/# /' | head -20
		tail -5 "$work/$with.log" | sed 's/^/#   /'
	fi
done <"$here/rigs/programs"
printf '# %s\n' "${summary[@]}"
[ $tests -gt 0 ] || check "some rig has that name" false
finish
