#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# One mode's row for bench/profile, in its machine: the row, and the kernel's symbols.
# counted.sh send|scale|rtt|recv none|nft10|conntrack|bpf_netfilter MODE NIC|'NIC NIC'|'NIC NIC NIC' OPTION...

. "$(dirname "$0")/lib.sh"
set -o pipefail
what=$1 policy=$2 mode=$3
read -ra nics <<<"$4"
shift 4
nic=${nics[0]} hook=output
[ ${#nics[@]} = 1 ] || hook=input
set_up >/dev/null
[ "$policy" = none ] || "$policy" "$nic" $hook >/dev/null
attached=("$nic")
[ ${#nics[@]} != 2 ] || attached+=(far)
for each in "${attached[@]}"; do
	[[ $mode != *kopi_direct* ]] || nsenter --net="/run/netns/$each" kopictl attach "${each}0" || exit 1
done
# Sending by one of the NICs, there and back between two, receiving by the first of three.
row() {
	case $what in
	send | scale)
		[ "$what" = scale ] || set -- --policy "$policy" "$@"
		nsenter --net="/run/netns/$nic" kopi-bench "$what" --nic "${nic}0" --local 198.18.0.0 "$@"
		;;
	rtt) round_trips "$@" ;;
	recv) receive "${nics[@]}" --policy "$policy" "$@" ;;
	esac
}
row --modes "$mode" "$@" 2>/tmp/errors || { cat /tmp/errors >&2 && exit 1; }
# Its size is 0 until it is read.
# shellcheck disable=SC2002
cat /proc/kallsyms | gzip | base64
