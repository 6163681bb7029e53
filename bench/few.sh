#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# As rows.sh, but the few rows of `make bench-check`: for the machine of
# `qemu/vm --icount --nic void --nic joined`.

. "$(dirname "$0")/lib.sh"
set_up
failed=0
in_void kopi-bench send --nic void0 --local 198.18.0.0 --payloads 64 \
	--modes sendmmsg,kopi_doorbell,kopi_train,kopi_gso || failed=1
in_void kopi-bench send --nic void0 --local 198.18.0.0 --payloads 1400 --modes kopi_doorbell,kopi_train || failed=1
in_void kopi-bench send --nic void0 --local 198.18.0.0 --payloads 64 --peers many --modes kopi_doorbell || failed=1
in_near kopi-bench recv --nic near0 --local 198.51.100.1 --far-netns /run/netns/far --far-nic far0 \
	--far 198.51.100.2 --void-netns /run/netns/twin --void-nic twin0 --payloads 64 \
	--modes kopi,kopi_train,kopi_merged || failed=1
in_near kopi-bench rtt --nic near0 --local 198.51.100.1 --far-netns /run/netns/far --far 198.51.100.2 \
	--modes kopi || failed=1
exit $failed
