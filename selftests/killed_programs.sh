#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Programs are killed while they send and receive through rings:
# nothing is left behind.

. "$(dirname "$0")/lib.sh"

cycles=${CYCLES:-40}
# Kilobytes of vmalloc and of all free memory.
vmalloc() { sed -n 's/^VmallocUsed: *\([0-9]*\).*/\1/p' /proc/meminfo; }

# All have made their flows.
all_run() { [ "$(kopictl info --json | jq .flows)" -ge 10 ]; }

once() {
	local pids=() pid
	for port in $(seq 7001 7005); do
		kopi-echo --bind "127.0.0.1:$port" >/dev/null 2>&1 &
		pids+=($!)
		timeout 5 kopi-gen flood "127.0.0.1:$port" --seconds 5 --size 900 >/dev/null 2>&1 &
		pids+=($!)
	done
	wait_for all_run
	for pid in "${pids[@]}"; do kill -9 "$pid"; done
	wait "${pids[@]}" 2>/dev/null
}
once
wait_for unused
before_vmalloc=$(vmalloc) before_available=$(available)
for _ in $(seq $((cycles / 10))); do once; done
check "no user of the module is left" wait_for unused
same_vmalloc() { [ $(($(vmalloc) - before_vmalloc)) -lt 512 ]; }
check "vmalloc is back where it was" wait_for same_vmalloc
same_memory() { [ $((before_available - $(available))) -lt 16384 ]; }
check "memory is back where it was" wait_for same_memory
echo "# vmalloc $before_vmalloc to $(vmalloc), available $before_available to $(available) kB"
check "the module can go" rmmod kopi
check "and come back" insmod "$here/../build/$(uname -r)/kopi.ko"
finish
