#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# As rows.sh, but the few rows of `make bench-check`: for the machine of
# `qemu/vm --icount --nic void --nic joined`.

. "$(dirname "$0")/lib.sh"
set_up
failed=0
# Rows: sent OPTION..., received OPTION...
sent() { in_void kopi-bench send --nic void0 --local 198.18.0.0 "$@" || failed=1; }
received() { receive near far twin --payloads 64 "$@" || failed=1; }

sent --payloads 64 --modes sendmmsg,kopi_doorbell,kopi_gso_descs,kopi_gso
sent --payloads 1400 --modes kopi_doorbell,kopi_gso_descs
sent --payloads 64 --peers many --modes kopi_doorbell
received --modes kopi,kopi_gro,kopi_merged
in_near kopi-bench rtt --nic near0 --local 198.51.100.1 --far-netns /run/netns/far --far 198.51.100.2 \
	--modes kopi || failed=1
# By the driver.
in_void kopictl attach void0 || failed=1
sent --payloads 64 --modes kopi_direct,kopi_direct_gso
sent --payloads 64 --peers many --modes kopi_direct_datagrams
in_near kopictl attach near0 || failed=1
received --modes kopi_direct,kopi_direct_merged,kopi_direct_datagrams
received --peers many --modes kopi_direct_datagrams,serve_kopi_direct
exit $failed
