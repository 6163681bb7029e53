#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Where the instructions of sending go, function by function, for the machine of
# `qemu/vm --icount --nic void`: profile.sh none|nft10|conntrack MODE...
# RECEIVE=1: those of receiving, with --nic joined.
#
# PAYLOAD=1400: other than 64 bytes. LEAST=25: functions that take less than 50 instructions, too. NIC=tap, with --nic joined --nic tap: on the one with offloads.
#
# perf looks what the sender runs at every 20,000th instruction, since that is what the machine's
# clock counts. What must wait till interrupts are on again is found where they are turned on.

. "$(dirname "$0")/lib.sh"
set -o pipefail
policy=$1 payload=${PAYLOAD:-64} nic=${NIC:-void} offloads=() packets=16384
# Where a packet of a train costs so little that it takes more of them.
[ "$nic" = tap ] && offloads=(--offloads) packets=524288
shift
hook=output
[ -z "${RECEIVE:-}" ] || nic=near hook=input
set_up >/dev/null
[ "$policy" = none ] || "$policy" "$nic" $hook >/dev/null

# A JSON object of a row: row MODE PACKETS [PREFIX...]
row() {
	local mode=$1 what=(send --local 198.18.0.0 "${offloads[@]}" --packets "$2")
	shift 2
	[ -z "${RECEIVE:-}" ] || what=(recv --local 198.51.100.1 --far-netns /run/netns/far --far-nic far0
		--far 198.51.100.2 --void-netns /run/netns/twin --void-nic twin0)
	nsenter --net="/run/netns/$nic" "$@" kopi-bench "${what[@]}" --nic "${nic}0" --payloads "$payload" --modes "$mode" \
		--policy "$policy" 2>/tmp/errors || { cat /tmp/errors >&2 && exit 1; }
}

# How often each function was seen, in a row: sampled MODE
sampled() {
	if [ -n "${RECEIVE:-}" ]; then
		# Interrupts have any thread do it. What sends, and naps, is not meant, but for what comes meanwhile; nor is
		# the beginning, when the clock is looked at.
		# Looking costs something, and not always the same.
		for _ in 1 2 3 4; do
			(row "$1" 0 perf record -q -a -g -D 800 -e cpu-clock -c 20000 -o /tmp/perf.data >/dev/null 2>&1) && break
		done
		perf script -i /tmp/perf.data -F ip,sym 2>/dev/null | awk '
			function end() {
				if (leaf != "" && (within || !other)) count[leaf]++
				leaf = ""; within = other = 0
			}
			/^$/ { end(); next }
			{ sub(/^[ \t]*[0-9a-f]+ /, ""); if (leaf == "") leaf = $0 }
			/^(handle_softirqs|__common_interrupt)$/ && !other { within = 1 }
			/packet_sendmsg|PacketRing|virtnet_poll_tx|Traffic.*frame|nanosleep|clock.*(idle|each|start|since)|default_idle|perf_/ {
				other = 1
			}
			END { end(); for (each in count) print count[each], each }
		'
		return
	fi
	# Not the idle thread, which was made by the sender.
	row "$1" $((2 * packets)) perf record -q --no-inherit -e cpu-clock -c 20000 -o /tmp/perf.data >/dev/null || exit 1
	perf report -i /tmp/perf.data --no-children --stdio -F sample,sym 2>/dev/null |
		sed -n 's/^ *\([0-9][0-9]*\) *\[.\] */\1 /p'
}

: >/tmp/functions
for mode in "$@"; do
	[[ $mode != kopi_direct* ]] || nsenter --net="/run/netns/$nic" kopictl attach "${nic}0" || exit 1
	cost=$(row "$mode" $packets | jq .insn_per_packet) || exit 1
	sampled "$mode" | c++filt --format=rust |
		awk -v mode="$mode" -v cost="$cost" '
			{ samples = $1; $1 = ""; count[$0] += samples; all += samples }
			END { for (each in count) printf "%s\t%.3f\t%s\n", mode, count[each] / all * cost, each }
		' >>/tmp/functions || exit 1
	[[ $mode != kopi_direct* ]] || nsenter --net="/run/netns/$nic" kopictl detach "${nic}0" || exit 1
done
awk -F '\t' -v modes="$*" -v least="${LEAST:-50}" '
	function round(number) { return int(number + 0.5) }
	BEGIN { n = split(modes, mode, " ") }
	{ cost[$3, $1] = $2; sum[$1] += $2; if ($2 > most[$3]) most[$3] = $2 }
	END {
		line = "| "; rule = "| ---"
		for (i = 1; i <= n; i++) { line = line "| " mode[i] " "; rule = rule " | ---:" }
		print line "|\n" rule " |"
		for (each in most) if (most[each] >= least) {
			line = "| `" substr(each, 2) "` "
			for (i = 1; i <= n; i++) { line = line "| " round(cost[each, mode[i]]) " "; listed[mode[i]] += cost[each, mode[i]] }
			print line "|" | "sort -t \"|\" -k 3,3nr"
		}
		close("sort -t \"|\" -k 3,3nr")
		line = "| all others "; total = "| together "
		for (i = 1; i <= n; i++) {
			line = line "| " round(sum[mode[i]] - listed[mode[i]]) " "
			total = total "| " round(sum[mode[i]]) " "
		}
		print line "|\n" total "|"
	}
' /tmp/functions
