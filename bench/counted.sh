#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# One mode's row for bench/profile, in its machine: the row, and the kernel's symbols.
# counted.sh none|nft10|conntrack MODE send|recv NIC OPTION...

. "$(dirname "$0")/lib.sh"
set -o pipefail
policy=$1 mode=$2 what=$3 nic=$4
shift 4
hook=output local=198.18.0.0
[ "$what" = send ] || hook=input local=198.51.100.1
set_up >/dev/null
[ "$policy" = none ] || "$policy" "$nic" $hook >/dev/null
[[ $mode != kopi_direct* ]] || nsenter --net="/run/netns/$nic" kopictl attach "${nic}0" || exit 1
# At the addresses that the file says.
nsenter --net="/run/netns/$nic" setarch -R kopi-bench "$what" --nic "${nic}0" --local "$local" --modes "$mode" \
	--policy "$policy" "$@" 2>/tmp/errors || { cat /tmp/errors >&2 && exit 1; }
# Its size is 0 until it is read.
# shellcheck disable=SC2002
cat /proc/kallsyms | gzip | base64
