#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# One mode's row for bench/profile, in its machine: the row, and the kernel's symbols.
# counted.sh none|nft10|conntrack|bpf_netfilter MODE NIC|'NIC NIC'|'NIC NIC NIC' OPTION...

. "$(dirname "$0")/lib.sh"
set -o pipefail
policy=$1 mode=$2
read -ra nics <<<"$3"
shift 3
nic=${nics[0]} hook=output
[ ${#nics[@]} = 1 ] || hook=input
set_up >/dev/null
[ "$policy" = none ] || "$policy" "$nic" $hook >/dev/null
attached=("$nic")
[ ${#nics[@]} != 2 ] || attached+=(far)
for each in "${attached[@]}"; do
	[[ $mode != *kopi_direct* ]] || nsenter --net="/run/netns/$each" kopictl attach "${each}0" || exit 1
done
# Sending from one, there and back between two, receiving by the first of three.
row() {
	case ${#nics[@]} in
	1) nsenter --net="/run/netns/$nic" kopi-bench send --nic "${nic}0" --local 198.18.0.0 --policy "$policy" "$@" ;;
	2) round_trips "$@" ;;
	3) receive "${nics[@]}" --policy "$policy" "$@" ;;
	esac
}
row --modes "$mode" "$@" 2>/tmp/errors || { cat /tmp/errors >&2 && exit 1; }
# Its size is 0 until it is read.
# shellcheck disable=SC2002
cat /proc/kallsyms | gzip | base64
